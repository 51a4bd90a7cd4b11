"""The error suites fail when a status, an order, a state or an event is not what came, and when a byte arrived."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from error_mutations import EXPECTED, NONE

pytestmark = pytest.mark.lab

TREE = Path(__file__).parents[2]


def test_each_error_suite_sees_each_mutation(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """One run of all: each chosen test fails under each mutation that it must see, and passes without."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    files = [str(TREE / "suites" / f"{file}.py") for file in EXPECTED]
    options = ("-p", "error_mutations", f"--rootdir={TREE}", "-rA", "--tb=line", "--rdma-lab", "--rdma-strict")
    text = pytester.runpytest_subprocess(*files, *options).stdout.str()
    found = {
        (file, test, next(part for part in names.split("-") if part in {NONE, *EXPECTED[file][test]})): outcome
        for outcome, file, test, names in re.findall(
            r"^(PASSED|FAILED|ERROR) \S*?(\w+)\.py::(\w+)\[(\S+)\]", text, re.MULTILINE
        )
    }
    wanted = {
        (file, test, mutation): "PASSED" if mutation == NONE else "FAILED"
        for file, tests in EXPECTED.items()
        for test, mutations in tests.items()
        for mutation in (NONE, *mutations)
    }
    assert found == wanted, text
