"""Ping-pong and its histogram over a provider of memory."""

from __future__ import annotations

import ctypes
import errno
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from loopback_provider import Beside, Loopback

from pytest_rdma import native
from pytest_rdma.deadline import Deadline
from pytest_rdma.model import Opcode, RecvWR, SendWR, Sge
from pytest_rdma.native.loops import (
    ENDLESS,
    PINGPONG_SEND,
    PINGPONG_WRITE,
    RESPONDER,
    ROUND_TRIP,
    UNTIL_TOLD,
    HistogramStruct,
    LaneSpec,
    LoopRun,
    Work,
    library,
)


def pair_of(kind: int, provider: Loopback, size: int, count: int, duration_ns: int = 0) -> list[LoopRun]:
    """Both ends of a ping-pong. Each has a source and, 4096 bytes on, a target."""
    memory = [ctypes.create_string_buffer(8192) for _ in (0, 1)]
    at = [ctypes.addressof(one) for one in memory]
    ends = []
    for end in (0, 1):
        sge = (Sge(at[end], size, 1),)
        send = SendWR(Opcode.SEND, sge)
        if kind == PINGPONG_WRITE:
            send = SendWR(Opcode.RDMA_WRITE, sge, remote_addr=at[1 - end] + 4096, rkey=1)
        tail = min(size, 8)
        until_told = UNTIL_TOLD if end and count == ENDLESS else 0
        lane = LaneSpec(
            provider.qp(end),
            [send],
            [RecvWR((Sge(at[end] + 4096, size, 1),))] if kind == PINGPONG_SEND else [],
            send_target=count,
            recv_target=count if kind == PINGPONG_SEND else 0,
        )
        work = Work(
            kind=kind,
            flags=(RESPONDER if end else 0) | until_told,
            depth=8,
            signal_every=1 if until_told else 4,
            recv_depth=8 if kind == PINGPONG_SEND else 0,
            iterations=count,
            duration_ns=0 if end else duration_ns,
            tail_source=at[end] + size - tail,
            tail_target=at[end] + 4096 + size - tail,
            tail_bytes=tail,
        )
        run = LoopRun(native.load(), [lane], [provider.cq(end)], work)
        run._kept += memory
        run.prepare()
        ends.append(run)
    return ends


def play(ends: list[LoopRun]) -> None:
    deadlines = [Deadline(20), Deadline(20)]
    beside = Beside(ends[1].run, deadlines[1])
    ends[0].run(deadlines[0])
    ends[1].struct.told = ends[0].lanes[0].completed + 1
    beside.end()
    assert [end.struct.rc for end in ends] == [0, 0]


@pytest.mark.parametrize("kind", [PINGPONG_SEND, PINGPONG_WRITE])
@pytest.mark.parametrize("size", [1, 2, 3, 7, 8, 9, 1000, 4096])
@pytest.mark.parametrize("seed", [0, 3])
def test_each_message_is_answered_once(loopback_library: ctypes.CDLL, kind: int, size: int, seed: int) -> None:
    provider = Loopback(loopback_library, seed)
    ends = pair_of(kind, provider, size, 600)  # more than a byte counts
    play(ends)
    assert [end.lanes[0].completed for end in ends] == [600, 600]
    histogram = ends[0].histogram
    assert histogram.count == 600 == sum(histogram.buckets)
    assert 0 < histogram.min_ns <= histogram.sum_ns / 600 <= histogram.max_ns
    assert abs(histogram.sum_ns - ends[0].struct.elapsed_ns) <= 600 + ends[0].struct.elapsed_ns * 0.5
    assert ends[1].histogram.count == 0
    provider.close()


@pytest.mark.parametrize("kind", [PINGPONG_SEND, PINGPONG_WRITE])
def test_by_time_the_answering_side_stays_until_told(loopback_library: ctypes.CDLL, kind: int) -> None:
    provider = Loopback(loopback_library)
    ends = pair_of(kind, provider, 16, ENDLESS, duration_ns=5_000_000)
    play(ends)
    assert ends[0].histogram.count == ends[0].lanes[0].completed == ends[1].lanes[0].completed > 0
    assert ends[0].struct.elapsed_ns >= 5_000_000
    provider.close()


@pytest.mark.parametrize("opcode", [Opcode.RDMA_READ, Opcode.ATOMIC_FETCH_AND_ADD])
def test_a_read_or_an_atomic_is_a_whole_round_trip(loopback_library: ctypes.CDLL, opcode: Opcode) -> None:
    provider = Loopback(loopback_library)
    memory = (ctypes.c_uint64 * 2)(0, 0)
    at = ctypes.addressof(memory)
    request = SendWR(opcode, (Sge(at, 8, 1),), remote_addr=at + 8, compare_add=1)
    lane = LaneSpec(provider.qp(0), [request], send_target=50)
    run = LoopRun(native.load(), [lane], [provider.cq(0)], Work(kind=ROUND_TRIP, iterations=50))
    run.run(Deadline(20))
    assert run.struct.rc == 0
    assert run.histogram.count == 50
    if opcode == Opcode.ATOMIC_FETCH_AND_ADD:
        assert list(memory) == [49, 50]
    provider.close()


def test_a_failure_is_noticed_while_memory_is_watched(loopback_library: ctypes.CDLL) -> None:
    provider = Loopback(loopback_library)
    provider.set(0, "fail_at", 3)
    provider.set(0, "fail_status", 10)
    ends = pair_of(PINGPONG_WRITE, provider, 8, 100)
    deadline = Deadline(20)
    beside = Beside(ends[1].run, deadline)
    ends[0].run(Deadline(20))
    deadline.stop.set()
    beside.end()
    assert ends[0].struct.rc == -errno.EIO
    assert (ends[0].struct.error.status, ends[0].struct.error_message) == (10, 3)
    assert ends[1].struct.rc == -errno.ECANCELED
    provider.close()


@settings(max_examples=300, deadline=None)
@given(st.lists(st.integers(1, 100_000_000_000), min_size=1, max_size=30))
def test_a_bucket_is_within_one_percent_of_all_in_it(durations: list[int]) -> None:
    lib: Any = library(native.load())[0]
    histogram = HistogramStruct()
    for duration in durations:
        lib.prdma_histogram_add(ctypes.byref(histogram), duration)
    found = [
        lib.prdma_histogram_value(index) for index, count in enumerate(histogram.buckets) for _ in range(int(count))
    ]
    for duration, value in zip(sorted(durations), found):
        assert abs(value - duration) <= duration * 0.01
    assert (histogram.count, histogram.min_ns, histogram.max_ns) == (len(durations), min(durations), max(durations))
