"""Loops run beside the device where that is possible, and wherever they may where it is not."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from pytest_rdma.verbs_placement import near, node_of

ALLOWED = os.sched_getaffinity(0)
FIRST = min(ALLOWED)


@pytest.fixture
def cpus(tmp_path: Path) -> Path:
    """The first processor is on node 1, the others on node 0."""
    for cpu in ALLOWED:
        (tmp_path / f"cpu{cpu}" / f"node{int(cpu == FIRST)}").mkdir(parents=True)
    return tmp_path


def affinity_of_a_thread() -> set[int]:
    found: list[set[int]] = []
    thread = threading.Thread(target=lambda: found.append(os.sched_getaffinity(0)))
    thread.start()
    thread.join()
    return found[0]


def test_threads_run_beside_the_device_and_their_maker_goes_on_as_before(cpus: Path) -> None:
    with near(1, cpus):
        assert affinity_of_a_thread() == {FIRST}
    assert os.sched_getaffinity(0) == ALLOWED


@pytest.mark.parametrize("node", [-1, 7])
def test_a_device_without_a_node_or_on_one_out_of_reach_binds_nothing(cpus: Path, node: int) -> None:
    with near(node, cpus):
        assert affinity_of_a_thread() == ALLOWED


def test_the_node_of_a_processor(cpus: Path) -> None:
    assert node_of(FIRST, cpus) == 1
    assert node_of(99999, cpus) == -1
