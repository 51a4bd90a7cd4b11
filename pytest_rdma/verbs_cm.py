"""rdma_cm on a LocalHost: ids with an event channel each, waits that a deadline and a stop end, QPs moved by us."""

from __future__ import annotations

import ctypes
import errno
import ipaddress
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

from pytest_rdma import native, netlink
from pytest_rdma.cm import CMConnection, CMListener, CMRequest
from pytest_rdma.cm_events import ERRORS, EVENTS, describe_event, hint_of_errno
from pytest_rdma.cm_library import (
    PS_TCP,
    CMEvent,
    CMId,
    ConnParam,
    QPAttr,
    check,
    device_name,
    librdmacm,
    pack_address,
    unpack_address,
)
from pytest_rdma.deadline import Deadline
from pytest_rdma.errors import CMError, DeadlineError, RdmaUsageError, VerbsError
from pytest_rdma.host import InUse, LocalHost, Resource, close_all, op
from pytest_rdma.model import ConnectionAttributes, ExchangeRecord, QPState, RemoteMemory
from pytest_rdma.verbs_device import mtu_bytes
from pytest_rdma.verbs_modify import MASKS, QP_AV
from pytest_rdma.verbs_queue import QPEntry, move

SLICE_S = 0.05


@dataclass(frozen=True)
class Event:
    """An event of a channel, copied before it is acknowledged; `identifier` is the id that it is about."""

    name: str
    status: int
    identifier: int
    private_data: bytes
    responder_resources: int
    initiator_depth: int


class Channel:
    """An event channel, non-blocking; events that were read while others were awaited are kept."""

    def __init__(self, attempt: str) -> None:
        self.pointer = librdmacm().rdma_create_event_channel()
        if not self.pointer:
            check(-1, attempt, hint_of_errno(ctypes.get_errno()))
        self.fd: int = self.pointer.contents.fd
        self.kept: deque[Event] = deque()
        native.load().set_nonblocking(self.fd)

    def next_event(self) -> Event | None:
        """Return the next event if one is there, acknowledged."""
        event = ctypes.POINTER(CMEvent)()
        if librdmacm().rdma_get_cm_event(self.pointer, ctypes.byref(event)):
            number = ctypes.get_errno()
            if number == errno.EAGAIN:
                return None
            check(-1, "cannot read an rdma_cm event")
        came, conn = event.contents, event.contents.conn
        data = ctypes.string_at(conn.private_data, conn.private_data_len) if conn.private_data else b""
        name = EVENTS[came.event] if came.event < len(EVENTS) else f"event {came.event}"
        copied = Event(name, came.status, came.id or 0, data, conn.responder_resources, conn.initiator_depth)
        check(librdmacm().rdma_ack_cm_event(event), "cannot acknowledge an rdma_cm event")
        return copied

    def close(self) -> None:
        librdmacm().rdma_destroy_event_channel(self.pointer)


