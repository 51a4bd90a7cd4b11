"""Posting, polling and waiting on a LocalHost: checked unless raw; loops in C; deadlines that say what was awaited."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pytest_rdma import native
from pytest_rdma.deadline import Deadline, StopFlag
from pytest_rdma.endpoint import check_success
from pytest_rdma.errors import DeadlineError, PostError, RdmaUsageError, RefusedError, StoppedError, errno_text
from pytest_rdma.host import LocalHost, op
from pytest_rdma.ledger import account
from pytest_rdma.model import AsyncEvent, Completion, QPState, RecvWR, SendWR
from pytest_rdma.verbs_check import check_recvs, check_sends
from pytest_rdma.verbs_cq import CQEntry
from pytest_rdma.verbs_modify import query
from pytest_rdma.verbs_queue import QPEntry

SLICE_S = 0.05
SHOWN = 8
ASYNC_EVENTS = (
    "CQ_ERR", "QP_FATAL", "QP_REQ_ERR", "QP_ACCESS_ERR", "COMM_EST", "SQ_DRAINED", "PATH_MIG", "PATH_MIG_ERR",
    "DEVICE_FATAL", "PORT_ACTIVE", "PORT_ERR", "LID_CHANGE", "PKEY_CHANGE", "SM_CHANGE", "SRQ_ERR",
    "SRQ_LIMIT_REACHED", "QP_LAST_WQE_REACHED", "CLIENT_REREGISTER", "GID_CHANGE", "WQ_FATAL",
)  # fmt: skip


# -- posting


@op("qp.post_send")
def op_post_send(
    host: LocalHost, deadline: Deadline, handle: int, requests: Sequence[SendWR], number: bool
) -> list[int]:
    """Check, post and return the wr_ids; with `number` the endpoint gives them."""
    entry: QPEntry = host.entry("qp", handle)
    requests = _numbered(entry, requests) if number else requests
    check_sends(entry, requests)
    post_sends(entry, requests)
    return [request.wr_id for request in requests]


@op("qp.post_recv")
def op_post_recv(
    host: LocalHost, deadline: Deadline, handle: int, requests: Sequence[RecvWR], number: bool
) -> list[int]:
    entry: QPEntry = host.entry("qp", handle)
    requests = _numbered(entry, requests) if number else requests
    check_recvs(entry, requests)
    post_recvs(entry, requests)
    return [request.wr_id for request in requests]


@op("qp.post_raw")
def op_post_raw(host: LocalHost, deadline: Deadline, handle: int, requests: Sequence[Any]) -> None:
    entry: QPEntry = host.entry("qp", handle)
    kinds = {type(request) for request in requests}
    if kinds == {SendWR}:
        post_sends(entry, requests)
    elif kinds == {RecvWR}:
        post_recvs(entry, requests)
    elif kinds:
        raise RdmaUsageError("post_raw takes requests of one kind: all SendWR or all RecvWR")


def _numbered(entry: QPEntry, requests: Sequence[Any]) -> list[Any]:
    with entry.host.lock:
        first = entry.next_wr_id
        entry.next_wr_id += len(requests)
    return [replace(request, wr_id=first + index) for index, request in enumerate(requests)]


def post_sends(entry: QPEntry, requests: Sequence[SendWR]) -> None:
    post_prepared(entry, requests, entry.address.prepare(requests) if entry.address else native.SendList(requests))


def post_prepared(entry: QPEntry, requests: Sequence[SendWR], prepared: native.SendList) -> None:
    with entry.in_use, entry.lock:  # held, so that who reaps its completion finds a request counted
        result, index = native.load().post_send(entry.pointer, prepared)
        entry.sends.post(requests[:index], entry.caps.signal_all)
    if result:
        raise _post_error(entry, "send", -result, index, requests[index])


def post_recvs(entry: QPEntry, requests: Sequence[RecvWR]) -> None:
    with entry.in_use, entry.lock:
        result, index = native.load().post_recv(entry.pointer, requests)
        entry.recvs.post(requests[:index], True)
    if result:
        raise _post_error(entry, "receive", -result, index, requests[index])


def _post_error(entry: QPEntry, what: str, number: int, index: int, request: SendWR | RecvWR) -> PostError:
    caps = entry.caps
    sending = isinstance(request, SendWR)
    in_flight, depth = (len(entry.sends), caps.send_depth) if sending else (len(entry.recvs), caps.recv_depth)
    facts = [
        f"{entry.label} is {entry.live_state().name}",
        f"{in_flight} of {depth} in flight",
        f"{len(request.sges)} SGEs of {caps.send_sges if sending else caps.recv_sges}",
    ]
    if isinstance(request, SendWR):
        length = sum(sge.length for sge in request.sges)
        facts += [
            request.opcode.name,
            f"{length} bytes" + (f" inline of {caps.inline_bytes}" if request.inline else ""),
        ]
    if number == errno.ENOMEM:
        facts.append("the queue is full: poll completions, or ask for more depth, SGEs or inline")
    text = f"cannot post {what} wr_id {request.wr_id:#x} on {entry.where}: {errno_text(number)}; {', '.join(facts)}"
    return PostError(text, errno=number, bad_index=index, **entry.about)


# -- completions


def reap(cq: CQEntry, want: int, deadline: Deadline, at_most: int) -> list[Completion]:
    """Poll for one slice of the time, at most, so that the interpreter hears Ctrl-C in between."""
    try:
        with cq.in_use:
            got = native.load().poll(cq.pointer, want, deadline.slice_ns(SLICE_S), deadline.stop, at_most=at_most)
    except StoppedError:  # the caller says what it has so far, and for what it waited
        return []
    if got:
        account(cq, got)
    return got


def _take(cq: CQEntry, count: int, qp_num: int | None) -> list[Completion]:
    """Take from what was polled earlier, oldest first."""
    if not cq.stash:
        return []
    with cq.lock:
        mine = [one for one in cq.stash if qp_num is None or one.qp_num == qp_num][:count]
        for one in mine:
            cq.stash.remove(one)
    return mine


def collect(cq: CQEntry, qp_num: int | None, count: int, exactly: bool, deadline: Deadline) -> list[Completion]:
    """Return up to `count` completions; short only when the time is up. Others' go to the stash."""
    got = _take(cq, count, qp_num)
    while len(got) < (count if exactly else min(count, 1)):
        missing = count - len(got)
        came = reap(cq, missing if exactly else 1, deadline, missing)
        mine = [one for one in came if qp_num is None or one.qp_num == qp_num]
        if len(mine) < len(came):
            cq.keep([one for one in came if one not in mine])
        got += mine
        if len(mine) < missing:
            got += _take(cq, count - len(got), qp_num)
        if deadline.passed or deadline.stop:
            break
    if exactly and len(got) < count and deadline.stop:
        cq.keep(got, first=True)
        raise StoppedError(f"stopped after {len(got)} of {count} completions")
    return got


