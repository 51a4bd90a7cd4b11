"""What the plugins that spoil share: each test of their tables runs once for each of its mutations, and once as it is.

A test must fail under each mutation and pass without one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

TREE = Path(__file__).parents[2]
NONE = "as_it_is"
Patch = Callable[[pytest.MonkeyPatch], None]
Table = Mapping[str, Mapping[str, tuple[str, ...]]]
Outcomes = dict[tuple[str, str, str], str]


def mutation_fixture(spoilers: Mapping[str, Patch]) -> Any:
    """Return the fixture that spoils what came, in each of the ways and in none."""

    @pytest.fixture(autouse=True, params=(NONE, *spoilers))
    def mutation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
        name: str = request.param
        if name in spoilers:
            spoilers[name](monkeypatch)
        return name

    return mutation


def keep_one_row_a_mutation(table: Table, config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep of each test in the table one row of parameters, with data in it where it has sizes, for each mutation."""
    chosen: dict[tuple[str, str, str], pytest.Item] = {}
    for item in items:
        assert isinstance(item, pytest.Function)
        file, test, name = item.path.stem, item.originalname, item.callspec.params["mutation"]
        expected = table.get(file, {}).get(test)
        if expected is None or name not in (NONE, *expected):
            continue
        best = chosen.setdefault((file, test, name), item)
        if data_in(item) > data_in(best):
            chosen[file, test, name] = item
    kept = list(chosen.values())
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = kept


def data_in(item: pytest.Item) -> int:
    """Return how well the parameters of a test suit: a message of many packets best, one of zero bytes worst."""
    return 2 if "64KiB" in item.name else re.search(r"\b0\b", item.name) is None


def run_spoiled(
    plugin: str, table: Table, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> tuple[Outcomes, str]:
    """Run all tests of the table in one run with the plugin; return how each ended, and what pytest printed."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    files = [str(TREE / "suites" / f"{file}.py") for file in table]
    options = ("-p", plugin, f"--rootdir={TREE}", "-rA", "--tb=line", "--rdma-lab", "--rdma-strict")
    text = pytester.runpytest_subprocess(*files, *options).stdout.str()
    found = {
        (file, test, next(part for part in names.split("-") if part in {NONE, *table[file][test]})): outcome
        for outcome, file, test, names in re.findall(
            r"^(PASSED|FAILED|ERROR) \S*suites/(\w+)\.py::(\w+)\[([^]]+)\]", text, re.MULTILINE
        )
    }
    return found, text


def wanted(table: Table) -> Outcomes:
    """Return how each test of the table must end."""
    return {
        (file, test, mutation): "PASSED" if mutation == NONE else "FAILED"
        for file, tests in table.items()
        for test, mutations in tests.items()
        for mutation in (NONE, *mutations)
    }
