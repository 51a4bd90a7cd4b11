"""A host or a device that a run loses in its middle: it blocks what follows, at once and by its first cause, until it
is back.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from guests import Guests
from harness import Ran, Way, run_and_mend, run_file

from pytest_rdma.lab import Lab
from pytest_rdma.losses import EXIT_CODE

pytestmark = pytest.mark.lab

LIMIT_S = 120.0
ASLEEP_S = 30.0
AT_ONCE_S = 10.0
END_S = 45.0
ASLEEP = r"is in uninterruptible sleep in ib_uverbs_remove_one"
LOST = (
    r"call\.run outlived its deadline of [\d.]+ s by [\d.]+ s.*; "
    rf"agent (\d+) on host2 {ASLEEP}; SIGKILL does not end it: thread \d+ {ASLEEP}"
)


@pytest.fixture(autouse=True)
def mended(guests: Guests) -> Iterator[None]:
    yield
    guests.mend()
    assert guests.left() == []


def blocked(ran: Ran) -> str:
    """Return the reason of the tests that must be blocked, which is the same for all and is told once."""
    cases = [case for name, case in ran.cases.items() if name.startswith("test_blocked")]
    (reason,) = {case.message for case in cases if case.outcome == "skipped"}
    assert [case.outcome for case in cases] == ["skipped"] * 2, ran.text
    cause = reason.removeprefix("blocked: ")
    assert cause != reason
    assert ran.text.count(cause) == 1
    assert f"\n2 tests blocked: {cause}\n" in ran.text
    return cause


def outcomes(ran: Ran, test: str) -> set[str]:
    return {case.outcome for name, case in ran.cases.items() if name.partition("[")[0] == test}


@pytest.mark.full
def test_call_asleep_in_the_kernel(way: Way, guests: Guests, lab: Lab, tmp_path: Path) -> None:
    """Verify: the report names it, its host is blocked while it sleeps, and the run goes on once it is gone."""
    ran = run_and_mend(way, tmp_path, "asleep", guests.mend, LIMIT_S)
    lost = ran.cases["test_call_asleep_in_the_kernel"]
    assert (lost.outcome, lost.cause) == ("failure", "process-gone"), ran.text
    said = re.search(LOST, lost.first_line)
    assert said, lost.first_line
    assert lost.seconds < ASLEEP_S * lab.timeout_scale
    again = rf"it does not come back: agent {said[1]} still holds its device, thread \d+ {ASLEEP}"
    assert re.fullmatch(rf"host2 was lost in \S*::test_call_asleep_in_the_kernel: {LOST}; {again}", blocked(ran))
    for number in range(2):
        assert ran.cases[f"test_blocked[{number}]"].seconds < AT_ONCE_S * lab.timeout_scale
    assert outcomes(ran, "test_goes_on") == {"passed"}, ran.text
    assert ran.returncode == EXIT_CODE


@pytest.mark.full
def test_run_that_ends_while_a_call_sleeps_in_the_kernel(way: Way, guests: Guests, lab: Lab, tmp_path: Path) -> None:
    """Verify: it ends in time; what sleeps is still there, and the next run is told at once who has the device."""
    ran = run_file(way, tmp_path, "asleep", ["test_call_asleep_in_the_kernel"], LIMIT_S)
    assert ran.returncode == pytest.ExitCode.TESTS_FAILED
    assert ran.seconds < END_S * lab.timeout_scale
    assert [line for line in guests.left() if re.match(r"host2: process \d+ D ", line)], ran.text
    after = run_file(way, tmp_path, "asleep", ["test_goes_on"])
    assert after.returncode == pytest.ExitCode.USAGE_ERROR, after.text
    (line,) = [line for line in after.text.splitlines() if line.startswith("ERROR: ")]
    assert re.match(r"ERROR: rdma: rxe0 on host2 is in use by run \S+ \(pid \d+ there\): ", line), line


def test_device_that_goes_and_comes_back(way: Way, guests: Guests, lab: Lab, tmp_path: Path) -> None:
    """Verify: while it is gone its host and its name are told at once; the tests behind its return are green."""
    ran = run_and_mend(way, tmp_path, "returns", guests.mend, LIMIT_S)
    lost = ran.cases["test_device_goes_with_its_agent"]
    assert (lost.outcome, lost.cause) == ("failure", "process-gone"), ran.text
    assert re.fullmatch(r"rxe0 on host2 is gone \(found after \S*::test_device_goes_with_its_agent\)", blocked(ran)), (
        ran.text
    )
    for number in range(2):
        assert ran.cases[f"test_blocked[{number}]"].seconds < AT_ONCE_S * lab.timeout_scale
    assert outcomes(ran, "test_goes_on") == {"passed"}, ran.text
    assert ran.returncode == EXIT_CODE
    missed = ran.cases["test_device_is_missed"]
    assert (missed.outcome, missed.cause) == ("failure", "device-gone"), ran.text
    assert re.match(r"device-gone: rxe0 on host2 is gone\b", missed.first_line), missed.first_line
