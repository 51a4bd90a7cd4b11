"""The suites fail when what they are given is wrong: a byte, a length, an order, a number, one message more or less."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from suite_mutations import EXPECTED, NONE

pytestmark = pytest.mark.lab

TREE = Path(__file__).parents[2]


def test_each_suite_sees_each_mutation(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """One run of all: each chosen test fails under each mutation that its suite must see, and passes without."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    files = [str(TREE / "suites" / f"{file}.py") for file in EXPECTED]
    options = ("-p", "suite_mutations", f"--rootdir={TREE}", "-rA", "--tb=line", "--rdma-lab", "--rdma-strict")
    text = pytester.runpytest_subprocess(*files, *options).stdout.str()
    found = {
        (file, test, next(part for part in names.split("-") if part in {NONE, *mutations(file, test)})): outcome
        for outcome, file, test, names in re.findall(
            r"^(PASSED|FAILED|ERROR) \S*suites/(\w+)\.py::(\w+)\[([^]]+)\]", text, re.MULTILINE
        )
    }
    wanted = {
        (file, test, mutation): "PASSED" if mutation == NONE else "FAILED"
        for file, tests in EXPECTED.items()
        for test in tests
        for mutation in (NONE, *mutations(file, test))
    }
    assert found == wanted, text


def mutations(file: str, test: str) -> tuple[str, ...]:
    return EXPECTED[file][test]
