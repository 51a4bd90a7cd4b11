"""Traffic on a LocalHost: specifications become native runs over its QPs, checked before anything is posted."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pytest_rdma import native
from pytest_rdma.deadline import Deadline, StopFlag
from pytest_rdma.errors import CompletionError, DeadlineError, RefusedError, StoppedError, VerbsError, errno_text
from pytest_rdma.host import LocalHost, Resource, op
from pytest_rdma.model import Completion, Opcode, RecvWR, SendWR, Sge
from pytest_rdma.native import loops
from pytest_rdma.status import describe
from pytest_rdma.traffic import (
    READING,
    Latency,
    PingPong,
    Pipeline,
    RecvDrain,
    Spec,
    TrafficResult,
)
from pytest_rdma.traffic_pair import Traffic
from pytest_rdma.verbs_check import check_recvs, check_sends
from pytest_rdma.verbs_queue import QPEntry

PINGPONG_DEPTH = 16
PINGPONG_SIGNAL = 4
WITH_IMM = (Opcode.SEND_WITH_IMM, Opcode.RDMA_WRITE_WITH_IMM)

LEFT: weakref.WeakKeyDictionary[QPEntry, tuple[Any, ...]] = weakref.WeakKeyDictionary()
"""The shape of the receives that a run left posted on a QP: another run of that shape takes them over."""


class TrafficEntry(Resource):
    """A prepared run and the QPs that it runs on."""

    front: Traffic

    def __init__(self, entries: Sequence[QPEntry], plan: Plan) -> None:
        self.entries = entries
        self.plan = plan
        self.loop = plan.build(entries)


class Plan:
    """What the specifications of one end come to, for QPs that have been checked."""

    def __init__(self, specs: Sequence[Spec]) -> None:
        self.specs = specs
        self.send = next((spec for spec in specs if isinstance(spec, Pipeline)), None)
        self.drain = next((spec for spec in specs if isinstance(spec, RecvDrain)), None)
        self.pingpong = next((spec for spec in specs if isinstance(spec, PingPong)), None)
        kinds = [type(spec).__name__ for spec in specs]
        if not specs or len(set(kinds)) < len(kinds) or (self.pingpong and len(kinds) > 1):
            raise RefusedError(
                f"one end runs a Pipeline, a RecvDrain, both, or a PingPong, not {' and '.join(kinds) or 'nothing'}"
            )

    def sends(self, entry: QPEntry) -> list[SendWR]:
        """Return the cycle of requests that this QP sends."""
        if self.pingpong:
            return [_pingpong_request(entry, self.pingpong)]
        if self.send is None:
            return []
        return list(self.send.requests) or [_request(entry, self.send, slot) for slot in range(self.send.buffers)]

    def receives(self, entry: QPEntry) -> list[RecvWR]:
        buffer = entry.buffer
        if self.pingpong and self.pingpong.op == Opcode.SEND:
            at = buffer.addr + self.pingpong.target_offset
            return [RecvWR((Sge(at, self.pingpong.size_bytes, buffer.lkey),))]
        if self.drain is None:
            return []
        drain = self.drain
        starts = (buffer.addr + drain.offset + slot * drain.size_bytes for slot in range(drain.buffers))
        return [RecvWR((Sge(at, drain.size_bytes, buffer.lkey),) if drain.size_bytes else ()) for at in starts]

    @property
    def depth(self) -> int:
        return self.send.depth if self.send else PINGPONG_DEPTH

    @property
    def recv_depth(self) -> int:
        if self.pingpong:
            return PINGPONG_DEPTH if self.pingpong.op == Opcode.SEND else 0
        return self.drain.depth if self.drain else 0

    @property
    def until_told(self) -> bool:
        if self.pingpong:
            return self.pingpong.answers and not self.pingpong.iterations
        return self.drain is not None and not self.drain.messages

    def targets(self, lane: int, lanes: int) -> tuple[int, int]:
        """Return how many messages this lane sends, and how many it receives."""
        if self.pingpong:
            count = self.pingpong.iterations or loops.ENDLESS
            return count, count if self.recv_depth else 0
        sends = _share(self.send.iterations, lane, lanes) if self.send else 0
        return sends, _share(self.drain.messages, lane, lanes) if self.drain else 0

    def build(self, entries: Sequence[QPEntry]) -> loops.LoopRun:
        lanes = []
        for number, entry in enumerate(entries):
            sends, recvs = self.targets(number, len(entries))
            lanes.append(loops.LaneSpec(entry.pointer, self.sends(entry), self.receives(entry), sends, recvs))
        cqs = list(dict.fromkeys(entry.cq.pointer for entry in entries))
        flags = loops.UNTIL_TOLD if self.until_told else 0
        every = any(entry.caps.signal_all for entry in entries)
        if self.pingpong:
            return self._build_pingpong(entries[0], self.pingpong, lanes, cqs, flags, every)
        send = self.send
        return loops.LoopRun(
            native.load(),
            lanes,
            cqs,
            flags=flags | (loops.SPLIT if send and send.split else 0),
            depth=self.depth,
            batch=send.batch if send else 1,
            signal_every=1 if every or not send else min(send.signal_every, (1 << 32) - 1),
            recv_depth=self.recv_depth,
            recv_batch=self.drain.batch if self.drain else 1,
            duration_ns=int(send.duration_s * 1e9) if send else 0,
            gap_ps=int(1e12 / send.rate_per_s) if send and send.rate_per_s else 0,
        )

    def _build_pingpong(
        self,
        entry: QPEntry,
        spec: PingPong,
        lanes: list[loops.LaneSpec],
        cqs: list[int],
        flags: int,
        every: bool,
    ) -> loops.LoopRun:
        kinds = {Opcode.SEND: loops.PINGPONG_SEND, Opcode.RDMA_WRITE: loops.PINGPONG_WRITE}
        kind = kinds.get(spec.op, loops.ROUND_TRIP)
        tail = min(spec.size_bytes, 8)
        source = entry.buffer.addr + spec.offset + spec.size_bytes - tail
        target = entry.buffer.addr + spec.target_offset + spec.size_bytes - tail
        if kind == loops.PINGPONG_WRITE:
            ctypes.memset(target, 0, tail)
        every = every or self.until_told or kind == loops.ROUND_TRIP
        return loops.LoopRun(
            native.load(),
            lanes,
            cqs,
            kind=kind,
            flags=flags | (loops.RESPONDER if spec.answers else 0),
            depth=self.depth,
            signal_every=1 if every else PINGPONG_SIGNAL,
            recv_depth=self.recv_depth,
            iterations=spec.iterations or loops.ENDLESS,
            duration_ns=0 if spec.answers else int(spec.duration_s * 1e9),
            tail=(source, target, tail),
        )


def _share(total: int, lane: int, lanes: int) -> int:
    """Return this lane's part of a total that is dealt round robin; 0 in all is without end."""
    return total // lanes + (lane < total % lanes) if total else loops.ENDLESS


