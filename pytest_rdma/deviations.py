"""Where providers are known not to do what the InfiniBand specification says, and how an outcome is judged.

A row holds for one provider, a range of kernels, a range of rdma-core and some cases; it says what comes instead, and
why. Nothing else excuses an outcome: an unknown one fails, and the message holds the row that would record it.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from typing import Any

from pytest_rdma.errors import RdmaUsageError
from pytest_rdma.model import QPState
from pytest_rdma.outcomes import EndOutcome, Probe
from pytest_rdma.status import WCStatus

ENDS = ("active", "passive")
OUTCOME_NAMES = tuple(one.name for one in fields(EndOutcome))


@dataclass(frozen=True)
class Stack:
    """What an end runs on, as far as rows ask for it."""

    provider: str
    kernel: str
    rdma_core: str


@dataclass(frozen=True)
class Deviation:
    """One row. `case` may hold wildcards; ranges are (first, first that is too new), "" where there is no bound.

    `changes` are the fields of EndOutcome that come otherwise.
    """

    case: str
    end: str
    changes: dict[str, Any]
    reason: str
    provider: str = "rxe"
    kernel: tuple[str, str] = ("", "")
    rdma_core: tuple[str, str] = ("", "")

    def holds(self, case: str, end: str, stack: Stack) -> bool:
        return (
            end == self.end
            and stack.provider == self.provider
            and fnmatchcase(case, self.case)
            and within(stack.kernel, self.kernel)
            and within(stack.rdma_core, self.rdma_core)
        )

    @property
    def text(self) -> str:
        """The row in one line: for whom, which case and end, and why."""
        ranges = [
            f"{name} {first or 'any'} to {'any' if not end else 'before ' + end}"
            for name, (first, end) in (("kernel", self.kernel), ("rdma-core", self.rdma_core))
            if first or end
        ]
        return f"{' '.join([self.provider, *ranges])}, {self.case} at the {self.end} end: {self.reason}"


def version(text: str) -> tuple[int, ...]:
    """Return the leading numbers of a version: (6, 12, 63) for `6.12.63+deb13-amd64`."""
    found = re.match(r"\d+(?:\.\d+)*", text)
    if found is None:
        raise RdmaUsageError(f"{text!r} is no version")
    return tuple(int(part) for part in found[0].split("."))


def within(text: str, bounds: tuple[str, str]) -> bool:
    first, end = bounds
    return (not first or version(text) >= version(first)) and (not end or version(text) < version(end))


def rows_for(table: Sequence[Deviation], case: str, end: str, stack: Stack) -> list[Deviation]:
    """Return the rows that hold; two that change the same field are a mistake in the table."""
    found = [row for row in table if row.holds(case, end, stack)]
    changed = [name for row in found for name in row.changes]
    twice = sorted({name for name in changed if changed.count(name) > 1})
    if twice:
        raise RdmaUsageError(f"{len(found)} rows of the deviation table say what {twice[0]} is in {case} ({end})")
    return found


def row_that_records(case: str, end: str, stack: Stack, changes: dict[str, Any]) -> str:
    """Return the row, as it would stand in the table, that records an outcome."""
    shown = ", ".join(f'"{name}": {_source(value)}' for name, value in changes.items())
    kernel, core = (".".join(map(str, version(text)[:2])) for text in (stack.kernel, stack.rdma_core))
    return (
        f'Deviation("{case}", "{end}", {{{shown}}}, "WHY", provider="{stack.provider}", kernel=("{kernel}", ""), '
        f'rdma_core=("{core}", "")),'
    )


def _source(value: Any) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(map(_source, value))}{',' if len(value) == 1 else ''})"
    if isinstance(value, (WCStatus, QPState)):
        return f"{type(value).__name__}.{value.name}"
    return repr(value)


def judge(
    table: Sequence[Deviation],
    case: str,
    stacks: dict[str, Stack],
    specified: dict[str, EndOutcome],
    observed: dict[str, EndOutcome],
) -> None:
    """Raise AssertionError unless each end showed what the specification, or a row of the table, says."""
    wrong: list[str] = []
    for end, outcome in specified.items():
        rows = rows_for(table, case, end, stacks[end])
        expected = expect(outcome, rows)
        if observed[end] != expected:
            wrong.append(_complaint(case, end, stacks[end], outcome, rows, observed[end]))
    if wrong:
        raise AssertionError("\n".join(wrong))


def expect(outcome: EndOutcome, rows: Sequence[Deviation]) -> EndOutcome:
    for row in rows:
        outcome = outcome.with_(**row.changes)
    return outcome


def _complaint(
    case: str, end: str, stack: Stack, outcome: EndOutcome, rows: Sequence[Deviation], observed: EndOutcome
) -> str:
    lines = [
        f"{case}: not what must come at the {end} end ({stack.provider}, kernel {stack.kernel}, "
        f"rdma-core {stack.rdma_core})",
        f"  observed:      {observed.text}",
        f"  specification: {outcome.text}",
    ]
    if rows:
        lines.append(f"  by the table:  {expect(outcome, rows).text}")
        lines += [f"  row used:      {row.text}" for row in rows]
    if observed == outcome:
        lines.append("  the specification is met: end the range of that row before this kernel or rdma-core")
    else:
        instead = "instead of the row used" if rows else "to know this deviation"
        lines.append(f"  {instead}, with its reason, in pytest_rdma/deviations.py:")
        lines.append(f"    {row_that_records(case, end, stack, outcome.differences(observed))}")
    return "\n".join(lines)


class Expectation:
    """Judges what came of a case at both ends, and notes the rows of the table that it used."""

    def __init__(self, note: Callable[[Deviation], None], table: Sequence[Deviation] | None = None) -> None:
        self._note = note
        self._table = TABLE if table is None else table

    def __call__(self, case: str, *, timeout_s: float = 5.0, **ends: tuple[Probe, EndOutcome]) -> dict[str, EndOutcome]:
        """Compare; `ends` are named active (the one whose request fails) and passive. Returns what was expected."""
        unknown = sorted(set(ends) - set(ENDS))
        if unknown:
            raise RdmaUsageError(f"the ends of a case are {' and '.join(ENDS)}, not {', '.join(unknown)}")
        stacks = {end: stack_of(probe) for end, (probe, _) in ends.items()}
        specified = {end: outcome for end, (_, outcome) in ends.items()}
        rows = {end: rows_for(self._table, case, end, stacks[end]) for end in ends}
        expected = {end: expect(specified[end], rows[end]) for end in ends}
        for row in (row for found in rows.values() for row in found):
            self._note(row)
        observed = {end: probe.observe(expected[end], timeout_s) for end, (probe, _) in ends.items()}
        judge(self._table, case, stacks, specified, observed)
        return expected


def stack_of(probe: Probe) -> Stack:
    """Return what the probe's end runs on."""
    endpoint = probe.endpoint
    info, pair = endpoint.host.info, endpoint.pair
    if pair is not None:
        device = (pair.rail.local if endpoint is pair.local else pair.rail.peer).device
    else:
        device = endpoint.host.device(endpoint.device)
    return Stack(device.provider, info.kernel, info.rdma_core)


