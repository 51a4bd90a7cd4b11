"""Causes between the ends: a peer QP that cannot answer, addresses that do not lead there, packets that are lost.

InfiniBand specification 1.4, volume 1: 9.7.6.1.3 (transport timer and retries), 9.6.1 (packet header validation).
"""

from __future__ import annotations

import ipaddress
import re

from pytest_rdma import gids
from pytest_rdma.counters import NAMES
from pytest_rdma.diagnosis_view import FOREVER, Cause, Causes, End, View, counted, failed_as, seconds, size
from pytest_rdma.evidence import QPEvidence, closed_after
from pytest_rdma.model import QPState
from pytest_rdma.status import WCStatus

NO_ROW = re.compile(r"(\S+) on (.+?) has no GID row (\d+); valid rows")
REPEATED = ("duplicate_request", "dup_req")
MISSING_ANSWERS = ("implied_nak_seq_err", "missing_resp", "missin_resp")
PSN_END = 1 << 24
PSN_FAR = 1 << 16
PSN_NEAR = 1 << 12
NO_GID = "::"
REFUSED_RTR = re.compile(r"to RTR on .*; peer QP 0x[0-9a-f]+ gid ([0-9a-fA-F:.]+)")
TAKE_ROWS = "take rows of one type, family and subnet: --rdma-gid-index and --peer-gid-index"
CONNECT_ANEW = "connect both ends anew, each with the record that the other tells now"


# -- the peer's QP


def peer_qp(view: View) -> Causes:
    """The QP that is addressed cannot answer: another number, gone, or in a state that drops what comes."""
    if not view.unanswered or view.passive.host.lost:
        return
    passive, qp = view.passive, view.passive.qp
    dest = view.active.attribute("dest_qp_num") or None  # a driver that does not tell it leaves a zero
    if dest is None and view.active.qp is not None and view.active.qp.peer is not None:
        dest = view.active.qp.peer.qp_num
    if qp is None:
        yield from _no_such_qp(view, dest)
    elif dest is not None and dest != qp.qp_num:
        yield _misdirected(view.active, passive, dest)
    elif qp.closed:
        later = closed_after(qp.closed_ago_s, view.failure)
        if later and view.active.qp is not None and view.active.qp.closed:
            return  # both were closed in the end
        yield Cause(
            "peer-qp-gone",
            f"{failed_as(view)}: {passive.label} was destroyed",
            "keep the peer's endpoint until all that is sent to it has completed",
            not later,
        )
    elif qp.state is not None and qp.failure is None:
        yield from _in_state(view, qp.state)
        back = passive.attribute("dest_qp_num")
        if back and view.active.qp is not None and back != view.active.qp.qp_num:
            yield _misdirected(passive, view.active, back)


def _misdirected(sender: End, target: End, dest: int) -> Cause:
    return Cause(
        "wrong-destination-qpn",
        f"{sender.label} sends to QP {dest:#x}, and the peer's end is {target.label}",
        f"connect it with the QP number that {target.name} tells: {target.qp.qp_num if target.qp else 0:#x}",
        True,
    )


def _no_such_qp(view: View, dest: int | None) -> Causes:
    passive = view.passive
    silent = passive.host.unread.get("everything")
    if silent:
        yield Cause(
            "process-gone",
            f"{failed_as(view)}: the process on {passive.name} that held the peer's QP tells nothing: {silent}",
            "look at what ended it: its stderr, the kernel log (out of memory, a crash), a signal, the test itself",
            False,
        )
        return
    if dest is None or any(qp.qp_num == dest and not qp.closed for qp in passive.host.qps):
        return
    if any(name.startswith("QP") for name in passive.host.unread):
        return
    yield Cause(
        "peer-qp-gone",
        f"{failed_as(view)}: {passive.name} has no QP {dest:#x}",
        "keep the peer's endpoint until all that is sent to it has completed, and see that the QP number is right; one "
        "of a program that runs there is not known here",
        bool(passive.host.qps) and dest in (view.evidence.local_qp, view.evidence.peer_qp),
    )


