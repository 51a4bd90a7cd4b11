"""What a checked post is refused for, before the driver sees it; each message names the numbers."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_rdma.errors import RefusedError
from pytest_rdma.host import LocalHost
from pytest_rdma.model import Access, Opcode, QPState, RecvWR, SendWR, Sge
from pytest_rdma.verbs_memory import MREntry, PDEntry
from pytest_rdma.verbs_queue import QPEntry
from pytest_rdma.verbs_transports import OPERATIONS

SENDABLE = (QPState.RTS, QPState.SQD, QPState.SQE, QPState.ERR)
ONE_SIDED = (Opcode.RDMA_WRITE, Opcode.RDMA_WRITE_WITH_IMM, Opcode.RDMA_READ)
ATOMICS = (Opcode.ATOMIC_CMP_AND_SWP, Opcode.ATOMIC_FETCH_AND_ADD)
NEEDS_RD_ATOMIC = (Opcode.RDMA_READ, *ATOMICS)
ATOMIC_BYTES = 8
WR_ID_END, IMM_END, SGE_END = 1 << 64, 1 << 32, 1 << 32
LARGEST_MESSAGE = 1 << 31  # of the InfiniBand specification
WITH_IMM = (Opcode.SEND_WITH_IMM, Opcode.RDMA_WRITE_WITH_IMM)


def check_sends(entry: QPEntry, requests: Sequence[SendWR]) -> None:
    if entry.state not in SENDABLE and entry.live_state() not in SENDABLE:
        todo = "reset and connect the pair again" if entry.state == QPState.RESET else "connect the pair first"
        raise _refused(entry, f"{entry.label} is {entry.state.name}, not RTS: {todo}")
    _check_depth(entry, len(entry.sends), len(requests), entry.caps.send_depth, "send")
    for request in requests:
        _check_send(entry, request)


def check_recvs(entry: QPEntry, requests: Sequence[RecvWR]) -> None:
    if entry.state == QPState.RESET and entry.live_state() == QPState.RESET:
        raise _refused(entry, f"{entry.label} is RESET: receives can be posted from INIT on")
    if entry.srq is not None:
        raise _refused(entry, f"{entry.label} takes its receives from {entry.srq.front.label}: post them there")
    _check_depth(entry, len(entry.recvs), len(requests), entry.caps.recv_depth, "receive")
    for request in requests:
        _check_wr_id(entry, request.wr_id)
        _check_sge_count(entry, len(request.sges), entry.caps.recv_sges, "receive")
        for sge in request.sges:
            check_sge(_region(entry, sge.lkey), entry.where, sge, Access.LOCAL_WRITE, "a receive is written there")


def _refused(entry: QPEntry, text: str) -> RefusedError:
    return RefusedError(f"refused on {entry.where}: {text}", **entry.about)


def _check_depth(entry: QPEntry, in_flight: int, asked: int, depth: int, what: str) -> None:
    if in_flight + asked <= depth:
        return
    text = f"{in_flight} {what}s are in flight on {entry.label} and {asked} more do not fit its {depth}: poll first"
    if what == "send" and in_flight and not entry.sends.can_complete:
        text += "; none of those in flight is signaled, so no completion will free their slots"
    raise _refused(entry, text)


def _check_wr_id(entry: QPEntry, wr_id: int) -> None:
    if not 0 <= wr_id < WR_ID_END:
        raise _refused(entry, f"wr_id {wr_id} is not a number of 64 bits")


def _check_sge_count(entry: QPEntry, count: int, limit: int, what: str) -> None:
    if count > limit:
        raise _refused(entry, f"a {what} of {count} SGEs, and {entry.label} was granted {limit}")


def _check_send(entry: QPEntry, request: SendWR) -> None:
    _check_wr_id(entry, request.wr_id)
    if request.imm is not None and not 0 <= request.imm < IMM_END:
        raise _refused(entry, f"immediate {request.imm} is not a number of 32 bits")
    if request.imm is not None and request.opcode not in WITH_IMM:
        raise _refused(entry, f"{request.opcode.name} carries no immediate, and one of {request.imm} was given")
    if request.opcode not in OPERATIONS[entry.caps.transport]:
        raise _refused(entry, f"{request.opcode.name} is no operation of {entry.caps.transport}")
    _check_sge_count(entry, len(request.sges), entry.caps.send_sges, request.opcode.name)
    length = sum(sge.length for sge in request.sges)
    _check_length(entry, request, length)
    sink = request.opcode == Opcode.RDMA_READ or request.opcode in ATOMICS
    for sge in request.sges:
        if not request.inline:
            access = Access.LOCAL_WRITE if sink else Access.NONE
            why = f"{request.opcode.name} writes there"
            check_sge(_region(entry, sge.lkey), entry.where, sge, access, why)
    if request.opcode in ONE_SIDED or request.opcode in ATOMICS:
        _check_remote(entry, request, length)


def _check_length(entry: QPEntry, request: SendWR, length: int) -> None:
    if request.inline and length > entry.caps.inline_bytes:
        raise _refused(
            entry,
            f"{length} bytes inline, and {entry.label} was granted {entry.caps.inline_bytes}: ask for inline_bytes",
        )
    if request.inline and (request.opcode == Opcode.RDMA_READ or request.opcode in ATOMICS):
        raise _refused(entry, f"{request.opcode.name} cannot be inline")
    if entry.caps.transport == "UD" and length > entry.port.active_mtu:
        raise _refused(
            entry, f"{length} bytes are over the MTU {entry.port.active_mtu}, and a UD message is one packet"
        )
    # rxe tells 8 MiB up to early 6.13 and carries what the specification allows
    largest = LARGEST_MESSAGE if entry.device.info.provider == "rxe" else entry.port.max_msg_bytes
    if length > largest:
        raise _refused(entry, f"{length} bytes are over the port's largest message of {largest}")


def check_sge(region: MREntry | None, where: str, sge: Sge, access: Access, why: str) -> None:
    """Refuse a piece that is not within its region, which `region_of` found, or that may not be written to."""
    if sge.length == 0:
        return
    if sge.length >= SGE_END:
        raise RefusedError(f"refused on {where}: an SGE of {sge.length} bytes, and one holds at most {SGE_END - 1}")
    if region is None:
        raise RefusedError(f"refused on {where}: lkey {sge.lkey:#x} is of no buffer in the PD of the queue")
    if sge.addr < region.addr or sge.addr + sge.length > region.addr + region.length:
        raise RefusedError(
            f"refused on {where}: {sge.length} bytes at {sge.addr:#x} are not within the buffer of lkey "
            f"{sge.lkey:#x}: {region.length} bytes at {region.addr:#x}"
        )
    if access & ~region.access:
        raise RefusedError(
            f"refused on {where}: the buffer of lkey {sge.lkey:#x} has {region.access.text} without LOCAL_WRITE, "
            f"and {why}"
        )


def _region(entry: QPEntry, lkey: int) -> MREntry | None:
    return entry.buffer if lkey == entry.buffer.lkey else region_of(entry.host, entry.pd, lkey)


def region_of(host: LocalHost, pd: PDEntry, lkey: int) -> MREntry | None:
    found = (one for one in host.entries("mr") if one.pd is pd and one.lkey == lkey)
    return next(found, None)


def _check_remote(entry: QPEntry, request: SendWR, length: int) -> None:
    name = request.opcode.name
    if request.rkey == 0 and length:
        raise _refused(entry, f"{name} with rkey 0: the peer has told no key of its memory")
    if request.opcode in NEEDS_RD_ATOMIC and entry.rd_atomic == 0:
        raise _refused(entry, f"{name} on {entry.label}, which was connected with rd_atomic 0: connect with 1 or more")
    if request.opcode in ATOMICS and (request.remote_addr % ATOMIC_BYTES or length != ATOMIC_BYTES):
        raise _refused(entry, f"{name} of {length} bytes at {request.remote_addr:#x}: it takes 8 bytes, aligned to 8")
    memory = entry.remote
    if memory is None or memory.rkey != request.rkey or not length:
        return
    if request.remote_addr < memory.addr or request.remote_addr + length > memory.addr + memory.length:
        raise _refused(
            entry,
            f"{name} of {length} bytes at {request.remote_addr:#x} is not within the peer's {memory.length} bytes "
            f"at {memory.addr:#x}",
        )
