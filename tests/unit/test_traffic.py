"""Traffic specifications refuse what cannot run, and results say only what the samples can carry."""

from __future__ import annotations

import math
import random
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_rdma import wire
from pytest_rdma.errors import CompletionError, DeadlineError, RdmaError, RefusedError, StoppedError
from pytest_rdma.model import Completion, Opcode, SendWR, Sge
from pytest_rdma.traffic import (
    Latency,
    PingPong,
    Pipeline,
    RecvDrain,
    TrafficResult,
    check_match,
    check_timeout,
    partner_of,
)
from pytest_rdma.traffic_pair import _consequence


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        (Pipeline, {}, "Pipeline: give iterations or duration_s, not neither"),
        (Pipeline, {"iterations": 1, "duration_s": 1.0}, "not both"),
        (Pipeline, {"iterations": -1}, "iterations is -1"),
        (Pipeline, {"duration_s": -0.5}, "duration_s is -0.5"),
        (Pipeline, {"iterations": 1, "depth": 0}, "depth is 0, and must be above 0"),
        (Pipeline, {"iterations": 1, "batch": 0}, "batch is 0"),
        (Pipeline, {"iterations": 1, "signal_every": 0}, "signal_every is 0"),
        (Pipeline, {"iterations": 1, "buffers": -2}, "buffers is -2"),
        (Pipeline, {"iterations": 1, "rate_per_s": -1.0}, r"rate_per_s is -1\.0"),
        (Pipeline, {"iterations": 1, "offset": -1}, "offset is -1"),
        (Pipeline, {"iterations": 1, "remote_offset": -1}, "remote_offset is -1"),
        (Pipeline, {"iterations": 1, "depth": 8, "batch": 9}, "batch 9 is over depth 8"),
        (Pipeline, {"iterations": 1, "size_bytes": (1 << 31) + 1}, r"size_bytes is 2147483649.*2 GiB"),
        (Pipeline, {"iterations": 1, "size_bytes": -1}, "size_bytes is -1"),
        (Pipeline, {"iterations": 1, "op": Opcode.BIND_MW}, "BIND_MW cannot be pipelined"),
        (Pipeline, {"iterations": 1, "op": Opcode.ATOMIC_FETCH_AND_ADD}, "takes 8 bytes, not 65536"),
        (Pipeline, {"duration_s": math.nan}, "duration_s is nan, and must be a finite number"),
        (Pipeline, {"duration_s": math.inf}, "duration_s is inf, and must be a finite number"),
        (Pipeline, {"duration_s": 1e300}, r"duration_s is 1e\+300, and the most is 1000000000"),
        (Pipeline, {"iterations": True}, "iterations is True, and must be a whole number"),
        (Pipeline, {"iterations": 1.5}, r"iterations is 1\.5, and must be a whole number"),
        (Pipeline, {"iterations": 1 << 64}, "iterations is 18446744073709551616, and the most is"),
        (Pipeline, {"iterations": 1, "rate_per_s": math.nan}, "rate_per_s is nan"),
        (Pipeline, {"iterations": 1, "rate_per_s": math.inf}, "rate_per_s is inf"),
        (Pipeline, {"iterations": 1, "rate_per_s": 1e-9}, r"rate_per_s is 1e-09, and the least is 0\.01"),
        (Pipeline, {"iterations": 1, "depth": "8"}, "depth is '8', and must be a whole number"),
        (Pipeline, {"iterations": 1, "buffers": 1 << 40}, "buffers is 1099511627776, and the most is 65536"),
        (Pipeline, {"iterations": 1, "imm": 1 << 32}, "imm is 4294967296, and the most is 4294967295"),
        (Pipeline, {"iterations": 1, "imm": -1}, "imm is -1"),
        (Pipeline, {"iterations": 1, "inline": 1}, "inline is 1, and must be True or False"),
        (Pipeline, {"iterations": 1, "op": 2}, "op is 2, and must be an Opcode"),
        (Pipeline, {"iterations": 1, "size_bytes": None}, "size_bytes is None, and must be a whole number"),
        (Pipeline, {"iterations": 1, "requests": [SendWR(Opcode.SEND)]}, "must be a tuple of SendWR"),
        (RecvDrain, {"messages": True}, "messages is True"),
        (RecvDrain, {"buffers": 1 << 20}, "the most is 65536"),
        (PingPong, {"duration_s": math.nan}, "duration_s is nan"),
        (PingPong, {"iterations": 1, "op": "SEND"}, "op is 'SEND', and must be an Opcode"),
        (RecvDrain, {"messages": -1}, "messages is -1"),
        (RecvDrain, {"depth": 4, "batch": 5}, "batch 5 is over depth 4"),
        (PingPong, {}, "PingPong: give iterations or duration_s"),
        (PingPong, {"iterations": 1, "op": Opcode.RDMA_WRITE, "size_bytes": 0}, "size_bytes is 0"),
        (PingPong, {"iterations": 1, "op": Opcode.RDMA_WRITE_WITH_IMM}, "cannot be ping-ponged"),
        (PingPong, {"iterations": 1, "op": Opcode.RDMA_READ, "answers": True}, "nobody answers a RDMA_READ"),
    ],
)
def test_what_cannot_run_is_refused_with_the_numbers(kind: Any, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(RefusedError, match=message):
        kind(**changes)


@pytest.mark.parametrize("timeout_s", [0, -1.0, math.nan, math.inf, True, None, 1e12])
def test_a_deadline_that_is_none_is_refused(timeout_s: Any) -> None:
    with pytest.raises(RefusedError, match=r"timeout_s is .*, and must be a number of seconds above 0"):
        check_timeout(timeout_s)


def test_fewer_receives_than_sends_are_refused() -> None:
    with pytest.raises(RefusedError, match="9 receives are fewer than the 10 messages sent"):
        check_match((Pipeline(iterations=10),), (RecvDrain(messages=9),))
    check_match((Pipeline(iterations=10),), (RecvDrain(messages=10),))


def test_sends_without_receives_are_refused() -> None:
    with pytest.raises(RefusedError, match="posts no receives"):
        check_match((Pipeline(iterations=10),), ())
    check_match((Pipeline(Opcode.RDMA_WRITE, iterations=10),), ())


@pytest.mark.parametrize(
    ("messages", "sent", "refusal"),
    [
        (10, {"iterations": 10}, ""),
        (0, {"iterations": 10}, ""),
        (0, {"duration_s": 1.0}, ""),
        (10, {"duration_s": 1.0}, "10 messages are expected of a sender that sends by duration_s"),
        (11, {"iterations": 10}, "11 messages are expected, and the other end sends 10"),
        (9, {"iterations": 10}, "9 receives are fewer than the 10 messages sent"),
    ],
)
def test_traffic_both_ways_is_counted_or_told(messages: int, sent: dict[str, Any], refusal: str) -> None:
    ends = (Pipeline(**sent), RecvDrain(messages=messages)), (Pipeline(**sent), RecvDrain(messages=messages))
    with pytest.raises(RefusedError, match=refusal) if refusal else nullcontext():
        check_match(*ends)


def test_the_other_end_is_found_by_itself() -> None:
    assert partner_of(Pipeline(size_bytes=7, iterations=5), 32) == RecvDrain(7, 5, 32, 8)
    assert partner_of(Pipeline(duration_s=1), 2) == RecvDrain(65536, 0, 2, 1)
    assert partner_of(Pipeline(Opcode.RDMA_READ, iterations=5)) is None
    assert partner_of(PingPong(iterations=5)) == PingPong(iterations=5, answers=True)
    assert partner_of(PingPong(Opcode.RDMA_READ, iterations=5)) is None
    mixed = Pipeline(iterations=4, requests=(SendWR(Opcode.RDMA_WRITE), SendWR(Opcode.SEND, (Sge(1, 99, 1),))))
    assert partner_of(mixed) == RecvDrain(99, 2, 64, 16)
    assert partner_of(mixed, 64, 2) == RecvDrain(99, 0, 64, 16)


def latency_of(samples: list[int]) -> Latency:
    values = sorted(set(samples))
    return Latency(
        "round trip",
        len(samples),
        sum(samples) / len(samples),
        values[0],
        values[-1],
        tuple(map(float, values)),
        tuple(samples.count(value) for value in values),
    )


@pytest.mark.parametrize(
    ("count", "names"), [(19, []), (20, ["p50"]), (100, ["p50", "p90"]), (1000, ["p50", "p90", "p99"])]
)
def test_a_percentile_appears_only_with_ten_samples_beyond_it(count: int, names: list[str]) -> None:
    assert list(latency_of(list(range(count))).percentiles_ns) == names


@settings(max_examples=50, deadline=None)
@given(st.integers(20, 3000), st.integers(0, 2**32))
def test_percentiles_are_those_of_the_sorted_samples(count: int, seed: int) -> None:
    samples = [random.Random(seed).randrange(1, 50) for _ in range(count)]
    for percent in (50.0, 90.0, 99.0):
        found = latency_of(samples).percentile(percent)
        if found is not None:
            assert sum(1 for sample in samples if sample <= found) >= count * percent / 100
            assert sum(1 for sample in samples if sample < found) < count * percent / 100


class Here:
    name = "host2"


def test_specifications_and_results_cross_the_stream_as_they_are() -> None:
    result = TrafficResult(
        10, 80, 0, 0, 0.5, latency_of([1, 2, 2]), (3, 7), 0.001, 0.0, 0.0, 1, 2, 3, 4, None, "TSC", 8.5, 1, 0, 3
    )
    requests = (SendWR(Opcode.SEND, (Sge(1, 2, 3),)),)
    everything = [
        Pipeline(Opcode.RDMA_READ, iterations=3, requests=requests),
        RecvDrain(),
        PingPong(iterations=1),
        result,
    ]
    assert wire.decode(wire.encode(everything, Here()), Here()) == everything
    assert (result.messages_per_second, result.bytes_per_second) == (20, 160)


def test_a_cause_is_reported_before_its_consequences() -> None:
    def failed(status: int) -> CompletionError:
        return CompletionError("", completions=[Completion(1, status, 0, 0, None, 0, 1)])

    cause, flush = failed(9), failed(5)
    errors: list[RdmaError] = [StoppedError(""), flush, DeadlineError(""), cause]
    assert sorted(errors, key=_consequence) == [cause, errors[2], flush, errors[0]]


def test_a_ping_pong_arrives_behind_its_own_message() -> None:
    assert replace(PingPong(iterations=1), size_bytes=65, offset=64).target_offset == 192
