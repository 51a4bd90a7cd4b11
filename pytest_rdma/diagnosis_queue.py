"""Causes in queues: receives that lack or are too short, waits that cannot end, queues that are full, flushes.

InfiniBand specification 1.4, volume 1: 9.7.5.2.8 (receiver not ready), 10.8.3 (posting), 11.4.2 (completions).
"""

from __future__ import annotations

import re
from dataclasses import replace

from pytest_rdma.counters import NAMES
from pytest_rdma.diagnosis_memory import bad_sges
from pytest_rdma.diagnosis_view import (
    EVENT,
    FOREVER,
    READING,
    RNR_MS,
    WITH_RECEIVE,
    Cause,
    Causes,
    End,
    View,
    counted,
    failed_as,
    is_receive,
    seconds,
    size,
)
from pytest_rdma.model import QPState, RecvWR, SendWR, WCOpcode
from pytest_rdma.status import WCStatus

TAKES_NO_RECEIVE = {
    WCOpcode.RDMA_WRITE: "RDMA_WRITE",
    WCOpcode.RDMA_READ: "RDMA_READ",
    WCOpcode.COMP_SWAP: "ATOMIC_CMP_AND_SWP",
    WCOpcode.FETCH_ADD: "ATOMIC_FETCH_AND_ADD",
}
NOT_READY = ("send_rnr_err", "out_of_buffer", "rx_out_of_buffer")
"""What a responder without a receive counts: rxe, mlx5, bnxt_re."""
FULL = re.compile(r"(\d+) (?:sends|receives) are in flight .* do not fit|(\d+) of \d+ in flight")
SHARED = re.compile(r"to the SRQ of (\d+) on (\S+)")
TOO_LONG = (WCStatus.LOC_LEN_ERR, WCStatus.REM_INV_REQ_ERR, WCStatus.REM_OP_ERR, WCStatus.LOC_QP_OP_ERR)


# -- receives


def not_ready(view: View) -> Causes:
    """The peer said that it is not ready, in all retries, or it still says so.

    On rxe waiting for a peer that is not ready uses up the retries of the acknowledgement time-out, too.
    """
    refused = view.status == WCStatus.RNR_RETRY_EXC_ERR
    if refused and view.request is not None and view.request.opcode not in WITH_RECEIVE:
        yield Cause(
            "peer-not-ready",
            f"{failed_as(view)}: {view.passive.label} was not ready for it, though {view.request.opcode.name} takes no "
            f"receive{_patience(view)}",
            "a region with on-demand paging answers so while pages come: touch them first (ibv_advise_mr), or raise "
            "rnr_retry and min_rnr_timer",
            True,
        )
    elif refused or (_said_so(view) and _listens(view.passive) and _empty(view.passive)):
        yield Cause("no-receive-posted", _unready(view), _post_before(view), refused)
        yield from _asked_forever(view)


def no_receive(view: View) -> Causes:
    """The peer has no receive for what is under way, or had none for a while."""
    lacks = view.status is None and view.unanswered and _takes_receive(view) and _empty(view.passive)
    lacks = lacks and (view.stalled or _never_posted(view.passive)) and not _surely_received(view)
    if lacks or _said_so(view):
        yield Cause("no-receive-posted", _unready(view), _post_before(view), False)
        yield from _asked_forever(view)


def _said_so(view: View) -> bool:
    """Whether RNR NAKs were counted while a request that takes a receive got no other answer."""
    naks = view.passive.counted(*NOT_READY) or view.active.counted(*NAMES["rnr_naks"])
    return bool(naks) and view.unanswered and _takes_receive(view)


def _listens(end: End) -> bool:
    return end.qp is not None and not end.qp.closed and end.qp.state in (QPState.RTR, QPState.RTS, QPState.SQD)


def _takes_receive(view: View) -> bool:
    return view.request is not None and view.request.opcode in WITH_RECEIVE


def _asked_forever(view: View) -> Causes:
    if view.status is None and view.active.attribute("rnr_retry") == FOREVER:
        yield Cause(
            "endless-rnr-retries",
            f"{view.active.label} has rnr_retry 7: it asks a peer that is not ready again and again, without end",
            "post the receive; or set rnr_retry to 6 or less, and the request ends with RNR_RETRY_EXC_ERR",
            True,
        )


