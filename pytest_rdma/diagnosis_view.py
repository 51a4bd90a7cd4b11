"""What the rules of a diagnosis look at: the two ends of a pair, told apart by what each did, and their names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Optional

from pytest_rdma.counters import NAMES
from pytest_rdma.evidence import Evidence, Failure, HostEvidence, Posted, QPEvidence
from pytest_rdma.model import GidRow, Opcode, PortInfo, QPState, SendWR
from pytest_rdma.status import WCStatus, name_of

RECV = "RECV"
EVENT = "a completion event"
ACK_UNIT_US = 4.096
UNTOLD = (0, 128)  # the latter are the bytes of MTU code 0
FOREVER = 7  # of rnr_retry everywhere, of retry_cnt on rxe
# of min_rnr_timer, in ms: InfiniBand specification 1.4, volume 1, table 46
RNR_MS = (
    655.36, 0.01, 0.02, 0.03, 0.04, 0.06, 0.08, 0.12, 0.16, 0.24, 0.32, 0.48, 0.64, 0.96, 1.28, 1.92, 2.56, 3.84, 5.12,
    7.68, 10.24, 15.36, 20.48, 30.72, 40.96, 61.44, 81.92, 122.88, 163.84, 245.76, 327.68, 491.52,
)  # fmt: skip
WAITS = ("DeadlineError", "StoppedError", "TimeoutError", "HostLostError", "KeyboardInterrupt", "Failed")
WITH_RECEIVE = (Opcode.SEND, Opcode.SEND_WITH_IMM, Opcode.SEND_WITH_INV, Opcode.RDMA_WRITE_WITH_IMM)
ATOMICS = (Opcode.ATOMIC_CMP_AND_SWP, Opcode.ATOMIC_FETCH_AND_ADD)
READING = (Opcode.RDMA_READ, *ATOMICS)


@dataclass(frozen=True)
class Cause:
    """What went wrong, or may have: a stable `name`, one line in words, what to do; `certain` when it is proven."""

    name: str
    headline: str
    next_step: str
    certain: bool


Causes = Iterator[Cause]


@dataclass(frozen=True)
class End:
    """One end of a pair: its host, and its QP where that is known."""

    host: HostEvidence
    qp: QPEvidence | None

    @property
    def name(self) -> str:
        return self.host.name

    @property
    def in_error(self) -> bool:
        """Whether the QP does nothing but flush: its sends at least."""
        return self.qp is not None and self.qp.state in (QPState.ERR, QPState.SQE) and not self.qp.closed

    @property
    def label(self) -> str:
        """The QP in words: `QP 0x11 on host2`."""
        return f"QP {self.qp.qp_num:#x} on {self.name}" if self.qp else f"the QP on {self.name}"

    @property
    def port(self) -> PortInfo | None:
        number = self.qp.port if self.qp else self.host.port
        ports = self.host.device.ports if self.host.device else ()
        return next((port for port in ports if port.number == number), None)

    @property
    def place(self) -> str:
        """The port in words: `rxe0/1 on host2`."""
        device = self.qp.device if self.qp else self.host.device.name if self.host.device else "the device"
        return f"{device}/{self.qp.port if self.qp else self.host.port} on {self.name}"

    @property
    def is_rxe(self) -> bool:
        return self.host.device is not None and self.host.device.provider == "rxe"

    @property
    def row(self) -> GidRow | None:
        """The GID row that the QP uses, as the table holds it now."""
        if self.qp is None or self.port is None:
            return None
        return next((row for row in self.port.gids if row.index == self.gid_index), None)

    @property
    def gid_index(self) -> int | None:
        used = self.qp.attributes.get("sgid_index") if self.qp and self.qp.peer else None
        return used if isinstance(used, int) else self.qp.own.gid_index if self.qp else None

    def attribute(self, name: str, connected: str = "") -> int | None:
        """A QP attribute as ibv_query_qp told it, else as the QP was connected (there under `connected`).

        Drivers leave at zero what they do not tell (irdma the time-out): a zero is believed of rxe, which tells all,
        and where the QP was not connected with another number.
        """
        if self.qp is None:
            return None
        value: Any = self.qp.attributes.get(name)
        if value is None or (value in UNTOLD and not self.is_rxe):
            known = getattr(self.qp.connected, connected or name, None)
            value = value if known is None else known
        return value if isinstance(value, int) else None

    def counted(self, *names: str) -> int:
        """How much counters of the device grew, summed up."""
        return sum(self.host.counters.get(name, 0) for name in names)

    def has_event(self, *types: str, element: str = "") -> str:
        """The first asynchronous event of these types in words, "" when there was none; of that element only."""
        events = (event for event in self.host.async_events if event.type in types)
        found = (event for event in events if element in ("", event.element))
        return next((f"{event.type} of {event.element}" for event in found), "")


@dataclass(frozen=True)
class View:
    """A pair in trouble. `active` is the end whose request failed first, or that waits in vain; `passive` its peer."""

    evidence: Evidence
    active: End
    passive: End

    @property
    def ends(self) -> tuple[End, End]:
        return self.active, self.passive

    @cached_property
    def failure(self) -> Failure | None:
        """The failed request of the active end."""
        found = self.active.qp.failure if self.active.qp else None
        return found if found and not is_receive(self.active.qp, found) else None

    @cached_property
    def receive_failure(self) -> Failure | None:
        """The failed receive of the passive end."""
        found = self.passive.qp.failure if self.passive.qp else None
        return found if found and is_receive(self.passive.qp, found) else None

    @property
    def status(self) -> int | None:
        return self.failure.completion.status if self.failure else None

    @cached_property
    def request(self) -> SendWR | None:
        """The send request that failed, as it was posted; in a wait the oldest that is outstanding."""
        posted = self.posted
        return posted.request if posted and isinstance(posted.request, SendWR) else None

    @property
    def posted(self) -> Posted | None:
        if self.failure:
            return self.failure.request
        outstanding = self.active.qp.sends.outstanding if self.active.qp else ()
        return outstanding[0] if outstanding else None

    @property
    def waits(self) -> bool:
        """Whether a wait ended in vain, and no request is known to have failed."""
        return self.evidence.error_type in WAITS and self.failure is None and self.receive_failure is None

    @property
    def unanswered(self) -> bool:
        """Whether a request got no answer: retries ran out, or they go on while the wait is over.

        UC and UD give none: there a request that is outstanding awaits nothing but its own device.
        """
        if self.status is not None:
            return self.status == WCStatus.RETRY_EXC_ERR
        return self.waits and self.sends_outstanding > 0 and self.transport == "RC" and not self.active.in_error

    @property
    def transport(self) -> str:
        return self.active.qp.caps.transport if self.active.qp else "RC"

    @property
    def stalled(self) -> bool:
        """Whether more than the ledger says that a request got no answer: there, it is outstanding until it is polled.

        A call waits for it, or retries were counted.
        """
        return self.unanswered and (self.send_awaited or self.status is not None or self.retried)

    @property
    def send_awaited(self) -> bool:
        """Whether the wait that ended in vain was for a send request: not for a receive, an event or something else."""
        qp = self.active.qp
        if qp is None or qp.awaits in ("", EVENT):
            return False
        if qp.awaited_wr_ids:
            receives = {one.wr_id for one in qp.recvs.outstanding} - {one.wr_id for one in qp.sends.outstanding}
            return not receives.issuperset(qp.awaited_wr_ids)
        return not (qp.may_receive and qp.sends.none_signaled)

    @property
    def certainly_awaited(self) -> bool:
        """Whether the error itself is of the wait that the QP remembers: one that was caught is remembered, too."""
        found, qp = self.evidence, self.active.qp
        failed = found.peer if found.failed_side == "peer" else found.local  # numbers of two devices may be the same
        return qp is not None and found.error_qp == qp.qp_num and self.active.host is failed

    @property
    def send_certainly_awaited(self) -> bool:
        return self.send_awaited and self.certainly_awaited

    @property
    def retried(self) -> bool:
        return self.active.counted(*NAMES["retransmissions"]) > 0

    @property
    def sends_outstanding(self) -> int:
        return self.active.qp.sends.outstanding_count if self.active.qp else 0

    @property
    def one_host(self) -> bool:
        return self.evidence.local.info.hostname == self.evidence.peer.info.hostname

    @property
    def one_device(self) -> bool:
        """Whether both ends use one port of one device; two hosts may have one name, but no GID in common."""
        one, two = self.active, self.passive
        same = one.qp is not None and two.qp is not None and one.qp.device == two.qp.device
        return same and self.one_host and one.port is not None and one.port == two.port

    @property
    def what(self) -> str:
        """The request in words: `RDMA_WRITE of 64 bytes from QP 0x11 on host1`."""
        if self.posted is None:
            return f"a request of {self.active.label}"
        return f"{self.posted.opcode} of {size(self.posted.bytes)} from {self.active.label}"

    @property
    def retry_s(self) -> float | None:
        """How long the active end retries a request without an answer, None where that is without end or unknown."""
        timeout, retries = self.active.attribute("timeout", "ack_timeout"), self.retries
        if not timeout or not 0 < timeout < 32 or retries is None or self.retries_forever:
            return None
        return ACK_UNIT_US * 1e-6 * float(1 << timeout) * (retries + 1)

    @property
    def retries(self) -> int | None:
        return self.active.attribute("retry_cnt", "retry_count")

    @property
    def retries_forever(self) -> bool:
        return self.retries == FOREVER and self.active.is_rxe

    @property
    def retry_text(self) -> str:
        """The effective time-out: `4.096 us x 2^14 x (6+1) = 0.47 s`."""
        timeout, retries = self.active.attribute("timeout", "ack_timeout"), self.retries
        if timeout == 0:
            return "time-out 0, which is none"
        if timeout is None or retries is None:
            return "a time-out that is not known"
        end = seconds(self.retry_s) if self.retry_s is not None else "without end"
        return f"4.096 us x 2^{timeout} x ({retries}+1) = {end}"


def is_receive(qp: QPEvidence | None, failure: Failure) -> bool:
    """Whether a receive failed; those of a shared queue are in no ledger, and sends are."""
    if failure.request is None:
        return qp is not None and qp.shared_recvs
    return failure.request.opcode == RECV


def seconds(value: float | None) -> str:
    return "an unknown time" if value is None else f"{value:.3g} s"


def size(count: int) -> str:
    return counted(count, "byte")


def counted(count: int, word: str) -> str:
    return f"{count} {word}{'' if count == 1 else 's'}"


def failed_as(view: View) -> str:
    """The failure in words: `RDMA_WRITE of 64 bytes from QP 0x11 on host1 failed with REM_ACCESS_ERR (10)`."""
    return f"{view.what} failed with {name_of(view.status)}" if view.status is not None else f"{view.what} is waiting"


# -- which pair

Both = tuple[Optional[QPEvidence], Optional[QPEvidence]]


def views(evidence: Evidence) -> list[View]:
    """The pair that the error is about, then the others in which something failed, the earliest failure first."""
    local, peer = evidence.local, evidence.peer
    first = _partner_filled(evidence, _find(local, evidence.local_qp), _find(peer, evidence.peer_qp))
    others: list[Both] = [(qp, _find(peer, _dest(qp))) for qp in local.qps if qp is not first[0]]
    others += [(None, qp) for qp in peer.qps if qp is not first[1] and all(qp is not one for _, one in others)]
    in_trouble = sorted((pair for pair in others if _trouble(*pair)), key=lambda pair: -_trouble(*pair))
    if first == (None, None) and not in_trouble:
        in_trouble = [pair for pair in others if any(qp and not qp.closed for qp in pair)][-1:]
    wanted = in_trouble if first == (None, None) and in_trouble else [first, *in_trouble]
    found = [_view(evidence, *pair) for pair in wanted]
    return [one for view in found for one in (view, *_turned(view))]


def _turned(view: View) -> list[View]:
    """The same pair seen from the peer, where it has sends on their way to who waits for no send of its own."""
    qp = view.passive.qp
    sent = qp is not None and qp.sends.outstanding_count > 0
    own = view.send_awaited and view.sends_outstanding
    return [View(view.evidence, view.passive, view.active)] if view.waits and sent and not own else []


def _find(host: HostEvidence, number: int | None) -> QPEvidence | None:
    """The QP of that number; a number may have been used again, so an open one goes before a closed one."""
    return next((qp for qp in sorted(host.qps, key=lambda qp: qp.closed) if qp.qp_num == number), None)


def _dest(qp: QPEvidence | None) -> int | None:
    if qp is None:
        return None
    return qp.peer.qp_num if qp.peer else qp.attributes.get("dest_qp_num")


def _partner_filled(evidence: Evidence, local: QPEvidence | None, peer: QPEvidence | None) -> Both:
    if local and evidence.peer_qp is None:
        return local, _find(evidence.peer, _dest(local))
    if peer and evidence.local_qp is None:
        return _find(evidence.local, _dest(peer)), peer
    return local, peer


def _trouble(*pair: QPEvidence | None) -> float:
    """How long ago something failed first, 0 when nothing did."""
    failures = [failure for qp in pair if qp for failure in (qp.failure, qp.first_flush) if failure]
    return max((max(one.ago_s, 1e-9) for one in failures), default=0)


def _view(evidence: Evidence, local: QPEvidence | None, peer: QPEvidence | None) -> View:
    ends = End(evidence.local, local), End(evidence.peer, peer)
    active = _active(evidence, ends)
    return View(evidence, ends[active], ends[1 - active])


def _active(evidence: Evidence, ends: tuple[End, End]) -> int:
    """Which end is active: whose request failed first, else the peer of a failed receive, else whose call failed.

    An end that was refused answers no more, so that silence comes after a refusal, whichever was polled for first.
    """
    failures = [(index, end.qp, end.qp.failure) for index, end in enumerate(ends) if end.qp and end.qp.failure]
    requests = [
        (failure.completion.status != WCStatus.RETRY_EXC_ERR, failure.ago_s, index)
        for index, qp, failure in failures
        if not is_receive(qp, failure)
    ]
    if requests:
        return max(requests)[2]
    if failures:
        return 1 - failures[0][0]
    return 1 if evidence.failed_side == "peer" else 0
