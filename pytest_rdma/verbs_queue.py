"""Completion queues and RC QPs of a LocalHost: made, moved from state to state, destroyed in verbs order."""

from __future__ import annotations

import secrets
import threading
from collections import deque
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

from pytest_rdma import gids, native
from pytest_rdma.deadline import Deadline
from pytest_rdma.endpoint import CQ, Endpoint
from pytest_rdma.errors import RdmaEnvironmentError, RdmaUsageError, RefusedError, VerbsError
from pytest_rdma.host import InUse, LocalHost, Resource, close_all, op
from pytest_rdma.model import (
    Completion,
    ConnectionAttributes,
    EndpointCaps,
    ExchangeRecord,
    GidRow,
    PortInfo,
    QPState,
    RemoteMemory,
)
from pytest_rdma.verbs_device import OpenDevice, open_device
from pytest_rdma.verbs_library import error_number, pyverbs, verbs_error
from pytest_rdma.verbs_memory import MREntry, PDEntry, make_mr, make_pd, undo
from pytest_rdma.verbs_modify import address_vector, explain_modify, modify

QPT_RC = 2
PSN_BITS = 24


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

    def close(self) -> None:
        self.in_use.end()
        close_all([self.raw.close, *([self.channel.close] if self.channel else [])])


class QPEntry(Resource):
    """A QP and all that changes about it: its state as last moved, what is outstanding, the peer."""

    close_rank: ClassVar[int] = 10
    front: Endpoint

    def __init__(self, host: LocalHost, pd: PDEntry, cq: CQEntry, port: PortInfo, gid: GidRow | None) -> None:
        self.host = host
        self.pd = pd
        self.cq = cq
        self.device = pd.device
        self.port = port
        self.gid = gid
        self.pkey_index = 0
        self.owned: list[Resource] = []
        self.lock = threading.Lock()
        self.in_use = InUse(f"a QP on {self.where}")
        self.raw_qp: Any = None
        self.pointer = 0
        self.context_pointer = 0
        self.qp_num = 0
        self.state = QPState.RESET
        self.caps = EndpointCaps()
        self.sends: deque[tuple[int, bool]] = deque()
        self.recvs: deque[int] = deque()
        self.next_wr_id = 1
        self.rd_atomic: int | None = None
        self.remote: RemoteMemory | None = None
        self.buffer: MREntry

    @property
    def where(self) -> str:
        """What messages call the place: `host2 rxe0/1`."""
        return f"{self.host.name} {self.device.name}/{self.port.number}"

    @property
    def label(self) -> str:
        return f"QP {self.qp_num:#x}"

    @property
    def raw(self) -> Raw:
        return Raw(self)

    def live_state(self) -> QPState:
        """Ask the driver for the state."""
        attributes, _ = self.raw_qp.query(1)
        self.state = QPState(attributes.qp_state)
        return self.state

    def forget_outstanding(self) -> None:
        """After RESET nothing is outstanding, and completions of before mean nothing."""
        with self.lock:
            self.sends.clear()
            self.recvs.clear()
        native_poll = native.load().poll
        while True:
            left = native_poll(self.cq.pointer, 1, 0)
            if not left:
                break
            self.cq.stash.extend(left)
        self.cq.stash[:] = [one for one in self.cq.stash if one.qp_num != self.qp_num]

    def close(self) -> None:
        self.cq.qps.pop(self.qp_num, None)
        self.pd.users.pop(self.front.handle, None)
        self.in_use.end()
        closers = [self.raw_qp.close]
        closers += [partial(self.host.discard, entry.front.handle) for entry in self.owned]
        close_all(closers)


class Raw:
    """The pyverbs objects behind an endpoint."""

    def __init__(self, entry: QPEntry) -> None:
        self.context = entry.device.context
        self.pd = entry.pd.raw
        self.cq = entry.cq.raw
        self.qp = entry.raw_qp
        self.mr = entry.buffer.raw


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


@op("qp.create")
def op_qp_create(
    host: LocalHost,
    deadline: Deadline,
    device_name: str,
    port_number: int,
    gid_index: int | None,
    caps: EndpointCaps,
    pkey_index: int,
    pd_handle: int | None,
    cq_handle: int | None,
) -> Endpoint:
    """Make PD, buffer, channel, CQ and QP and move the QP to INIT; take all back when one step fails."""
    device = open_device(host, device_name)
    port = device.fresh_port(port_number, gid_index)
    if port.state != "ACTIVE":
        raise RdmaEnvironmentError(f"port {device.name}/{port.number} on {host.name} is {port.state}, not ACTIVE")
    gid = gid_row(host, device, port, gid_index)
    check_pkey(host, device, port, pkey_index)
    made: list[Resource | None] = []
    try:
        pd = host.entry("pd", pd_handle) if pd_handle is not None else make_pd(host, device)
        if pd_handle is None:
            made.insert(0, pd)
        buffer = make_mr(pd, caps.buffer_bytes, caps.access)
        made.insert(0, buffer)
        depth = cq_depth(caps, device.info.limits)
        cq = host.entry("cq", cq_handle) if cq_handle is not None else make_cq(host, device, depth, caps.events)
        if cq_handle is None:
            made.insert(0, cq)
        entry = QPEntry(host, pd, cq, port, gid)
        entry.buffer, entry.owned, entry.pkey_index = buffer, [one for one in made if one], pkey_index
        create_qp(entry, caps)
    except BaseException:
        undo(made, host)
        raise
    try:
        find_pointers(entry)
        to_init(entry)
    except BaseException:
        entry.raw_qp.close()
        undo(made, host)
        raise
    return register(entry)


