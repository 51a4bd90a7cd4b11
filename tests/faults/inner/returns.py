"""A device that goes with the agent that has it open, and that is back later in the run."""

from __future__ import annotations

import signal

import on_host
import pytest
from green import sends_both_ways, wait_to_be_mended

from pytest_rdma import Host, Pair


def test_device_goes_with_its_agent(rdma_pair: Pair, rdma_peer: Host) -> None:
    """Soft-RoCE deletes it when nobody has it open any more."""
    limit_s = 5.0 * rdma_peer.timeout_scale
    rdma_peer.call(on_host.begin_to_delete, rdma_pair.peer.device, limit_s)
    sends_both_ways(rdma_pair)
    rdma_peer.call(on_host.signal_self, int(signal.SIGKILL))


@pytest.mark.parametrize("number", range(2))
def test_blocked(rdma_pair: Pair, number: int) -> None:
    raise AssertionError("ran")


def test_is_mended() -> None:
    wait_to_be_mended()


@pytest.mark.parametrize("number", range(2))
def test_goes_on(rdma_pair: Pair, number: int) -> None:
    sends_both_ways(rdma_pair)
