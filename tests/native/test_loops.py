"""The flow over a provider of memory: every combination ends, with exactly what was asked for."""

from __future__ import annotations

import ctypes
import errno
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from loopback_provider import Beside, Loopback

from pytest_rdma import native
from pytest_rdma.deadline import Deadline
from pytest_rdma.model import Opcode, RecvWR, SendWR, Sge
from pytest_rdma.native.loops import ENDLESS, LANE_SHIFT, SPLIT, UNTIL_TOLD, LaneSpec, LoopRun, Work

MANY = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
SOME = settings(MANY, max_examples=60)
SIGNALED = 2
SLOT = (1 << LANE_SHIFT) - 1
FLUSH, RNR_EXC = 5, 13

depths = st.integers(1, 64)
iteration_counts = st.integers(0, 300)
signal_periods = st.one_of(st.integers(1, 400), st.just(1), st.just(ENDLESS >> 1))
cycles = st.integers(1, 7)
seeds = st.one_of(st.just(0), st.integers(1, 2**63))


@pytest.fixture
def loopback(loopback_library: ctypes.CDLL) -> Callable[..., Any]:
    @contextmanager
    def make(seed: int = 0) -> Iterator[Loopback]:
        made = Loopback(loopback_library, seed)
        try:
            yield made
        finally:
            made.close()

    return make


def writes(count: int) -> list[SendWR]:
    """A cycle of writes of nothing, each known by its address."""
    return [SendWR(Opcode.RDMA_WRITE, (Sge(1000 + index, 0, 1),), remote_addr=1) for index in range(count)]


def flow(provider: Loopback, end: int = 0, **options: Any) -> LoopRun:
    lanes = options.pop("lanes")
    return LoopRun(native.load(), lanes, [provider.cq(end)], Work(**options))


def run(loop: LoopRun, timeout_s: float = 20.0) -> int:
    loop.run(Deadline(timeout_s))
    return int(loop.struct.rc)


@MANY
@given(st.data(), iteration_counts, depths, signal_periods, cycles, seeds)
def test_every_combination_posts_and_completes_exactly_what_was_asked_for(
    loopback: Any, data: Any, iterations: int, depth: int, signal_every: int, cycle: int, seed: int
) -> None:
    batch = data.draw(st.integers(1, depth))
    with loopback(seed) as provider:
        lane = LaneSpec(provider.qp(0), writes(cycle), send_target=iterations)
        loop = flow(provider, lanes=[lane], depth=depth, batch=batch, signal_every=min(signal_every, 2**32 - 1))
        ring = loop.lanes[0].sends
        provider.set(0, "ring", ring)
        provider.set(0, "ring_end", ring + loop.lanes[0].sends_length * 128)
        provider.set(0, "send_depth", depth)
        assert run(loop) == 0
        assert provider.get(0, "strange") == 0
        assert provider.get(0, "posted") == iterations == loop.lanes[0].completed
        assert provider.get(0, "most_in_flight") <= depth
        notes = list(provider.notes(0))
        assert [note.addr for note in notes] == [1000 + index % cycle for index in range(iterations)]
        assert [note.wr_id & SLOT for note in notes] == [
            index % loop.lanes[0].sends_length for index in range(iterations)
        ]
        if iterations:
            assert notes[-1].send_flags & SIGNALED
            signaled = sum(1 for note in notes if note.send_flags & SIGNALED)
            assert signaled >= iterations // signal_every
        assert sum(loop.series.counts) == iterations


@SOME
@given(st.data(), st.integers(1, 200), depths, st.integers(1, 80), seeds)
def test_a_bad_completion_ends_the_run_with_its_status_and_number(
    loopback: Any, data: Any, iterations: int, depth: int, signal_every: int, seed: int
) -> None:
    batch, fail_at = data.draw(st.integers(1, depth)), data.draw(st.integers(0, iterations - 1))
    with loopback(seed) as provider:
        provider.set(0, "fail_at", fail_at)
        provider.set(0, "fail_status", RNR_EXC)
        lane = LaneSpec(provider.qp(0), writes(3), send_target=iterations)
        loop = flow(provider, lanes=[lane], depth=depth, batch=batch, signal_every=signal_every)
        assert run(loop) == -errno.EIO
        assert loop.struct.error.status == RNR_EXC
        assert loop.struct.error_message == fail_at == loop.lanes[0].completed
        assert provider.get(0, "posted") <= fail_at + depth