def _in_state(view: View, state: QPState) -> Causes:
    passive, label = view.passive, view.passive.label
    flushed = passive.qp.flushed if passive.qp else 0
    if state == QPState.ERR:
        why = f" and has flushed {counted(flushed, 'request')}" if flushed else ""
        yield Cause(
            "peer-qp-in-error",
            f"{failed_as(view)}: {label} is in ERR{why}, and drops what comes",
            f"look for what moved it there: the test itself, a disconnect, or an event on {passive.name}",
            True,
        )
    elif state == QPState.RESET:
        yield Cause("peer-qp-reset", f"{failed_as(view)}: {label} was reset, and drops what comes", CONNECT_ANEW, True)
    elif state == QPState.INIT:
        yield Cause(
            "peer-qp-not-in-rtr",
            f"{failed_as(view)}: {label} is in INIT: it is not connected, or was reset, and drops what comes",
            "move the peer to RTR before anything is sent; " + CONNECT_ANEW,
            True,
        )


def packet_numbers(view: View) -> Causes:
    """The ends do not agree on packet numbers: told wrongly, or one end was reset without the other."""
    active, passive = view.active.qp, view.passive.qp
    if not view.unanswered or active is None or passive is None or passive.closed:
        return
    if passive.peer is not None and passive.peer.psn != active.own.psn and _began_there(active):
        yield Cause(
            "wrong-psn",
            f"{failed_as(view)}: {view.active.label} begins with PSN {active.own.psn:#08x}, and {view.passive.label} "
            f"was told {passive.peer.psn:#08x}",
            CONNECT_ANEW,
            True,
        )
        return
    if active.peer is not None and active.peer.psn != passive.own.psn and _began_there(passive):
        yield Cause(
            "peer-reset",
            f"{failed_as(view)}: {view.passive.label} was reset since {view.active.label} was connected to it: it told "
            f"PSN {active.peer.psn:#08x} then and tells {passive.own.psn:#08x} now",
            CONNECT_ANEW,
            False,
        )
    sent, awaited = active.attributes.get("sq_psn"), passive.attributes.get("rq_psn")
    if sent and awaited:
        apart = min((sent - awaited) % PSN_END, (awaited - sent) % PSN_END)
        if apart > PSN_FAR:
            yield Cause(
                "wrong-psn",
                f"{failed_as(view)}: {view.active.label} is at PSN {sent:#08x}, and {view.passive.label} awaits "
                f"{awaited:#08x}",
                CONNECT_ANEW,
                False,
            )


def _began_there(qp: QPEvidence) -> bool:
    """Whether the QP is at a PSN not far behind the one that it tells; one that rdma_cm connected took another."""
    now = qp.attributes.get("sq_psn")
    return isinstance(now, int) and (now - qp.own.psn) % PSN_END <= PSN_NEAR


# -- addresses and ports


def port_down(view: View) -> Causes:
    """A port is not ACTIVE, or was not in between."""
    if view.status is not None and not view.unanswered:
        return
    for end in view.ends:
        if end.port is not None and end.port.state != "ACTIVE":
            yield Cause(
                "port-down",
                f"port {end.place} is {end.port.state}",
                "bring its link up: `rdma link`, `ip link`, the cable, the switch port",
                True,
            )
        elif end.port is not None and end.has_event("PORT_ERR", element=f"port {end.port.number}"):
            yield Cause(
                "port-down",
                f"port {end.place} went down in between (PORT_ERR), and is ACTIVE again",
                "look at the link and the kernel log of that host",
                False,
            )


def link_layers(view: View) -> Causes:
    ports = [end.port for end in view.ends]
    if not _connection_failed(view) or ports[0] is None or ports[1] is None:
        return
    if ports[0].link_layer != ports[1].link_layer:
        yield Cause(
            "link-layers-differ",
            f"{view.active.place} is {ports[0].link_layer} and {view.passive.place} is {ports[1].link_layer}",
            "take two ports of one link layer: --rdma-device, --peer-device, or set the port type",
            True,
        )


def _connection_failed(view: View) -> bool:
    return view.unanswered or "RTR" in view.evidence.error or "cannot be connected" in view.evidence.error


