"""The fixtures that the suites share: the sizes and the two directions."""

from __future__ import annotations

from typing import Callable

import pytest
from targets import LARGEST_BYTES, Direction

from pytest_rdma import Pair

SIZES: dict[str, Callable[[int], int]] = {
    "0": lambda mtu: 0,
    "1": lambda mtu: 1,
    "MTU-1": lambda mtu: mtu - 1,
    "MTU": lambda mtu: mtu,
    "MTU+1": lambda mtu: mtu + 1,
    "2MTU+1": lambda mtu: 2 * mtu + 1,
    "64KiB": lambda mtu: 64 << 10,
    "1MiB": lambda mtu: LARGEST_BYTES,
}


@pytest.fixture(params=SIZES)
def size_bytes(request: pytest.FixtureRequest, rdma_pair: Pair) -> int:
    """The size of a message: zero, around the path MTU of this pair, and large."""
    return SIZES[request.param](rdma_pair.attributes.mtu)


@pytest.fixture(params=["local-to-peer", "peer-to-local"])
def direction(request: pytest.FixtureRequest, rdma_pair: Pair) -> Direction:
    """Both directions of a pair."""
    if request.param == "local-to-peer":
        return Direction(rdma_pair.local, rdma_pair.peer)
    return Direction(rdma_pair.peer, rdma_pair.local)
