"""Receives that are missing, too short or in bad memory, and completions that cannot come."""

from __future__ import annotations

from dataclasses import replace

import pytest
from green import ENDLESS_RNR, Quick, green_after

from pytest_rdma import Access, Opcode, RecvWR, SendWR


@pytest.mark.fault("no-receive-posted", bound_s=5)
def test_no_receive_posted(quick: Quick) -> None:
    local = quick().local
    local.wait(local.send(length=64))


@pytest.mark.fault("no-receive-posted", bound_s=5)
def test_no_receive_and_endless_rnr_retries(quick: Quick) -> None:
    local = quick(ENDLESS_RNR).local
    local.wait(local.send(length=64), timeout_s=0.5)


@pytest.mark.fault("receive-too-short", bound_s=5)
def test_receive_too_short_at_the_sender(quick: Quick) -> None:
    pair = quick()
    pair.peer.post_recv(length=64)
    pair.local.wait(pair.local.send(length=65))


@pytest.mark.fault("receive-too-short", bound_s=5)
def test_receive_too_short_at_the_receiver(quick: Quick) -> None:
    pair = quick()
    received = pair.peer.post_recv(length=64)
    pair.local.send(length=65)
    pair.peer.wait(received)


@pytest.mark.fault("own-lkey-unknown", bound_s=5)
def test_receive_with_a_wrong_lkey(quick: Quick) -> None:
    pair = quick()
    sge = pair.peer.buffer.sge(0, 64)
    pair.peer.post_raw(RecvWR((replace(sge, lkey=sge.lkey ^ 0xFFFF00),), wr_id=9))
    pair.local.wait(pair.local.send(length=64))


@pytest.mark.fault("own-mr-without-local-write", bound_s=5)
def test_receive_without_local_write(quick: Quick) -> None:
    pair = quick()
    sink = pair.peer.host.mr(pair.peer.pd, 4096, Access.NONE)
    pair.peer.post_raw(RecvWR((sink.sge(0, 64),), wr_id=9))
    pair.local.wait(pair.local.send(length=64))


@pytest.mark.fault("unsignaled-awaited", bound_s=5)
def test_unsignaled_request_awaited(quick: Quick) -> None:
    local = quick().local
    local.wait(local.write(length=64, signaled=False), timeout_s=0.3)


@pytest.mark.fault("unsignaled-awaited", bound_s=5)
def test_unsignaled_request_polled_for(quick: Quick) -> None:
    local = quick().local
    local.post_raw(SendWR(Opcode.RDMA_WRITE, (local.buffer.sge(0, 8),), 5, False, **aim(local)))
    local.poll(1, timeout_s=0.3)


def aim(local) -> dict[str, int]:
    return {"remote_addr": local.remote.addr, "rkey": local.remote.rkey}


@pytest.mark.fault("no-completion-possible", bound_s=5)
def test_completion_awaited_at_the_target_of_a_plain_write(quick: Quick) -> None:
    pair = quick()
    received = pair.peer.post_recv()
    pair.local.wait(pair.local.write(length=64))
    pair.peer.wait(received, timeout_s=0.3)


@pytest.mark.fault("no-completion-possible", bound_s=5)
def test_completion_awaited_where_nothing_was_posted(quick: Quick) -> None:
    quick().peer.poll(1, timeout_s=0.3)


test_green = green_after(__name__)
