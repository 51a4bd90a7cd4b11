"""Hooks: options, markers, the header, skips, JUnit properties. Without RDMA options nothing heavy is imported."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from pytest_rdma.config import OPTIONS, RdmaConfig, resolve
from pytest_rdma.errors import DeviceBusyError, RdmaEnvironmentError, RdmaError, RdmaUsageError

if TYPE_CHECKING:
    from pytest_rdma.model import EndpointCaps
    from pytest_rdma.session import RdmaSession

MARKERS = (
    "rdma_caps(**capabilities): what the endpoints of this test's pair can do, by the names of EndpointCaps: "
    "send_depth, recv_depth, send_sges, recv_sges, inline_bytes, buffer_bytes, access, qp_access, signal_all, events. "
    "The marker closest to the test wins, name by name.",
    "rdma_requires(*names, **minimums): skip this test unless the devices of both ends have these capabilities "
    "(atomics, srq, memory_windows, ...) and at least these limits of ibv_query_device(3) (max_sge=4, ...).",
)
NEEDS_HOSTS = frozenset(
    f"rdma_{name}" for name in ("local", "peer", "device", "context", "pd", "mr", "cq", "qp", "pair", "pairs")
)
READY = "_rdma_ready"
HOW_TO_GET_A_DEVICE = (
    "name one with --rdma-device, or a host that has one with --rdma-host, or use the Soft-RoCE lab: --rdma-lab"
)
NOT_RUNNING = ("collectonly", "showfixtures", "show_fixtures_per_test", "setupplan", "help", "markers", "cacheshow")

CONFIG = pytest.StashKey[RdmaConfig]()
SESSION = pytest.StashKey["RdmaSession"]()
FAILED = pytest.StashKey[bool]()
USED = pytest.StashKey["RdmaSession"]()


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
    if config.getoption("help", False):
        return
    ini_file = config.inipath.name if config.inipath else "ini file"
    try:
        found = resolve(vars(config.option), os.environ, lambda key: str(config.getini(key)), ini_file)
    except RdmaUsageError as error:
        raise pytest.UsageError(str(error)) from None
    config.stash[CONFIG] = found
    if found.lab.value and connects_early(config):
        session(config).start_lab()


def configuration(config: pytest.Config) -> RdmaConfig:
    """Return what the options, the environment and the ini file say."""
    return config.stash[CONFIG]


def is_worker(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")


def connects_early(config: pytest.Config) -> bool:
    """Whether this process connects before the first test: a host or device was named, and tests will run here."""
    return (
        configuration(config).asked
        and not is_worker(config)
        and not any(config.getoption(name, False) for name in NOT_RUNNING)
    )


# -- the session


def session(config: pytest.Config) -> RdmaSession:
    """Return the one session of this run; nothing is opened yet."""
    if SESSION not in config.stash:
        from pytest_rdma.session import LabFacts, RdmaSession

        shared: dict[str, Any] = getattr(config, "workerinput", {}).get("rdma", {})
        lab = LabFacts.from_plain(shared["lab"]) if shared.get("lab") else None
        config.stash[SESSION] = RdmaSession(configuration(config), shared.get("run_id"), lab)
    return config.stash[SESSION]


def connect(config: pytest.Config) -> RdmaSession:
    """Open hosts and rail before the first test; what the user must mend ends the run with one line."""
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
    from pytest_rdma import report

    opened = connect(config)
    return report.header(opened, verbose=config.getoption("verbose") > 0)


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Connect where no header did, under -q or --no-header."""
    if connects_early(session.config):
        connect(session.config)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Hand to a worker of pytest-xdist which run it belongs to, and the lab, which the controller boots."""
    config: pytest.Config = node.config
    shared: dict[str, Any] = {"run_id": session(config).run_id, "lab": None}
    if connects_early(config) and configuration(config).lab.value:
        connect(config)
        shared["lab"] = session(config).lab().to_plain()
    node.workerinput["rdma"] = shared


def pytest_unconfigure(config: pytest.Config) -> None:
    if SESSION not in config.stash:
        return
    opened = config.stash[SESSION]
    del config.stash[SESSION]
    try:
        opened.close()
    except Exception as error:  # the verdict of the run stands, whatever closing brings
        _note(config)(f"closing failed: {error}")


# -- markers


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Check our markers, and have the hosts made ready before any other fixture of a test that needs them."""
    for item in items:
        needs_hosts = not NEEDS_HOSTS.isdisjoint(getattr(item, "fixturenames", ()))
        if any(marker.name.startswith("rdma_") for marker in item.iter_markers()):
            _check_markers(item)
            needs_hosts = needs_hosts or item.get_closest_marker("rdma_requires") is not None
        if needs_hosts and isinstance(item, pytest.Function) and READY not in item.fixturenames:
            item.fixturenames.insert(0, READY)


