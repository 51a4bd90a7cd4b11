"""What happens around each test that uses RDMA: markers, skips, hosts made ready, properties, failure reports."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, NoReturn

import pytest
from _pytest.outcomes import Skipped

from pytest_rdma import plugin, report
from pytest_rdma.capabilities import check_names
from pytest_rdma.counters import marked_limits
from pytest_rdma.errors import BlockedError, DeviceBusyError, RdmaEnvironmentError, RdmaError, RdmaUsageError
from pytest_rdma.losses import Blocked, block
from pytest_rdma.model import EndpointCaps

if TYPE_CHECKING:
    from pytest_rdma.config import RdmaConfig
    from pytest_rdma.session import RdmaSession

READY = "_rdma_ready"
WAYS_TO_A_DEVICE = "RDMA tests run with --rdma-device, --rdma-host or --rdma-lab"

MISTAKE = pytest.StashKey[str]()
FAILED = pytest.StashKey[bool]()
USED = pytest.StashKey["RdmaSession"]()


class LacksDevice(Skipped):
    """The skip of every RDMA test where there is no device and none was asked for."""


# -- markers


def adopt(item: pytest.Item) -> None:
    """Check our markers on the test, and have the hosts made ready before any other of its fixtures."""
    try:
        marked_caps(item)
        check_names(*required(item))
        marked_limits(item)
    except RdmaUsageError as error:
        if not plugin.is_worker(item.config):
            raise pytest.UsageError(f"{item.nodeid}: {error}") from None
        item.stash[MISTAKE] = str(error)  # a worker that ends while collecting brings pytest-xdist down unexplained
    if isinstance(item, pytest.Function) and needs_hosts(item):
        names = item.fixturenames
        names[:] = [READY, *(name for name in names if name != READY)]


def needs_hosts(item: pytest.Function) -> bool:
    return not plugin.NEEDS_HOSTS.isdisjoint(item.fixturenames) or item.get_closest_marker("rdma_requires") is not None


def marked_caps(item: pytest.Item) -> EndpointCaps:
    """Return the capabilities of the test's `rdma_caps` markers; the closest marker wins, name by name."""
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


def required(item: pytest.Item) -> tuple[tuple[str, ...], dict[str, int]]:
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
    item.stash[USED] = opened
    try:
        opened.prepare(item.nodeid)
    except BlockedError as error:
        block(item, error)
    except RdmaError as error:
        _give_up(item.config, opened, error)
    item.user_properties += report.properties(opened)
    reason = report.lacking(opened, *required(item))
    if reason:
        raise Skipped(reason)


def open_session(config: pytest.Config, wanted: RdmaConfig) -> RdmaSession:
    """Return the run's session for `wanted`, which a user's own rdma_config may have changed, opened."""
    plugin.bring_in_running(config)
    opened = plugin.session(config)
    try:
        opened = opened.for_config(wanted)
        opened.rail()
    except RdmaError as error:
        _give_up(config, opened, error)
    return opened


def _give_up(config: pytest.Config, opened: RdmaSession, error: RdmaError) -> NoReturn:
    """Skip when no device was asked for and there is none, fail otherwise, in one line and without what led to it."""
    lacks_device = isinstance(error, RdmaEnvironmentError) and not isinstance(error, DeviceBusyError)
    if lacks_device and not opened.config.asked:
        raise LacksDevice(f"{error} ({WAYS_TO_A_DEVICE})") from None
    raise pytest.fail.Exception(f"rdma: {error}", pytrace=False) from None


def fails_when_skipped(item: pytest.Item, reason: BaseException) -> bool:
    """Whether --rdma-strict counts a skip: any that comes once the hosts are asked for, by whomever; no mark's.

    A blocked test is none of them: that it did not run is told by the exit code.
    """
    if isinstance(reason, Blocked):
        return False
    strict = plugin.configuration(item.config).strict.value
    return strict and (USED in item.stash or isinstance(reason, LacksDevice))


def has_failed(item: pytest.Item) -> bool:
    """Whether it failed, or was interrupted: a host that is lost with that is not reported again as objects close."""
    return item.stash.get(FAILED, False) or item.session.exitstatus == pytest.ExitCode.INTERRUPTED


def pytest_runtest_setup(item: pytest.Item) -> None:
    if MISTAKE in item.stash:
        pytest.fail(item.stash[MISTAKE], pytrace=False)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, None]:
    outcome = yield
    if call.excinfo is None:
        return
    made = outcome.get_result()
    if isinstance(call.excinfo.value, (LacksDevice, Blocked)):
        # one place, so that pytest folds them all into one line
        made.longrepr = (plugin.__file__, 1, f"Skipped: {call.excinfo.value.msg}")
    if made.skipped and not hasattr(made, "wasxfail") and fails_when_skipped(item, call.excinfo.value):
        made.outcome = "failed"
        made.longrepr = f"{call.excinfo.value} (--rdma-strict fails what would be skipped)"
    opened = item.stash.get(USED, None)
    if made.failed and opened is not None:
        item.stash[FAILED] = True
        opened.losses.doubt()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name the rows of the table of deviations that were used, and by how many tests; and why no test had a device."""
    reports = [one for several in terminalreporter.stats.values() for one in several if hasattr(one, "user_properties")]
    rows = Counter(
        value
        for one in reports
        if getattr(one, "when", None) == "call"
        for name, value in one.user_properties
        if name == "rdma_deviation"
    )
    if rows:
        terminalreporter.section("rdma deviations", sep="-")
        for row, count in sorted(rows.items()):
            terminalreporter.write_line(f"{count} x {row}")
    skips = [one.longrepr[2] for one in terminalreporter.stats.get("skipped", ()) if isinstance(one.longrepr, tuple)]
    lacking = Counter(reason for reason in skips if reason.endswith(f"({WAYS_TO_A_DEVICE})"))
    if lacking:  # pytest alone gives no reason without -rs
        terminalreporter.section("rdma skipped", sep="-")
        for reason, count in lacking.items():
            terminalreporter.write_line(f"{count} test{'s' if count > 1 else ''}: {reason.removeprefix('Skipped: ')}")
