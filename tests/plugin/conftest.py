"""Runs of pytest inside pytest, with no RDMA option from around."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(autouse=True)
def no_rdma_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("RDMA_")]:
        monkeypatch.delenv(name)
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)


@pytest.fixture
def without_libraries(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make paramiko and pyverbs impossible to import in the runs of this test."""
    for name in ("paramiko", "pyverbs"):
        pytester.makepyfile(**{f"blocked/{name}/__init__": f"raise ImportError('{name} is blocked')"})
    monkeypatch.setenv("PYTHONPATH", str(pytester.path / "blocked"), prepend=os.pathsep)
