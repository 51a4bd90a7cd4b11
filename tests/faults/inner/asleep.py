"""A call that sleeps in the kernel where not even SIGKILL ends it, and what becomes of the tests behind it."""

from __future__ import annotations

import on_host
import pytest
from green import sends_both_ways, wait_to_be_mended

from pytest_rdma import Host, Pair


def test_call_asleep_in_the_kernel(rdma_pair: Pair, rdma_peer: Host) -> None:
    rdma_peer.call(on_host.add_device_in_use, "rxe9", "other9")
    rdma_peer.call(on_host.delete_with_the_gil, "rxe9", timeout_s=0.5)


@pytest.mark.parametrize("number", range(2))
def test_blocked(rdma_pair: Pair, number: int) -> None:
    raise AssertionError("ran")


def test_is_mended() -> None:
    wait_to_be_mended()


def test_goes_on(rdma_pair: Pair) -> None:
    sends_both_ways(rdma_pair)