def _empty(end: End) -> bool:
    return end.qp is not None and not end.qp.shared_recvs and end.qp.recvs.outstanding_count == 0


def _surely_received(view: View) -> bool:
    """Whether the peer has received more than all that was completed before the oldest request that is outstanding."""
    active, passive = view.active.qp, view.passive.qp
    return active is not None and passive is not None and passive.recvs.completed > active.sends.completed


def _never_posted(end: End) -> bool:
    return end.qp is not None and end.qp.recvs.posted == 0


def _unready(view: View) -> str:
    queue = view.passive.qp.recvs if view.passive.qp else None
    text = f"{failed_as(view)}: {view.passive.label} had no receive for it"
    if view.passive.qp is not None and view.passive.qp.shared_recvs:
        return f"{text} in its shared receive queue{_patience(view)}"
    if queue is None:
        return text + _patience(view)
    if queue.outstanding_count == 0:
        return f"{text}: {queue.posted} posted, {queue.completed} completed, none outstanding{_patience(view)}"
    late = queue.last_post_ago_s
    if view.failure and late is not None and late < view.failure.ago_s:
        return f"{text} in time: the last was posted {seconds(view.failure.ago_s - late)} after that{_patience(view)}"
    return f"{text} in time: {queue.outstanding_count} are outstanding now{_patience(view)}"


def _patience(view: View) -> str:
    retries, timer = view.active.attribute("rnr_retry"), view.passive.attribute("min_rnr_timer")
    if retries is None or retries == FOREVER:
        return ""
    if timer is None or not 0 <= timer < len(RNR_MS):
        return f"; rnr_retry {retries}"
    return f"; rnr_retry {retries} x {RNR_MS[timer]:g} ms"


def _post_before(view: View) -> str:
    return (
        f"post receives at {view.passive.name} before {view.active.name} is told to send, as many as messages may be "
        "under way; a receive may be posted from INIT on"
    )


def receive_too_short(view: View) -> Causes:
    """A message is longer than the receive that it met."""
    sent, failure = view.posted, view.receive_failure
    statuses = (view.status, failure.completion.status if failure else None)
    opcode = view.request.opcode if view.request else None
    if not any(status in TOO_LONG for status in statuses if status is not None):
        return
    if view.failure and opcode is not None and opcode not in WITH_RECEIVE[:3]:
        return  # a Write's length is not that of the receive
    room = _room(failure.request.request) if failure and failure.request else None
    what = failed_as(view)
    if sent is not None and view.failure and room is not None and sent.bytes > room:
        text = f"{what}: the receive of {view.passive.label} holds {size(room)}, {sent.bytes - room} too few"
    elif failure is not None and failure.completion.status == WCStatus.LOC_LEN_ERR:
        holds = f" of {size(room)}" if room is not None else ""
        text = f"a receive{holds} of {view.passive.label} is shorter than the message that came for it"
    else:
        return
    yield Cause(
        "receive-too-short",
        text,
        "post receives of the longest message; what is written with RDMA_WRITE_WITH_IMM needs none of that length",
        True,
    )


def _room(request: SendWR | RecvWR) -> int | None:
    return sum(sge.length for sge in request.sges) if isinstance(request, RecvWR) else None


# -- waits that cannot end


def own_queue(view: View) -> Causes:
    """The end that waits has posted what cannot complete."""
    end, qp = view.active, view.active.qp
    if not view.waits or qp is None:
        return
    if view.certainly_awaited:
        yield from unsignaled(view)
    if qp.state in (QPState.RESET, QPState.INIT, QPState.RTR, QPState.SQD) and qp.sends.outstanding_count:
        yield Cause(
            "own-qp-not-in-rts",
            f"{end.label} is {qp.state.name}, and sends go out only in RTS",
            "move it back to RTS" if qp.state == QPState.SQD else "connect the pair before anything is sent",
            True,
        )


