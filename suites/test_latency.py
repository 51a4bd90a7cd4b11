"""Latency of Send, Write, Read and fetch-and-add, one message under way (InfiniBand specification, chapters 9-11).

Of Send and Write half of a round trip is told, of Read and atomics the whole.
"""

from __future__ import annotations

from typing import Any

import pytest

from pytest_rdma import Access, Opcode, Pair, PingPong

SECONDS = 0.2


def check(measured: Any, size: int) -> None:
    for one in measured.rounds:
        assert one.latency.count == one.messages > 0
        assert 0 < one.latency.min_ns <= one.latency.mean_ns <= one.latency.max_ns
        assert one.bytes == one.messages * size


@pytest.mark.rdma_caps(buffer_bytes=1 << 18)
@pytest.mark.parametrize("size", [2, 1 << 10, 64 << 10])
@pytest.mark.parametrize("op", [Opcode.SEND, Opcode.RDMA_WRITE, Opcode.RDMA_READ], ids=lambda op: op.name)
def test_latency(rdma_pair: Pair, rdma_benchmark: Any, op: Opcode, size: int) -> None:
    """Verify: every message was answered once and timed once."""
    check(rdma_benchmark(rdma_pair, PingPong(op, size, duration_s=SECONDS), rounds=3), size)


@pytest.mark.rdma_requires("atomics")
@pytest.mark.rdma_caps(access=Access.ALL)
def test_latency_of_fetch_and_add(rdma_pair: Pair, rdma_benchmark: Any) -> None:
    """Verify: the target counted every operation, of warm-up and rounds."""
    spec = PingPong(Opcode.ATOMIC_FETCH_AND_ADD, 8, duration_s=SECONDS)
    measured = rdma_benchmark(rdma_pair, spec, rounds=3, warmup_rounds=0)
    check(measured, 8)
    counted = int.from_bytes(rdma_pair.peer.buffer.read(spec.target_offset, 8), "little")
    assert counted == sum(one.messages for one in measured.rounds)