@SOME
@given(
    st.data(), st.integers(1, 200), depths, st.sampled_from([(errno.ENOMEM, 0), (-errno.ENOMEM, 0), (-1, errno.ENOMEM)])
)
def test_a_refused_post_ends_the_run_with_the_errno_however_the_provider_says_it(
    loopback: Any, data: Any, iterations: int, depth: int, refusal: tuple[int, int]
) -> None:
    batch, refuse_at = data.draw(st.integers(1, depth)), data.draw(st.integers(0, iterations - 1))
    with loopback() as provider:
        provider.set(0, "refuse_at", refuse_at)
        provider.set(0, "refuse_rc", refusal[0] % 2**64)
        provider.set(0, "refuse_errno", refusal[1])
        lane = LaneSpec(provider.qp(0), writes(1), send_target=iterations)
        loop = flow(provider, lanes=[lane], depth=depth, batch=batch, signal_every=7)
        assert run(loop) == -errno.ENOMEM
        assert loop.lanes[0].posted == refuse_at == provider.get(0, "posted")


def test_a_poll_that_fails_ends_the_run(loopback: Any) -> None:
    with loopback() as provider:
        provider.set(0, "poll_fail_at", 5)
        loop = flow(provider, lanes=[LaneSpec(provider.qp(0), writes(1), send_target=100)], depth=4)
        assert run(loop) == -errno.EIO
        assert loop.struct.error.status == 0


@SOME
@given(st.data(), st.integers(1, 250), depths, st.integers(1, 32), seeds)
def test_sends_meet_receives_and_both_ends_count_the_same(
    loopback: Any, data: Any, iterations: int, depth: int, recv_depth: int, seed: int
) -> None:
    batch, recv_batch = data.draw(st.integers(1, depth)), data.draw(st.integers(1, recv_depth))
    source, target = ctypes.create_string_buffer(b"abcdefg", 7), ctypes.create_string_buffer(7)
    with loopback(seed) as provider:
        provider.set(1, "recv_depth", recv_depth)
        sends = [SendWR(Opcode.SEND, (Sge(ctypes.addressof(source), 7, 1),))]
        recvs = [RecvWR((Sge(ctypes.addressof(target), 7, 1),))]
        active = flow(
            provider,
            lanes=[LaneSpec(provider.qp(0), sends, send_target=iterations)],
            depth=depth,
            batch=batch,
            signal_every=data.draw(st.integers(1, 80)),
        )
        passive = flow(
            provider,
            1,
            lanes=[LaneSpec(provider.qp(1), recvs=recvs, recv_target=iterations)],
            recv_depth=recv_depth,
            recv_batch=recv_batch,
        )
        passive.prepare()
        assert both(active, passive) == (0, 0)
        assert provider.get(1, "strange") == 0
        assert provider.get(1, "recv_posted") == iterations == passive.lanes[0].received
        assert passive.struct.received_bytes == 7 * iterations
        assert target.raw == b"abcdefg"
        assert sum(passive.series.counts) == iterations


def both(active: LoopRun, passive: LoopRun) -> tuple[int, int]:
    beside = Beside(run, passive)
    run(active)
    beside.end()
    return int(active.struct.rc), int(passive.struct.rc)


def test_traffic_both_ways_shares_one_queue_of_completions(loopback: Any) -> None:
    with loopback(5) as provider:
        ends = [
            flow(
                provider,
                end,
                lanes=[LaneSpec(provider.qp(end), [SendWR(Opcode.SEND)], [RecvWR()], send_target=200, recv_target=200)],
                depth=8,
                batch=3,
                signal_every=5,
                recv_depth=16,
            )
            for end in (0, 1)
        ]
        for end in ends:
            end.prepare()
        assert both(ends[0], ends[1]) == (0, 0)
        assert [(end.lanes[0].completed, end.lanes[0].received) for end in ends] == [(200, 200)] * 2