def unsignaled(view: View) -> Causes:
    """What is awaited gives no completion; where that may have been another wait, it is said behind what is proven."""
    end, qp = view.active, view.active.qp
    if not view.waits or qp is None:
        return
    silent = {one.wr_id for one in qp.sends.outstanding if not one.signaled} | set(qp.sends.silent)
    # a number may be used again, and be that of a receive
    silent -= {one.wr_id for one in (*qp.sends.outstanding, *qp.recvs.outstanding) if one.signaled}
    named = [wr_id for wr_id in qp.awaited_wr_ids if wr_id in silent]
    if named or (qp.awaits and qp.sends.none_signaled and not qp.may_receive):
        count = counted(qp.sends.outstanding_count, "send")
        which = f"wr_id {named[0]:#x}" if named else f"none of the {count} in flight"
        yield Cause(
            "unsignaled-awaited",
            f"{end.label} waits for a completion that cannot come: {which} {'is un' if named else 'is '}signaled",
            "post it signaled, or wait for a later request of the same queue that is",
            view.certainly_awaited,
        )


def awaits_nothing(view: View) -> Causes:
    """Nothing that either end has posted gives a completion where one is awaited."""
    end, other, qp = view.active, view.passive, view.active.qp
    if not view.waits or qp is None or not qp.awaits:
        return
    if qp.sends.outstanding_count and not (qp.sends.none_signaled and qp.may_receive):
        return
    quiet = other.qp is not None and other.qp.sends.outstanding_count == 0
    sent = {one.opcode for one in other.qp.recent if one.status == 0 and not one.opcode & 128} if other.qp else set()
    plain = [name for opcode, name in TAKES_NO_RECEIVE.items() if opcode in sent]
    if qp.recvs.outstanding_count == 0 and not qp.shared_recvs:
        why = f"{end.label} waits for a completion, and none of its requests is outstanding"
        certain = qp.awaits != EVENT  # that may have come with a completion, before it was asked for
    elif quiet and plain and len(plain) == len(sent):
        why, certain = f"{end.label} waits on a receive", True
    else:
        yield from _peer_sent(view, all_take_receives=not plain)
        return
    if plain:
        why += f"; what {other.label} did was {' and '.join(plain)}, which takes no receive and completes there alone"
    yield Cause(
        "no-completion-possible",
        why,
        "post the receive or request that is awaited; to hear of a Write use RDMA_WRITE_WITH_IMM or a Send after it",
        certain and view.certainly_awaited,
    )


def _peer_sent(view: View, *, all_take_receives: bool) -> Causes:
    end, other, qp = view.active, view.passive, view.passive.qp
    if qp is None or view.active.qp is None or qp.sends.outstanding_count or qp.closed or view.active.qp.shared_recvs:
        return
    sent, came = qp.sends.completed, view.active.qp.recvs.completed
    if sent > came and view.transport != "RC" and all_take_receives:
        yield Cause(
            "message-lost",
            f"{end.label} waits on one more receive: {other.label} has sent {sent} over {view.transport}, and {came} "
            "arrived",
            "such a message is dropped without a word where no receive is posted, or one too short (UD takes 40 bytes "
            "more for the GRH), or when the path loses it: post receives first, or take RC",
            False,
        )
        return
    if qp.sends.posted == 0:
        text = f"{end.label} waits on a receive, and {other.label} has posted no send"
    elif sent <= came:
        text = f"{end.label} waits on one more receive, and {other.label} has sent {sent} and has none outstanding"
    else:
        return
    step = f"let {other.name} send, or wait for what it did send"
    yield Cause("peer-sent-nothing", text, step, view.certainly_awaited)


def read_rd_atomic(view: View) -> Causes:
    """Reads and atomics with no credit to be issued, at either end."""
    request = view.request
    if request is None or request.opcode not in READING:
        return
    most = view.active.attribute("max_rd_atomic", "rd_atomic")
    allowed = view.passive.attribute("max_dest_rd_atomic", "rd_atomic")
    refused = view.status == WCStatus.REM_INV_REQ_ERR
    if (view.waits or view.status == WCStatus.LOC_QP_OP_ERR) and most == 0:
        text = f"{view.what} is never issued: {view.active.label} has max_rd_atomic 0"
    elif refused and allowed == 0:
        text = (
            f"{failed_as(view)}: {view.passive.label} has max_dest_rd_atomic 0, so that it serves no reads or atomics"
        )
    elif refused and allowed is not None and most is not None and most > allowed:
        yield Cause(
            "rd-atomic-exceeded",
            f"{failed_as(view)}: {view.active.label} has max_rd_atomic {most}, and {view.passive.label} serves "
            f"{allowed} at a time (max_dest_rd_atomic)",
            f"connect with rd_atomic {allowed} or less at {view.active.name}",
            False,
        )
        return
    else:
        return
    yield Cause("rd-atomic-zero", text, "connect both ends with rd_atomic 1 or more", True)


