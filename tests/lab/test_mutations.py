"""The suites fail when what they are given is wrong: a byte, a length, an order, a status, one message more or less."""

from __future__ import annotations

import error_mutations
import pytest
import suite_mutations
from spoiling import Table, run_spoiled, wanted

pytestmark = pytest.mark.lab


@pytest.mark.parametrize(
    ("plugin", "table"),
    [("suite_mutations", suite_mutations.EXPECTED), ("error_mutations", error_mutations.EXPECTED)],
    ids=["operations", "errors"],
)
def test_each_suite_sees_each_mutation(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, plugin: str, table: Table
) -> None:
    """One run of all: each chosen test fails under each mutation that its suite must see, and passes without."""
    found, text = run_spoiled(plugin, table, pytester, monkeypatch)
    assert found == wanted(table), text
