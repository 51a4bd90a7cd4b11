"""An outcome is judged by the specification and the table of deviations, and by nothing else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pytest_rdma.deviations import TABLE, Deviation, Stack, judge, row_that_records, rows_for, version
from pytest_rdma.errors import RdmaUsageError
from pytest_rdma.model import QPState
from pytest_rdma.outcomes import EndOutcome
from pytest_rdma.status import WCStatus

RXE = Stack("rxe", "6.12.117+deb13-amd64", "56.1")
SPECIFIED = EndOutcome((WCStatus.LOC_PROT_ERR, WCStatus.WR_FLUSH_ERR), state=QPState.ERR)
FLUSHED = SPECIFIED.with_(sends=(WCStatus.WR_FLUSH_ERR,) * 2)
ROW = Deviation(
    "own-memory.*",
    "active",
    {"sends": FLUSHED.sends},
    "the cause is lost",
    kernel=("6.4", "6.14"),
    rdma_core=("50", ""),
)


def check(observed: EndOutcome, table: tuple[Deviation, ...] = (), stack: Stack = RXE) -> None:
    judge(table, "own-memory.freed", {"active": stack}, {"active": SPECIFIED}, {"active": observed})


def complaint(observed: EndOutcome, table: tuple[Deviation, ...] = (), stack: Stack = RXE) -> str:
    with pytest.raises(AssertionError) as wrong:
        check(observed, table, stack)
    return str(wrong.value)


def test_what_the_specification_says_passes() -> None:
    check(SPECIFIED)


def test_an_unknown_deviation_prints_the_row_that_would_record_it() -> None:
    text = complaint(FLUSHED)
    shown = text.splitlines()[-1].strip().rstrip(",")
    names: dict[str, Any] = {"Deviation": Deviation, "WCStatus": WCStatus, "QPState": QPState}
    row = eval(shown, names)
    assert row.changes == {"sends": FLUSHED.sends}
    check(FLUSHED, (row,))


def test_a_row_that_holds_is_what_must_come() -> None:
    check(FLUSHED, (ROW,))
    assert "by the table:  sends WR_FLUSH_ERR (5)" in complaint(FLUSHED.with_(events=("QP_FATAL",)), (ROW,))
    assert f"row used:      {ROW.text}" in complaint(FLUSHED.with_(state=QPState.RTS), (ROW,))


def test_a_row_that_is_outdated_fails() -> None:
    assert "end the range of that row before this kernel" in complaint(SPECIFIED, (ROW,))


@pytest.mark.parametrize(
    "stack",
    [
        replace(RXE, provider="mlx5"),
        replace(RXE, kernel="6.1.0-40-amd64"),
        replace(RXE, kernel="6.14.0"),
        replace(RXE, rdma_core="44.0"),
    ],
    ids=["provider", "older kernel", "newer kernel", "older rdma-core"],
)
def test_a_row_holds_within_its_ranges_only(stack: Stack) -> None:
    check(SPECIFIED, (ROW,), stack)
    assert "row used" not in complaint(FLUSHED, (ROW,), stack)


@pytest.mark.parametrize("case, end", [("receive.freed", "active"), ("own-memory.freed", "passive")])
def test_a_row_holds_for_its_case_and_end_only(case: str, end: str) -> None:
    assert rows_for((ROW,), case, end, RXE) == []


def test_two_rows_may_not_change_the_same_field() -> None:
    with pytest.raises(RdmaUsageError, match=r"say what sends is in own-memory\.freed"):
        check(FLUSHED, (ROW, ROW))


def test_each_field_counts() -> None:
    changes: list[dict[str, Any]] = [
        {"sends": SPECIFIED.sends[:1]},
        {"sends": SPECIFIED.sends[::-1]},
        {"sends": (*SPECIFIED.sends, WCStatus.WR_FLUSH_ERR)},
        {"recvs": (WCStatus.SUCCESS,)},
        {"state": QPState.RTS},
        {"events": ("QP_FATAL",)},
        {"post_errno": 22},
        {"refused": (WCStatus.SUCCESS,)},
    ]
    for change in changes:
        assert str(next(iter(change))) in complaint(SPECIFIED.with_(**change))


def test_versions_are_compared_by_number() -> None:
    assert version("6.9.1") < version("6.12.117+deb13-amd64")
    with pytest.raises(RdmaUsageError, match="no version"):
        version("unknown")


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row.case} {row.end}")
def test_each_row_of_the_table_is_sound(row: Deviation) -> None:
    assert row.end in ("active", "passive")
    assert EndOutcome().with_(**row.changes) is not None
    assert len(row.reason) > 20
    assert row.provider in row.text
    assert row.reason in row.text


def test_a_row_names_what_it_runs_on() -> None:
    text = row_that_records("a.b", "passive", RXE, {"state": QPState.RTS})
    assert text == (
        'Deviation("a.b", "passive", {"state": QPState.RTS}, "WHY", provider="rxe", kernel=("6.12", ""), '
        'rdma_core=("56.1", "")),'
    )


def test_keys_that_receives_say_were_invalidated_are_told() -> None:
    observed = SPECIFIED.with_(invalidated=(0x17,))
    assert "invalidated keys 0x17" in complaint(observed)
    check(observed, (replace(ROW, changes={"invalidated": (0x17,)}),))