class CMEntry(Resource):
    """An rdma_cm id with a channel of its own, so that no event of another id is ever met on it."""

    close_rank: ClassVar[int] = 5

    def __init__(self, host: LocalHost, what: str, adopted: int = 0) -> None:
        self.host = host
        self.what = what
        self.channel = Channel(f"cannot {what} on {host.name}")
        self.in_use = InUse(f"an rdma_cm id on {host.name}")
        self.qp: QPEntry | None = None
        self.disconnecting = False
        self.pointer = ctypes.c_void_p(adopted)
        try:
            if adopted:
                self.call("rdma_migrate_id", self.channel.pointer)
            else:
                made = librdmacm().rdma_create_id(self.channel.pointer, ctypes.byref(self.pointer), None, PS_TCP)
                check(made, f"cannot {what} on {host.name}")
        except BaseException:
            self.channel.close()
            raise

    @property
    def identifier(self) -> CMId:
        return CMId.from_address(self.pointer.value or 0)

    def call(self, name: str, *args: Any) -> None:
        """Call librdmacm; the error says what this id was for."""
        if getattr(librdmacm(), name)(self.pointer, *args):
            number = ctypes.get_errno()
            hint = hint_of_errno(number)
            check(-1, f"cannot {self.what} on {self.host.name}: {name}", hint)

    def expect(self, deadline: Deadline, *names: str) -> Event:
        """Wait for one of these events; CMError when one comes that says that it cannot come any more."""
        fatal = ERRORS | {"DISCONNECTED"} if names == ("ESTABLISHED",) else ERRORS
        while True:
            for event in list(self.channel.kept):
                if event.name in names:
                    self.channel.kept.remove(event)
                    return event
                if event.name in fatal:
                    self.channel.kept.remove(event)
                    raise self._failure(event)
            self._read(deadline, names)

    def _read(self, deadline: Deadline, names: tuple[str, ...]) -> None:
        with self.in_use:
            event = self.channel.next_event()
            if event is None and native.load().wait_fd(self.channel.fd, deadline.slice_ns(SLICE_S), deadline.stop):
                event = self.channel.next_event()
        if event is not None:
            self.channel.kept.append(event)
            return
        try:
            deadline.check(f"rdma_cm event {' or '.join(names)}")
        except DeadlineError as error:
            hint = "; the other end has not answered the request yet" if "CONNECT_RESPONSE" in names else ""
            raise DeadlineError(f"cannot {self.what} on {self.host.name}: {error}{hint}") from None

    def _failure(self, event: Event) -> CMError:
        text = f"cannot {self.what} on {self.host.name}: {describe_event(event.name, event.status)}"
        return CMError(text, event=event.name, status=event.status, private_data=event.private_data)

    def addresses(self) -> dict[str, Any]:
        """Return both addresses and the device as the facts of a front object."""
        own, peer = unpack_address(self.identifier.src_addr), unpack_address(self.identifier.dst_addr)
        facts = {"address": own[0], "port": own[1], "peer_address": peer[0], "peer_port": peer[1]}
        return {**facts, "device": device_name(self.identifier)}

    def take_qp(self, qp: QPEntry) -> None:
        """Refuse a QP on another port than the route leads through: rdma_cm would connect it to nothing."""
        found = f"{device_name(self.identifier)}/{self.identifier.port_num}"
        if found != f"{qp.device.name}/{qp.port.number}":
            raise RdmaUsageError(f"cannot {self.what} on {self.host.name}: the route leads through {found}, "
                                 f"and {qp.label} is on {qp.device.name}/{qp.port.number}")  # fmt: skip
        self.qp = qp

    def move_qp(self, state: QPState, attributes: ConnectionAttributes, rd_atomic: int | None = None) -> None:
        """Move the QP with the attributes that rdma_cm has for it, the MTU no larger than ours, both timers ours."""
        assert self.qp is not None
        wanted = QPAttr(qp_state=int(state))
        mask = ctypes.c_int(0)
        self.call("rdma_init_qp_attr", ctypes.byref(wanted), ctypes.byref(mask))
        found = {name: int(getattr(wanted, name)) for name, bit in MASKS.items() if mask.value & bit}
        if mask.value & QP_AV:
            found.update(_address_vector(wanted))
        if "path_mtu" in found:
            found["path_mtu"] = min(mtu_bytes(found["path_mtu"]), attributes.mtu)
            found["min_rnr_timer"] = attributes.min_rnr_timer
        for name in ("max_rd_atomic", "max_dest_rd_atomic"):
            if name in found and rd_atomic is not None:
                found[name] = min(found[name], rd_atomic)
        if state == QPState.RTS:
            found["timeout"] = attributes.ack_timeout
        move(self.qp, state, found)
        if state == QPState.RTR:
            self.qp.peer, self.qp.connected = _peer_record(self.qp, found), attributes
        if state == QPState.RTS:
            self.qp.rd_atomic = found["max_rd_atomic"]

    def close(self) -> None:
        self.in_use.end()
        close_all([partial(librdmacm().rdma_destroy_id, self.pointer), self.channel.close])