@op("qp.poll")
def op_poll(host: LocalHost, deadline: Deadline, handle: int, count: int, exactly: bool) -> list[Completion]:
    entry: QPEntry = host.entry("qp", handle)
    entry.ledger.awaited = count
    got = collect(entry.cq, entry.qp_num, count, exactly, deadline)
    if exactly and len(got) < count:
        entry.cq.keep(got, first=True)
        text = f"{len(got)} of {count} completions {_within(entry, deadline)}; {explain_wait(entry)}"
        raise DeadlineError(text, **entry.about)
    entry.ledger.awaited = ""
    return got


@op("cq.poll")
def op_cq_poll(host: LocalHost, deadline: Deadline, handle: int, count: int, exactly: bool) -> list[Completion]:
    cq: CQEntry = host.entry("cq", handle)
    awaited = _may_complete(cq) if exactly else []
    for entry in awaited:
        entry.ledger.awaited = count
    got = collect(cq, None, count, exactly, deadline)
    if exactly and len(got) < count:
        cq.keep(got, first=True)
        users = "; ".join(explain_wait(entry) for entry in list(cq.qps.values())) or "no QP uses the CQ"
        text = f"{len(got)} of {count} completions within {deadline.timeout_s:g} s on {host.name}; {users}"
        raise DeadlineError(text, **(awaited[0].about if len(awaited) == 1 else {}))
    for entry in awaited:
        entry.ledger.awaited = ""
    return got