def gid_rows(view: View) -> Causes:
    """The rows of both ends: gone, told wrongly, or of different types."""
    empty = NO_ROW.search(view.evidence.error)
    if empty:
        yield Cause(
            "gid-gone",
            f"GID row {empty[3]} of {empty[1]} on {empty[2]} is empty now, and the pair was to use it",
            "give the netdev its address back, or begin the run anew, which takes a row that is there",
            True,
        )
    if _connection_failed(view):
        yield from _wrong_rows(view)


def _wrong_rows(view: View) -> Causes:
    gone = [cause for end in view.ends for cause in _row_gone(end)]
    yield from gone
    active, passive = view.active.qp, view.passive.qp
    if active is None or passive is None or gone:
        return
    told, has = _told_gid(view), _address(passive.own.gid)
    rows_there = {str(row.address) for row in view.passive.port.gids} if view.passive.port else set()
    reaches = told in rows_there and not REFUSED_RTR.search(view.evidence.error)  # rdma_cm takes any row
    if told and told != has and NO_GID not in (told, has) and not reaches:
        yield Cause(
            "wrong-destination-gid",
            f"{view.active.label} was told GID {told}, and {view.passive.label} has {has}",
            "connect it with the GID that the peer tells",
            True,
        )
        return  # its own rows are not those in use
    rows = view.active.row, view.passive.row
    if rows[0] and rows[1] and not _on_infiniband(view):
        differ = gids.mismatch(rows[0], rows[1])
        if differ:
            yield Cause("gid-types-differ", f"{_rows_shown(view)}: {differ}", TAKE_ROWS, True)


def way(view: View) -> Causes:
    """None is seen from end to end: by LIDs, or by the addresses of GID rows that are right in themselves."""
    if not _connection_failed(view) or any(_wrong_rows(view)):
        return
    if _on_infiniband(view):
        yield from _lid(view)
        return
    rows, host = (view.active.row, view.passive.row), view.active.host
    if view.active.qp is None or rows[0] is None or rows[1] is None:
        return
    if view.active.qp.sends.most_bytes_completed or host.ping_s is not None:
        return  # they led there
    distance, why = gids.reach(rows[0], rows[1], view.one_host)
    refused = any(word in view.evidence.error for word in ("ETIMEDOUT", "EHOSTUNREACH", "ENETUNREACH"))
    if distance != gids.UNREACHABLE:
        if refused and view.status is None and "RTR" in view.evidence.error:
            why = "the address of the peer was not resolved"
        elif host.ping_error and gids.family(rows[0]) == "link-local":
            why += f"; a ping gets {host.ping_error}"
        else:
            return
    yield Cause("gid-unroutable", f"{_rows_shown(view)}: {why}", f"{TAKE_ROWS}, or see that they ping", refused)


def _rows_shown(view: View) -> str:
    return "GID " + " and ".join(f"row {gids.describe(end.row)} on {end.name}" for end in view.ends if end.row)


def _on_infiniband(view: View) -> bool:
    return view.active.port is not None and view.active.port.link_layer == "InfiniBand"


def _lid(view: View) -> Causes:
    """A port may answer to more LIDs than the one that it tells (LMC)."""
    dlid, port = view.active.attribute("dlid"), view.passive.port
    if dlid and port is not None and port.lid and dlid != port.lid:
        yield Cause(
            "wrong-destination-lid",
            f"{view.active.label} sends to LID {dlid}, and {view.passive.place} has LID {port.lid}",
            "connect it with the LID that the peer tells now; the subnet manager may have given another since",
            False,
        )


def _told_gid(view: View) -> str:
    """The GID that the active end was connected to, or was to be when RTR was refused."""
    refused = REFUSED_RTR.search(view.evidence.error)
    if refused:
        return refused[1]
    qp = view.active.qp
    return _address(qp.peer.gid) if qp and qp.peer else ""


def _address(gid: str) -> str:
    address = ipaddress.IPv6Address(gid)
    return str(address.ipv4_mapped or address)