def _address_vector(wanted: QPAttr) -> dict[str, Any]:
    vector: dict[str, Any] = {name: getattr(wanted.ah_attr, name) for name in ("dlid", "sl")}
    vector["ah_port"] = wanted.ah_attr.port_num
    if wanted.ah_attr.is_global:
        route = wanted.ah_attr.grh
        vector["dgid"] = str(ipaddress.IPv6Address(bytes(route.dgid)))
        names = ("flow_label", "sgid_index", "hop_limit", "traffic_class")
        vector.update({name: getattr(route, name) for name in names})
    return vector


def _peer_record(qp: QPEntry, found: dict[str, Any]) -> ExchangeRecord:
    """Return what rdma_cm has made known of the peer as the record that a peer would have told."""
    return replace(
        qp.front.record,
        qp_num=found.get("dest_qp_num", 0),
        psn=found.get("rq_psn", 0),
        lid=found.get("dlid", 0),
        gid=found.get("dgid", "::"),
        memory=RemoteMemory(0, 0, 0),
    )


def conn_param(data: bytes, qp: QPEntry, attributes: ConnectionAttributes, request: Event | None) -> ConnParam:
    """Return what a request or an acceptance says; `request` bounds the reads that an acceptance grants."""
    reads = attributes.rd_atomic
    responder = min(reads, request.responder_resources) if request else reads
    initiator = min(reads, request.initiator_depth) if request else reads
    return ConnParam(
        private_data=ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p) if data else None,
        private_data_len=len(data),
        responder_resources=responder,
        initiator_depth=initiator,
        flow_control=1,
        retry_count=attributes.retry_count,
        rnr_retry_count=attributes.rnr_retry,
        qp_num=qp.qp_num,
    )


# -- ops


def scope_of(address: str) -> int:
    """Return the index of the interface that has this address, 0 where it needs none."""
    if not address.startswith("fe80:"):
        return 0
    found = (index for index, there in netlink.addresses().items() if any(one == address for one, _ in there))
    return next(found, 0)


@op("cm.listen")
def op_listen(host: LocalHost, deadline: Deadline, address: str, port: int, backlog: int) -> CMListener:
    entry = CMEntry(host, f"listen on {address} port {port} by rdma_cm")
    try:
        entry.call("rdma_bind_addr", pack_address(address, port, scope_of(address)))
        entry.call("rdma_listen", backlog)
        found = unpack_address(entry.identifier.src_addr)
    except BaseException:
        entry.close()
        raise
    front: CMListener = host.add(entry, CMListener, {"address": found[0], "port": found[1]})
    return front


class RequestEntry(CMEntry):
    """The id of a request that waits for an answer."""

    request: Event


@op("cm.get_request")
def op_get_request(host: LocalHost, deadline: Deadline, handle: int) -> CMRequest:
    listener: CMEntry = host.entry("cm_listener", handle)
    event = listener.expect(deadline, "CONNECT_REQUEST")
    try:
        entry = RequestEntry(host, "answer a request by rdma_cm", event.identifier)
    except BaseException:
        librdmacm().rdma_destroy_id(ctypes.c_void_p(event.identifier))
        raise
    facts = entry.addresses()
    entry.what = f"answer the request of {facts['peer_address']} port {facts['peer_port']} by rdma_cm"
    entry.request = event
    front: CMRequest = host.add(entry, CMRequest, {**facts, "private_data": event.private_data})
    return front


@op("cm.accept")
def op_accept(
    host: LocalHost, deadline: Deadline, handle: int, qp: int, private_data: bytes, attributes: ConnectionAttributes
) -> CMConnection:
    entry: RequestEntry = host.entry("cm_request", handle)
    entry.take_qp(host.entry("qp", qp))
    assert entry.qp is not None
    param = conn_param(private_data, entry.qp, attributes, entry.request)
    entry.move_qp(QPState.RTR, attributes, param.responder_resources)
    entry.move_qp(QPState.RTS, attributes, param.initiator_depth)
    entry.call("rdma_accept", ctypes.byref(param))
    entry.expect(deadline, "ESTABLISHED")
    facts = entry.front.facts
    host.remove(handle)
    return _connected(host, entry, facts)