# -- queues that are full


def cq_overrun(view: View) -> Causes:
    """A CQ error event: completions were dropped."""
    for end in _two_hosts(view):
        events = [event for event in end.host.async_events if event.type == "CQ_ERR"]
        if events:
            yield Cause(
                "cq-overrun",
                f"{events[0].element} on {end.name} overran ({counted(len(events), 'CQ_ERR event')}): completions are "
                "lost",
                "make the CQ as deep as all send and receive queues that it serves, or poll before more is posted",
                True,
            )


def _two_hosts(view: View) -> list[End]:
    """Both ends; once, where both are of one process."""
    return [view.active] if view.active.host.info == view.passive.host.info else list(view.ends)


def queue_full(view: View) -> Causes:
    """A post was refused, by us or by the driver, because its queue is full."""
    evidence, qp = view.evidence, view.active.qp
    refused = evidence.error_type == "RefusedError"
    if not (refused or evidence.error_type == "PostError") or qp is None:
        return
    full, shared = FULL.search(evidence.error), SHARED.search(evidence.error)
    if not full and "ENOMEM" not in evidence.error:
        return
    if shared:
        yield Cause(
            "receive-queue-full",
            f"the shared receive queue of {shared[1]} on {shared[2]} is full",
            "post no more than messages have taken, or ask for more depth",
            False,
        )
        return
    kind = "receive" if re.search(r"cannot post receive|receives are in flight", evidence.error) else "send"
    queue, depth = (qp.recvs, qp.caps.recv_depth) if kind == "receive" else (qp.sends, qp.caps.send_depth)
    in_flight = int(full[1] or full[2]) if full else queue.outstanding_count
    if in_flight < depth and not refused:  # drivers say ENOMEM of too many SGEs and too much inline, too
        return
    text = f"the {kind} queue of {view.active.label} is full: {in_flight} of {depth} outstanding"
    step = "poll completions before more is posted, or ask for more depth"
    if kind == "send" and (queue.none_signaled or "none of those in flight is signaled" in evidence.error):
        text += ", and none is signaled"
        step = "signal at least one request in each queue length: a completion alone frees slots"
    yield Cause(f"{kind}-queue-full", text, step, True)


# -- flushes


def flushed(view: View) -> Causes:
    """Requests were flushed and no other status is known: what the flushed request tells, else who moved the QP."""
    ends = [end for end in view.ends if end.qp and end.qp.failure is None and (end.qp.flushed or end.in_error)]
    if view.failure or view.receive_failure or not ends:
        return
    causes = [
        replace(cause, certain=cause.certain and end.is_rxe)  # others have a status for it
        for end in ends
        if end.qp and end.qp.first_flush and not is_receive(end.qp, end.qp.first_flush)
        for cause in bad_sges(end, end.qp.first_flush)
    ]
    yield from causes
    if causes:
        return
    for end in ends:
        assert end.qp is not None
        event = end.has_event("QP_FATAL", "QP_ACCESS_ERR", "QP_REQ_ERR", "DEVICE_FATAL")
        said = f" ({event} was reported)" if event else ""
        yield Cause(
            "qp-in-error",
            f"{end.label} went to {'SQE' if end.qp.state == QPState.SQE else 'ERR'} and flushed "
            f"{counted(end.qp.flushed, 'request')}, and none had failed at either end{said}",
            "look for what moved it: modify to ERR, a disconnect of rdma_cm, a fatal event, a device that went away",
            False,
        )


def data_read_early(view: View) -> Causes:
    """Bytes were compared while the Writes that bring them were still outstanding."""
    if view.evidence.error_type != "DataMismatchError":
        return
    for end, other in (view.ends, view.ends[::-1]):
        writes = [one for one in end.qp.sends.outstanding if one.opcode.startswith("RDMA_WRITE")] if end.qp else []
        if writes and other.qp is not None:
            yield Cause(
                "data-not-awaited",
                f"{end.label} has {counted(len(writes), 'Write')} outstanding, so that the data may not have arrived "
                "when it was compared",
                "wait for the completion at the active end, and tell the other end by a message",
                False,
            )