def _request(entry: QPEntry, spec: Pipeline, slot: int) -> SendWR:
    at = slot * spec.size_bytes
    remote_addr, rkey = _aim(entry, spec.op, spec.remote_offset + at)
    return SendWR(
        spec.op,
        (Sge(entry.buffer.addr + spec.offset + at, spec.size_bytes, entry.buffer.lkey),),
        inline=spec.inline,
        imm=spec.imm if spec.op in WITH_IMM else None,
        compare_add=1 if spec.op == Opcode.ATOMIC_FETCH_AND_ADD else 0,
        remote_addr=remote_addr,
        rkey=rkey,
    )


def _pingpong_request(entry: QPEntry, spec: PingPong) -> SendWR:
    sge = Sge(entry.buffer.addr + spec.offset, spec.size_bytes, entry.buffer.lkey)
    remote_addr, rkey = _aim(entry, spec.op, spec.target_offset)
    add = 1 if spec.op == Opcode.ATOMIC_FETCH_AND_ADD else 0
    return SendWR(spec.op, (sge,), inline=spec.inline, compare_add=add, remote_addr=remote_addr, rkey=rkey)


def _aim(entry: QPEntry, opcode: Opcode, offset: int) -> tuple[int, int]:
    if opcode in (Opcode.SEND, Opcode.SEND_WITH_IMM):
        return 0, 0
    if entry.remote is None:
        raise RefusedError(f"refused on {entry.where}: {entry.label} has no peer yet: connect the pair")
    return entry.remote.addr + offset, entry.remote.rkey


# -- what is refused


def _check(entry: QPEntry, plan: Plan, number: int, lanes: int) -> None:
    caps = entry.caps
    sends, receives = plan.sends(entry), plan.receives(entry)
    if entry.sends:
        raise _refused(entry, f"{len(entry.sends)} sends are in flight: wait for them first")
    if sends and plan.depth > caps.send_depth:
        raise _refused(entry, f"depth {plan.depth} is over its send queue of {caps.send_depth}")
    if receives and plan.recv_depth > caps.recv_depth:
        raise _refused(entry, f"receive depth {plan.recv_depth} is over its receive queue of {caps.recv_depth}")
    for request in sends:
        check_sends(entry, [request])
    if not entry.recvs:
        for receive in receives:
            check_recvs(entry, [receive])
    elif LEFT.get(entry) != _shape(plan, number) or len(entry.recvs) > plan.targets(number, lanes)[1]:
        raise _refused(entry, f"{len(entry.recvs)} other receives are posted: reconnect the pair first")


def _check_queues(entries: Sequence[QPEntry], plan: Plan) -> None:
    for cq in {id(entry.cq): entry.cq for entry in entries}.values():
        mine = [entry for entry in entries if entry.cq is cq]
        need = len(mine) * ((plan.depth if plan.send or plan.pingpong else 0) + plan.recv_depth)
        if need > cq.front.depth:
            raise _refused(mine[0], f"its CQ has {cq.front.depth} entries, and this run can fill {need}")
        others = [one.label for one in cq.qps.values() if one not in mine and (one.sends or one.recvs)]
        if others:
            raise _refused(mine[0], f"{', '.join(others)} has requests in flight on the same CQ")
    if plan.pingpong and len(entries) > 1:
        raise _refused(entries[0], "a PingPong runs on one QP")


