"""rdma_benchmark under the real pytest-benchmark; only what the hosts would answer is put in its place."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

TEST = """
import pytest
from pytest_rdma import PingPong, Pipeline, Latency, TrafficResult, PairResult, benchmark

MACHINE = dict(host="h", governor="", emulated=False, numa_node=-1, cpu_numa_nodes=[0], device="d", max_mtu=4096)


def result(messages, seconds, latency=None):
    return TrafficResult(
        messages, messages * 100, 0, 0, seconds, latency, (messages,), 0.001, 0, 0, 1, 1, 1, 0, None, "TSC", 8.0, 0
    )


@pytest.fixture
def rdma_benchmark(request, monkeypatch):
    rounds = iter([1.0, 0.5, 0.25, 0.5, 0.5, 0.5])
    latency = Latency("half of a round trip", 1000, 2000.0, 1000, 9000, (1000.0, 3000.0), (500, 500))

    def run_pairs(pairs, spec, passive, reverse, timeout_s):
        return PairResult(result(1000, next(rounds), latency if isinstance(spec, PingPong) else None), None)

    monkeypatch.setattr(benchmark, "run_pairs", run_pairs)
    monkeypatch.setattr(benchmark, "machine_facts", lambda pair: {"mtu": 4096, "local": MACHINE, "peer": MACHINE})
    return benchmark.Benchmark(request)


@pytest.mark.benchmark(group="mine")
def test_rate(rdma_benchmark):
    measured = rdma_benchmark(None, Pipeline(size_bytes=100, iterations=1000))
    assert measured.messages_per_second in (2000, 1000)


def test_time(rdma_benchmark):
    rdma_benchmark(None, PingPong(iterations=1000))
"""


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p no:cacheprovider")
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)  # pytest-benchmark gives up where it finds it
    pytester.makepyfile(test_it=TEST)
    return pytester


def test_operations_are_messages_a_second_and_all_facts_are_in_the_json(suite: pytest.Pytester) -> None:
    result = suite.runpytest_subprocess("--benchmark-json=out.json")
    result.assert_outcomes(passed=2)
    rate, time = json.loads(Path("out.json").read_text())["benchmarks"]
    # a warm-up of 1 s is not among them, rounds were 0.5, 0.25, 0.5, 0.5, 0.5 s for 1000 messages
    assert rate["stats"]["rounds"] == 5
    assert rate["stats"]["median"] == pytest.approx(0.0005)
    assert rate["stats"]["min"] == pytest.approx(0.00025)
    assert rate["group"] == "mine"
    assert rate["extra_info"]["messages_per_second"] == 2000
    assert rate["extra_info"]["bytes_per_second"] == 200000
    assert rate["extra_info"]["parameters"]["op"] == "SEND"
    assert rate["extra_info"]["spread"] == 1.0
    assert time["stats"]["mean"] == pytest.approx(2e-6)
    assert time["extra_info"]["latency"]["count"] == 5000
    assert "p99.9_ns" not in time["extra_info"]["latency"]
    assert time["extra_info"]["latency"]["p99_ns"] == 3000
    result.stdout.fnmatch_lines(["*rdma benchmarks*", "test *Gb/s*", "test_rate *100 *0.002 *100% *5"])
    result.stdout.fnmatch_lines(["test_time *1.0 *3.0 *5", "*half of a round trip*"])


def test_with_benchmarks_disabled_one_round_runs(suite: pytest.Pytester) -> None:
    result = suite.runpytest_subprocess("--benchmark-disable")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["test_rate *0% *1"])


def test_beside_other_tests_it_is_skipped_with_the_way_out(suite: pytest.Pytester) -> None:
    pytest.importorskip("xdist")
    result = suite.runpytest_subprocess("-n2", "-rs", "-W", "ignore")
    result.assert_outcomes(skipped=2)
    result.stdout.fnmatch_lines(["*run them with -n0*"])


def test_without_pytest_benchmark_it_says_what_to_install(suite: pytest.Pytester) -> None:
    result = suite.runpytest_subprocess("-p", "no:benchmark", "-W", "ignore")
    result.assert_outcomes(errors=2)
    result.stdout.fnmatch_lines(["*pip install 'pytest-rdma?benchmark?'*"])


@pytest.mark.parametrize("error", ["RuntimeError", "KeyboardInterrupt"])
def test_a_warm_up_that_fails_or_is_interrupted_is_that_and_no_more(suite: pytest.Pytester, error: str) -> None:
    suite.makepyfile(test_it=TEST.replace("return PairResult(", f"raise {error}\n        return PairResult("))
    result = suite.runpytest_subprocess("-Werror", "-k", "test_rate")
    result.stdout.no_fnmatch_line("*not used*")
    if error == "RuntimeError":
        result.assert_outcomes(failed=1)
    else:
        assert result.ret == pytest.ExitCode.INTERRUPTED
