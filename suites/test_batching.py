"""What a linked list of requests gains over posting one at a time, at 1 KiB: measured, not promised."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_rdma import Opcode, Pair, Pipeline

SIZE, DEPTH = 1 << 10, 128


@pytest.mark.rdma_caps(send_depth=DEPTH, recv_depth=512, buffer_bytes=64 * SIZE)
@pytest.mark.parametrize("batch", [1, 16, 64])
@pytest.mark.parametrize("op", [Opcode.SEND, Opcode.RDMA_WRITE], ids=lambda op: op.name)
def test_batching(rdma_pair: Pair, rdma_benchmark: Any, op: Opcode, batch: int) -> None:
    """Verify: requests were handed to the driver in lists as long as asked for."""
    spec = Pipeline(op, SIZE, duration_s=0.2, depth=DEPTH, batch=batch, signal_every=batch, split=True)
    measured = rdma_benchmark(rdma_pair, spec, rounds=3)
    for one in measured.rounds:
        assert one.messages / batch <= one.post_calls <= one.messages / batch + 2
        assert 0 < one.post_seconds < one.seconds