def _refused(entry: QPEntry, text: str) -> RefusedError:
    return RefusedError(f"refused on {entry.where}: {entry.label}: {text}")


def _shape(plan: Plan, number: int) -> tuple[Any, ...]:
    """What receives that an earlier run left must have in common with those of this one."""
    if plan.pingpong:
        return ("pingpong", plan.pingpong.size_bytes, plan.pingpong.offset, number)
    drain = plan.drain
    return (drain.size_bytes, drain.offset, drain.buffers, number) if drain else ()


# -- running


@op("traffic.prepare")
def op_prepare(host: LocalHost, deadline: Deadline, handles: Sequence[int], specs: Sequence[Spec]) -> Traffic:
    """Check, build, and post the receives."""
    return prepare(host, handles, specs).front


@op("traffic.run")
def op_run(host: LocalHost, deadline: Deadline, handle: int) -> TrafficResult:
    """Run what was prepared, once."""
    prepared: TrafficEntry = host.entry("traffic", handle)
    return go(prepared, deadline)


@op("traffic.close")
def op_close(host: LocalHost, deadline: Deadline, handle: int) -> None:
    host.discard(handle)


@op("traffic.run_now")
def op_run_now(host: LocalHost, deadline: Deadline, handles: Sequence[int], specs: Sequence[Spec]) -> TrafficResult:
    """Prepare and run in one."""
    prepared = prepare(host, handles, specs)
    try:
        return go(prepared, deadline)
    finally:
        host.discard(prepared.front.handle)


@op("traffic.machine")
def op_machine(host: LocalHost, deadline: Deadline, device: str) -> dict[str, Any]:
    """Tell what of the machine a number depends on: CPU, governor, and the NUMA nodes that this process may run on."""
    cpus = sorted(os.sched_getaffinity(0))
    model = re.search(r"^model name\s*: (.*)$", _text("/proc/cpuinfo"), re.MULTILINE)
    nodes = {
        int(path.name[4:]) for cpu in cpus for path in Path(f"/sys/devices/system/cpu/cpu{cpu}").glob("node[0-9]*")
    }
    return {
        "cpu": model[1] if model else os.uname().machine,
        "emulated": bool(model and "TCG" in model[1]),
        "governor": _text(f"/sys/devices/system/cpu/cpu{cpus[0]}/cpufreq/scaling_governor").strip(),
        "cpu_numa_nodes": sorted(nodes),
    }


def _text(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def prepare(host: LocalHost, handles: Sequence[int], specs: Sequence[Spec]) -> TrafficEntry:
    entries: list[QPEntry] = [host.entry("qp", handle) for handle in handles]
    plan = Plan(specs)
    for number, entry in enumerate(entries):
        _check(entry, plan, number, len(entries))
    _check_queues(entries, plan)
    prepared = TrafficEntry(entries, plan)
    for lane, entry in zip(prepared.loop.lanes, entries):
        lane.recv_posted = len(entry.recvs)
    with _in_use(entries, StopFlag()):
        try:
            prepared.loop.prepare()
        finally:
            _note_left(prepared)
    host.add(prepared, Traffic, {})
    return prepared


def go(prepared: TrafficEntry, deadline: Deadline) -> TrafficResult:
    with _in_use(prepared.entries, deadline.stop):
        try:
            prepared.loop.run(deadline)
        finally:
            _note_left(prepared)
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
    for number, (lane, entry) in enumerate(zip(prepared.loop.lanes, prepared.entries)):
        lane_bits = number << loops.LANE_SHIFT
        with entry.lock:
            entry.recvs.clear()
            entry.recvs.extend([loops.RECV_BIT | lane_bits] * (lane.recv_posted - lane.received))
            entry.sends.clear()
            for at in range(lane.completed, lane.posted):
                entry.sends.append((lane_bits | at % lane.sends_length, True))
        LEFT[entry] = _shape(prepared.plan, number)


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
        raise DeadlineError(f"{done} within {deadline.timeout_s:g} s, {flight} in flight; {states}")
    error = loop.struct.error
    if error.status:
        wc = Completion(error.wr_id, error.status, 0, 0, None, error.vendor_err, error.qp_num)
        text = f"message {loop.struct.error_message}: {describe(error.status)}"
        raise CompletionError(f"{done}; {text}", completions=[wc], status=error.status)
    if rc == -errno.EPROTO:
        raise VerbsError(f"{done}; a completion came that is of no request of this run", errno=-rc)
    raise VerbsError(f"{done}; the driver says {errno_text(-rc)}", errno=-rc)


# -- what came


def _result(prepared: TrafficEntry) -> TrafficResult:
    loop, plan = prepared.loop, prepared.plan
    run = loop.struct
    return TrafficResult(
        messages=sum(lane.completed for lane in loop.lanes),
        bytes=sum(_bytes_of(plan.sends(entry), lane.completed) for lane, entry in zip(loop.lanes, prepared.entries)),
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
