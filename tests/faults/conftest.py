"""The lab that all faults are made in, watched by the outer tests, and mended after each inner run."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from guests import Guests, watched
from harness import Fault, Ran, Way, run_faults

from pytest_rdma.lab import Lab, obtain

collect_ignore = ["inner"]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "fault(...): described in inner/conftest.py, whose tests are read here")


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    with obtain(print) as booted:
        yield booted


@pytest.fixture(scope="session")
def way(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Way:
    return Way.to(lab, tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="session")
def guests(lab: Lab) -> Iterator[Guests]:
    with watched(lab) as found:
        yield found


Brings = Callable[[str], Ran]


@pytest.fixture(scope="session")
def brought_about(
    request: pytest.FixtureRequest,
    way: Way,
    guests: Guests,
    tmp_path_factory: pytest.TempPathFactory,
) -> Brings:
    """Run the faults of a file that this run asks for, once; then mend the guests."""
    done: dict[str, Ran] = {}
    wanted = [item.callspec.params["fault"] for item in request.session.items if "fault" in item.fixturenames]

    def run(file: str) -> Ran:
        if file not in done:
            faults: list[Fault] = [fault for fault in wanted if fault.file == file]
            try:
                done[file] = run_faults(way, tmp_path_factory.mktemp(file), faults)
                done[file].left.extend(guests.left())
            finally:
                guests.mend()
        return done[file]

    return run