def _check_markers(item: pytest.Item) -> None:
    from pytest_rdma.capabilities import check_names

    try:
        marked_caps(item)
        check_names(*_required(item))
    except RdmaUsageError as error:
        raise pytest.UsageError(f"{item.nodeid}: {error}") from None


def marked_caps(item: pytest.Item) -> EndpointCaps:
    """Return the capabilities of the test's `rdma_caps` markers; the closest marker wins, name by name."""
    from pytest_rdma.model import EndpointCaps

    changes: dict[str, Any] = {}
    for marker in item.iter_markers("rdma_caps"):
        if marker.args:
            raise RdmaUsageError(f"rdma_caps takes keywords only, not {marker.args[0]!r}")
        changes = {**marker.kwargs, **changes}
    unknown = [name for name in changes if name not in EndpointCaps.__dataclass_fields__]
    if unknown:
        known = ", ".join(EndpointCaps.__dataclass_fields__)
        raise RdmaUsageError(f"rdma_caps knows no {unknown[0]!r}; names are {known}")
    return EndpointCaps(**changes)


def _required(item: pytest.Item) -> tuple[tuple[str, ...], dict[str, int]]:
    """Return names and minimums of the test's `rdma_requires` markers; for a minimum the closest marker wins."""
    names: list[str] = []
    minimums: dict[str, int] = {}
    for marker in item.iter_markers("rdma_requires"):
        names += [name for name in marker.args if name not in names]
        minimums = {**marker.kwargs, **minimums}
    return tuple(names), minimums


# -- each test


def prepare(item: pytest.Item, opened: RdmaSession) -> None:
    """Make the hosts ready for the test, note what it runs on, and skip it when they lack what it requires."""
    from pytest_rdma import report

    item.stash[USED] = opened
    try:
        opened.prepare(item.nodeid)
    except RdmaError as error:
        _give_up(item.config, opened, error)
    item.user_properties += report.properties(opened)
    reason = report.lacking(opened, *_required(item))
    if reason:
        skip(item.config, reason)


def open_session(config: pytest.Config, wanted: RdmaConfig) -> RdmaSession:
    """Return the run's session for `wanted`, which a user's own rdma_config may have changed, opened."""
    opened = session(config)
    try:
        opened = opened.for_config(wanted)
        opened.rail()
    except RdmaError as error:
        _give_up(config, opened, error)
    return opened


def _give_up(config: pytest.Config, opened: RdmaSession, error: RdmaError) -> NoReturn:
    """Skip when no device was asked for and there is none, fail otherwise, in one line."""
    lacks_device = isinstance(error, RdmaEnvironmentError) and not isinstance(error, DeviceBusyError)
    if lacks_device and not opened.config.asked:
        skip(config, f"no RDMA device: {error}; {HOW_TO_GET_A_DEVICE}")
    pytest.fail(f"rdma: {error}", pytrace=False)


def skip(config: pytest.Config, reason: str) -> NoReturn:
    """Skip the test, or fail it under --rdma-strict."""
    if configuration(config).strict.value:
        pytest.fail(f"{reason} (--rdma-strict fails what would be skipped)", pytrace=False)
    pytest.skip(reason)


def has_failed(item: pytest.Item) -> bool:
    return item.stash.get(FAILED, False)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, None]:
    outcome = yield
    opened = item.stash.get(USED, None)
    if opened is None or call.excinfo is None:
        return
    made = outcome.get_result()
    if made.failed:
        from pytest_rdma import report

        item.stash[FAILED] = True
        made.sections += report.sections(opened, call.excinfo.value)
