"""What the specifications of one end come to for its QPs: requests, receives, counts; and what of it is refused."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from typing import Any

from pytest_rdma import native
from pytest_rdma.deadline import Deadline
from pytest_rdma.errors import RefusedError
from pytest_rdma.model import Opcode, RecvWR, SendWR, Sge
from pytest_rdma.native import loops
from pytest_rdma.traffic import PingPong, Pipeline, RecvDrain, Spec
from pytest_rdma.verbs_check import check_recvs, check_sends
from pytest_rdma.verbs_queue import QPEntry

PINGPONG_DEPTH = 16
PINGPONG_SIGNAL = 4
WITH_IMM = (Opcode.SEND_WITH_IMM, Opcode.RDMA_WRITE_WITH_IMM)

LEFT: weakref.WeakKeyDictionary[QPEntry, tuple[Any, ...]] = weakref.WeakKeyDictionary()
"""The shape of the receives that a run left posted on a QP: another run of that shape takes them over."""


class Plan:
    """What the specifications of one end come to, for QPs that have been checked."""

    def __init__(self, specs: Sequence[Spec]) -> None:
        self.specs = specs
        self.lanes: list[loops.LaneSpec] = []
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

    def consumed(self, loop: loops.LoopRun) -> int:
        """Return how many receives what was sent takes at the other end."""
        return sum(self.send.consumed(lane.completed) for lane in loop.lanes) if self.send else 0

    def build(self, entries: Sequence[QPEntry]) -> loops.LoopRun:
        lanes = self.lanes = []
        for number, entry in enumerate(entries):
            sends, recvs = self.targets(number, len(entries))
            lanes.append(loops.LaneSpec(entry.pointer, self.sends(entry), self.receives(entry), sends, recvs))
        cqs = list(dict.fromkeys(entry.cq.pointer for entry in entries))
        flags = loops.UNTIL_TOLD if self.until_told else 0
        every = any(entry.caps.signal_all for entry in entries)
        work = (
            self._pingpong_work(entries[0], self.pingpong, flags, every) if self.pingpong else self._work(flags, every)
        )
        return loops.LoopRun(native.load(), lanes, cqs, work)

    def _work(self, flags: int, every: bool) -> loops.Work:
        send = self.send
        return loops.Work(
            flags=flags | (loops.SPLIT if send and send.split else 0),
            depth=self.depth,
            batch=send.batch if send else 1,
            signal_every=1 if every or not send else min(send.signal_every, (1 << 32) - 1),
            recv_depth=self.recv_depth,
            recv_batch=self.drain.batch if self.drain else 1,
            duration_ns=int(send.duration_s * 1e9) if send else 0,
            gap_ps=int(1e12 / send.rate_per_s) if send and send.rate_per_s else 0,
        )

    def _pingpong_work(self, entry: QPEntry, spec: PingPong, flags: int, every: bool) -> loops.Work:
        kinds = {Opcode.SEND: loops.PINGPONG_SEND, Opcode.RDMA_WRITE: loops.PINGPONG_WRITE}
        kind = kinds.get(spec.op, loops.ROUND_TRIP)
        tail = min(spec.size_bytes, 8)
        target = entry.buffer.addr + spec.target_offset + spec.size_bytes - tail
        if kind == loops.PINGPONG_WRITE:
            ctypes.memset(target, 0, tail)
        every = every or self.until_told or kind == loops.ROUND_TRIP
        return loops.Work(
            kind=kind,
            flags=flags | (loops.RESPONDER if spec.answers else 0),
            depth=self.depth,
            signal_every=1 if every else PINGPONG_SIGNAL,
            recv_depth=self.recv_depth,
            iterations=spec.iterations or loops.ENDLESS,
            duration_ns=0 if spec.answers else int(spec.duration_s * 1e9),
            tail_source=entry.buffer.addr + spec.offset + spec.size_bytes - tail,
            tail_target=target,
            tail_bytes=tail,
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


def check_time(plan: Plan, deadline: Deadline) -> None:
    duration_s = max((spec.duration_s for spec in plan.specs if not isinstance(spec, RecvDrain)), default=0.0)
    if duration_s >= deadline.timeout_s:
        raise RefusedError(
            f"a run of duration_s {duration_s:g} does not end within its deadline of {deadline.timeout_s:g} s"
        )


def check(entry: QPEntry, plan: Plan, number: int, lanes: int) -> None:
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
    elif LEFT.get(entry) != shape_of(plan, number) or len(entry.recvs) > plan.targets(number, lanes)[1]:
        raise _refused(entry, f"{len(entry.recvs)} other receives are posted: reconnect the pair first")


def check_queues(entries: Sequence[QPEntry], plan: Plan) -> None:
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


def shape_of(plan: Plan, number: int) -> tuple[Any, ...]:
    """What receives that an earlier run left must have in common with those of this one."""
    if plan.pingpong:
        return ("pingpong", plan.pingpong.size_bytes, plan.pingpong.offset, number)
    drain = plan.drain
    return (drain.size_bytes, drain.offset, drain.buffers, number) if drain else ()
