"""Traffic on a real device, in whichever mode the run is: what is refused, how runs end, what they leave."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import calls
import pytest

from pytest_rdma import (
    CompletionError,
    DeadlineError,
    Endpoint,
    Host,
    Opcode,
    Pair,
    PingPong,
    Pipeline,
    RecvDrain,
    RefusedError,
    SendWR,
    Spec,
    WCStatus,
    run_pairs,
)
from pytest_rdma.errors import HostLostError, RdmaUsageError, StoppedError

RECEIVER_SAYS = (WCStatus.LOC_LEN_ERR, WCStatus.LOC_QP_OP_ERR)  # the latter on rxe
TOO_LONG = (*RECEIVER_SAYS, WCStatus.REM_INV_REQ_ERR, WCStatus.REM_OP_ERR)
WRITE, READ, SEND = Opcode.RDMA_WRITE, Opcode.RDMA_READ, Opcode.SEND


def wait_until_it_sends(endpoint: Endpoint) -> None:
    deadline = time.monotonic() + 30
    while endpoint.host.call(calls.progress, endpoint)[0][0] == 0:
        assert time.monotonic() < deadline


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (Pipeline(WRITE, 8, iterations=1, depth=100_000), r"depth 100000 is over its send queue of \d+"),
        (Pipeline(WRITE, 70_000, iterations=1), r"70000 bytes at .* are not within the buffer"),
        (Pipeline(WRITE, 60_000, iterations=1, remote_offset=10_000), r"is not within the peer's 65536 bytes"),
        (Pipeline(WRITE, 30_000, iterations=1, buffers=3), r"30000 bytes at .* are not within"),
        (Pipeline(WRITE, 65_000, iterations=1, inline=True), r"65000 bytes inline, and .* was granted \d+"),
        (RecvDrain(70_000), "not within the buffer"),
        (RecvDrain(8, depth=100_000), r"receive depth 100000 is over its receive queue of \d+"),
        (PingPong(WRITE, 60_000, iterations=1), "not within the peer's"),
    ],
)
def test_what_the_qp_or_its_buffer_cannot_is_refused_with_the_numbers(
    rdma_pair: Pair, spec: Spec, message: str
) -> None:
    with pytest.raises(RefusedError, match=message):
        rdma_pair.local.run(spec)
    assert rdma_pair.local.poll(1, timeout_s=0, exactly=False) == []


def test_reads_on_a_pair_without_any_are_refused(rdma_pairs: Callable[..., Pair]) -> None:
    pair = rdma_pairs(overrides={"local": {"rd_atomic": 0}})
    with pytest.raises(RefusedError, match="rd_atomic 0"):
        pair.local.run(Pipeline(READ, 8, iterations=1))


def test_an_unconnected_qp_is_refused(rdma_pairs: Callable[..., Pair]) -> None:
    with pytest.raises(RefusedError, match="is INIT, not RTS"):
        rdma_pairs(connect=False).local.run(Pipeline(SEND, 8, iterations=1))


def test_a_read_deeper_than_what_may_be_open_runs_and_says_so(rdma_pair: Pair) -> None:
    result = rdma_pair.local.run(Pipeline(READ, 64, iterations=200, depth=100))
    assert result.messages == 200
    assert result.outstanding_reads == min(100, rdma_pair.attributes.rd_atomic)


def test_a_cycle_of_ready_requests_runs_in_order(rdma_pair: Pair) -> None:
    """Writes to two places and a send, again and again: each lands where it says."""
    local, target = rdma_pair.local, rdma_pair.peer.buffer.remote
    local.buffer.fill(1, 0, 300)
    write = [
        SendWR(WRITE, (local.buffer.sge(at, 100),), remote_addr=target.addr + 1000 + at, rkey=target.rkey)
        for at in (0, 100)
    ]
    send = SendWR(SEND, (local.buffer.sge(200, 100),))
    result = run_pairs(rdma_pair, Pipeline(iterations=31, depth=5, batch=3, signal_every=7, requests=(*write, send)))
    assert (result.active.messages, result.active.bytes) == (31, 3100)
    assert result.passive is not None
    assert (result.passive.received, result.passive.received_bytes) == (10, 1000)
    rdma_pair.peer.buffer.verify(1, 1000, 200)


def test_sends_nobody_expects_end_with_the_status(rdma_pair: Pair) -> None:
    with pytest.raises(CompletionError, match="message 0: RNR_RETRY_EXC_ERR") as failed:
        rdma_pair.local.run(Pipeline(SEND, 8, iterations=10))
    assert failed.value.completions[0].status == WCStatus.RNR_RETRY_EXC_ERR


def test_receives_that_never_come_end_at_the_deadline_with_the_counts(rdma_pair: Pair) -> None:
    with pytest.raises(DeadlineError, match=r"0 sent and 0 received within .* QP 0x\w+ is RTS"):
        rdma_pair.peer.run(RecvDrain(8, messages=10), timeout_s=0.2)


def test_when_one_end_fails_the_other_is_stopped_and_the_cause_is_told(rdma_pair: Pair) -> None:
    """The message is longer than the receive: that is told, not a flush and not the stop."""
    began = time.monotonic()
    with pytest.raises(CompletionError) as failed:
        run_pairs(rdma_pair, Pipeline(SEND, 4096, iterations=50), RecvDrain(512, messages=50), timeout_s=60)
    assert failed.value.completions[0].status in TOO_LONG
    assert time.monotonic() - began < 30


def test_a_passive_end_that_waits_for_more_is_stopped_when_the_active_one_is_done(rdma_pair: Pair) -> None:
    with pytest.raises(DeadlineError, match=r"waits for more: stopped: RecvDrain .* 5 received"):
        run_pairs(rdma_pair, Pipeline(SEND, 8, iterations=5), RecvDrain(8, messages=6))


def test_a_run_that_cannot_end_in_time_is_refused(rdma_pair: Pair) -> None:
    for spec in (Pipeline(WRITE, 8, duration_s=100_000), PingPong(duration_s=100_000)):
        with pytest.raises(RefusedError, match=r"duration_s 100000 does not end within its deadline of \d+ s"):
            run_pairs(rdma_pair, spec, timeout_s=10)
    assert rdma_pair.local.poll(1, timeout_s=0, exactly=False) == []


def test_ends_that_do_not_make_one_run_are_refused(rdma_pairs: Callable[..., Pair]) -> None:
    one, two, write = rdma_pairs(), rdma_pairs(), Pipeline(WRITE, 8, iterations=2)
    with pytest.raises(RefusedError, match="none was given"):
        run_pairs([], write)
    with pytest.raises(RefusedError, match="one was given twice"):
        run_pairs([one, one], write)
    if one.local.host is not one.peer.host:
        with pytest.raises(RefusedError, match="a run is on one host"):
            one.local.run(write, others=[two.peer])


def test_a_qp_moved_to_err_ends_its_run(rdma_pair: Pair) -> None:
    call = rdma_pair.local.submit_run(Pipeline(WRITE, 4096, duration_s=60), timeout_s=90)
    began = time.monotonic()
    wait_until_it_sends(rdma_pair.local)
    rdma_pair.local.to_error()
    with pytest.raises(CompletionError, match=r"sent and 0 received; message \d+: WR_FLUSH_ERR"):
        call.result()
    assert time.monotonic() - began < 30


def test_a_peer_killed_in_the_middle_ends_the_run_at_both_ends(
    rdma_pair: Pair, rdma_local: Host, rdma_peer: Host
) -> None:
    """Verify: the loss is told within a moment, and the end that lives runs nothing any more."""
    spawned = rdma_peer.spawn()
    pair = Pair.create(rdma_local, spawned, rdma_pair.rail)
    try:
        pair.connect()
        specs = [Pipeline(SEND, 512, duration_s=60), RecvDrain(512)]
        killing = threading.Thread(target=lambda: (wait_until_it_sends(pair.local), spawned.kill()))
        killing.start()
        began = time.monotonic()
        with pytest.raises((HostLostError, CompletionError)):
            run_pairs(pair, specs, specs, timeout_s=90)
        assert time.monotonic() - began < 60
        killing.join(60)
        assert rdma_local.call(calls.users, pair.local) == 0
    finally:
        pair.local.close()
        spawned.close()


@pytest.mark.parametrize("op", [SEND, Opcode.RDMA_WRITE_WITH_IMM, WRITE])
@pytest.mark.parametrize(("seconds", "peer_seconds"), [(0.3, 0.3), (0.1, 0.5), (0.5, 0.1)])
def test_traffic_both_ways_by_duration_loses_nothing(
    rdma_pair: Pair, op: Opcode, seconds: float, peer_seconds: float
) -> None:
    def one_end(duration_s: float) -> list[Spec]:
        send = Pipeline(op, 512, duration_s=duration_s, depth=16, batch=3, signal_every=5, remote_offset=4096)
        return [send] if op == WRITE else [send, RecvDrain(512, depth=64, batch=8)]

    for _ in range(2):  # the second takes over the receives that the first has left
        result = run_pairs(rdma_pair, one_end(seconds), one_end(peer_seconds))
        active, passive = result.active, result.passive
        assert passive is not None
        assert active.messages > 0 and passive.messages > 0
        expected = (0, 0) if op == WRITE else (passive.messages, active.messages)
        assert (active.received, passive.received) == expected
        assert (active.received_bytes, passive.received_bytes) == (512 * expected[0], 512 * expected[1])
        assert seconds <= active.seconds < seconds + 5
        assert peer_seconds <= passive.seconds < peer_seconds + 5


def test_both_ways_until_told_also_ends_by_count(rdma_pair: Pair) -> None:
    specs = [Pipeline(SEND, 64, iterations=101, depth=8), RecvDrain(64, depth=32)]
    result = run_pairs(rdma_pair, specs, [Pipeline(SEND, 64, iterations=57), RecvDrain(64, messages=101)])
    assert (result.active.messages, result.active.received) == (101, 57)
    assert (result.passive.messages, result.passive.received) == (57, 101)  # type: ignore[union-attr]


def test_both_ways_ends_when_one_end_fails(rdma_pair: Pair) -> None:
    """The peer's receives are too short: what is told is that, long before the 60 s of the other end."""
    began = time.monotonic()
    with pytest.raises(CompletionError) as failed:
        run_pairs(
            rdma_pair,
            [Pipeline(SEND, 4096, duration_s=60), RecvDrain(4096)],
            [Pipeline(SEND, 4096, duration_s=60), RecvDrain(512)],
            timeout_s=90,
        )
    assert failed.value.completions[0].status in TOO_LONG
    assert time.monotonic() - began < 30


