"""How an endpoint is made: PD, buffer, channel, CQ and QP in one op, all taken back when one step fails."""

from __future__ import annotations

import secrets
from dataclasses import replace
from typing import Any, TypeVar

from pytest_rdma import gids, native
from pytest_rdma.deadline import Deadline
from pytest_rdma.endpoint import Endpoint
from pytest_rdma.errors import RdmaEnvironmentError, RdmaUsageError
from pytest_rdma.host import LocalHost, Resource, op
from pytest_rdma.model import PSN_BITS, EndpointCaps, ExchangeRecord, GidRow, PortInfo
from pytest_rdma.verbs_cq import make_cq
from pytest_rdma.verbs_device import OpenDevice, open_device
from pytest_rdma.verbs_library import pyverbs, verbs_error
from pytest_rdma.verbs_memory import make_mr, make_pd, undo
from pytest_rdma.verbs_queue import QPEntry, to_init
from pytest_rdma.verbs_transports import qp_type


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
    srq_handle: int | None = None,
) -> Endpoint:
    """Make PD, buffer, channel, CQ and QP and move the QP to INIT; take all back when one step fails."""
    device = open_device(host, device_name)
    port = device.fresh_port(port_number, gid_index)
    gid = gid_row(host, device, port, gid_index)
    check_port(host, device, port, pkey_index)
    made: list[Resource] = []
    try:
        srq = host.entry("srq", srq_handle) if srq_handle is not None else None
        if pd_handle is not None:
            pd = host.entry("pd", pd_handle)
        else:
            pd = srq.pd if srq else owned(made, make_pd(host, device))
        buffer = owned(made, make_mr(pd, caps.buffer_bytes, caps.access))
        if cq_handle is not None:
            cq = host.entry("cq", cq_handle)
        else:
            cq = owned(made, make_cq(host, device, cq_depth(caps, device.info.limits), caps.events))
        entry = QPEntry(host, pd, cq, port, gid)
        entry.buffer, entry.owned, entry.pkey_index = buffer, made, pkey_index
        entry.srq = srq
        create_qp(entry, caps)
        start_qp(entry)
    except BaseException:
        undo(made, host)
        raise
    return register(entry)


MadeT = TypeVar("MadeT", bound=Resource)


def owned(made: list[Resource], entry: MadeT) -> MadeT:
    """Note what was made for a QP alone, in the order in which it is destroyed."""
    made.insert(0, entry)
    return entry


def start_qp(entry: QPEntry) -> None:
    try:
        find_pointers(entry)
        to_init(entry)
    except BaseException:
        entry.raw_qp.close()
        raise


def check_port(host: LocalHost, device: OpenDevice, port: PortInfo, index: int) -> None:
    """Refuse a port that is not ACTIVE and a pkey index without a key: rxe takes any index in silence."""
    if port.state != "ACTIVE":
        raise RdmaEnvironmentError(f"port {device.name}/{port.number} on {host.name} is {port.state}, not ACTIVE")
    if not (0 <= index < len(port.pkeys) and port.pkeys[index]):
        valid = ", ".join(f"{number} {pkey:#06x}" for number, pkey in enumerate(port.pkeys) if pkey) or "none"
        raise RdmaUsageError(f"{device.name}/{port.number} on {host.name} has no pkey {index}; it has {valid}")


def find_pointers(entry: QPEntry) -> None:
    entry.pointer = native.qp_pointer(entry.raw_qp, pd=entry.pd.raw, context=entry.device.context)
    view = native.load().qp_view(entry.pointer)
    assert view is not None  # it was found by what this view shows
    entry.context_pointer = view.context
    entry.cq.known_as(view.send_cq)
    if entry.srq is not None:
        entry.srq.pointer = view.srq


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
        qp_type=qp_type(caps.transport),
        scq=entry.cq.raw,
        rcq=entry.cq.raw,
        srq=entry.srq.raw if entry.srq else None,
        cap=cap,
        sq_sig_all=int(caps.signal_all),
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
    if entry.srq is not None:
        entry.srq.users[front.handle] = front
    return front