def _row_gone(end: End) -> Causes:
    if end.qp is None or end.port is None or end.port.link_layer == "InfiniBand" or end.qp.own.gid == NO_GID:
        return
    row, own = end.row, end.qp.own
    if end.gid_index != own.gid_index:
        return  # rdma_cm took another row than the one that is told
    if row is None or row.gid != own.gid:
        now = "is empty" if row is None else f"holds {row.address}"
        yield Cause(
            "gid-gone",
            f"{end.label} uses GID row {own.gid_index}, {_address(own.gid)}, and that row of {end.place} {now} now",
            "give the netdev its address back, and connect anew; see what takes it: DHCP, NetworkManager, the test",
            True,
        )
    elif row.netdev is None:
        yield Cause(
            "gid-gone",
            f"{end.label} uses GID row {own.gid_index}, {_address(own.gid)}, which has no netdev in this namespace",
            "take a row of a netdev that is here",
            True,
        )


# -- MTU


def mtu(view: View) -> Causes:
    """The path MTU is over what a port carries, differs between the ends, or only large packets are lost."""
    flushed_only = view.status is None and any(end.qp is not None and end.qp.flushed for end in view.ends)
    if not view.unanswered and not flushed_only and view.status != WCStatus.REM_INV_REQ_ERR:
        return
    sizes = [end.attribute("path_mtu", "mtu") for end in view.ends]
    for end, path_mtu in zip(view.ends, sizes):
        if path_mtu is not None and end.port is not None and path_mtu > end.port.active_mtu:
            yield Cause(
                "mtu-beyond-path",
                f"{end.label} has path MTU {path_mtu}, and {end.place} has active MTU {end.port.active_mtu}",
                f"connect with mtu {end.port.active_mtu} (--rdma-mtu), or raise the MTU of the netdev and the switch",
                True,
            )
            return
    if sizes[0] is not None and sizes[1] is not None and sizes[0] != sizes[1]:
        yield Cause(
            "mtu-differs",
            f"{view.active.label} has path MTU {sizes[0]}, and {view.passive.label} has {sizes[1]}",
            "connect both ends with the smaller one",
            view.posted is not None and sizes[0] > sizes[1] and view.posted.bytes > sizes[1],
        )
    yield from _large_packets_lost(view, sizes[0])


def _large_packets_lost(view: View, path_mtu: int | None) -> Causes:
    queue = view.active.qp.sends if view.active.qp else None
    if not view.stalled or path_mtu is None or queue is None or view.posted is None or not queue.completed:
        return
    passed, failed = min(queue.most_bytes_completed, path_mtu), min(view.posted.bytes, path_mtu)
    if 0 < passed < failed:
        yield Cause(
            "mtu-beyond-path",
            f"{failed_as(view)}, and packets of up to {size(passed)} of payload passed: those of {failed} are lost, so "
            f"the path may not carry path MTU {path_mtu}",
            f"try `ping -M do -s {failed + 60}` between the addresses; connect with a smaller --rdma-mtu",
            False,
        )


# -- packets


def packets(view: View) -> Causes:
    """What a ping and the counters of both devices tell of packets that were sent and not answered."""
    if not view.unanswered or view.passive.host.lost or view.one_host:
        return
    active, passive = view.active, view.passive
    if any(not {"counters", "everything"}.isdisjoint(end.host.unread) for end in view.ends):
        sent = arrived = answered = back = repeated = 0
    else:
        sent, arrived = active.counted("sent_pkts"), passive.counted("rcvd_pkts")
        answered, back = passive.counted("sent_pkts"), active.counted("rcvd_pkts")
        repeated = passive.counted(*REPEATED)
    ping_s = active.host.ping_s
    if ping_s is not None and view.retry_s is not None and ping_s > view.retry_s:
        yield _too_slow(view, f"a ping of {passive.name} takes {seconds(ping_s)}", bool(arrived))
    elif sent and not arrived:
        yield _dropped(view, active, passive, sent)
    elif answered and sent and not back:
        yield _dropped(view, passive, active, answered)
    elif repeated and back and arrived >= sent and not _out_of_sequence(view):
        yield _too_slow(view, f"{passive.name} got {counted(repeated, 'packet')} again and answered", False)
    elif active.host.ping_error:
        yield _no_ping(view)
    elif repeated and not sent and not _out_of_sequence(view):  # few drivers count what they send
        why = f"{passive.name} got {counted(repeated, 'packet')} again, and no answer came in time"
        yield _too_slow(view, why, False)
    if arrived < sent or _out_of_sequence(view):
        yield from _lossy(view, sent, arrived)