def test_a_stop_ends_a_run_and_its_host_goes_on(rdma_pair: Pair) -> None:
    call = rdma_pair.local.submit_run(Pipeline(WRITE, 8, duration_s=60), timeout_s=90)
    timer = threading.Timer(0.3, call.cancel)
    timer.start()
    began = time.monotonic()
    with pytest.raises(StoppedError, match="sent"):
        call.result()
    assert time.monotonic() - began < 10
    timer.join()
    rdma_pair.reconnect()
    assert rdma_pair.local.run(Pipeline(WRITE, 8, iterations=10)).messages == 10


def test_a_run_tells_how_far_it_is_while_it_runs_and_when_it_was_stopped(rdma_pair: Pair) -> None:
    peer = rdma_pair.peer
    assert peer.host.call(calls.progress, peer) == [[0] * 5] * 2
    call = peer.submit_run(RecvDrain(8, depth=16), timeout_s=90)
    rdma_pair.local.run(Pipeline(SEND, 8, iterations=40))
    deadline = time.monotonic() + 30
    while (found := peer.host.call(calls.progress, peer))[1][1] < 40 or not found[1][4]:
        assert time.monotonic() < deadline
    assert found[0] == [0] * 5
    assert found[1][:3] == [56, 40, 16]
    assert found[1][3] > 0 and found[1][4] > 0
    call.cancel()
    assert call.result().received == 40
    assert peer.host.call(calls.progress, peer)[1][:3] == [56, 40, 16]


