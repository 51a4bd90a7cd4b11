"""Load the plugin from this tree where it is not installed, as on a lab guest with the distribution's pytest."""

from __future__ import annotations

import importlib

import pytest

pytest_plugins = ["pytester"]


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    if pluginmanager.hasplugin("rdma") or pluginmanager.is_blocked("rdma"):
        return
    plugin = importlib.import_module("pytest_rdma.plugin")
    if not pluginmanager.is_registered(plugin):
        pluginmanager.register(plugin, "rdma")
