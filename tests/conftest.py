"""What all kinds of tests share."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
from hypothesis import settings

from pytest_rdma.plugin import configuration

settings.register_profile("gate", derandomize=True)  # to look further: --hypothesis-profile=default
settings.load_profile("gate")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the tests marked `full` to --rdma-full."""
    left_out = [item for item in items if item.get_closest_marker("full")]
    if left_out and not configuration(config).full.value:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


@pytest.fixture
def heeds_ctrl_c() -> Iterator[None]:
    """Heed SIGINT, here and in what is started from here: a run in the background of a script inherits it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
