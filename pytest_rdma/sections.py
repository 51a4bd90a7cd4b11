"""The evidence of a failed test as text, for who knows RDMA: the causes, and one section a host."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Sequence

from pytest_rdma.diagnosis import Cause
from pytest_rdma.evidence import Evidence, Failure, HostEvidence, Posted, QPEvidence, QueueLedger
from pytest_rdma.model import Access, Completion, ConnectionAttributes, PortInfo
from pytest_rdma.status import name_of

QPS_SHOWN = 8
REGIONS_SHOWN = 12
LOG_SHOWN = 30
ACK_UNIT_S = 4.096e-6
SHOWN = (
    "dest_qp_num", "dgid", "sgid_index", "dlid", "path_mtu", "rq_psn", "sq_psn", "timeout", "retry_cnt", "rnr_retry",
    "min_rnr_timer", "max_rd_atomic", "max_dest_rd_atomic", "pkey_index",
)  # fmt: skip


def diagnosis(causes: Sequence[Cause]) -> str:
    """Return the causes, ranked, each with its next step."""
    lines = []
    for number, cause in enumerate(causes, 1):
        lines.append(f"{number}. {cause.headline}{'' if cause.certain else ' (likely)'} [{cause.name}]")
        lines.append(f"   {cause.next_step}")
    return "\n".join(lines)


def host(evidence: Evidence, side: str) -> str:
    """Return the section of one end."""
    mine: HostEvidence = getattr(evidence, side)
    chosen: int | None = getattr(evidence, f"{side}_qp")
    return "\n".join(_host(mine, chosen))


def _host(mine: HostEvidence, chosen: int | None) -> Iterator[str]:
    info = mine.info
    yield (
        f"{info.hostname}: kernel {info.kernel} {info.machine}, rdma-core {info.rdma_core}, pyverbs {info.pyverbs}, "
        f"Python {info.python}, pid {info.pid}, uid {info.uid}"
    )
    if mine.lost:
        yield f"lost: {mine.lost}"
    yield from _device(mine)
    qps = sorted(mine.qps, key=lambda qp: (qp.qp_num != chosen, qp.closed))
    for qp in qps[:QPS_SHOWN]:
        yield from _qp(qp, whole=qp.qp_num == chosen or chosen is None)
    if len(qps) > QPS_SHOWN:
        yield f"{len(qps) - QPS_SHOWN} more QPs"
    yield from _regions(mine)
    events = ", ".join(f"{event.type} of {event.element}" for event in mine.async_events)
    yield f"asynchronous events: {events or 'none'}"
    if "counters" not in mine.unread:
        counted = ", ".join(f"{name} +{grown}" for name, grown in mine.counters.items())
        yield f"counters that changed: {counted or 'none'}"
    yield _memory(mine)
    if "kernel log" not in mine.unread:
        yield f"kernel log since the test began: {'' if mine.kernel_log else 'nothing'}".rstrip()
        yield from (f"  {line}" for line in mine.kernel_log[-LOG_SHOWN:])
    if mine.stderr.strip():
        yield "stderr of the agent:"
        yield from (f"  {line}" for line in mine.stderr.strip().splitlines()[-LOG_SHOWN:])
    yield from (f"not read: {what}: {why}" for what, why in mine.unread.items())


def _device(mine: HostEvidence) -> Iterator[str]:
    device = mine.device
    if device is None or device.error:
        yield f"{device.name} {device.error}" if device else "no device"
        return
    port = next((one for one in device.ports if one.number == mine.port), None)
    yield (
        f"{device.name}/{mine.port}: {device.provider} {device.transport}, firmware {device.firmware or 'none'}, "
        + (
            f"{port.state}, {port.link_layer}, MTU {port.active_mtu} of {port.max_mtu}, lid {port.lid}"
            if port
            else "the port is not there"
        )
    )
    if port is not None:
        yield f"GID rows: {_gids(mine, port)}"
    for name, facts in mine.netdevs.items():
        yield f"netdev {name}: mtu {facts['mtu']}, {facts['operstate']}, carrier {facts['carrier']}"


def _gids(mine: HostEvidence, port: PortInfo) -> str:
    rows = []
    for row in port.gids:
        used = " (used)" if row.index == mine.gid_index else ""
        rows.append(f"{row.index} {row.address} {row.type} {row.netdev or 'no netdev'}{used}")
    return "; ".join(rows) or "none"


# -- QPs


def _qp(qp: QPEvidence, *, whole: bool) -> Iterator[str]:
    state = qp.state.name if qp.state is not None else "closed during the test" if qp.closed else "state unknown"
    to = f", connected to QP {qp.peer.qp_num:#x} at {_address(qp.peer.gid)}" if qp.peer else ", not connected"
    yield f"QP {qp.qp_num:#x}: {qp.caps.transport} {state}{to}"
    if qp.error:
        yield f"  not read: {qp.error}"
    if not whole and not (qp.failure or qp.first_flush or qp.awaits):
        yield f"  sends {qp.sends.completed}/{qp.sends.posted}, receives {qp.recvs.completed}/{qp.recvs.posted}"
        return
    if qp.attributes:
        yield f"  {_attributes(qp)}"
    if qp.connected is not None and qp.attributes:
        differs = _differs(qp.connected, qp.attributes)
        if differs:
            yield f"  connected with {differs}"
    yield f"  sends: {_queue(qp.sends, qp.caps.send_depth)}"
    receives = _queue(qp.recvs, qp.caps.recv_depth)
    yield f"  receives: {f'from an SRQ, {qp.recvs.completed} completed' if qp.shared_recvs else receives}"
    if qp.failure:
        yield f"  first failure: {_failure(qp.failure)}"
    if qp.flushed:
        first = f", the first {_failure(qp.first_flush)}" if qp.first_flush else ""
        yield f"  flushed: {qp.flushed}{first}"
    if qp.recent:
        yield f"  last completions: {', '.join(_completion(one) for one in qp.recent)}"
    if qp.awaits:
        yield f"  awaits: {qp.awaits}"


def _address(gid: str) -> str:
    address = ipaddress.IPv6Address(gid)
    return str(address.ipv4_mapped or address)


def _attributes(qp: QPEvidence) -> str:
    found = qp.attributes
    shown = {
        name: f"{found[name]:#x}" if name in ("dest_qp_num", "rq_psn", "sq_psn") else found[name]
        for name in SHOWN
        if name in found
    }
    if "dgid" in shown:
        shown["dgid"] = _address(found["dgid"])
    timeout = found.get("timeout", 0)
    shown["timeout"] = f"{timeout} ({f'{ACK_UNIT_S * (1 << timeout) * 1e3:.3g} ms' if timeout else 'without end'})"
    shown["access"] = Access(found.get("qp_access_flags", 0)).text
    return ", ".join(f"{name} {value}" for name, value in shown.items())


def _differs(connected: ConnectionAttributes, found: dict[str, int]) -> str:
    names = {"mtu": "path_mtu", "retry_count": "retry_cnt", "ack_timeout": "timeout", "min_rnr_timer": "min_rnr_timer"}
    return ", ".join(
        f"{ours} {getattr(connected, ours)}"
        for ours, theirs in {**names, "rnr_retry": "rnr_retry"}.items()
        if getattr(connected, ours) != found.get(theirs)
    )


def _queue(queue: QueueLedger, depth: int) -> str:
    text = f"{queue.posted} posted{_ago(queue.last_post_ago_s)}, {queue.completed} completed"
    text += f"{_ago(queue.last_completion_ago_s)}, {queue.outstanding_count} of {depth} outstanding"
    if queue.outstanding:
        more = ", ..." if queue.outstanding_count > len(queue.outstanding) else ""
        text += f": {', '.join(_posted(one) for one in queue.outstanding)}{more}"
    return text


def _ago(seconds: float | None) -> str:
    return f" (the last {seconds:.3g} s ago)" if seconds is not None else ""


def _posted(one: Posted) -> str:
    unsignaled = "" if one.signaled else " unsignaled"
    return f"{one.wr_id:#x} {one.opcode} {one.bytes} bytes{unsignaled} {one.ago_s:.3g} s ago"


def _failure(failure: Failure) -> str:
    of = f" of {_posted(failure.request)}" if failure.request else ""
    return f"{_completion(failure.completion)}, vendor_err {failure.completion.vendor_err:#x}{of}"


def _completion(one: Completion) -> str:
    length = f" {one.byte_len} bytes" if one.status == 0 and one.byte_len else ""
    return f"{one.wr_id:#x} {name_of(one.status)}{length}"


# -- the rest


def _regions(mine: HostEvidence) -> Iterator[str]:
    shown = sorted(mine.regions, key=lambda region: region.closed)[:REGIONS_SHOWN]
    for region in shown:
        kind = "window" if region.window else "region"
        closed = ", closed" if region.closed else ""
        yield (
            f"{kind} {region.addr:#x} {region.length} bytes, lkey {region.lkey:#x}, rkey {region.rkey:#x}, "
            f"{region.access.text}, PD {region.pd}{closed}"
        )
    if len(mine.regions) > len(shown):
        yield f"{len(mine.regions) - len(shown)} more regions"


def _memory(mine: HostEvidence) -> str:
    limits = (_bytes(value) for value in (mine.info.memlock_soft, mine.info.memlock_hard))
    used = "".join(f", {name} {size}" for name, size in mine.memory.items())
    return f"RLIMIT_MEMLOCK {' hard '.join(limits)}{used}"


def _bytes(value: int) -> str:
    return "unlimited" if value < 0 else str(value)
