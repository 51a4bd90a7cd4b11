"""What the numbers of a benchmark are warned of, and how rounds become one."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_rdma.benchmark import merged, warnings_of
from pytest_rdma.traffic import Latency, TrafficResult

MACHINE: dict[str, Any] = {
    "host": "host1",
    "governor": "performance",
    "emulated": False,
    "numa_node": 0,
    "cpu_numa_nodes": [0, 1],
    "device": "mlx5_0",
    "max_mtu": 4096,
}


def facts(mtu: int = 4096, **changes: Any) -> dict[str, Any]:
    return {"mtu": mtu, "local": {**MACHINE, **changes}, "peer": MACHINE}


def round_of(seconds: float) -> TrafficResult:
    return TrafficResult(1, 1, 0, 0, seconds, None, (1,), 0.001, 0.0, 0.0, 1, 1, 1, 0, None, "TSC", 8.0, 0)


def test_nothing_is_warned_of_where_nothing_calls_for_it() -> None:
    assert warnings_of([round_of(1.0)], facts()) == []
    assert warnings_of([round_of(1.0)], facts(numa_node=-1)) == []
    assert warnings_of([round_of(1.0)], facts(mtu=1024, max_mtu=1024)) == []


@pytest.mark.parametrize(
    ("seconds", "changes", "message"),
    [
        (0.001, {}, "a round took 1.00 ms"),
        (1.0, {"governor": "powersave"}, "host1 runs its CPUs with the powersave governor"),
        (1.0, {"emulated": True}, "host1 has an emulated CPU"),
        (1.0, {"numa_node": 1, "cpu_numa_nodes": [0]}, "mlx5_0 of host1 is on NUMA node 1, the process on 0"),
        (1.0, {"mtu": 1024}, "the path MTU is 1024, and both ports can do 4096"),
    ],
)
def test_each_fact_that_matters_is_named(seconds: float, changes: dict[str, Any], message: str) -> None:
    (found,) = warnings_of([round_of(seconds)], facts(**changes))
    assert found.startswith(message)


def test_the_latencies_of_rounds_become_one() -> None:
    first = Latency("round trip", 2, 10.0, 5, 15, (5.0, 15.0), (1, 1))
    second = Latency("round trip", 1, 40.0, 40, 40, (40.0,), (1,))
    found = merged([first, second])
    assert found == Latency("round trip", 3, 20.0, 5, 40, (5.0, 15.0, 40.0), (1, 1, 1))
    assert merged([]) is None
