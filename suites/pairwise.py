"""Few rows of many parameters: each pair of values of any two parameters is in one of them at least."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations, product
from typing import Any

Row = tuple[Any, ...]


def whole_product(parameters: Mapping[str, Sequence[Any]]) -> list[Row]:
    """Return every combination, the last parameter varying fastest."""
    return list(product(*parameters.values()))


def pairwise_cover(parameters: Mapping[str, Sequence[Any]]) -> list[Row]:
    """Return rows that cover all pairs: greedily the row with most pairs that are new, the first of equals.

    The same parameters give the same rows. With two parameters that is the whole product.
    """
    rows = whole_product(parameters)
    return cover(rows) if len(parameters) > 1 else rows


def cover(rows: Sequence[Row]) -> list[Row]:
    """Return few of the rows that hold all pairs of values that are in any of them."""
    missing = {pair for row in rows for pair in _pairs(row)}
    chosen: list[Row] = []
    while missing:
        best = max(rows, key=lambda row: len(missing & _pairs(row)))
        missing -= _pairs(best)
        chosen.append(best)
    return chosen


def _pairs(row: Row) -> set[tuple[int, Any, int, Any]]:
    return {(i, row[i], j, row[j]) for i, j in combinations(range(len(row)), 2)}
