"""Echo over a connected RC pair: what one end sends comes back as it was, whole and in bounds."""

from __future__ import annotations

import pytest
from echo_loops import echo_back, post_receives, send_and_expect_back
from targets import BUFFER_BYTES, GUARD_BYTES, Direction, GuardedTarget

from pytest_rdma import Pair, WCOpcode


@pytest.mark.rdma_caps(buffer_bytes=BUFFER_BYTES)
def test_echo_returns_every_byte(direction: Direction, size_bytes: int) -> None:
    """Steps: post a receive at both ends; send a pattern; send back what arrived.

    Verify: the bytes and the guards at both targets, each completion by its wr_id, opcode and length.
    """
    source, target = direction.source, direction.target
    arrival = GuardedTarget(target.buffer, size_bytes)
    source.buffer.fill(1, GUARD_BYTES, size_bytes)
    received = target.post_recv(offset=GUARD_BYTES, length=size_bytes)
    sent = source.send(offset=GUARD_BYTES, length=size_bytes)
    (completion,) = target.wait(received)
    assert (completion.opcode, completion.byte_len) == (WCOpcode.RECV, size_bytes)
    arrival.verify(1)
    source.wait(sent)

    home = GuardedTarget(source.buffer, size_bytes)
    received = source.post_recv(offset=GUARD_BYTES, length=size_bytes)
    sent = target.send(offset=GUARD_BYTES, length=size_bytes)
    (completion,) = source.wait(received)
    assert (completion.opcode, completion.byte_len) == (WCOpcode.RECV, size_bytes)
    home.verify(1)
    target.wait(sent)


@pytest.mark.rdma_caps(send_depth=32, recv_depth=32, buffer_bytes=64 * 256)
def test_thousand_echoes_are_matched_by_wr_id(rdma_pair: Pair) -> None:
    """Steps: keep sixteen echoes in flight until a thousand are home, each end in a loop on its own host.

    Verify: each message by its own pattern, each completion by wr_id in whatever order the two queues report them.
    """
    count, in_flight = 1000, 16
    rdma_pair.peer.host.call(post_receives, rdma_pair.peer, 2 * in_flight)
    echoing = rdma_pair.peer.host.submit_call(echo_back, rdma_pair.peer, count, timeout_s=60)
    home = rdma_pair.local.host.call(send_and_expect_back, rdma_pair.local, count, in_flight, timeout_s=60)
    assert home == count
    assert echoing.result() == count


def test_short_message_reports_its_own_length(direction: Direction) -> None:
    """A receive larger than the message completes with the message's length; the rest of it stays as it was."""
    arrival = GuardedTarget(direction.target.buffer, 100)
    direction.source.buffer.fill(2, 0, 100)
    received = direction.target.post_recv(offset=GUARD_BYTES, length=4096)
    sent = direction.source.send(length=100)
    (completion,) = direction.target.wait(received)
    assert completion.byte_len == 100
    arrival.verify(2)
    direction.source.wait(sent)