def test_a_drain_without_end_stays_until_it_is_told_and_counts_all(loopback: Any) -> None:
    with loopback() as provider:
        lane = LaneSpec(provider.qp(1), recvs=[RecvWR()], recv_target=ENDLESS)
        drain = flow(provider, 1, lanes=[lane], recv_depth=8, flags=UNTIL_TOLD)
        drain.prepare()
        deadline = Deadline(20)
        beside = Beside(drain.run, deadline)
        source = flow(provider, lanes=[LaneSpec(provider.qp(0), [SendWR(Opcode.SEND)], send_target=1000)], depth=4)
        assert run(source) == 0
        deadline.stop.set()
        beside.end()
        assert drain.struct.rc == 0
        assert drain.lanes[0].received == 1000
        assert provider.get(1, "recv_posted") == 1008


@SOME
@given(st.tuples(depths, depths), st.tuples(st.integers(0, 5), st.integers(0, 5)), signal_periods, depths, seeds)
def test_both_ways_by_time_each_end_receives_exactly_what_the_other_sent(
    loopback: Any, depth: tuple[int, int], milliseconds: tuple[int, int], period: int, recv_depth: int, seed: int
) -> None:
    """Each is told how many arrive when the other has sent all, as their controller does it."""
    with loopback(seed) as provider:
        ends = []
        for end in (0, 1):
            lane = LaneSpec(provider.qp(end), [SendWR(Opcode.SEND)], [RecvWR()], ENDLESS, ENDLESS)
            options: dict[str, Any] = {"depth": depth[end], "signal_every": min(period, 2**32 - 1)}
            duration_ns = milliseconds[end] * 1_000_000 + 1
            options.update(recv_depth=recv_depth, duration_ns=duration_ns, flags=UNTIL_TOLD)
            ends.append(flow(provider, end, lanes=[lane], **options))
            ends[end].prepare()
        deadlines = Deadline(20), Deadline(20)
        running = [Beside(end.run, until) for end, until in zip(ends, deadlines)]
        for end, other, until in zip(ends, ends[::-1], deadlines):
            assert other.wait_sent(until)
            end.struct.told = other.lanes[0].completed + 1
        for beside in running:
            beside.end()
        assert [end.struct.rc for end in ends] == [0, 0]
        lanes = ends[0].lanes[0], ends[1].lanes[0]
        assert [lane.posted for lane in lanes] == [lane.completed for lane in lanes]
        assert [lane.received for lane in lanes] == [lane.completed for lane in lanes[::-1]]


@SOME
@given(st.data(), depths, st.integers(1, 200), seeds)
def test_a_run_by_time_ends_with_nothing_in_flight(
    loopback: Any, data: Any, depth: int, signal_every: int, seed: int
) -> None:
    with loopback(seed) as provider:
        lane = LaneSpec(provider.qp(0), writes(1), send_target=ENDLESS)
        batch = data.draw(st.integers(1, depth))
        loop = flow(provider, lanes=[lane], depth=depth, batch=batch, signal_every=signal_every, duration_ns=2_000_000)
        assert run(loop) == 0
        assert 0 < loop.lanes[0].posted == loop.lanes[0].completed == provider.get(0, "posted")
        assert loop.struct.elapsed_ns >= 2_000_000


@pytest.mark.parametrize("lanes", [1, 4])
def test_requests_go_round_robin_over_the_lanes(loopback: Any, lanes: int) -> None:
    with loopback() as provider:
        specs = [LaneSpec(provider.qp(0), writes(1), send_target=10 + lane % 2) for lane in range(lanes)]
        loop = flow(provider, lanes=specs, depth=4, batch=2, signal_every=3)
        assert run(loop) == 0
        assert [lane.completed for lane in loop.lanes] == [10, 11, 10, 11][:lanes]
        posted = [note.wr_id >> LANE_SHIFT for note in provider.notes(0)]
        assert posted[: 2 * lanes] == [lane for lane in range(lanes) for _ in (0, 1)]


