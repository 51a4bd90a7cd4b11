"""One test that waits for what never comes, while its controller is interrupted, stopped or killed from outside."""

from __future__ import annotations

from pathlib import Path

from pytest_rdma import Pair


def test_waits(rdma_pair: Pair) -> None:
    Path("waiting").touch()
    rdma_pair.local.poll(timeout_s=100)


def test_waits_a_little(rdma_pair: Pair) -> None:
    Path("waiting").touch()
    assert rdma_pair.local.poll(timeout_s=1.5, exactly=False) == []
    rdma_pair.local.wait(rdma_pair.local.write(length=64))
