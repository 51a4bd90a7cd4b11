"""Shared receive queues: one queue of receives that several QPs of a PD take from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from pytest_rdma.deadline import Deadline
from pytest_rdma.endpoint import SRQ
from pytest_rdma.errors import PostError, RefusedError, errno_text
from pytest_rdma.host import Handle, LocalHost, Resource, op
from pytest_rdma.model import Access, RecvWR
from pytest_rdma.verbs_check import check_sge, region_of
from pytest_rdma.verbs_library import error_number, pyverbs, verbs_error
from pytest_rdma.verbs_memory import PDEntry

SRQ_LIMIT = 1 << 1


class SRQEntry(Resource):
    close_rank: ClassVar[int] = 15
    front: SRQ

    def __init__(self, pd: PDEntry, depth: int, sges: int) -> None:
        library = pyverbs()
        self.pd = pd
        self.users: dict[int, Handle] = {}
        self.next_wr_id = 1
        self.pointer = 0  # known once a QP uses it
        wanted = library.srq.SrqInitAttr(library.srq.SrqAttr(max_wr=depth, max_sge=sges))
        try:
            self.raw = library.srq.SRQ(pd.raw, wanted)
        except library.pyverbs_error.PyverbsError as error:
            limits = pd.device.info.limits
            hint = f"the device's max_srq_wr is {limits['max_srq_wr']}, max_srq_sge {limits['max_srq_sge']}"
            attempt = f"cannot make an SRQ of {depth} receives with {sges} SGEs on {self.where}"
            raise verbs_error(attempt, error, hint) from error
        self.depth, self.sges = wanted.max_wr, wanted.max_sge

    @property
    def where(self) -> str:
        return f"{self.pd.host.name} {self.pd.device.name}"

    def close(self) -> None:
        self.raw.close()
        self.pd.users.pop(self.front.handle, None)


@op("srq.create")
def op_srq_create(host: LocalHost, deadline: Deadline, pd: int, depth: int, sges: int) -> SRQ:
    entry = SRQEntry(host.entry("pd", pd), depth, sges)
    front: SRQ = host.add(entry, SRQ, {"pd": entry.pd.front, "depth": entry.depth, "sges": entry.sges})
    entry.pd.users[front.handle] = front
    return front


@op("srq.close")
def op_srq_close(host: LocalHost, deadline: Deadline, handle: int) -> None:
    entry = host.entry("srq", handle)
    if entry.users:
        users = ", ".join(front.label for front in entry.users.values())
        raise RefusedError(f"SRQ {handle} on {host.name} is still used by {users}: close those first")
    host.discard(handle)


@op("srq.post_recv")
def op_srq_post_recv(
    host: LocalHost, deadline: Deadline, handle: int, requests: Sequence[RecvWR], number: bool
) -> list[int]:
    """Post receives; with `number` the queue gives the wr_ids. How many are in it only the device knows."""
    entry: SRQEntry = host.entry("srq", handle)
    for request in requests:
        if len(request.sges) > entry.sges:
            raise RefusedError(f"refused on {entry.where}: {len(request.sges)} SGEs, and the SRQ has {entry.sges}")
        for sge in request.sges:
            region = region_of(host, entry.pd, sge.lkey)
            check_sge(region, entry.where, sge, Access.LOCAL_WRITE, "a receive is written there")
    return [_post(entry, request, index, number) for index, request in enumerate(requests)]


def _post(entry: SRQEntry, request: RecvWR, index: int, number: bool) -> int:
    wr_id = entry.next_wr_id if number else request.wr_id
    entry.next_wr_id += number
    library = pyverbs().wr
    sges = [library.SGE(sge.addr, sge.length, sge.lkey) for sge in request.sges]
    try:
        entry.raw.post_recv(library.RecvWR(wr_id=wr_id, num_sge=len(sges), sg=sges or None))
    except pyverbs().pyverbs_error.PyverbsError as error:
        errno = error_number(error)
        text = f"cannot post receive {wr_id:#x} to the SRQ of {entry.depth} on {entry.where}: {errno_text(errno)}"
        raise PostError(text, errno=errno, bad_index=index) from error
    return wr_id


@op("srq.limit")
def op_srq_limit(host: LocalHost, deadline: Deadline, handle: int, limit: int) -> None:
    entry: SRQEntry = host.entry("srq", handle)
    library = pyverbs()
    try:
        entry.raw.modify(library.srq.SrqAttr(srq_limit=limit), SRQ_LIMIT)
    except library.pyverbs_error.PyverbsError as error:
        attempt = f"cannot set the limit of the SRQ of {entry.depth} on {entry.where} to {limit}"
        raise verbs_error(attempt, error) from error


@op("srq.query")
def op_srq_query(host: LocalHost, deadline: Deadline, handle: int) -> dict[str, int]:
    found = host.entry("srq", handle).raw.query()
    return {"max_wr": found.max_wr, "max_sge": found.max_sge, "srq_limit": found.srq_limit}
