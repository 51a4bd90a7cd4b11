"""Traffic on a LocalHost: plans become native runs over its QPs; how far they are, how they end, what they did."""

from __future__ import annotations

import contextlib
import errno
import time
from collections.abc import Iterator, Sequence
from functools import partial

from pytest_rdma.deadline import Deadline, StopFlag
from pytest_rdma.errors import CompletionError, DeadlineError, StoppedError, VerbsError, errno_text
from pytest_rdma.host import LocalHost, Resource, op
from pytest_rdma.ledger import Outstanding, Progress
from pytest_rdma.model import Completion, SendWR
from pytest_rdma.native import loops
from pytest_rdma.status import describe
from pytest_rdma.traffic import READING, Latency, PingPong, Spec, TrafficResult
from pytest_rdma.traffic_pair import Traffic
from pytest_rdma.verbs_placement import near, node_of
from pytest_rdma.verbs_plan import LEFT, Plan, check, check_queues, check_time, shape_of
from pytest_rdma.verbs_queue import QPEntry


class TrafficEntry(Resource):
    """A prepared run and the QPs that it runs on."""

    front: Traffic

    def __init__(self, entries: Sequence[QPEntry], plan: Plan) -> None:
        self.entries = entries
        self.plan = plan
        self.loop = plan.build(entries)

    def close(self) -> None:
        for entry in self.entries:
            with entry.lock:
                entry.ledger.end_loop()


# -- running


@op("traffic.prepare")
def op_prepare(host: LocalHost, deadline: Deadline, handles: Sequence[int], specs: Sequence[Spec]) -> Traffic:
    """Check, build, and post the receives."""
    return prepare(host, handles, specs, deadline).front


@op("traffic.run")
def op_run(host: LocalHost, deadline: Deadline, handle: int) -> TrafficResult:
    """Run what was prepared, once."""
    prepared: TrafficEntry = host.entry("traffic", handle)
    return go(prepared, deadline)


@op("traffic.sent")
def op_sent(host: LocalHost, deadline: Deadline, handle: int) -> int | None:
    """Wait until the run has sent all, and return how many receives that takes; None when it has failed."""
    prepared: TrafficEntry = host.entry("traffic", handle)
    return prepared.plan.consumed(prepared.loop) if prepared.loop.wait_sent(deadline) else None


@op("traffic.tell")
def op_tell(host: LocalHost, deadline: Deadline, handle: int, arriving: int) -> None:
    """Tell a run until told how many messages arrive in all: it ends when they are there."""
    prepared: TrafficEntry = host.entry("traffic", handle)
    prepared.loop.struct.told = arriving + 1


@op("traffic.close")
def op_close(host: LocalHost, deadline: Deadline, handle: int) -> None:
    host.discard(handle)


@op("traffic.run_now")
def op_run_now(host: LocalHost, deadline: Deadline, handles: Sequence[int], specs: Sequence[Spec]) -> TrafficResult:
    """Prepare and run in one."""
    prepared = prepare(host, handles, specs, deadline)
    try:
        return go(prepared, deadline)
    finally:
        host.discard(prepared.front.handle)


def prepare(host: LocalHost, handles: Sequence[int], specs: Sequence[Spec], deadline: Deadline) -> TrafficEntry:
    entries: list[QPEntry] = [host.entry("qp", handle) for handle in handles]
    plan = Plan(specs)
    check_time(plan, deadline)
    for number, entry in enumerate(entries):
        check(entry, plan, number, len(entries))
    check_queues(entries, plan)
    prepared = TrafficEntry(entries, plan)
    for number, (lane, entry) in enumerate(zip(prepared.loop.lanes, entries)):
        lane.recv_posted = lane.recv_taken = len(entry.recvs)
        entry.ledger.begin_loop(partial(_progress, prepared, number))
    with _in_use(entries, StopFlag()):
        try:
            prepared.loop.prepare()
        finally:
            _note_left(prepared)
    host.add(prepared, Traffic, {})
    return prepared


def go(prepared: TrafficEntry, deadline: Deadline) -> TrafficResult:
    try:
        with _in_use(prepared.entries, deadline.stop), near(prepared.entries[0].device.info.numa_node):
            try:
                prepared.loop.run(deadline)
            finally:
                _note_left(prepared)
                prepared.close()
    finally:
        prepared.loop.sent.set()
    _raise_failure(prepared, deadline)
    return _result(prepared)


@contextlib.contextmanager
def _in_use(entries: Sequence[QPEntry], stop: StopFlag) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for entry in entries:
            stack.enter_context(entry.in_use.until(stop))
            stack.enter_context(entry.cq.in_use.until(stop))
        yield


def _note_left(prepared: TrafficEntry) -> None:
    """Keep account of what stays posted: receives of a drain without end, and all that was in flight at a failure."""
    for number, entry in enumerate(prepared.entries):
        with entry.lock:
            entry.ledger.look_at_loop()
        LEFT[entry] = shape_of(prepared.plan, number)