def test_a_stop_ends_a_run_long_before_its_deadline(loopback: Any) -> None:
    with loopback() as provider:
        lane = LaneSpec(provider.qp(0), [SendWR(Opcode.SEND)], send_target=10)  # nobody receives
        loop = flow(provider, lanes=[lane], depth=4)
        deadline = Deadline(30)
        timer = threading.Timer(0.05, deadline.stop.set)
        timer.start()
        begin = time.monotonic()
        loop.run(deadline)
        assert loop.struct.rc == -errno.ECANCELED
        assert time.monotonic() - begin < 0.05 + 2.0
        timer.join()


def test_a_passive_side_that_never_comes_ends_at_the_deadline(loopback: Any) -> None:
    with loopback() as provider:
        lane = LaneSpec(provider.qp(0), [SendWR(Opcode.SEND)], send_target=10)
        loop = flow(provider, lanes=[lane], depth=4)
        assert run(loop, 0.05) == -errno.ETIMEDOUT
        assert (loop.lanes[0].posted, loop.lanes[0].completed) == (4, 0)


def test_a_stuck_run_tells_when_its_counters_last_moved(loopback: Any) -> None:
    with loopback() as provider:
        lane = LaneSpec(provider.qp(0), [SendWR(Opcode.SEND)], send_target=10)
        loop = flow(provider, lanes=[lane], depth=4)
        deadline = Deadline(20)
        beside = Beside(loop.run, deadline)
        while loop.ago_s(loop.lanes[0].post) is None:
            assert not deadline.passed
        begin = time.monotonic()
        while loop.ago_s(loop.lanes[0].post) < 0.1:
            assert not deadline.passed
        assert 0.05 < time.monotonic() - begin < 10
        assert (loop.lanes[0].posted, loop.ago_s(loop.lanes[0].completion)) == (4, None)
        deadline.stop.set()
        beside.end()
        assert loop.ago_s(loop.lanes[0].post) > 0.1


def test_a_short_receive_is_reported_at_both_ends(loopback: Any) -> None:
    memory = ctypes.create_string_buffer(8)
    at = ctypes.addressof(memory)
    with loopback() as provider:
        active = flow(
            provider, lanes=[LaneSpec(provider.qp(0), [SendWR(Opcode.SEND, (Sge(at, 8, 1),))], send_target=9)], depth=9
        )
        passive = flow(
            provider, 1, lanes=[LaneSpec(provider.qp(1), recvs=[RecvWR((Sge(at, 4, 1),))], recv_target=9)], recv_depth=9
        )
        passive.prepare()
        assert both(active, passive) == (-errno.EIO, -errno.EIO)
        assert active.struct.error.status == 9  # REM_INV_REQ_ERR
        assert passive.struct.error.status == 1  # LOC_LEN_ERR, though flushes came as well


def test_a_rate_limit_is_kept(loopback: Any) -> None:
    with loopback() as provider:
        lane = LaneSpec(provider.qp(0), writes(1), send_target=101)
        loop = flow(provider, lanes=[lane], depth=16, gap_ps=1_000_000_000)  # a millisecond
        assert run(loop) == 0
        assert 0.1e9 <= loop.struct.elapsed_ns < 3e9


def test_time_is_split_on_request(loopback: Any) -> None:
    with loopback() as provider:
        lane = LaneSpec(provider.qp(0), writes(1), send_target=2000)
        loop = flow(provider, lanes=[lane], depth=16, flags=SPLIT)
        assert run(loop) == 0
        assert 0 < loop.struct.post_ns < loop.struct.elapsed_ns
        assert 0 < loop.struct.poll_ns < loop.struct.elapsed_ns
        assert loop.struct.post_ns + loop.struct.poll_ns <= loop.struct.elapsed_ns


def test_the_series_holds_a_run_of_any_length(loopback: Any) -> None:
    with loopback() as provider:
        lane = LaneSpec(provider.qp(0), writes(1), send_target=600)
        loop = flow(provider, lanes=[lane], depth=1, gap_ps=1_000_000_000)
        assert run(loop) == 0
        assert loop.series.interval_ns >= 4_000_000
        assert sum(loop.series.counts) == 600
        assert max(loop.series.counts[: loop.series.used - 1]) < 400  # one stall of a busy machine may hold many