def _may_complete(cq: CQEntry) -> list[QPEntry]:
    """Return the QPs that who polls the CQ may wait for: an idle one beside them is not what gives no completion."""
    users = list(cq.qps.values())
    return [one for one in users if one.sends or one.recvs or one.srq is not None] or users


@op("qp.wait")
def op_wait(host: LocalHost, deadline: Deadline, handle: int, wr_ids: Sequence[int]) -> list[Completion]:
    entry: QPEntry = host.entry("qp", handle)
    missing = list(wr_ids)
    entry.ledger.awaited = tuple(wr_ids)
    found: dict[int, list[Completion]] = {}
    passed = False
    while True:
        with entry.cq.lock:
            for one in list(entry.cq.stash):
                if one.qp_num == entry.qp_num and one.wr_id in missing:
                    entry.cq.stash.remove(one)
                    missing.remove(one.wr_id)
                    found.setdefault(one.wr_id, []).append(one)
        if not missing:
            break
        if passed or deadline.stop:
            entry.cq.keep([one for several in found.values() for one in several], first=True)
            raise _not_completed(entry, missing, deadline)
        passed = deadline.passed  # one more look after the time is up, so that what came in time counts
        entry.cq.keep(reap(entry.cq, 1, deadline, max(len(missing), 1)))
    done = [found[wr_id].pop(0) for wr_id in wr_ids]
    entry.ledger.awaited = ""
    check_success(done, f"{entry.label} on {entry.where}", **entry.about)
    return done


def _not_completed(entry: QPEntry, missing: list[int], deadline: Deadline) -> Exception:
    names = ", ".join(f"{wr_id:#x}" for wr_id in missing[:SHOWN])
    if deadline.stop:
        return StoppedError(f"stopped while wr_id {names} had not completed on {entry.where}")
    there = [*entry.sends.outstanding, *entry.recvs.outstanding]
    silent = {*entry.sends.silent, *(one.wr_id for one in there if not one.signaled)}
    silent -= {one.wr_id for one in there if one.signaled}  # a number may be used again
    unsignaled = [wr_id for wr_id in missing if wr_id in silent]
    trap = f"; wr_id {unsignaled[0]:#x} was posted unsignaled: it completes only when it fails" if unsignaled else ""
    text = f"wr_id {names} did not complete {_within(entry, deadline)}; {explain_wait(entry)}{trap}"
    return DeadlineError(text, **entry.about)


def _within(entry: QPEntry, deadline: Deadline) -> str:
    return f"within {deadline.timeout_s:g} s on {entry.label} on {entry.where}"


def explain_wait(entry: QPEntry) -> str:
    """Say what is outstanding, the QP's state, and whether anything can complete here at all."""
    text = f"{entry.label} is {entry.live_state().name}, outstanding: {_outstanding(entry)}"
    other = [one for one in entry.cq.stash if one.qp_num == entry.qp_num]
    if other:
        text += f"; {len(other)} other completions are kept: wr_id {', '.join(hex(one.wr_id) for one in other[:SHOWN])}"
    if not entry.sends and not entry.recvs:
        text += "; no completion can arrive here: no request is outstanding on this side"
    elif not entry.recvs and not entry.sends.can_complete:
        text += "; no completion can arrive here: none of the requests is signaled"
    return text


