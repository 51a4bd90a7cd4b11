"""Queues that are full."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from green import ENDLESS_RNR, Quick, green_after

from pytest_rdma import Opcode, Pair, SendWR


def write(pair: Pair) -> SendWR:
    target = pair.peer.buffer
    return SendWR(Opcode.RDMA_WRITE, (pair.local.buffer.sge(0, 8),), remote_addr=target.addr, rkey=target.rkey)


@pytest.mark.fault("cq-overrun", bound_s=5)
def test_cq_overrun(rdma_pairs: Quick, rdma_cq: Callable[..., object]) -> None:
    cq = rdma_cq(depth=2)
    pair = rdma_pairs(shared={"local": {"cq": cq}}, send_depth=16)
    pair.local.post_raw([replace(write(pair), wr_id=number) for number in range(cq.depth + 3)])
    pair.local.wait(cq.depth + 2, timeout_s=0.5)


@pytest.mark.fault("send-queue-full", bound_s=5)
def test_send_queue_full(quick: Quick) -> None:
    """Nothing is ever polled, and nobody receives."""
    local = quick(ENDLESS_RNR, send_depth=16).local
    for _ in range(16 * local.caps.send_depth):
        local.send(length=8)


@pytest.mark.fault("send-queue-full", bound_s=5)
def test_send_queue_full_by_raw_posts(quick: Quick) -> None:
    local = quick(ENDLESS_RNR, send_depth=16).local
    request = SendWR(Opcode.SEND, (local.buffer.sge(0, 8),))
    local.post_raw([replace(request, wr_id=number) for number in range(16 * local.caps.send_depth)])


test_green = green_after(__name__)
