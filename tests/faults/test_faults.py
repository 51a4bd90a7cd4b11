"""Each cause that a test can fail for is brought about, and what the report says of it is judged.

One inner run for each file of faults; every fault in it is followed by a test that must pass.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from harness import Fault, Ran, all_faults

from pytest_rdma.lab import Lab

pytestmark = pytest.mark.lab

FAULTS = all_faults()
PARAMS = [pytest.param(fault, marks=pytest.mark.full if fault.full else ()) for fault in FAULTS]
FILES = sorted({fault.file for fault in FAULTS})
Brings = Callable[[str], Ran]


@pytest.mark.parametrize("fault", PARAMS, ids=lambda fault: f"{fault.file}-{fault.test.removeprefix('test_')}")
def test_fault(fault: Fault, brought_about: Brings, lab: Lab) -> None:
    """Verify: it fails within its bound, says the cause first, shows both hosts, and the next test is green."""
    ran = brought_about(fault.file)
    assert fault.test in ran.cases, ran.text
    case, after = ran.cases[fault.test], ran.cases[f"test_green[{fault.test}]"]
    assert case.outcome in ("failure", "error"), ran.text
    assert case.seconds < fault.bound_s * lab.timeout_scale
    assert re.fullmatch(fault.cause, case.cause), case.message
    assert re.search(fault.words, case.first_line), case.first_line
    if fault.cause:  # a gate judges after the test, and names the host
        for side in ("local host host1", r"peer host host2(?: \(spawned\))?"):
            assert re.search(rf"^-+ rdma {side} -+$", case.report, re.MULTILINE), case.report
    assert after.outcome == "passed", after.message


@pytest.mark.parametrize("file", FILES)
def test_nothing_is_left_behind(file: str, brought_about: Brings) -> None:
    """Verify: on neither host is a process, a verbs object, a rule or a file that was not there before."""
    ran = brought_about(file)
    assert ran.left == [], ran.text