# -- the table

FLUSH = WCStatus.WR_FLUSH_ERR
RXE_6_12 = ("6.12", "")

TABLE: tuple[Deviation, ...] = (
    Deviation(
        "own-memory.*.[sw]*",  # send, write, write-imm; what reads or swaps finds its sink out only with the answer
        "active",
        {"sends": (FLUSH, FLUSH)},
        "the requester moves the QP to ERR before it completes the request, and so flushes it with the others: "
        "the cause is lost (rxe_req.c)",
        kernel=RXE_6_12,
    ),
    Deviation(
        "receive.*",
        "passive",
        {"recvs": (WCStatus.LOC_QP_OP_ERR, FLUSH)},
        "every error while a message is copied into a receive is a malformed request to it (rxe_resp.c)",
    ),
    Deviation(
        "message-longer-than-receive",
        "passive",
        {"recvs": (WCStatus.LOC_QP_OP_ERR, FLUSH)},
        "the length is found too large only when the message is copied, which makes the receive malformed (rxe_resp.c)",
        kernel=RXE_6_12,
    ),
    Deviation(
        "message-longer-than-receive",
        "active",
        {"sends": (WCStatus.REM_OP_ERR, FLUSH)},
        "the responder says NAK with Remote Operational Error, since it takes the receive for malformed (rxe_resp.c)",
        kernel=RXE_6_12,
    ),
    Deviation(
        "misaligned-atomic.*",
        "active",
        {"sends": (), "recvs": (), "state": QPState.RTS, "post_errno": errno.EINVAL},
        "the post is refused before anything is sent (providers/rxe/rxe.c, validate_send_wr)",
    ),
    Deviation(
        "misaligned-atomic.*",
        "passive",
        {"recvs": (), "state": QPState.RTS, "events": ()},
        "nothing is sent: the post was refused (providers/rxe/rxe.c, validate_send_wr)",
    ),
    Deviation(
        "peer-mr-without-access.write-imm",
        "passive",
        {"recvs": (WCStatus.REM_ACCESS_ERR, FLUSH)},
        "the receive that the immediate would have taken completes with the requester's status (rxe_resp.c)",
    ),
    Deviation(
        "cq-overrun",
        "active",
        {"state": QPState.RTS, "events": ("CQ_ERR",) * 3},
        "each completion that finds the CQ full is dropped with an event of its own, and the QP goes on (rxe_cq.c)",
    ),
    Deviation(
        "raw-send-in.*",
        "active",
        {"refused": (WCStatus.SUCCESS,)},
        "a send whose post the kernel refused stays in the queue and runs with the next one (providers/rxe/rxe.c)",
    ),
    Deviation(
        "raw-send-in.*",
        "passive",
        {"recvs": (WCStatus.SUCCESS, WCStatus.SUCCESS)},
        "the send that was refused arrives all the same (providers/rxe/rxe.c)",
    ),
    Deviation(
        "psn-behind.near.low",
        "active",
        {"sends": (WCStatus.RETRY_EXC_ERR, FLUSH), "recvs": (FLUSH, FLUSH), "state": QPState.ERR},
        "a responder that has not acknowledged yet answers duplicates with PSN 0xffffff, which is before this PSN "
        "(rxe_resp.c, ack_psn)",
    ),
    Deviation(
        "psn-behind.far.high",
        "active",
        {"sends": (WCStatus.SUCCESS, WCStatus.SUCCESS), "recvs": (), "state": QPState.RTS},
        "a responder that has not acknowledged yet answers duplicates with PSN 0xffffff, and a requester takes any "
        "later PSN for an acknowledgement (rxe_resp.c, rxe_comp.c)",
    ),
    Deviation(
        "window.beyond-its-end",
        "active",
        {"sends": (WCStatus.SUCCESS,), "state": QPState.RTS},
        "a key of a memory window opens the whole buffer that it is bound to (rxe_resp.c, check_rkey)",
        kernel=RXE_6_12,
    ),
    Deviation(
        "window.beyond-its-end",
        "passive",
        {"state": QPState.RTS, "events": ()},
        "a key of a memory window opens the whole buffer that it is bound to (rxe_resp.c, check_rkey)",
        kernel=RXE_6_12,
    ),
    Deviation(
        "send-with-invalidate",
        "passive",
        {"invalidated": ()},
        "a receive tells of an invalidation by the kernel's flag (1 << 2), not by verbs' (1 << 3) (rxe_resp.c)",
    ),
    Deviation(
        "mtu-larger-than-path",
        "active",
        {"sends": (FLUSH, FLUSH)},
        "the packet is refused by the own network layer, which moves the QP to ERR at once and flushes all (rxe_req.c)",
        kernel=RXE_6_12,
    ),
    *(
        Deviation(
            case,
            "passive",
            {"events": ()},
            "the responder raises no asynchronous event for a request that it refuses (rxe_resp.c)",
        )
        for case in (
            "peer-mr-without-access.*",
            "peer-memory.*",
            "peer-qp-without-access.*",
            "no-responder-resources.*",
            "window.refused",
        )
    ),
)
