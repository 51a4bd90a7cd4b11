"""Send: what one end sends arrives once, whole and in order, in the receives that the other has posted.

InfiniBand specification, volume 1, sections 9.4.1 (Send) and 10.8.3 (work requests and their completions).
"""

from __future__ import annotations

import pytest
from targets import BUFFER_BYTES, GUARD_BYTES, Direction, GuardedTarget, assert_quiet, finish

from pytest_rdma import Opcode, Pair, RecvWR, SendWR, WCOpcode

SLOT_BYTES = 4096
MESSAGES = 16


@pytest.mark.rdma_caps(buffer_bytes=BUFFER_BYTES)
def test_send_delivers_every_byte_once(direction: Direction, size_bytes: int, signaled: bool) -> None:
    """Steps: post two receives, send one message. Verify: bytes, guards, completions; the second receive is left."""
    source, target = direction.source, direction.target
    arrival = GuardedTarget(target.buffer, size_bytes)
    source.buffer.fill(1, 0, size_bytes)
    received, spare = (target.post_recv(offset=GUARD_BYTES, length=size_bytes) for _ in range(2))
    sent = source.send(length=size_bytes, signaled=signaled)
    (completion,) = target.wait(received)
    assert (completion.opcode, completion.byte_len, completion.imm) == (WCOpcode.RECV, size_bytes, None)
    assert spare != received
    finish(source, sent, WCOpcode.SEND, signaled)
    arrival.verify(1)
    assert_quiet(source, target)


@pytest.mark.rdma_caps(buffer_bytes=SLOT_BYTES * MESSAGES, send_depth=MESSAGES, recv_depth=MESSAGES)
def test_messages_arrive_in_the_order_sent(direction: Direction) -> None:
    """Steps: sixteen messages of as many lengths in one list. Verify: the n-th receive holds the n-th message."""
    source, target = direction.source, direction.target
    lengths = [1 + 255 * n for n in range(MESSAGES)]
    for n in range(MESSAGES):
        source.buffer.fill(n, n * SLOT_BYTES, SLOT_BYTES)
    target.post_recvs(
        [RecvWR((target.buffer.sge(n * SLOT_BYTES, SLOT_BYTES),), wr_id=100 + n) for n in range(MESSAGES)]
    )
    source.post(
        [SendWR(Opcode.SEND, (source.buffer.sge(n * SLOT_BYTES, length),), wr_id=n) for n, length in enumerate(lengths)]
    )
    completions = target.poll(MESSAGES)
    assert [one.wr_id for one in completions] == [100 + n for n in range(MESSAGES)]
    assert [one.byte_len for one in completions] == lengths
    for n, length in enumerate(lengths):
        target.buffer.verify(n, n * SLOT_BYTES, length)
        target.buffer.check_untouched(0, n * SLOT_BYTES + length, SLOT_BYTES - length)
    assert [one.wr_id for one in source.poll(MESSAGES)] == list(range(MESSAGES))


def test_only_signaled_sends_complete(direction: Direction) -> None:
    """Steps: nine unsignaled sends and a signaled one. Verify: ten arrive, one completes here."""
    source, target = direction.source, direction.target
    receives = [target.post_recv(length=64) for _ in range(10)]
    for _ in range(9):
        source.send(length=8, signaled=False)
    last = source.send(length=8)
    target.wait(*receives)
    (completion,) = source.wait(last)
    assert completion.opcode == WCOpcode.SEND
    assert_quiet(source, target)


@pytest.mark.rdma_caps(signal_all=True)
def test_a_queue_that_signals_all_completes_unsignaled_sends(direction: Direction) -> None:
    source, target = direction.source, direction.target
    received = target.post_recv(length=64)
    sent = source.send(length=8, signaled=False)
    assert source.wait(sent)[0].opcode == WCOpcode.SEND
    target.wait(received)


def test_both_ends_send_at_once(rdma_pair: Pair) -> None:
    """Steps: both ends post eight sends before either looks. Verify: each end has the other's messages, in order."""
    local, peer = rdma_pair.local, rdma_pair.peer
    receives = {end: [end.post_recv(offset=1000 * n, length=1000) for n in range(8)] for end in (local, peer)}
    for seed, end in ((1, local), (2, peer)):
        end.buffer.fill(seed, 32768, 8000)
    sends = {end: [end.send(offset=32768 + 1000 * n, length=1000) for n in range(8)] for end in (local, peer)}
    for seed, end in ((2, local), (1, peer)):
        end.wait(*receives[end], *sends[end])
        end.buffer.verify(seed, 0, 8000)