def check_pkey(host: LocalHost, device: OpenDevice, port: PortInfo, index: int) -> None:
    """Refuse an index without a key: rxe takes any index in silence."""
    if not (0 <= index < len(port.pkeys) and port.pkeys[index]):
        valid = ", ".join(f"{number} {pkey:#06x}" for number, pkey in enumerate(port.pkeys) if pkey) or "none"
        raise RdmaUsageError(f"{device.name}/{port.number} on {host.name} has no pkey {index}; it has {valid}")


def find_pointers(entry: QPEntry) -> None:
    entry.pointer = native.qp_pointer(entry.raw_qp, pd=entry.pd.raw, context=entry.device.context)
    view = native.load().qp_view(entry.pointer)
    assert view is not None  # it was found by what this view shows
    entry.context_pointer = view.context
    entry.cq.known_as(view.send_cq)


def cq_depth(caps: EndpointCaps, limits: dict[str, int]) -> int:
    """Return a depth that holds all completions of both queues, also where the driver rounds them up to 2^n."""
    asked, largest = caps.send_depth + caps.recv_depth, limits["max_cqe"]
    rounded = (1 << caps.send_depth.bit_length()) + (1 << caps.recv_depth.bit_length())
    if rounded <= largest:
        return rounded
    qp_will_be_refused = max(caps.send_depth, caps.recv_depth) > limits["max_qp_wr"]  # and says so better
    return largest if asked <= largest or qp_will_be_refused else asked


def gid_row(host: LocalHost, device: OpenDevice, port: PortInfo, index: int | None) -> GidRow | None:
    """Return the row asked for, else the best usable one; on InfiniBand none unless asked for."""
    place = f"{device.name}/{port.number} on {host.name}"
    if index is None:
        if port.link_layer == "InfiniBand":
            return None
        rows = gids.usable(port.gids)
        if not rows:
            raise RdmaUsageError(f"{place} has no usable GID row; rows: {gids.describe_all(port.gids)}")
        return rows[0]
    for row in port.gids:
        if row.index == index:
            return row
    raise RdmaUsageError(f"{place} has no GID row {index}; valid rows: {gids.describe_all(gids.usable(port.gids))}")


def create_qp(entry: QPEntry, caps: EndpointCaps) -> None:
    library = pyverbs()
    try:
        entry.raw_qp, init = _new_qp(entry, caps)
    except library.pyverbs_error.PyverbsError as error:
        attempt = f"cannot make a QP with {_caps_text(caps)} on {entry.where}"
        raise verbs_error(attempt, error, explain_creation(entry, caps)) from error
    entry.qp_num = entry.raw_qp.qp_num
    send_depth, recv_depth = init.max_send_wr, init.max_recv_wr
    if send_depth + recv_depth > entry.cq.front.depth:  # more than its CQ can hold must not be in flight
        send_depth, recv_depth = caps.send_depth, caps.recv_depth
    entry.caps = replace(
        caps,
        send_depth=send_depth,
        recv_depth=recv_depth,
        send_sges=init.max_send_sge,
        recv_sges=init.max_recv_sge,
        inline_bytes=init.max_inline_data,
    )


def _new_qp(entry: QPEntry, caps: EndpointCaps) -> tuple[Any, Any]:
    library = pyverbs().qp
    cap = library.QPCap(caps.send_depth, caps.recv_depth, caps.send_sges, caps.recv_sges, caps.inline_bytes)
    init = library.QPInitAttr(
        qp_type=QPT_RC, scq=entry.cq.raw, rcq=entry.cq.raw, cap=cap, sq_sig_all=int(caps.signal_all)
    )
    return library.QP(entry.pd.raw, init), init


def _caps_text(caps: EndpointCaps) -> str:
    return (
        f"send_depth {caps.send_depth}, recv_depth {caps.recv_depth}, send_sges {caps.send_sges}, "
        f"recv_sges {caps.recv_sges}, inline_bytes {caps.inline_bytes}"
    )


def explain_creation(entry: QPEntry, caps: EndpointCaps) -> str:
    """Say which capability the driver refused: one over the device's limits, else the inline size, found by trying."""
    limits = entry.device.info.limits
    asked = {
        "send_depth": (caps.send_depth, "max_qp_wr"),
        "recv_depth": (caps.recv_depth, "max_qp_wr"),
        "send_sges": (caps.send_sges, "max_sge"),
        "recv_sges": (caps.recv_sges, "max_sge"),
    }
    over = [
        f"{name} is over {limit} {limits[limit]}" for name, (value, limit) in asked.items() if value > limits[limit]
    ]
    if over:
        return ", ".join(over)
    if caps.inline_bytes and _creates(entry, replace(caps, inline_bytes=0)):
        return f"with these depths and SGEs at most {largest_inline(entry, caps)} inline_bytes are granted"
    return "no single capability is over the device's limits, which the driver does not keep in this combination"


