"""The cover that the suites' parameters are combined by."""

from __future__ import annotations

import sys
from itertools import combinations
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "suites"))
from pairwise import pairwise_cover, whole_product

PARAMETERS = {"size": range(8), "direction": ("out", "in"), "signaled": (True, False), "imm": range(4)}


def test_every_pair_of_values_is_covered_by_far_fewer_rows() -> None:
    rows = pairwise_cover(PARAMETERS)
    for (i, one), (j, other) in combinations(enumerate(PARAMETERS.values()), 2):
        assert {(row[i], row[j]) for row in rows} == {(a, b) for a in one for b in other}
    assert len(rows) <= 36 < len(whole_product(PARAMETERS)) == 128


@pytest.mark.parametrize("count", [1, 2])
def test_one_or_two_parameters_are_covered_by_their_product(count: int) -> None:
    few = dict(list(PARAMETERS.items())[:count])
    assert sorted(pairwise_cover(few)) == sorted(whole_product(few))


def test_the_rows_are_the_same_each_time() -> None:
    assert pairwise_cover(PARAMETERS) == pairwise_cover(dict(PARAMETERS))
