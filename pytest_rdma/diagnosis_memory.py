"""Causes in memory: keys, addresses and access, at the peer and at the own end.

InfiniBand specification 1.4, volume 1: 10.6.3 (keys and access), 9.7.4.1.6 (checks at the responder).
"""

from __future__ import annotations

from pytest_rdma.diagnosis_view import ATOMICS, READING, RECV, Cause, Causes, End, View, failed_as, size
from pytest_rdma.evidence import Failure, Posted, Region, closed_after
from pytest_rdma.model import Access, Opcode, RecvWR, SendWR, Sge
from pytest_rdma.status import WCStatus

LOW_32 = 0xFFFFFFFF
ATOMIC_BYTES = 8
NEEDS = {
    Opcode.RDMA_WRITE: Access.REMOTE_WRITE,
    Opcode.RDMA_WRITE_WITH_IMM: Access.REMOTE_WRITE,
    Opcode.RDMA_READ: Access.REMOTE_READ,
    Opcode.ATOMIC_CMP_AND_SWP: Access.REMOTE_ATOMIC,
    Opcode.ATOMIC_FETCH_AND_ADD: Access.REMOTE_ATOMIC,
}
OWN_MEMORY = (WCStatus.LOC_PROT_ERR, WCStatus.LOC_QP_OP_ERR, WCStatus.LOC_ACCESS_ERR)
TELL_AGAIN = "tell the peer's address and rkey anew, after the region was registered"


# -- memory of the peer


def peer_memory(view: View) -> Causes:
    """The responder said NAK with Remote Access Error: say which of its checks refused."""
    request = view.request
    if view.status != WCStatus.REM_ACCESS_ERR:
        return
    silent = view.passive.host.lost or "everything" in view.passive.host.unread
    if request is None or request.opcode not in NEEDS or silent:
        return
    regions = [region for region in view.passive.host.regions if region.rkey == request.rkey]
    if request.rkey == 0 and not regions:
        yield Cause(
            "rkey-zero",
            f"{failed_as(view)}: it names rkey 0, a key that nobody has filled in",
            f"take the rkey that {view.passive.name} told; a registration there may have failed unseen",
            True,
        )
        return
    if not regions:
        yield from _unknown_rkey(view, request)
        return
    region = min(regions, key=lambda one: one.closed)
    causes = list(_refused_by(view, request, region))
    yield from causes
    if region.closed and not causes:  # a region may also have been closed after it had refused
        yield Cause(
            "rkey-stale",
            f"{failed_as(view)}: rkey {request.rkey:#x} is of a region of {_region(region)} that "
            f"{view.passive.name} has deregistered",
            f"{TELL_AGAIN}, and keep it registered until the last request that uses it has completed",
            not closed_after(region.closed_ago_s, view.failure),
        )


def _region(region: Region) -> str:
    return f"{size(region.length)} at {region.addr:#x}"


def _refused_by(view: View, request: SendWR, region: Region) -> Causes:
    """The key is of a region, so that its PD, range or access, or the QP, refused."""
    passive, key = view.passive, f"rkey {request.rkey:#x}"
    found = False
    if passive.qp is not None and region.pd != passive.qp.pd:
        found = True
        yield Cause(
            "rkey-of-another-pd",
            f"{failed_as(view)}: {key} is of PD {region.pd} on {passive.name}, and {passive.label} is in PD "
            f"{passive.qp.pd}",
            f"register the memory in the PD of {passive.label}, or use the key of a region that is there",
            True,
        )
    for cause in _address(view, request, region):
        found = True
        yield cause
    lacking = NEEDS[request.opcode] & ~region.access
    if lacking:
        found = True
        yield Cause(
            "mr-access-missing",
            f"{failed_as(view)}: the region of {key} on {passive.name} lacks {lacking.text}; it has "
            f"{region.access.text}",
            f"register it with {(region.access | lacking | _with_local_write(lacking)).text}",
            True,
        )
    if not found and not region.closed:
        yield from _qp_access(view, request)
        yield from _misaligned(view, request)


def _with_local_write(access: Access) -> Access:
    return Access.LOCAL_WRITE if access & (Access.REMOTE_WRITE | Access.REMOTE_ATOMIC) else Access.NONE