def largest_inline(entry: QPEntry, caps: EndpointCaps) -> int:
    """Return the largest inline size that the driver grants beside the other capabilities, by bisection."""
    good, bad = 0, caps.inline_bytes
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if _creates(entry, replace(caps, inline_bytes=middle)) else (good, middle)
    return good


def _creates(entry: QPEntry, caps: EndpointCaps) -> bool:
    try:
        qp, _ = _new_qp(entry, caps)
    except pyverbs().pyverbs_error.PyverbsError:
        return False
    qp.close()
    return True


def register(entry: QPEntry) -> Endpoint:
    limits = entry.device.info.limits
    gid = entry.gid or next(iter(entry.port.gids), None)
    record = ExchangeRecord(
        qp_num=entry.qp_num,
        psn=secrets.randbits(PSN_BITS),
        lid=entry.port.lid,
        gid=gid.gid if gid else "::",
        gid_index=gid.index if gid else 0,
        gid_type=gid.type if gid else "IB",
        link_layer=entry.port.link_layer,
        active_mtu=entry.port.active_mtu,
        max_dest_rd_atomic=limits["max_qp_rd_atom"],
        max_rd_atomic=limits["max_qp_init_rd_atom"],
        memory=entry.buffer.front.remote,
    )
    facts: dict[str, Any] = {
        "qp_num": entry.qp_num,
        "device": entry.device.name,
        "port": entry.port.number,
        "caps": entry.caps,
        "record": record,
        "buffer": entry.buffer.front,
        "pd": entry.pd.front,
        "cq": entry.cq.front,
    }
    front: Endpoint = entry.host.add(entry, Endpoint, facts)
    entry.cq.qps[entry.qp_num] = entry
    entry.pd.users[front.handle] = front
    return front


def to_init(entry: QPEntry) -> None:
    caps = entry.caps
    access = caps.access if caps.qp_access is None else caps.qp_access
    move(
        entry,
        QPState.INIT,
        {"pkey_index": entry.pkey_index, "port_num": entry.port.number, "qp_access_flags": int(access)},
    )


def move(entry: QPEntry, state: QPState | None, attributes: dict[str, Any], peer: ExchangeRecord | None = None) -> None:
    """Modify the QP; the error says all that could have been wrong with it."""
    try:
        modify(entry.raw_qp, state, attributes)
    except pyverbs().pyverbs_error.PyverbsRDMAError as error:
        number = error_number(error)
        raise VerbsError(explain_modify(entry, state, attributes, peer, number), errno=number) from error
    if state is not None:
        entry.state = state
    if state == QPState.RESET:
        entry.forget_outstanding()


@op("qp.rtr")
def op_qp_rtr(
    host: LocalHost, deadline: Deadline, handle: int, peer: ExchangeRecord, attributes: ConnectionAttributes
) -> None:
    """Move to RTR towards the QP that `peer` describes."""
    entry = host.entry("qp", handle)
    wanted = {
        **address_vector(entry, peer, attributes),
        "path_mtu": attributes.mtu,
        "dest_qp_num": peer.qp_num,
        "rq_psn": peer.psn,
        "max_dest_rd_atomic": attributes.rd_atomic,
        "min_rnr_timer": attributes.min_rnr_timer,
    }
    move(entry, QPState.RTR, wanted, peer)
    entry.remote = entry.front.remote = peer.memory


@op("qp.rts")
def op_qp_rts(host: LocalHost, deadline: Deadline, handle: int, attributes: ConnectionAttributes) -> None:
    entry = host.entry("qp", handle)
    wanted = {
        "timeout": attributes.ack_timeout,
        "retry_cnt": attributes.retry_count,
        "rnr_retry": attributes.rnr_retry,
        "sq_psn": entry.front.record.psn,
        "max_rd_atomic": attributes.rd_atomic,
    }
    move(entry, QPState.RTS, wanted)
    entry.rd_atomic = attributes.rd_atomic


@op("qp.modify")
def op_qp_modify(
    host: LocalHost, deadline: Deadline, handle: int, state: int | None, attributes: dict[str, Any]
) -> None:
    move(host.entry("qp", handle), None if state is None else QPState(state), attributes)


@op("qp.reset")
def op_qp_reset(host: LocalHost, deadline: Deadline, handle: int) -> None:
    entry = host.entry("qp", handle)
    move(entry, QPState.RESET, {})
    entry.remote = entry.front.remote = entry.rd_atomic = None
    to_init(entry)


@op("qp.close")
def op_qp_close(host: LocalHost, deadline: Deadline, handle: int) -> None:
    host.discard(handle)
