"""A device that goes with the agent that has it open, and that is back later in the run."""

from __future__ import annotations

import signal
from collections.abc import Callable

import on_host
import pytest
from green import sends_both_ways, wait_to_be_mended

from pytest_rdma import Host, Pair
from pytest_rdma.errors import HostLostError


def lose_device(pair: Pair) -> None:
    """Have the peer's device deleted, for which Soft-RoCE waits until nobody has it open, and end who has."""
    host = pair.peer.host
    host.call(on_host.begin_to_delete, pair.peer.device, 5.0 * host.timeout_scale)
    sends_both_ways(pair)
    host.call(on_host.signal_self, int(signal.SIGKILL))


def test_device_goes_with_its_agent(rdma_pair: Pair) -> None:
    lose_device(rdma_pair)


@pytest.mark.parametrize("number", range(2))
def test_blocked(rdma_pair: Pair, number: int) -> None:
    raise AssertionError("ran")


def test_is_mended() -> None:
    wait_to_be_mended()


@pytest.mark.parametrize("number", range(2))
def test_goes_on(rdma_pair: Pair, number: int) -> None:
    sends_both_ways(rdma_pair)


def test_device_is_missed(rdma_pair: Pair, rdma_pairs: Callable[..., Pair], rdma_peer: Host) -> None:
    """A test that goes on with another agent by itself."""
    with pytest.raises(HostLostError):
        lose_device(rdma_pair)
    rdma_peer.ensure()
    rdma_pairs()
