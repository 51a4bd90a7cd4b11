"""Completion queues of a LocalHost."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from pytest_rdma import native
from pytest_rdma.deadline import Deadline
from pytest_rdma.endpoint import CQ
from pytest_rdma.errors import RefusedError
from pytest_rdma.host import InUse, LocalHost, Resource, close_all, op
from pytest_rdma.ledger import account
from pytest_rdma.model import Completion
from pytest_rdma.verbs_device import OpenDevice, open_device
from pytest_rdma.verbs_library import pyverbs, verbs_error

if TYPE_CHECKING:
    from pytest_rdma.verbs_queue import QPEntry


class CQEntry(Resource):
    """A CQ, its channel, and the completions that were polled while others were waited for."""

    close_rank: ClassVar[int] = 20
    front: CQ

    def __init__(self, host: LocalHost, device: OpenDevice, depth: int, events: bool) -> None:
        library = pyverbs()
        self.device = device
        self.channel: Any = None
        self.lock = threading.Lock()
        self.stash: list[Completion] = []
        self.qps: dict[int, QPEntry] = {}
        try:
            if events:
                self.channel = library.cq.CompChannel(device.context)
            self.raw = library.cq.CQ(device.context, depth, None, self.channel)
        except library.pyverbs_error.PyverbsError as error:
            limit = device.info.limits["max_cqe"]
            hint = f"the device's max_cqe is {limit}" if depth > limit else ""
            if self.channel is not None:
                self.channel.close()
            raise verbs_error(f"cannot make a CQ of {depth} on {host.name} {device.name}", error, hint) from error
        self._pointer = 0
        self.in_use = InUse(f"a CQ on {host.name} {device.name}")

    @property
    def pointer(self) -> int:
        """The `struct ibv_cq *`: the one that a QP knows, searched for only while none uses the CQ."""
        if not self._pointer:
            self._pointer = native.cq_pointer(self.raw, context=self.device.context)
        return self._pointer

    def known_as(self, pointer: int) -> None:
        self._pointer = pointer

    @property
    def channel_pointer(self) -> int:
        view = native.load().cq_view(self.pointer)
        return view.channel if view else 0

    def keep(self, completions: Sequence[Completion], *, first: bool = False) -> None:
        """Keep for later what was polled and not asked for; `first` puts back what was taken."""
        with self.lock:
            place = 0 if first else len(self.stash)
            self.stash[place:place] = completions

    def forget(self, qp_num: int) -> None:
        """Drop what is kept of a QP."""
        with self.lock:
            self.stash[:] = [one for one in self.stash if one.qp_num != qp_num]

    def sweep(self) -> None:
        """Keep for later all that has completed."""
        with self.in_use:
            while left := native.load().poll(self.pointer, 1, 0):
                account(self, left)
                self.keep(left)

    def close(self) -> None:
        self.in_use.end()
        close_all([self.raw.close, *([self.channel.close] if self.channel else [])])


def make_cq(host: LocalHost, device: OpenDevice, depth: int, events: bool) -> CQEntry:
    entry = CQEntry(host, device, depth, events)
    host.add(entry, CQ, {"device": device.name, "depth": int(entry.raw.cqe), "events": events})
    return entry


@op("cq.create")
def op_cq_create(host: LocalHost, deadline: Deadline, device: str, depth: int, events: bool) -> CQ:
    return make_cq(host, open_device(host, device), depth, events).front


@op("cq.close")
def op_cq_close(host: LocalHost, deadline: Deadline, handle: int) -> None:
    entry = host.entry("cq", handle)
    if entry.qps:
        users = ", ".join(qp.label for qp in entry.qps.values())
        raise RefusedError(f"CQ {handle} on {host.name} is still used by {users}: close those first")
    host.discard(handle)
