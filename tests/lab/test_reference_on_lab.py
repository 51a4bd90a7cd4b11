"""--rdma-reference perftest with the real tools: over SSH, looped back, over IPv6, and where a host has no perftest."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.lab

TESTS = """
import pytest
from pytest_rdma import Opcode, PingPong, Pipeline


@pytest.mark.rdma_caps(recv_depth=128)
def test_rate(rdma_pairs, rdma_benchmark):
    spec = Pipeline(Opcode.SEND, 1024, iterations=400, depth=64, batch=16, signal_every=16)
    rdma_benchmark([rdma_pairs(), rdma_pairs()], spec, rounds=2, warmup_rounds=0)


def test_time(rdma_pair, rdma_benchmark):
    rdma_benchmark(rdma_pair, PingPong(Opcode.RDMA_READ, 8, duration_s=0.1), rounds=1, reverse=True)


def test_other(rdma_pair, rdma_benchmark):
    spec = Pipeline(Opcode.RDMA_WRITE, 64, iterations=100, buffers=4)
    rdma_benchmark(rdma_pair, spec, rounds=1, warmup_rounds=0)
"""

Run = Callable[..., tuple[Any, dict[str, dict[str, Any]]]]


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, ssh_config: Path) -> Run:
    """Run the tests with these options; return what pytest said, and the reference of each test that has one."""
    monkeypatch.setenv("HOME", str(ssh_config.parents[1]))
    pytester.makepyfile(test_it=TESTS)

    def go(*options: str) -> tuple[Any, dict[str, dict[str, Any]]]:
        result = pytester.runpytest_subprocess("--rdma-reference=perftest", "--benchmark-json=out.json", *options)
        found = json.loads(Path("out.json").read_text())["benchmarks"]
        return result, {one["name"]: one["extra_info"]["reference"] for one in found}

    return go


def assert_both_ran(references: dict[str, dict[str, Any]]) -> None:
    rate, time = references["test_rate"], references["test_time"]
    assert (rate["tool"], time["tool"]) == ("ib_send_bw", "ib_read_lat")
    assert len(rate["runs"]) == 2 and len(time["runs"]) == 1
    assert rate["messages_per_second"] > 0 and time["p50_ns"] > 0
    assert rate["ratio"] > 0 and time["ratio"] > 0


def test_between_two_hosts_over_ssh(run: Run) -> None:
    result, references = run("--rdma-host=host1", "--peer=host2")
    result.assert_outcomes(passed=3)
    assert_both_ran(references)
    assert references["test_other"] == {"skipped": "perftest does not rotate through buffers"}
    result.stdout.re_match_lines(
        [
            r"test +size .* perftest +ratio$",
            r"test_rate .* Gb/s +\d+\.\d\d$",
            r"test_time .* us +\d+\.\d\d$",
            r"no reference: perftest does not rotate through buffers \(1 of 3 tests\)$",
        ]
    )


@pytest.mark.full
def test_looped_back_over_ipv6(run: Run) -> None:
    result, references = run("--rdma-host=host1", "--rdma-gid-index=2", "--peer-gid-index=2", "-k", "not other")
    result.assert_outcomes(passed=2, deselected=1)
    assert_both_ran(references)


@pytest.mark.full
def test_a_host_without_perftest_is_named(run: Run, on_guest: Callable[..., str]) -> None:
    on_guest("mv /usr/bin/ib_read_lat /usr/bin/hidden")
    try:
        result, references = run("--rdma-host=host1", "-k", "time")
    finally:
        on_guest("mv /usr/bin/hidden /usr/bin/ib_read_lat")
    result.assert_outcomes(passed=1, deselected=2)
    assert references["test_time"] == {"skipped": "host1 has no ib_read_lat: install the package perftest there"}
