"""Why a test failed: evidence from both hosts, the diagnosis, sections of the report, artifacts."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

import pytest

from pytest_rdma import report, running
from pytest_rdma.errors import RdmaError

if TYPE_CHECKING:
    from pytest_rdma.diagnosis import Cause
    from pytest_rdma.evidence import Evidence
    from pytest_rdma.gathering import Places
    from pytest_rdma.session import RdmaSession

BEGAN = pytest.StashKey[float]()
PROPERTY = "rdma_cause"
PACKAGE = Path(__file__).parent
STDLIB = Path(contextlib.__file__).parent
INSTALLED = {"site-packages", "dist-packages"}
"""Folders that may lie within that of the standard library, and hold what is not of it."""
FAIL_MARK = "E   "
INDENT = re.compile(r"(E   )? *")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    item.stash[BEGAN] = time.monotonic()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, None]:
    whole = bool(item.config.getoption("fulltrace", False))
    cut = call.when == "call" and not whole
    with ending_in_the_test(call.excinfo) if cut and call.excinfo else contextlib.nullcontext():
        outcome = yield
    opened = item.stash.get(running.USED, None)
    if call.excinfo is None or opened is None:
        return
    made: pytest.TestReport = outcome.get_result()
    error = call.excinfo.value
    if not made.failed or opened.rail.made is None:
        return
    if call.when == "call" or isinstance(error, RdmaError):
        try:
            explain(item, made, opened, error)
        except Exception as failed:  # the verdict stands, whatever comes of explaining it
            made.sections.append(("rdma evidence", f"could not be had: {type(failed).__name__}: {failed}"))
    made.sections += report.sections(opened, error, whole=whole)


@contextlib.contextmanager
def ending_in_the_test(excinfo: pytest.ExceptionInfo[BaseException]) -> Iterator[None]:
    """Meanwhile, end the traceback of an error of ours where the test called us: our frames say nothing of it."""
    links = [link for link in _links(excinfo.tb) if may_be_the_test(link.tb_frame)]
    if not links or not isinstance(excinfo.value, RdmaError):
        yield
        return
    ours, links[-1].tb_next = links[-1].tb_next, None
    excinfo.traceback = type(excinfo.traceback)(excinfo.tb)
    try:
        yield
    finally:
        links[-1].tb_next = ours


def may_be_the_test(frame: FrameType) -> bool:
    """Whether it is neither ours nor of the standard library, like a thread pool that called us for the test."""
    file = Path(frame.f_code.co_filename)
    return not is_ours(frame) and (STDLIB not in file.parents or not INSTALLED.isdisjoint(file.parts))


def is_ours(frame: FrameType) -> bool:
    return PACKAGE in Path(frame.f_code.co_filename).parents


def _links(link: TracebackType | None) -> Iterator[TracebackType]:
    while link is not None:
        yield link
        link = link.tb_next


def explain(item: pytest.Item, made: pytest.TestReport, opened: RdmaSession, error: BaseException) -> None:
    """Ask both hosts, and put into the report what they know and what is likely to be the cause."""
    from pytest_rdma import gathering, sections
    from pytest_rdma.diagnosis import diagnose

    began = item.stash[BEGAN]
    pairs = gathering.pairs_since(began)
    evidence = gathering.evidence_of(_places(opened), pairs, error, time.monotonic() - began)
    evidence = gathering.with_stderr(evidence, opened.new_stderr())
    causes = diagnose(evidence) if concerns_rdma(error, evidence) else []
    texts = [("diagnosis", sections.diagnosis(causes))] if causes else []
    texts += [(f"{side} host", sections.host(evidence, side)) for side in ("local", "peer")]
    if causes:
        put_first(made, f"{causes[0].name}: {causes[0].headline}")
        for properties in (item.user_properties, made.user_properties):
            properties.append((PROPERTY, causes[0].name))
    names = {"local host": f" {evidence.local.name}", "peer host": f" {evidence.peer.name}"}
    made.sections += [(f"rdma {title}{names.get(title, '')}", text) for title, text in texts]
    _keep(item, made, evidence, causes, texts)


def concerns_rdma(error: BaseException, evidence: Evidence) -> bool:
    """Whether there is a cause to look for: none where a test of its own checks failed and both ends are well."""
    from pytest_rdma.gathering import chain, qp_of, troubled

    if any(isinstance(one, RdmaError) for one in chain(error)):
        return True
    ends = ((evidence.local, evidence.local_qp), (evidence.peer, evidence.peer_qp))
    return any(
        host.lost or host.device is None or host.device.error or troubled(qp_of(host, number)) for host, number in ends
    )


def _places(opened: RdmaSession) -> Places:
    from pytest_rdma.gathering import Place

    rail = opened.rail()
    one, two = (
        Place(host, end.device.name, end.port.number, end.gid.index if end.gid else None, end.device)
        for host, end in zip(opened.hosts(), (rail.local, rail.peer))
    )
    return one, two


def put_first(made: pytest.TestReport, headline: str) -> None:
    """Put the headline before the message of the failure, wherever pytest and JUnit take that from."""
    found: Any = made.longrepr
    if isinstance(found, str):
        made.longrepr = f"{headline}\n{found}"
        return
    crash = getattr(found, "reprcrash", None)
    if crash is not None:
        crash.message = f"{headline}\n{crash.message}"
    entries = getattr(getattr(found, "reprtraceback", None), "reprentries", None) or [None]
    lines = getattr(entries[-1], "lines", None)
    if isinstance(lines, list):
        marked = (index for index, line in enumerate(lines) if line.startswith(FAIL_MARK))
        place = next(marked, 0 if getattr(entries[-1], "style", "") == "value" else None)
        if place is not None:  # pytest takes all lines from the first marked one on for the failure
            indent = INDENT.match(lines[place])
            lines.insert(place, f"{indent[0] if indent else ''}{headline}")


def _keep(
    item: pytest.Item,
    made: pytest.TestReport,
    evidence: Evidence,
    causes: list[Cause],
    texts: list[tuple[str, str]],
) -> None:
    from pytest_rdma import artifacts, plugin

    root = plugin.configuration(item.config).artifacts.value
    if not root:
        return
    named = [(title.replace(" ", "-"), text) for title, text in texts]
    try:
        said = str(artifacts.keep(root, item.nodeid, str(made.when), evidence, causes, named))
    except OSError as error:
        said = f"not kept: {error}"
    made.sections.append(("rdma artifacts", said))
