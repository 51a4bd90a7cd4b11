"""What every test of an error shares: a pair that will fail, a bystander beside it, and the way back to use.

A test posts through the probes, raw, and says what must come at each end; all else that must hold is checked here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import echo_once

from pytest_rdma import (
    Access,
    Buffer,
    EndOutcome,
    Endpoint,
    Expectation,
    Opcode,
    Pair,
    Probe,
    QPState,
    RecvWR,
    SendWR,
    Sge,
    WCStatus,
)

UNTOUCHED = 0xA5
MESSAGE_BYTES = 64
RECEIVES = 2

SUCCESS = WCStatus.SUCCESS
FLUSH = WCStatus.WR_FLUSH_ERR
# QPs in ERR at the end of a trial, with the receives that `break_with` posted flushed
FAILED = EndOutcome(recvs=(FLUSH,) * RECEIVES, state=QPState.ERR)
NOTHING = EndOutcome()

# retransmission that gives up within milliseconds: 8 is 1 ms, and a retry count under 7 is finite everywhere
QUICK = {"ack_timeout": 8, "retry_count": 2}
# and one that a busy machine, which may hold a host back for a moment, does not fail by itself: a second
PATIENT = {"ack_timeout": 15, "retry_count": 6}


def failed(status: WCStatus, *, flushed: int = 1, **changes: Any) -> EndOutcome:
    """Return the outcome of an end whose first send fails and whose others are flushed, like its receives."""
    return FAILED.with_(sends=(status, *(FLUSH,) * flushed), **changes)


class Trial:
    """One pair that is going to fail in the active end's request, and one that must not notice.

    `requester` is the active end and `responder` the other, `here` and `there` are their ends of the rail.
    """

    def __init__(
        self, pair: Pair, bystander: Pair, expect: Expectation, make: Callable[..., Pair], active_end: str
    ) -> None:
        self.pair, self.bystander = pair, bystander
        self._expect, self._make = expect, make
        forward = active_end == "local"
        self.requester, self.responder = pair.ends if forward else reversed(pair.ends)
        self.here, self.there = (pair.rail.local, pair.rail.peer) if forward else (pair.rail.peer, pair.rail.local)
        self.active, self.passive = Probe(self.requester), Probe(self.responder)
        self._regions: list[Buffer] = []
        for end in pair.ends:
            end.buffer.memset(UNTOUCHED)

    def connect(self, active: dict[str, Any] | None = None, passive: dict[str, Any] | None = None) -> None:
        """Connect with what is forged at each end."""
        ends = [active or {}, passive or {}]
        if self.requester is self.pair.peer:
            ends.reverse()
        self.pair.connect(dict(zip(("local", "peer"), ends)))

    # -- what is posted

    def source(self, offset: int = 0, length: int = MESSAGE_BYTES) -> Sge:
        """A piece of the active end's own buffer."""
        return self.requester.buffer.sge(offset, length)

    def memory_without_rights(self, endpoint: Endpoint) -> Buffer:
        """Another MR of the endpoint's PD, which allows nothing; it goes when the outcome has been judged."""
        self._regions.append(endpoint.host.mr(endpoint.pd, 4096, Access.NONE))
        return self._regions[-1]

    def post_receives(self, *ends: Probe) -> None:
        """Post receives that a failure must flush, in the upper half of the buffer."""
        for probe in ends or (self.active, self.passive):
            half = probe.endpoint.buffer.length // 2
            sges = [probe.endpoint.buffer.sge(half + i * MESSAGE_BYTES, MESSAGE_BYTES) for i in range(RECEIVES)]
            probe.recv(*(RecvWR((sge,)) for sge in sges))

    def one_sided(self, opcode: Opcode, *, sge: Sge | None = None, addr: int | None = None, **changes: Any) -> SendWR:
        """A request that would be good but for what is changed: it aims at the start of the peer's buffer."""
        target = self.responder.buffer
        atomic = opcode in (Opcode.ATOMIC_CMP_AND_SWP, Opcode.ATOMIC_FETCH_AND_ADD)
        local = sge or self.source(length=8 if atomic else MESSAGE_BYTES)
        good = SendWR(opcode, (local,), remote_addr=target.addr if addr is None else addr, rkey=target.rkey)
        if opcode == Opcode.RDMA_WRITE_WITH_IMM:
            good = replace(good, imm=0x01020304)
        return replace(good, **changes)

    def bystander_beside(self, endpoint: Endpoint) -> Endpoint:
        """The bystander's endpoint on the same host: another QP in another PD."""
        return self.bystander.local if endpoint is self.pair.local else self.bystander.peer

    def message(self, *sges: Sge, **changes: Any) -> SendWR:
        return SendWR(Opcode.SEND, sges or (self.source(),), **changes)

    def break_with(self, request: SendWR) -> None:
        """Post receives at both ends, then the request and a good Write that must be flushed with it, in one list."""
        self.post_receives()
        self.active.send(request, self.one_sided(Opcode.RDMA_WRITE))

    # -- what must hold afterwards

    def expect(
        self,
        case: str,
        active: EndOutcome,
        passive: EndOutcome = NOTHING,
        *,
        untouched: bool = True,
        anew: bool = False,
        timeout_s: float = 5.0,
    ) -> dict[str, EndOutcome]:
        """Judge both ends; then check that nothing arrived, that the bystander works and that the pair comes back.

        With `anew`, or where an end is no more, it comes back as a new pair.
        """
        ends = {"active": (self.active, active), "passive": (self.passive, passive)}
        found = self._expect(case, timeout_s=timeout_s, **ends)
        if untouched:
            for end in self.pair.ends:
                if not end.closed:
                    end.buffer.check_untouched(UNTOUCHED)
        for region in self._regions:
            region.check_untouched(0)
            region.close()
        echo(self.bystander)
        if anew:
            self.pair.close()
        self.rebuild()
        return found

    def rebuild(self) -> None:
        """Connect the pair again, or a new one where an end is no more, and echo over it."""
        if any(end.closed for end in self.pair.ends):
            self.pair = self._make()
        else:
            self.pair.reconnect()
        echo(self.pair)


def echo(pair: Pair) -> None:
    """Send a pattern there and what arrived back; every byte is compared at both targets, by four calls in all."""
    local, peer = pair.ends
    there = peer.host.call(echo_once.listen, peer)
    back = local.host.call(echo_once.start, local)
    peer.host.call(echo_once.answer, peer, there)
    local.host.call(echo_once.finish, local, back)


class TrialFactory:
    """Makes trials: capabilities by name, and how the pair that will fail is connected."""

    def __init__(self, make: Callable[..., Pair], expect: Expectation, active_end: str) -> None:
        self._make, self._expect, self.active_end = make, expect, active_end

    def __call__(
        self,
        *,
        active: dict[str, Any] | None = None,
        passive: dict[str, Any] | None = None,
        connect: bool = True,
        pair: Callable[[Pair], Pair] | None = None,
        **caps: Any,
    ) -> Trial:
        """`active` and `passive` forge how that end is set and what it tells the other, as `Pair.connect` takes it.

        `pair` makes the pair that will fail, unconnected, for want of which the fixture does; it is given the
        bystander.
        """
        bystander = self._make()
        made = Trial(
            pair(bystander) if pair else self._make(connect=False, **caps),
            bystander,
            self._expect,
            self._make,
            self.active_end,
        )
        if connect:
            made.connect(active, passive)
        return made