def test_closing_a_pair_ends_the_run_on_it(rdma_pair: Pair) -> None:
    call = rdma_pair.local.submit_run(Pipeline(WRITE, 8, duration_s=60), timeout_s=90)
    began = time.monotonic()
    rdma_pair.close()
    with pytest.raises((StoppedError, RdmaUsageError), match=r"stopped|closed"):  # closed: it had not begun
        call.result()
    assert time.monotonic() - began < 10


def test_receives_left_by_one_run_serve_the_next_of_their_kind_only(rdma_pair: Pair) -> None:
    for _ in range(2):
        result = run_pairs(rdma_pair, Pipeline(SEND, 64, duration_s=0.05), RecvDrain(64, depth=32))
        assert result.passive is not None
        assert result.passive.received == result.active.messages
    with pytest.raises(RefusedError, match="32 other receives are posted: reconnect the pair first"):
        run_pairs(rdma_pair, Pipeline(SEND, 128, iterations=5))
    rdma_pair.reconnect()
    assert run_pairs(rdma_pair, Pipeline(SEND, 128, iterations=5)).active.messages == 5


@pytest.mark.parametrize("op", [SEND, WRITE, READ])
@pytest.mark.parametrize("size", [1, 7, 4096])
def test_ping_pong_counts_every_trip(rdma_pair: Pair, op: Opcode, size: int) -> None:
    result = run_pairs(rdma_pair, PingPong(op, size, iterations=300))
    latency = result.active.latency
    assert latency is not None
    assert latency.count == sum(latency.counts) == 300
    assert list(latency.percentiles_ns) == ["p50", "p90"]
    if op != READ:
        assert result.passive is not None
        assert result.passive.messages == 300
