"""What each test must leave as it was: objects of our processes, the device's counters, the kernel log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from pytest_rdma import plugin, running
from pytest_rdma.counters import check_limits, exceeded, marked_limits
from pytest_rdma.errors import HostLostError, RdmaError, RdmaUsageError
from pytest_rdma.host import LocalHost
from pytest_rdma.verbs_gates import Look, Watch

if TYPE_CHECKING:
    from pytest_rdma.host import Call, Host
    from pytest_rdma.rail import RailEnd
    from pytest_rdma.session import RdmaSession

SETTLE_S = 0.5
LOOK_S = 10.0
PROPERTY = "rdma_unmeasured"
STRICT = "(--rdma-strict fails what cannot be measured)"
XDIST_REASON = "counters are the device's, and pytest-xdist runs tests side by side: run with -n0"

Place = tuple["Host", "RailEnd"]


@dataclass(frozen=True)
class Unmeasured:
    """The answer of a host that could not look at itself, and why."""

    why: str


@dataclass
class Round:
    """The test that is watched, and where its hosts stood at the last look.

    `spawned` are the agents beside a host's own that were there before the test, `trouble` says of a host why what
    was there before is not known: of it only the kernel log is judged.
    """

    session: RdmaSession
    test: str
    positions: list[tuple[int, ...]] = field(default_factory=list)
    unread: dict[str, dict[str, str]] = field(default_factory=dict)
    names: dict[str, list[str]] = field(default_factory=dict)
    spawned: list[Host] = field(default_factory=list)
    trouble: dict[Host, str] = field(default_factory=dict)


ROUND = pytest.StashKey[Round]()
WATCHED = pytest.StashKey[bool]()


# -- both hosts at once


def ends(session: RdmaSession) -> list[Place]:
    """Return the two hosts, and after them what agents they have spawned that live."""
    rail = session.rail()
    both = list(zip(session.hosts(), (rail.local, rail.peer)))
    return both + [(one, end) for host, end in both for one in getattr(host, "spawned", ()) if one.lives]


def spawned(places: list[Place]) -> list[Host]:
    return [host for host, _ in places[2:]]


def called(host: Host, end: RailEnd) -> str:
    return f"{host.name} {end.device.name}/{end.port.number}"


def positions(session: RdmaSession) -> list[tuple[int, ...]]:
    """Return what moves on with each answer of an agent, and with each new agent."""
    return [(id(host), host.generation, host.round_trips) for host, _ in ends(session)]


def ask(session: RdmaSession, places: list[Place], op: str, **options: Any) -> list[Any]:
    """Run an op of ours on each host at once; None for a lost host that a test has spawned, and may kill."""
    calls: list[Call | Unmeasured | None] = []
    for host, end in places:
        args: list[Any] = []
        if op in ("gates.begin", "gates.end"):
            marks = host is session.local or (host is session.peer and not session.looped_back)  # one mark in a log
            args = [asdict(watch(session, host, end, options)), options["test"] if marks else ""]
        try:
            calls.append(host.submit(op, *args, timeout_s=LOOK_S))
        except Exception as error:  # nothing that keeps us from looking is the test's failure
            calls.append(_unmeasured(host, error, session))
    return [_result(host, call, session) for (host, _), call in zip(places, calls)]


def _unmeasured(host: Host, error: Exception, session: RdmaSession) -> Unmeasured | None:
    if isinstance(error, HostLostError) and host not in session.hosts():
        return None
    return Unmeasured(" ".join(f"{type(error).__name__}: {error}".split()))


def _result(host: Host, call: Call | Unmeasured | None, session: RdmaSession) -> Any:
    if call is None or isinstance(call, Unmeasured):
        return call
    try:
        return call.result()
    except Exception as error:  # as above
        return _unmeasured(host, error, session)


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
    places = ends(session)
    unread = _unread(places, ask(session, places, "gates.begin", test=""))
    return [f"rdma: {text}" for text in _words(unread)]


def _unread(places: list[Place], answers: list[Any]) -> dict[str, dict[str, str]]:
    return {
        host.name: {"all that tests may leave": found.why} if isinstance(found, Unmeasured) else found
        for (host, _), found in zip(places, answers)
        if found
    }


def _trouble(places: list[Place], answers: list[Any]) -> dict[Host, str]:
    return {host: told.why for (host, _), told in zip(places, answers) if isinstance(told, Unmeasured)}


def _words(unread: dict[str, dict[str, str]]) -> list[str]:
    return [f"{what} of {host} cannot be read: {why}" for host, found in unread.items() for what, why in found.items()]


def check_option(session: RdmaSession, config: pytest.Config) -> None:
    """End the run when --rdma-counters names what a device does not count."""
    limits = dict(session.config.counters.value)
    if not limits:
        return
    if config.getoption("dist", "no") != "no":
        raise pytest.UsageError(f"{session.config.counters.origin}: {XDIST_REASON}")
    ask(session, ends(session), "gates.begin", test="")
    try:
        check_limits(limits, counter_names(session))
    except RdmaUsageError as error:
        raise pytest.UsageError(f"{session.config.counters.origin}: {error}") from None


def counter_names(session: RdmaSession) -> dict[str, list[str]]:
    places = ends(session)[:2]
    answers = ask(session, places, "gates.counter_names")
    return {called(host, end): found for (host, end), found in zip(places, answers) if isinstance(found, list)}


# -- each test


def begin(item: pytest.Item, session: RdmaSession) -> None:
    """Note what there is before the test, where that is not known from the look after the one before it."""
    last = item.config.stash.get(ROUND, None)
    if last is None or (last.session, last.test, last.positions) != (session, item.nodeid, positions(session)):
        places = ends(session)
        answers = ask(session, places, "gates.begin", test=item.nodeid)
        fresh = Round(session, item.nodeid, unread=_unread(places, answers), trouble=_trouble(places, answers))
        fresh.spawned = spawned(places)
        if last is not None and last.session is session:
            fresh.names = last.names
        item.config.stash[ROUND] = last = fresh
        last.positions = positions(session)
    item.stash[WATCHED] = True
    if session.config.strict.value and last.unread:
        pytest.fail(f"rdma: {'; '.join(_words(last.unread))} {STRICT}", pytrace=False)
    limits = limits_of(item, session)
    if limits and plugin.is_worker(item.config):
        pytest.skip(XDIST_REASON)
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
    limits = {} if failed or plugin.is_worker(item.config) else limits_of(item, session)
    following = nextitem.nodeid if isinstance(nextitem, pytest.Function) and running.needs_hosts(nextitem) else ""
    places = ends(session)
    answers = ask(session, places, "gates.end", test=following, failed=failed, count=bool(limits))
    living = spawned(ends(session))  # asking has told which are lost
    last = item.config.stash[ROUND]
    trouble = {**_trouble(places, answers), **last.trouble}
    problems: list[str] = []
    for (host, place), told in zip(places, answers):
        if host in living and host not in last.spawned:
            problems.append(f"left behind on {host.name}: agent {host.info.pid}, spawned in this test and not closed")
        elif isinstance(told, dict):
            own = host in session.hosts()
            problems += judged(host, place, told, limits, trouble=trouble, own=own)
    known = all(isinstance(told, dict) for told in answers)
    last.test, last.positions = following if known else "", positions(session)
    last.spawned, last.trouble = spawned(places), {}
    if trouble and not failed:  # what a test that failed has broken is not for us to tell
        said = [f"{host.name}: {why}" for host, why in trouble.items()]
        item.user_properties += [(PROPERTY, text) for text in said]
        problems += [f"not measured on {text} {STRICT}" for text in said if session.config.strict.value]
    return list(dict.fromkeys(problems))


def judged(
    host: Host, end: RailEnd, told: dict[str, Any], limits: dict[str, int], *, trouble: dict[Host, str], own: bool
) -> list[str]:
    """Return in words what one host's look brought; what it has spawned has the same kernel and the same device."""
    look = Look(**told)
    problems: list[str] = []
    if host not in trouble:
        problems += [f"left behind on {host.name}: {text}" for text in look.leaks]
    if own:
        problems += [f"the kernel log of {host.name} says: {text}" for text in look.harm]
    if own and host not in trouble:
        problems += exceeded(limits, look.counted, called(host, end))
    return problems


