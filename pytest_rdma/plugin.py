"""Hooks of a whole run: options, header, connecting, closing. What goes on around each RDMA test is in `running`.

Without RDMA options and RDMA tests nothing heavy is imported.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from pytest_rdma.options import OPTIONS

if TYPE_CHECKING:
    from pytest_rdma.config import RdmaConfig
    from pytest_rdma.session import RdmaSession

MARKERS = (
    "rdma_caps(**capabilities): what the endpoints of this test's pair can do, by the names of EndpointCaps: "
    "send_depth, recv_depth, send_sges, recv_sges, inline_bytes, buffer_bytes, access, qp_access, signal_all, events. "
    "The marker closest to the test wins, name by name.",
    "rdma_requires(*names, **minimums): skip this test unless the devices of both ends have these capabilities "
    "(atomics, srq, memory_windows, ...) and at least these limits of ibv_query_device(3) (max_sge=4, ...).",
    "rdma_counters(**limits): fail this test, if it passes otherwise, when a counter of either device grew by more "
    "than its limit: retransmissions, out_of_sequence, sequence_errors, rnr_naks, drops, or any that the device has. "
    "The devices must be idle but for the tests. The marker closest to the test wins over others and over "
    "--rdma-counters, name by name.",
)
NEEDS_HOSTS = frozenset(
    f"rdma_{name}" for name in ("local", "peer", "device", "context", "pd", "mr", "cq", "qp", "pair", "pairs", "expect")
)
AROUND_TESTS = ("explaining", "gates", "losses")
"""Modules with hooks around each RDMA test, beside `running`."""

NOT_RUNNING = ("collectonly", "showfixtures", "show_fixtures_per_test", "setupplan", "help", "markers", "cacheshow")

CONFIG = pytest.StashKey["RdmaConfig"]()
SESSION = pytest.StashKey["RdmaSession"]()


# -- options and configuration


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("rdma", "RDMA (each option is also an ini key and an environment variable of its name)")
    for option in OPTIONS:
        shape: dict[str, Any] = {"metavar": option.metavar} if option.metavar else {"action": "store_true"}
        text = f"{option.help} Default: {option.default}."
        group.addoption(*option.flags, dest=f"rdma_{option.name}", default=None, help=text, **shape)
        parser.addini(option.ini, f"Same as {option.flag}.", type="string", default="")


def pytest_configure(config: pytest.Config) -> None:
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)
    from pytest_rdma import fixtures

    config.pluginmanager.register(fixtures, "rdma-fixtures")
    if config.getoption("help", False) or not _anything_given(config):
        return
    if configuration(config).lab.value and connects_early(config):
        session(config).start_lab()


def _anything_given(config: pytest.Config) -> bool:
    return any(
        getattr(config.option, f"rdma_{option.name}", None) is not None
        or os.environ.get(option.variable)
        or config.getini(option.ini)
        for option in OPTIONS
    )


def configuration(config: pytest.Config) -> RdmaConfig:
    """Return what the options, the environment and the ini file say; what is wrong in them ends the run."""
    if CONFIG not in config.stash:
        from pytest_rdma.config import resolve
        from pytest_rdma.errors import RdmaUsageError

        ini_file = config.inipath.name if config.inipath else "ini file"
        try:
            found = resolve(vars(config.option), os.environ, lambda key: str(config.getini(key)), ini_file)
        except RdmaUsageError as error:
            raise pytest.UsageError(str(error)) from None
        config.stash[CONFIG] = found
    return config.stash[CONFIG]


def is_worker(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")


def connects_early(config: pytest.Config) -> bool:
    """Whether this process connects before the first test: a host or device was named, and tests will run here."""
    return (
        _anything_given(config)
        and configuration(config).asked
        and not is_worker(config)
        and not any(config.getoption(name, False) for name in NOT_RUNNING)
    )


# -- the session


def session(config: pytest.Config) -> RdmaSession:
    """Return the one session of this run; nothing is opened yet."""
    if SESSION not in config.stash:
        from _pytest.faulthandler import fault_handler_stderr_fd_key

        from pytest_rdma.session import LabFacts, RdmaSession

        worker: dict[str, Any] = getattr(config, "workerinput", {})
        shared = worker.get("rdma", {"run_id": worker.get("testrunuid"), "lab": None})
        lab = LabFacts.from_plain(shared["lab"]) if shared["lab"] else None
        config.stash[SESSION] = RdmaSession(configuration(config), shared["run_id"], lab)
        config.stash[SESSION].stderr = config.stash.get(fault_handler_stderr_fd_key, 2)  # the one before capturing
    return config.stash[SESSION]


def connect(config: pytest.Config) -> RdmaSession:
    """Open hosts and rail before the first test; what the user must mend ends the run with one line."""
    from pytest_rdma.errors import RdmaError

    opened = session(config)
    opened.note = _note(config)
    try:
        opened.rail()
    except RdmaError as error:
        raise pytest.UsageError(f"rdma: {error}") from None
    return opened


def _note(config: pytest.Config) -> Callable[[str], None]:
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    return lambda line: reporter.write_line(f"rdma: {line}") if reporter else None


def pytest_report_header(config: pytest.Config) -> list[str] | None:
    if not connects_early(config):
        return None
    from pytest_rdma import gates, report

    opened = connect(config)
    return [*report.header(opened, verbose=config.getoption("verbose") > 0), *gates.header(opened)]


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Connect where no header did, under -q or --no-header."""
    if connects_early(session.config):
        from pytest_rdma import gates

        gates.check_option(connect(session.config), session.config)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Hand to a worker of pytest-xdist which run it belongs to, and the lab, which the controller boots."""
    config: pytest.Config = node.config
    bring_in_running(config)
    if connects_early(config):
        opened = connect(config)
        lab = opened.lab().to_plain() if opened.config.lab.value else None
        node.workerinput["rdma"] = {"run_id": opened.run_id, "lab": lab}


def pytest_unconfigure(config: pytest.Config) -> None:
    if SESSION not in config.stash:
        return
    opened = config.stash[SESSION]
    del config.stash[SESSION]
    try:
        opened.close()
    except Exception as error:  # the verdict of the run stands, whatever closing brings
        _note(config)(f"closing failed: {error}")


# -- tests


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Bring the hooks for RDMA tests in where there are such tests, so that others pay nothing for them."""
    chosen = [item for item in items if _concerns_us(item)]
    if chosen:
        running = bring_in_running(config)
        for item in chosen:
            running.adopt(item)


def bring_in_running(config: pytest.Config) -> ModuleType:
    """Register the hooks around each test, once, and return their module."""
    from pytest_rdma import running

    if not config.pluginmanager.is_registered(running):
        config.pluginmanager.register(running, "rdma-running")
        names = AROUND_TESTS if config.getoption("fulltrace", False) else (*AROUND_TESTS, "interrupting")
        for name in names:
            config.pluginmanager.register(importlib.import_module(f"pytest_rdma.{name}"), f"rdma-{name}")
    return running


def _concerns_us(item: pytest.Item) -> bool:
    return not NEEDS_HOSTS.isdisjoint(getattr(item, "fixturenames", ())) or any(
        marker.name in ("rdma_caps", "rdma_requires", "rdma_counters") for marker in item.iter_markers()
    )
