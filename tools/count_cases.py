"""A pytest plugin that counts: how many tests post each operation, and how many see each status, errno and event.

    PYTHONPATH=tools pytest -q -p count_cases suites tests/seeds --rdma-lab

It watches what the front objects of the controller post and get. What a test runs on its hosts by itself (native loops,
functions shipped by `host.call`, programs) is not counted, nor the echoes that show that a pair still works.
"""

from __future__ import annotations

import errno
from collections import defaultdict
from collections.abc import Generator
from typing import Any

import pytest

from pytest_rdma import AsyncEvent, Completion, CompletionError, Endpoint, PostError, SendWR
from pytest_rdma.status import name_of

Seen = dict[str, dict[str, set[str]]]
OPERATION, STATUS, REFUSAL, EVENT = "operation", "status", "refused post", "asynchronous event"
KINDS = (OPERATION, STATUS, REFUSAL, EVENT)


class Counter:
    """Notes for each kind, and each name of it, in which tests it was seen."""

    def __init__(self) -> None:
        self.seen: Seen = {kind: defaultdict(set) for kind in KINDS}
        self.test = ""

    def note(self, kind: str, name: str) -> None:
        self.seen[kind][name].add(self.test)

    def note_posted(self, args: tuple[Any, ...]) -> None:
        requests = args[0] if args and isinstance(args[0], list) else []
        for one in requests:
            self.note(OPERATION, one.opcode.name if isinstance(one, SendWR) else "RECV")

    def note_came(self, came: Any) -> None:
        for one in came if isinstance(came, list) else []:
            if isinstance(one, Completion):
                self.note(STATUS, name_of(one.status))
            elif isinstance(one, AsyncEvent):
                self.note(EVENT, one.type)

    def watch(self, patch: pytest.MonkeyPatch) -> None:
        invoke = Endpoint._invoke

        def watched(end: Endpoint, name: str, *args: Any, **options: Any) -> Any:
            if name.startswith("qp.post_"):
                self.note_posted(args)
            try:
                came = invoke(end, name, *args, **options)
            except CompletionError as error:
                self.note_came(error.completions)
                raise
            except PostError as error:
                self.note(REFUSAL, errno.errorcode.get(error.errno, str(error.errno)))
                raise
            self.note_came(came)
            return came

        patch.setattr(Endpoint, "_invoke", watched)


counter = Counter()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, None, None]:
    counter.test = item.nodeid
    with pytest.MonkeyPatch.context() as patch:
        counter.watch(patch)
        yield


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for kind, names in counter.seen.items():
        terminalreporter.write_line(f"\n| {kind} | tests |\n|---|---|")
        for name, tests in sorted(names.items(), key=lambda row: -len(row[1])):
            terminalreporter.write_line(f"| {name} | {len(tests)} |")
