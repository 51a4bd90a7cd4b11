"""The parameters that the suites share, and how they are combined.

A test that takes several of `size_bytes`, `direction`, `signaled`, `active_end` runs for a pairwise cover of them, and
of what its marker `combined(name=(value, ...))` adds; with --rdma-full for the whole product. Each test that takes
`trial` takes `active_end`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable

import pytest
from pairwise import pairwise_cover, whole_product
from targets import SIZES, Direction
from trials import TrialFactory

from pytest_rdma import Expectation, Pair
from pytest_rdma.plugin import configuration

SHARED: dict[str, Sequence[str]] = {
    "size_bytes": tuple(SIZES),
    "direction": ("local-to-peer", "peer-to-local"),
    "signaled": ("signaled", "unsignaled"),
    "active_end": ("local-to-peer", "peer-to-local"),
}


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "combined(name=(value, ...)): further parameters of the pairwise cover")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    parameters: dict[str, Sequence[Any]] = {
        name: values for name, values in SHARED.items() if name in metafunc.fixturenames
    }
    for marker in metafunc.definition.iter_markers("combined"):
        parameters.update(marker.kwargs)
    if parameters:
        combine = whole_product if configuration(metafunc.config).full.value else pairwise_cover
        shared = [name for name in parameters if name in SHARED]
        metafunc.parametrize(list(parameters), combine(parameters), indirect=shared, ids=_label)


def _label(value: Any) -> str:
    """Return what the name of a test shows of a value: numbers in hex."""
    if isinstance(value, tuple):
        return "/".join(_label(one) for one in value)
    return f"{value:#x}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


@pytest.fixture
def size_bytes(request: pytest.FixtureRequest, rdma_pair: Pair) -> int:
    """The size of a message: zero, around the path MTU of this pair, and large."""
    return SIZES[request.param](rdma_pair.attributes.mtu)


@pytest.fixture
def direction(request: pytest.FixtureRequest, rdma_pair: Pair) -> Direction:
    """Both directions of a pair."""
    if request.param == "local-to-peer":
        return Direction(rdma_pair.local, rdma_pair.peer)
    return Direction(rdma_pair.peer, rdma_pair.local)


@pytest.fixture
def signaled(request: pytest.FixtureRequest) -> bool:
    """Whether the request that is tested asks for a completion of its own."""
    return bool(request.param == "signaled")


@pytest.fixture
def active_end(request: pytest.FixtureRequest) -> str:
    """The end of a pair whose request fails: `local` or `peer`."""
    return str(request.param.partition("-")[0])


@pytest.fixture
def trial(rdma_pairs: Callable[..., Pair], rdma_expect: Expectation, active_end: str) -> TrialFactory:
    """Factory of trials: a pair that is going to fail, and a bystander that must not notice."""
    return TrialFactory(rdma_pairs, rdma_expect, active_end)
