"""Runs of pytest inside pytest, with no RDMA option from around."""

from __future__ import annotations

import os
import sys

import pytest

from pytest_rdma import host, running

PRELOADED = (running, host.LocalHost())
"""What a run imports later than the plugin itself: pytester forgets after each run what was imported in it."""

OTHER_PLUGINS = ("benchmark", "cacheprovider", "hypothesispytest", "xdist", "xdist.looponfail")
"""What the runs here do without, for each plugin is imported anew in each run."""


@pytest.fixture(autouse=True)
def plain_environment(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("RDMA_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PYTEST_ADDOPTS", " ".join(f"-p no:{name}" for name in OTHER_PLUGINS))


@pytest.fixture
def without_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make paramiko and pyverbs impossible to import in this test."""
    for name in ("paramiko", "pyverbs"):
        monkeypatch.setitem(sys.modules, name, None)