def _unknown_rkey(view: View, request: SendWR) -> Causes:
    passive, key = view.passive, request.rkey
    live = [region for region in passive.host.regions if not region.closed]
    known = bool(live) and "regions" not in passive.host.unread and passive.qp is not None
    swapped = next((one for one in live if one.rkey == int.from_bytes(_four(key), "big")), None)
    if swapped is not None:
        yield Cause(
            "rkey-byte-swapped",
            f"{failed_as(view)}: rkey {key:#010x} is {swapped.rkey:#010x} of {passive.name} with its bytes swapped",
            "convert the key once at each end, or not at all: one htonl() or ntohl() is too many or missing",
            True,
        )
        return
    own = any(one.rkey == key and not one.closed for one in view.active.host.regions)
    if own and view.one_device:
        yield Cause(
            "rkey-of-another-pd",
            f"{failed_as(view)}: rkey {key:#x} is of a region of {view.active.name}'s end, and {passive.label} is in "
            "another PD",
            TELL_AGAIN,
            True,
        )
        return
    there = next((one for one in live if one.addr <= request.remote_addr < one.addr + one.length), None)
    hint = f"; the region at {request.remote_addr:#x} has rkey {there.rkey:#x}" if there else ""
    if there and there.lkey == key and not there.window:
        hint = f"; it is the lkey of the region there, whose rkey is {there.rkey:#x}"
    elif own:
        hint += f"; {view.active.name} has a region of that key, so it may be the own key"
    yield Cause(
        "rkey-unknown",
        f"{failed_as(view)}: rkey {key:#x} is of no region of {passive.name}{hint}",
        f"use the rkey that {passive.name} told; if it is of a memory window, see that the window is bound",
        known,
    )


def _four(key: int) -> bytes:
    return (key & LOW_32).to_bytes(4, "little")


# -- addresses


def _address(view: View, request: SendWR, region: Region) -> Causes:
    length = sum(sge.length for sge in request.sges)
    addr = request.remote_addr
    outside = beyond(addr, length, region)
    if length == 0 or not outside:
        return
    for made, low in (("with its upper 32 bits lost", addr), ("swapped and cut to 32 bits", _swapped(addr, 4))):
        restored = _within_32(low, region) if _is_short(addr) else None
        if restored not in (None, addr):
            yield Cause(
                "address-truncated",
                f"{failed_as(view)}: remote address {addr:#x} is {restored:#x} {made}",
                "carry addresses in 64 bits: uint64_t, %lx or a JSON number, never htonl(), int or unsigned",
                True,
            )
            return
    whole = _swapped(addr, 8)
    if region.addr <= whole < region.addr + region.length:
        yield Cause(
            "address-byte-swapped",
            f"{failed_as(view)}: remote address {addr:#018x} is {whole:#018x} with its bytes swapped",
            "convert the address once at each end, or not at all",
            True,
        )
        return
    offset = "; it looks like an offset, and a region is addressed by virtual address" if addr < region.length else ""
    yield Cause(
        "address-out-of-range",
        f"{failed_as(view)}: {size(length)} at {addr:#x} {outside} the region of {_region(region)} on "
        f"{view.passive.name}{offset}",
        "correct the address or the length, or register more",
        True,
    )


def _is_short(addr: int) -> bool:
    return addr <= LOW_32 or addr >= (1 << 64) - (1 << 31)  # the latter was signed on its way


def _within_32(low: int, region: Region) -> int | None:
    """The address within the region whose lower 32 bits are those of `low`."""
    upper = region.addr & ~LOW_32
    found = (base | (low & LOW_32) for base in (upper, upper + (1 << 32)))
    return next((one for one in found if region.addr <= one < region.addr + region.length), None)


def _swapped(value: int, width: int) -> int:
    return int.from_bytes((value & ((1 << 8 * width) - 1)).to_bytes(width, "little"), "big")


def beyond(addr: int, length: int, region: Region) -> str:
    """By how much a range leaves the region, in words that go before the region; "" when it is within."""
    end, last = addr + length, region.addr + region.length
    if addr >= last or end <= region.addr:
        where = f"{size(addr - last)} beyond the end of" if addr >= last else f"{size(region.addr - addr)} before"
        return f"begin {where}"
    parts = [f"begin {size(region.addr - addr)} before"] if addr < region.addr else []
    parts += [f"end {size(end - last)} beyond"] if end > last else []
    return " and ".join(parts)


# -- what the peer's QP allows


def peer_qp_access(view: View) -> Causes:
    """The responder said NAK with Invalid Request to an operation that its QP may not serve."""
    request = view.request
    if view.status == WCStatus.REM_INV_REQ_ERR and request is not None and request.opcode in NEEDS:
        yield from _qp_access(view, request)
        yield from _misaligned(view, request)