def _progress(prepared: TrafficEntry, number: int) -> tuple[Progress, Progress]:
    """Tell how far a lane is with its sends and its receives, from its counters as they stand, also while it runs."""
    lane, spec = prepared.loop.lanes[number], prepared.plan.lanes[number]
    posted, completed, recv_posted, received = lane.posted, lane.completed, lane.recv_posted, lane.received
    now, lane_bits = time.monotonic_ns(), number << loops.LANE_SHIFT

    def when(mark: loops.MarkStruct) -> int:
        ago_s = prepared.loop.ago_s(mark)
        return 0 if ago_s is None else now - int(ago_s * 1e9)

    post_ns, recv_post_ns = when(lane.post), when(lane.recv_post)
    slots = (at % lane.sends_length for at in range(completed, posted))
    sends = [Outstanding(lane_bits | slot, True, post_ns or now, spec.sends[slot % len(spec.sends)]) for slot in slots]
    recvs = [Outstanding(loops.RECV_BIT | lane_bits, True, recv_post_ns or now, one) for one in spec.recvs[:1]]
    return (
        Progress(posted, completed, sends, post_ns, when(lane.completion), spec.sends),
        Progress(recv_posted, received, recvs * (recv_posted - received), recv_post_ns, when(lane.arrival), spec.recvs),
    )


def _raise_failure(prepared: TrafficEntry, deadline: Deadline) -> None:
    loop, rc = prepared.loop, int(prepared.loop.struct.rc)
    if rc == 0:
        return
    sent = sum(lane.completed for lane in loop.lanes)
    received = sum(lane.received for lane in loop.lanes)
    first = prepared.entries[0]
    kinds = " and ".join(type(spec).__name__ for spec in prepared.plan.specs)
    done = f"{kinds} on {first.label} on {first.where}: {sent} sent and {received} received"
    if rc == -errno.ECANCELED:
        raise StoppedError(f"stopped: {done}")
    if rc == -errno.ETIMEDOUT:
        states = ", ".join(f"{entry.label} is {entry.live_state().name}" for entry in prepared.entries)
        flight = sum(lane.posted - lane.completed for lane in loop.lanes)
        for entry in prepared.entries:
            entry.ledger.awaited = f"the end of {kinds}"
        raise DeadlineError(f"{done} within {deadline.timeout_s:g} s, {flight} in flight; {states}", **first.about)
    error = loop.struct.error
    if error.status:
        wc = Completion(error.wr_id, error.status, 0, 0, None, error.vendor_err, error.qp_num)
        about = _enter_failure(prepared, wc).about
        text = f"message {loop.struct.error_message}: {describe(error.status)}"
        raise CompletionError(f"{done}; {text}", completions=[wc], status=error.status, **about)
    if rc == -errno.EPROTO:
        raise VerbsError(f"{done}; a completion came that is of no request of this run", errno=-rc)
    raise VerbsError(f"{done}; the driver says {errno_text(-rc)}", errno=-rc)


def _enter_failure(prepared: TrafficEntry, wc: Completion) -> QPEntry:
    """Enter the completion that ended a run in the ledger of its QP, which is returned."""
    for entry, spec in zip(prepared.entries, prepared.plan.lanes):
        if entry.qp_num == wc.qp_num:
            cycle, now = spec.recvs if wc.wr_id & loops.RECV_BIT else spec.sends, time.monotonic_ns()
            request = cycle[(wc.wr_id & 0xFFFFFFFF) % len(cycle)] if cycle else None
            with entry.lock:
                entry.ledger.complete(wc, now, request)
            return entry
    return prepared.entries[0]


# -- what came


def _result(prepared: TrafficEntry) -> TrafficResult:
    loop, plan = prepared.loop, prepared.plan
    run = loop.struct
    return TrafficResult(
        messages=sum(lane.completed for lane in loop.lanes),
        bytes=sum(_bytes_of(plan.sends(entry), lane.completed) for lane, entry in zip(loop.lanes, prepared.entries)),
        consumed=plan.consumed(loop),
        received=sum(lane.received for lane in loop.lanes),
        received_bytes=run.received_bytes,
        seconds=run.elapsed_ns / 1e9,
        latency=_latency(loop, plan.pingpong) if plan.pingpong and not plan.pingpong.answers else None,
        series=tuple(loop.series.counts[: loop.series.used]),
        interval_s=loop.series.interval_ns / 1e9,
        post_seconds=run.post_ns / 1e9,
        poll_seconds=run.poll_ns / 1e9,
        signaled=sum(lane.signaled for lane in loop.lanes),
        post_calls=run.post_calls,
        polls=run.polls,
        empty_polls=run.empty_polls,
        outstanding_reads=_outstanding_reads(prepared),
        clock=loop.clock.name,
        clock_cost_ns=loop.clock.cost_ps / 1e3,
        cpu=run.cpu,
        numa_node=node_of(run.cpu),
    )


def _bytes_of(cycle: Sequence[SendWR], messages: int) -> int:
    if not cycle:
        return 0
    sizes = [sum(sge.length for sge in request.sges) for request in cycle]
    rounds, rest = divmod(messages, len(sizes))
    return rounds * sum(sizes) + sum(sizes[:rest])


def _latency(loop: loops.LoopRun, spec: PingPong) -> Latency:
    """What is measured is always the whole trip; of Send and Write half of it is told."""
    part = 1.0 if spec.op in READING else 0.5
    histogram, buckets = loop.histogram, loop.buckets()
    return Latency(
        spec.measures,
        histogram.count,
        histogram.sum_ns * part / histogram.count,
        histogram.min_ns * part,
        histogram.max_ns * part,
        tuple(value * part for value, _ in buckets),
        tuple(count for _, count in buckets),
    )


def _outstanding_reads(prepared: TrafficEntry) -> int | None:
    opcodes = {request.opcode for entry in prepared.entries for request in prepared.plan.sends(entry)}
    if opcodes.isdisjoint(READING):
        return None
    limits = [prepared.entries[0].rd_atomic or 1, 1 if prepared.plan.pingpong else prepared.plan.depth]
    return min(limits)