def _connected(host: LocalHost, entry: CMEntry, facts: dict[str, Any]) -> CMConnection:
    entry.what = f"use the rdma_cm connection to {facts['peer_address']} port {facts['peer_port']}"
    front: CMConnection = host.add(entry, CMConnection, facts)
    return front


@op("cm.reject")
def op_reject(host: LocalHost, deadline: Deadline, handle: int, private_data: bytes) -> None:
    entry: RequestEntry = host.entry("cm_request", handle)
    entry.call("rdma_reject", private_data, len(private_data))
    host.discard(handle)


@op("cm.dial")
def op_dial(
    host: LocalHost,
    deadline: Deadline,
    qp: int,
    address: str,
    port: int,
    source: str,
    private_data: bytes,
    attributes: ConnectionAttributes,
) -> CMConnection:
    entry = CMEntry(host, f"connect from {source} to {address} port {port} by rdma_cm")
    try:
        answer = _dial(entry, deadline, host.entry("qp", qp), (address, port), source, private_data, attributes)
    except BaseException:
        entry.close()
        raise
    return _connected(host, entry, {**entry.addresses(), "private_data": answer.private_data})


def _dial(
    entry: CMEntry,
    deadline: Deadline,
    qp: QPEntry,
    target: tuple[str, int],
    source: str,
    private_data: bytes,
    attributes: ConnectionAttributes,
) -> Event:
    milliseconds = max(1, int(deadline.remaining_s * 1000 / 2))
    scope = scope_of(source)
    entry.call("rdma_resolve_addr", pack_address(source, 0, scope), pack_address(*target, scope), milliseconds)
    entry.expect(deadline, "ADDR_RESOLVED")
    entry.call("rdma_resolve_route", milliseconds)
    entry.expect(deadline, "ROUTE_RESOLVED")
    entry.take_qp(qp)
    entry.call("rdma_connect", ctypes.byref(conn_param(private_data, qp, attributes, None)))
    answer = entry.expect(deadline, "CONNECT_RESPONSE")
    entry.move_qp(QPState.RTR, attributes)
    entry.move_qp(QPState.RTS, attributes)
    entry.call("rdma_establish")
    return answer


@op("cm.aim")
def op_aim(host: LocalHost, deadline: Deadline, qp: int, memory: RemoteMemory) -> None:
    """Note what the peer told of its memory, so that checked posts know its bounds."""
    entry: QPEntry = host.entry("qp", qp)
    entry.remote = entry.front.remote = memory
    if entry.peer is not None:
        entry.peer = replace(entry.peer, memory=memory)


@op("cm.disconnect")
def op_disconnect(host: LocalHost, deadline: Deadline, handle: int) -> None:
    _disconnect(host.entry("cm", handle))


def _disconnect(entry: CMEntry) -> None:
    """Move the QP to ERR, as rdma_disconnect(3) would if the QP were its own, and send a request or its answer."""
    if entry.qp is not None and entry.qp.live_state() != QPState.ERR:
        move(entry.qp, QPState.ERR, {})
    entry.disconnecting = True
    entry.call("rdma_disconnect")


@op("cm.wait_disconnected")
def op_wait_disconnected(host: LocalHost, deadline: Deadline, handle: int) -> None:
    entry: CMEntry = host.entry("cm", handle)
    entry.expect(deadline, "DISCONNECTED")
    if not entry.disconnecting:
        with suppress(VerbsError):  # the other end may be gone for good
            _disconnect(entry)


@op("cm.wait_reusable")
def op_wait_reusable(host: LocalHost, deadline: Deadline, handle: int) -> None:
    host.entry("cm", handle).expect(deadline, "TIMEWAIT_EXIT")


@op("cm.close")
def op_close(host: LocalHost, deadline: Deadline, handle: int) -> None:
    host.discard(handle)