def _misaligned(view: View, request: SendWR) -> Causes:
    if request.opcode in ATOMICS and request.remote_addr % ATOMIC_BYTES:
        yield Cause(
            "atomic-misaligned",
            f"{failed_as(view)}: remote address {request.remote_addr:#x} is no multiple of 8",
            "align the target of an atomic to 8 bytes",
            True,
        )


def _qp_access(view: View, request: SendWR) -> Causes:
    passive = view.passive
    if passive.qp is None:
        return
    caps = passive.qp.caps
    asked = passive.attribute("qp_access_flags")
    granted = caps.access if caps.qp_access is None else caps.qp_access
    allowed = granted if asked is None else Access(asked)
    lacking = NEEDS[request.opcode] & ~allowed
    if lacking:
        yield Cause(
            "qp-access-missing",
            f"{failed_as(view)}: {passive.label} lacks {lacking.text} in its qp_access_flags; it has {allowed.text}",
            f"move it to INIT with {(allowed | lacking).text}, whatever its regions allow",
            asked != 0 or passive.is_rxe or bool(lacking & ~granted),  # another driver may not tell them
        )


# -- memory of the own end


def own_memory(view: View) -> Causes:
    """A request that failed by the memory it names itself, at either end: of the sender, or of a receive."""
    for end in view.ends:
        failure = end.qp.failure if end.qp else None
        if failure is not None and failure.completion.status in OWN_MEMORY:
            yield from bad_sges(end, failure)


def bad_sges(end: End, failure: Failure) -> Causes:
    """What is wrong with the SGEs of a request; each can be judged by the regions of its host."""
    posted = failure.request
    if posted is None or end.qp is None or not isinstance(posted.request, (SendWR, RecvWR)):
        return
    if isinstance(posted.request, SendWR) and posted.request.inline:
        return
    for sge in posted.request.sges:
        cause = _bad_sge(end, failure, posted, sge)
        if cause is not None:
            yield cause
            return


def _bad_sge(end: End, failure: Failure, posted: Posted, sge: Sge) -> Cause | None:
    regions = [region for region in end.host.regions if region.lkey == sge.lkey and not region.window]
    what = f"{posted.opcode} of {end.label} names lkey {sge.lkey:#x}"
    if sge.length == 0 or end.qp is None:
        return None
    if not regions:
        known = bool(end.host.regions) and "regions" not in end.host.unread
        return Cause("own-lkey-unknown", f"{what}, which is of no region of {end.name}", _swap_hint(end, sge), known)
    region = min(regions, key=lambda one: one.closed)
    cause = _bad_use(end, posted, sge, region, what)
    if cause is None and region.closed and not closed_after(region.closed_ago_s, failure):
        return Cause(
            "own-mr-closed",
            f"{what}, of a region of {_region(region)} that was deregistered before the request was done",
            "keep a region registered until the completion of the last request that uses it",
            True,
        )
    return cause


def _bad_use(end: End, posted: Posted, sge: Sge, region: Region, what: str) -> Cause | None:
    assert end.qp is not None
    if region.pd != end.qp.pd:
        return Cause(
            "own-mr-of-another-pd",
            f"{what}, of a region in PD {region.pd}, and the QP is in PD {end.qp.pd}",
            "register the memory in the PD of the QP",
            True,
        )
    outside = beyond(sge.addr, sge.length, region)
    if outside:
        return Cause(
            "own-address-out-of-range",
            f"{what}: {size(sge.length)} at {sge.addr:#x} {outside} its region of {_region(region)}",
            "correct address or length of the SGE, or register more",
            True,
        )
    opcode = posted.request.opcode if isinstance(posted.request, SendWR) else None
    if (posted.opcode == RECV or opcode in READING) and not region.access & Access.LOCAL_WRITE:
        return Cause(
            "own-mr-without-local-write",
            f"{what}, of a region without LOCAL_WRITE ({region.access.text}), and {posted.opcode} writes there",
            "register it with LOCAL_WRITE",
            True,
        )
    return None


def _swap_hint(end: End, sge: Sge) -> str:
    for region in end.host.regions:
        if region.lkey == _swapped(sge.lkey, 4):
            return f"it is lkey {region.lkey:#x} with its bytes swapped: an lkey is never converted"
        if region.addr <= sge.addr < region.addr + region.length and not region.closed:
            return f"take the lkey of the region at {sge.addr:#x}, which is {region.lkey:#x}"
    return "take the lkey of the region that holds the SGE, registered in the PD of the QP"
