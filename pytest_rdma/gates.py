"""What each test must leave as it was: objects of our processes, the device's counters, the kernel log."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from pytest_rdma import running
from pytest_rdma.counters import check_limits, exceeded, marked_limits
from pytest_rdma.errors import HostLostError, RdmaError, RdmaUsageError
from pytest_rdma.host import LocalHost
from pytest_rdma.verbs_gates import Look, Watch

if TYPE_CHECKING:
    from pytest_rdma.host import Call, Host
    from pytest_rdma.rail import RailEnd
    from pytest_rdma.session import RdmaSession

SETTLE_S = 0.5
LOOK_S = 5.0


@dataclass
class Round:
    """The test that is watched, and where its hosts stood at the last look."""

    session: RdmaSession
    test: str
    positions: list[tuple[int, int]] = field(default_factory=list)
    unread: dict[str, dict[str, str]] = field(default_factory=dict)
    names: dict[str, list[str]] = field(default_factory=dict)


ROUND = pytest.StashKey[Round]()
WATCHED = pytest.StashKey[bool]()


# -- both hosts at once


def ends(session: RdmaSession) -> list[tuple[Host, RailEnd]]:
    rail = session.rail()
    return list(zip(session.hosts(), (rail.local, rail.peer)))


def called(host: Host, end: RailEnd) -> str:
    return f"{host.name} {end.device.name}/{end.port.number}"


def positions(session: RdmaSession) -> list[tuple[int, int]]:
    """Return what moves on with each answer of an agent, and with each new agent."""
    return [(host.generation, host.round_trips) for host, _ in ends(session)]


def ask(session: RdmaSession, op: str, **options: Any) -> list[Any]:
    """Run an op of ours on each host at once; None for a host that is lost, which others report."""
    calls: list[Call | None] = []
    for index, (host, end) in enumerate(ends(session)):
        args: list[Any] = []
        if op in ("gates.begin", "gates.end"):
            again = bool(index) and session.looped_back  # one kernel log, and it may be one process
            args = [asdict(watch(session, host, end, options)), "" if again else options["test"]]
        try:
            calls.append(host.submit(op, *args, timeout_s=LOOK_S))
        except HostLostError:
            calls.append(None)
    return [_result(call, options.get("failed", False)) for call in calls]


def _result(call: Call | None, failed: bool) -> Any:
    """Return the answer; what a test that failed has broken is not for us to tell."""
    try:
        return call.result() if call is not None else None
    except HostLostError:
        return None
    except RdmaError:
        if failed:
            return None
        raise


def watch(session: RdmaSession, host: Host, end: RailEnd, options: dict[str, Any]) -> Watch:
    in_process = isinstance(host, LocalHost)
    return Watch(
        end.device.name,
        end.port.number,
        ours=not in_process,
        kept=session.kept_handles() if host is session.local else (),
        process=not (session.one_process and host is session.peer),
        settle_s=SETTLE_S * host.timeout_scale,
        judge_objects=not (in_process and options.get("failed", False)),  # a traceback keeps a test's objects alive
        count=options.get("count", False),
    )


# -- the run


def header(session: RdmaSession) -> list[str]:
    """Return a line for each thing that cannot be measured on a host."""
    unread = _unread(session, ask(session, "gates.begin", test=""))
    return [f"rdma: {text}" for text in _words(unread)]


def _unread(session: RdmaSession, answers: list[dict[str, str] | None]) -> dict[str, dict[str, str]]:
    return {host.name: found for (host, _), found in zip(ends(session), answers) if found}


def _words(unread: dict[str, dict[str, str]]) -> list[str]:
    return [f"{what} of {host} cannot be read: {why}" for host, found in unread.items() for what, why in found.items()]


def check_option(session: RdmaSession) -> None:
    """End the run when --rdma-counters names what a device does not count."""
    limits = dict(session.config.counters.value)
    if not limits:
        return
    ask(session, "gates.begin", test="")
    try:
        check_limits(limits, counter_names(session))
    except RdmaUsageError as error:
        raise pytest.UsageError(f"{session.config.counters.origin}: {error}") from None


def counter_names(session: RdmaSession) -> dict[str, list[str]]:
    answers = ask(session, "gates.counter_names")
    return {called(host, end): found for (host, end), found in zip(ends(session), answers) if found is not None}


# -- each test


def begin(item: pytest.Item, session: RdmaSession) -> None:
    """Note what there is before the test, where that is not known from the look after the one before it."""
    last = item.config.stash.get(ROUND, None)
    if last is None or (last.session, last.test, last.positions) != (session, item.nodeid, positions(session)):
        fresh = Round(session, item.nodeid, unread=_unread(session, ask(session, "gates.begin", test=item.nodeid)))
        if last is not None and last.session is session:
            fresh.names = last.names
        item.config.stash[ROUND] = last = fresh
        last.positions = positions(session)
    item.stash[WATCHED] = True
    if session.config.strict.value and last.unread:
        pytest.fail(
            f"rdma: {'; '.join(_words(last.unread))} (--rdma-strict fails what cannot be measured)", pytrace=False
        )
    limits = limits_of(item, session)
    if limits:
        last.names = last.names or counter_names(session)
        last.positions = positions(session)
        try:
            check_limits(limits, last.names)
        except RdmaUsageError as error:
            pytest.fail(f"rdma: {error}", pytrace=False)


def limits_of(item: pytest.Item, session: RdmaSession) -> dict[str, int]:
    return {**dict(session.config.counters.value), **marked_limits(item)}


def end(item: pytest.Item, nextitem: pytest.Item | None) -> list[str]:
    """Return in words what the test did that fails it, and begin the next one."""
    session = item.stash[running.USED]
    failed = running.has_failed(item)
    limits = {} if failed else limits_of(item, session)
    following = nextitem.nodeid if isinstance(nextitem, pytest.Function) and running.needs_hosts(nextitem) else ""
    answers = ask(session, "gates.end", test=following, failed=failed, count=bool(limits))
    last = item.config.stash[ROUND]
    last.test, last.positions = "" if None in answers else following, positions(session)
    problems: list[str] = []
    for (host, place), told in zip(ends(session), answers):
        if told is not None:
            look = Look(**told)
            problems += [f"left behind on {host.name}: {text}" for text in look.leaks]
            problems += [f"the kernel log of {host.name} says: {text}" for text in look.harm]
            problems += exceeded(limits, look.counted, called(host, place))
    return list(dict.fromkeys(problems))


@pytest.hookimpl(hookwrapper=True)
def pytest_fixture_setup(fixturedef: Any, request: Any) -> Generator[None, Any, None]:
    """Begin the test once its hosts are ready; what fixtures of wider scope make later is not the test's to destroy."""
    if fixturedef.argname == running.READY:
        outcome = yield
        session = request.node.stash.get(running.USED, None)
        if outcome.excinfo is None and session is not None:
            _raising(outcome, lambda: begin(request.node, session))
        return
    last = request.config.stash.get(ROUND, None)
    if fixturedef.scope == "function" or last is None or not last.test:
        yield
        return
    in_process = isinstance(last.session.local, LocalHost)
    if in_process or positions(last.session) != last.positions:
        ask(last.session, "gates.aside")
        last.positions = positions(last.session)
    outcome = yield
    if in_process or positions(last.session) != last.positions:
        _raising(outcome, lambda: ask(last.session, "gates.adopt"))
        last.positions = positions(last.session)


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, Any, None]:
    """Look once all is torn down; a failure of the tear-down itself stays the one that is shown first."""
    outcome = yield
    if not item.stash.get(WATCHED, False):
        return

    def judge() -> None:
        problems = end(item, nextitem)
        if problems and outcome.excinfo is not None:
            item.add_report_section("teardown", "rdma gates", "\n".join(problems))
        elif problems:
            pytest.fail("\n".join(f"rdma: {text}" for text in problems), pytrace=False)

    _raising(outcome, judge)


def _raising(outcome: Any, act: Any) -> None:
    """Run what may fail the test from within a hook; an error of the hook's own comes first."""
    try:
        act()
    except (RdmaError, pytest.fail.Exception) as error:
        if outcome.excinfo is not None:
            return
        if not hasattr(outcome, "force_exception"):  # pluggy before 1.1
            raise
        outcome.force_exception(error)