def _outstanding(entry: QPEntry) -> str:
    parts = []
    for name, queue in (("sends", entry.sends), ("receives", entry.recvs)):
        oldest = list(queue.outstanding)[:SHOWN]
        if oldest:
            shown = [hex(one.wr_id) + ("" if one.signaled else " (unsignaled)") for one in oldest]
            parts.append(f"{len(queue)} {name}: {', '.join(shown)}{', ...' if len(queue) > SHOWN else ''}")
    return "; ".join(parts) or "nothing"


# -- events and state


@op("qp.arm")
def op_arm(host: LocalHost, deadline: Deadline, handle: int, solicited_only: bool) -> None:
    cq = _event_cq(host, handle)
    with cq.in_use:
        native.load().req_notify(cq.pointer, solicited_only)


@op("qp.wait_event")
def op_wait_event(host: LocalHost, deadline: Deadline, handle: int) -> None:
    cq = _event_cq(host, handle)
    entry: QPEntry = host.entry("qp", handle)
    entry.ledger.awaited = "a completion event"
    while True:
        with cq.in_use:
            came = native.load().wait_cq_event(cq.channel_pointer, deadline.slice_ns(SLICE_S), deadline.stop)
        if came is not None:
            entry.ledger.awaited = ""
            return
        deadline.check(f"completion event on {entry.where}", **entry.about)


def _event_cq(host: LocalHost, handle: int) -> CQEntry:
    entry: QPEntry = host.entry("qp", handle)
    if entry.cq.channel is None:
        raise RefusedError(f"{entry.label} on {entry.where} has no completion channel: ask for it with events=True")
    return entry.cq


@op("qp.async_events")
def op_async_events(host: LocalHost, deadline: Deadline, handle: int) -> list[AsyncEvent]:
    entry: QPEntry = host.entry("qp", handle)
    while True:
        came = bool(entry.device.events) or read_async_event(host, entry, deadline.slice_ns(SLICE_S), deadline.stop)
        while came:
            came = read_async_event(host, entry, 0)
        found = entry.device.take_events()
        if found or deadline.passed or deadline.stop:
            return found


def read_async_event(host: LocalHost, entry: QPEntry, until_ns: int, stop: StopFlag | None = None) -> bool:
    """Read one asynchronous event of the QP's context, and keep it for a test that asks for it."""
    with entry.device.in_use:
        event = native.load().wait_async_event(entry.context_pointer, until_ns, stop)
    if event is not None:
        entry.device.keep_event(AsyncEvent(_event_name(event.type), _event_element(host, event)))
    return event is not None


def _event_name(number: int) -> str:
    return ASYNC_EVENTS[number] if number < len(ASYNC_EVENTS) else f"event {number}"


def _event_element(host: LocalHost, event: Any) -> str:
    name = _event_name(event.type)
    if name.startswith(("QP", "COMM", "SQ_", "PATH")):
        return f"QP {event.number:#x}"
    if name.startswith("SRQ"):
        known = (srq.front.label for srq in host.entries("srq") if srq.pointer == event.element)
        return next(known, "an SRQ")
    if name == "CQ_ERR":
        return f"CQ {event.number}"
    if name in ("PORT_ACTIVE", "PORT_ERR", "LID_CHANGE", "PKEY_CHANGE", "SM_CHANGE", "CLIENT_REREGISTER", "GID_CHANGE"):
        return f"port {event.number}"
    return "device"


@op("qp.state")
def op_state(host: LocalHost, deadline: Deadline, handle: int) -> int:
    entry: QPEntry = host.entry("qp", handle)
    return int(entry.live_state())


@op("qp.query")
def op_query(host: LocalHost, deadline: Deadline, handle: int) -> dict[str, Any]:
    entry: QPEntry = host.entry("qp", handle)
    with entry.in_use:
        found: dict[str, Any] = query(entry.raw_qp)
    found["qp_state"] = QPState(found["qp_state"])
    return found