@pytest.hookimpl(hookwrapper=True)
def pytest_fixture_setup(fixturedef: Any, request: Any) -> Generator[None, Any, None]:
    """Begin the test once its hosts are ready; what fixtures of wider scope make later is not the test's to destroy."""
    if fixturedef.argname == running.READY:
        looked = request.config.stash.get(ROUND, None)
        untouched = looked is not None and positions(looked.session) == looked.positions
        outcome = yield
        if untouched and looked is not None:
            _pass_over_health(looked)
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
        _ask_between(last, "gates.aside")
    yield
    if in_process or positions(last.session) != last.positions:
        _ask_between(last, "gates.adopt")


def _pass_over_health(last: Round) -> None:
    """Keep what is known of the hosts where making them ready did no more than ask them for their devices."""
    now = positions(last.session)
    if [one[:2] for one in now] == [one[:2] for one in last.positions]:
        last.positions = now


def _ask_between(last: Round, op: str) -> None:
    """Have the hosts tell what wider fixtures make from what the test does; agents that these spawn are begun with."""
    places = ends(last.session)
    new = [(host, end) for host, end in places if host in spawned(places) and host not in last.spawned]
    if op == "gates.adopt" and new:
        last.spawned += spawned([*places[:2], *new])
        last.trouble.update(_trouble(new, ask(last.session, new, "gates.begin", test="")))
    last.trouble.update(_trouble(places, ask(last.session, places, op)))
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
    except (RdmaError, pytest.fail.Exception, pytest.skip.Exception) as error:
        if outcome.excinfo is not None:
            return
        if not hasattr(outcome, "force_exception"):  # pluggy before 1.1
            raise
        outcome.force_exception(error)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what could not be measured, and after how many tests."""
    reports = [one for several in terminalreporter.stats.values() for one in several]
    torn_down = [one for one in reports if getattr(one, "when", None) == "teardown"]
    why = Counter(str(value) for one in torn_down for name, value in one.user_properties if name == PROPERTY)
    if why:
        terminalreporter.section("rdma gates", sep="-")
    for text, count in why.items():
        terminalreporter.write_line(f"{count} test{'s' if count > 1 else ''} not measured on {text}")
