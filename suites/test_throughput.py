"""Throughput of Send, Write and Read (InfiniBand specification, chapters 9-11): size, depth, batch, QPs, direction.

The default is a pairwise cover, `--rdma-full` the whole product. A round runs for a tenth of a second.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from traffic_cases import Case, cases, connected, verify_data

from pytest_rdma import Pair
from pytest_rdma.plugin import configuration


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    full = configuration(metafunc.config).full.value
    metafunc.parametrize("case", cases(full), ids=str)


def test_throughput(rdma_pairs: Callable[..., Pair], rdma_benchmark: Any, case: Case) -> None:
    """Steps: move one message a pair and compare its bytes; then warm up, and measure three rounds.

    Verify: what was moved is what was posted, in every round.
    """
    pairs = connected(rdma_pairs, case)
    reverse = case.direction == "back"
    verify_data(pairs, case.spec, reverse)
    active, passive = case.ends
    measured = rdma_benchmark(pairs, active, passive, rounds=3, reverse=reverse)
    for one in measured.rounds:
        assert one.messages > 0
        assert one.bytes == one.messages * case.size
        assert sum(one.series) == one.messages
