"""What the runs with faults in them share: the marker that says what a test must bring about, and the way back.

After each test that is marked with `fault`, one runs that must pass: what broke there must not reach the next test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from green import Break

from pytest_rdma import Host, Pair


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "fault(cause, words='', bound_s=10.0, full=False): fails with this cause, in this time"
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the test that must pass, of which there is one for each fault, right behind its fault."""
    greens = {item.callspec.params["after"]: item for item in items if item.originalname == "test_green"}
    items[:] = [
        one
        for item in items
        if item.originalname != "test_green"
        for one in (item, *([greens[item.name]] if item.name in greens else []))
    ]


@pytest.fixture(autouse=True)
def broken() -> Iterator[Break]:
    """Factory: `broken(host, breaking, mending)` runs a command line, and the other one after the pairs are closed.

    The report must find the host as the test did. A row of the GID table whose address goes is held by the QPs that use
    it, so that the address would get another row if it came back before they are closed. What cannot be mended by the
    agent, because it is no more, the outer test mends.
    """
    mending: list[tuple[Host, list[str]]] = []

    def breaks(host: Host, breaking: list[str], mended_by: list[str], input: bytes = b"") -> None:
        mending.append((host, mended_by))
        done = host.run(breaking, input=input)
        assert done.returncode == 0, done.stderr

    yield breaks
    for host, command in reversed(mending):
        host.run(command)


@pytest.fixture
def quick(rdma_pairs: Callable[..., Pair]) -> Callable[..., Pair]:
    """Factory of pairs whose local end gives up within a fifth of a second, times what is forged besides."""

    def make(local: dict[str, object] | None = None, peer: dict[str, object] | None = None, **caps: object) -> Pair:
        forged = {"ack_timeout": 13, "retry_count": 3, "rnr_retry": 1, **(local or {})}
        return rdma_pairs(overrides={"local": forged, "peer": {"min_rnr_timer": 1, **(peer or {})}}, **caps)

    return make