def _dropped(view: View, source: End, target: End, sent: int) -> Cause:
    host = view.active.host
    ping, where = "", f"let UDP port 4791 pass at {target.name} and between (nft list ruleset, security groups)"
    if host.ping_s is not None:
        ping = f", though a ping takes {seconds(host.ping_s)}: UDP port 4791 may be filtered"
    elif host.ping_error:
        ping = f", and a ping gets {host.ping_error}"
        where = "look at the links, routes and neighbours between the hosts, and at drops of everything"
    return Cause(
        "packets-dropped",
        f"{failed_as(view)}: {source.name} sent {counted(sent, 'packet')} and {target.name} received none of them"
        f"{ping}; retried for {view.retry_text}",
        where,
        False,
    )


def _no_ping(view: View) -> Cause:
    return Cause(
        "packets-dropped",
        f"{failed_as(view)}: a ping of {view.passive.name} gets {view.active.host.ping_error}; retried for "
        f"{view.retry_text}",
        "look at the links, routes and neighbours between the hosts",
        False,
    )


def _too_slow(view: View, why: str, certain: bool) -> Cause:
    return Cause(
        "timeout-too-small",
        f"{failed_as(view)}: {why}, and the answer is waited for {view.retry_text}",
        "raise ack_timeout or retry_count (7 at most); see what delays: the host, the link, a queue",
        certain,
    )


def _out_of_sequence(view: View) -> int:
    return _holes(view) + _naks(view)


def _holes(view: View) -> int:
    return view.passive.counted(*NAMES["out_of_sequence"])


def _naks(view: View) -> int:
    return view.active.counted(*NAMES["sequence_errors"], *MISSING_ANSWERS)


def _lossy(view: View, sent: int, arrived: int) -> Causes:
    active, passive = view.active, view.passive
    holes, naks = _holes(view), _naks(view)
    timeouts = active.counted(*NAMES["retransmissions"])
    if not arrived and not holes and not naks:
        return
    share = f"{arrived} of {sent} packets arrived at {passive.name}" if sent else f"{passive.name} missed packets"
    yield Cause(
        "packets-lost",
        f"{failed_as(view)}: {share} ({holes} out of sequence, {naks} sequence errors and {timeouts} retries at "
        f"{active.name}); retried for {view.retry_text}",
        "find where packets are lost or overtake each other: drops of the interfaces (ip -s link), PFC and ECN, a "
        "policer; the counters are the device's, not the QP's",
        False,
    )


def retries(view: View) -> Causes:
    """Retries that have not ended when the wait did."""
    if not view.waits or not view.stalled or view.posted is None:
        return
    if view.retries_forever:
        yield Cause(
            "endless-retries",
            f"{view.active.label} has retry_cnt {FOREVER}, which on rxe means without end: {view.what} never fails",
            "connect with retry_count 6 or less, and what nobody answers ends with RETRY_EXC_ERR",
            view.send_certainly_awaited,
        )
    elif view.retry_s is None and view.active.attribute("timeout", "ack_timeout") == 0:
        yield Cause(
            "endless-retries",
            f"{view.active.label} has time-out 0, which means no time-out: {view.what} never fails",
            "connect with an ack_timeout of 1 to 31",
            view.send_certainly_awaited,
        )
    elif view.retry_s is not None and view.retry_s > view.posted.ago_s:
        yield Cause(
            "retries-outlast-wait",
            f"{view.what} has not failed yet: it was posted {seconds(view.posted.ago_s)} ago, and is retried for "
            f"{view.retry_text}",
            "wait longer than the retries take, or connect with a smaller ack_timeout or retry_count",
            view.send_certainly_awaited,
        )


def no_answer(view: View) -> Causes:
    """Retries ran out, and nothing that is known says why."""
    if view.status != WCStatus.RETRY_EXC_ERR:
        return
    look = "the hosts ping between the addresses of the GID rows, that UDP port 4791 passes"
    if _on_infiniband(view):
        look = "ibping and ibtracert reach the peer's LID, that the pkeys match"
    yield Cause(
        "no-answer",
        f"{failed_as(view)}: nobody acknowledged it within {view.retry_text}",
        f"see that {look}, and what {view.passive.name} counts and logs",
        False,
    )
