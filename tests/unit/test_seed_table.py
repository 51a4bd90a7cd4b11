"""The tables of tests/seeds/README.md are complete, and each of their rows names tests that exist."""

from __future__ import annotations

import ast
import fnmatch
import re
from pathlib import Path

import pytest

TREE = Path(__file__).parents[2]
SEEDS = TREE / "tests" / "seeds"
ROWS = [line.split("|") for line in (SEEDS / "README.md").read_text().splitlines() if re.match(r"\| [TDC]\d+ \|", line)]
TESTS = {cells[1].strip(): re.findall(r"(\S+\.py) `(\S+)`", cells[-2]) for cells in ROWS}


def functions(file: str) -> list[str]:
    path = TREE / file if file.startswith("suites/") else SEEDS / file
    return [node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)]


def test_every_trap_defect_and_capability_has_a_row() -> None:
    traps, defects = [f"T{n}" for n in range(1, 10)], [f"D{n}" for n in range(1, 28)]
    capabilities = [f"C{n}" for n in range(1, 16) if n != 11]
    assert list(TESTS) == [*traps, *defects, *capabilities]


@pytest.mark.parametrize("row", TESTS)
def test_the_tests_of_a_row_exist_and_bear_its_number(row: str) -> None:
    assert TESTS[row]
    named = 0
    for file, pattern in TESTS[row]:
        found = fnmatch.filter(functions(file), pattern)
        assert found, f"no {pattern} in {file}"
        named += any(row.lower() in name.split("_") for name in found)
    assert named
