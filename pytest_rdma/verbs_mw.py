"""Memory windows: a key for a part of a buffer, bound by a request of a QP and taken back by another.

Type 1 is bound by ibv_bind_mw(3), which chooses the key. Type 2 is bound by a send request with a key of which the
owner chooses the lowest byte; it belongs to the QP that bound it and is taken back by invalidation.
"""

from __future__ import annotations

import ctypes
from typing import ClassVar

from pytest_rdma import native
from pytest_rdma.deadline import Deadline
from pytest_rdma.endpoint import MemoryWindow
from pytest_rdma.errors import PostError, RdmaUsageError, RefusedError, errno_text
from pytest_rdma.host import LocalHost, Resource, op
from pytest_rdma.model import Access, Opcode, RemoteMemory, SendWR
from pytest_rdma.verbs_check import check_sends
from pytest_rdma.verbs_library import error_number, pyverbs, verbs_error
from pytest_rdma.verbs_memory import MREntry
from pytest_rdma.verbs_post import post_prepared
from pytest_rdma.verbs_queue import QPEntry

SEND_SIGNALED = 2
RKEY_OFFSET = 16  # of `rkey` in struct ibv_mw; context, pd, rkey, handle, type
MR_LKEY_OFFSET, MR_RKEY_OFFSET = 36, 40  # in struct ibv_mr; context, pd, addr, length, handle, lkey, rkey


class MWEntry(Resource):
    """A window, and what it was last bound to."""

    close_rank: ClassVar[int] = 5  # before the QP, and before the buffers: a bound one is not deregistered
    front: MemoryWindow

    def __init__(self, qp: QPEntry, type: int) -> None:
        library = pyverbs()
        self.qp = qp
        self.type = type
        self.memory: RemoteMemory | None = None
        self.access = Access.NONE
        try:
            self.raw = library.mr.MW(qp.pd.raw, type)
        except library.pyverbs_error.PyverbsError as error:
            raise verbs_error(f"cannot make a memory window of type {type} on {qp.where}", error) from error
        view = native.load().qp_view(qp.pointer)
        assert view is not None  # the QP's pointer was found by what this view shows
        self.owners = {0: view.context, 8: view.pd}
        numbers = {RKEY_OFFSET: self.raw.rkey, RKEY_OFFSET + 4: self.raw.handle, RKEY_OFFSET + 8: type}
        self.pointer = native.object_pointer(self.raw, self.owners, numbers)

    def close(self) -> None:
        self.raw.close()


@op("mw.create")
def op_mw_create(host: LocalHost, deadline: Deadline, qp: int, type: int) -> MemoryWindow:
    if type not in (1, 2):
        raise RdmaUsageError(f"a memory window is of type 1 or 2, not {type}")
    owner: QPEntry = host.entry("qp", qp)
    entry = MWEntry(owner, type)
    front: MemoryWindow = host.add(entry, MemoryWindow, {"type": type})
    owner.windows.append(entry)
    return front


@op("mw.close")
def op_mw_close(host: LocalHost, deadline: Deadline, handle: int) -> None:
    host.discard(handle)


@op("mw.memory")
def op_mw_memory(host: LocalHost, deadline: Deadline, handle: int) -> RemoteMemory:
    entry: MWEntry = host.entry("mw", handle)
    if entry.memory is None:
        raise RefusedError(f"memory window {handle} on {host.name} was never bound")
    return entry.memory


@op("mw.bind")
def op_mw_bind(
    host: LocalHost,
    deadline: Deadline,
    handle: int,
    buffer: int,
    offset: int,
    length: int,
    access: int,
    signaled: bool,
) -> int:
    """Post the binding to the QP that the window was made for; returns its wr_id."""
    entry: MWEntry = host.entry("mw", handle)
    region: MREntry = host.entry("mr", buffer)
    qp = entry.qp
    if length and not region.access & Access.MW_BIND:
        raise RefusedError(f"refused on {qp.where}: the buffer has {region.access.text} without MW_BIND")
    with host.lock:
        wr_id, qp.next_wr_id = qp.next_wr_id, qp.next_wr_id + 1
    request = SendWR(Opcode.BIND_MW, wr_id=wr_id, signaled=signaled)
    check_sends(qp, [request])
    bind = _bind_type_1 if entry.type == 1 else _bind_type_2
    rkey = bind(entry, region, request, (region.addr + offset, length, access))
    entry.memory, entry.access = RemoteMemory(region.addr + offset, rkey, length), Access(access)
    return wr_id


def _bind_type_1(entry: MWEntry, region: MREntry, request: SendWR, piece: tuple[int, int, int]) -> int:
    library = pyverbs()
    qp = entry.qp
    info = library.mr.MWBindInfo(region.raw, *piece)
    flags = SEND_SIGNALED if request.signaled else 0
    try:
        with qp.lock:
            qp.raw_qp.bind_mw(entry.raw, library.mr.MWBind(info, flags, request.wr_id))
            qp.sends.post([request], qp.caps.signal_all)
    except library.pyverbs_error.PyverbsError as error:
        number = error_number(error)
        text = f"cannot bind a memory window of type 1 by {qp.label} on {qp.where}: {errno_text(number)}"
        raise PostError(text, errno=number, bad_index=0) from error
    return int(entry.raw.rkey)


def _bind_type_2(entry: MWEntry, region: MREntry, request: SendWR, piece: tuple[int, int, int]) -> int:
    key = ctypes.c_uint32.from_address(entry.pointer + RKEY_OFFSET)
    new = key.value & ~0xFF | (key.value + 1) & 0xFF
    prepared = native.SendList([request])
    wr = prepared.wrs[0]
    wr.mw, wr.rkey = entry.pointer, new
    wr.mw_mr = native.object_pointer(
        region.raw, entry.owners, {MR_LKEY_OFFSET: region.lkey, MR_RKEY_OFFSET: region.rkey}
    )
    wr.mw_addr, wr.mw_length, wr.mw_access = piece
    post_prepared(entry.qp, [request], prepared)
    key.value = new  # ibv_post_send(3) leaves it to the owner; the next binding starts from it
    return new
