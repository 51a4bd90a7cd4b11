"""What a host knows when a test has failed: its QPs with their ledgers, regions, events, device and memory.

Each thing is read by itself and within a time of its own, so that one that is stuck does not keep back the rest.
"""

from __future__ import annotations

import ctypes
import ipaddress
import threading
import time
from functools import cache, partial
from pathlib import Path
from typing import Any, Callable, TypeVar

from pytest_rdma import ledger
from pytest_rdma.cm_library import QPAttr
from pytest_rdma.deadline import Deadline
from pytest_rdma.errors import RdmaEnvironmentError, RdmaError, VerbsError, errno_text
from pytest_rdma.evidence import LEDGER_SHOWN, Failure, HostEvidence, Posted, QPEvidence, QueueLedger, Region
from pytest_rdma.host import LocalHost, op
from pytest_rdma.model import Access, AsyncEvent, DeviceInfo, QPState, RecvWR, SendWR
from pytest_rdma.verbs_device import is_gone, mtu_bytes, op_device, unopened
from pytest_rdma.verbs_memory import MREntry
from pytest_rdma.verbs_modify import QUERIED, QUERY_MASK
from pytest_rdma.verbs_post import read_async_event
from pytest_rdma.verbs_queue import QPEntry

T = TypeVar("T")
PARTS = 4
REGIONS_SHOWN = 1024
NET = Path("/sys/class/net")


@op("evidence.collect")
def op_collect(
    host: LocalHost, deadline: Deadline, device: str, port: int, gid_index: int | None, age_s: float
) -> HostEvidence:
    """Return what there is to know; what was closed and what came counts from `age_s` seconds ago on."""
    began = time.monotonic_ns() - int(age_s * 1e9)
    reading = Reading(deadline)
    sweep(host, reading)
    info = reading.bounded("device", partial(_device, host, deadline, device))
    counters, log = _watched(host, reading)
    return HostEvidence(
        name=host.name,
        info=host.info,
        device=info,
        port=port,
        gid_index=gid_index,
        qps=tuple(_qp(entry, reading, closed_ns) for entry, closed_ns in _entries(host, "qp", QPEntry, began)),
        regions=regions_of(host, began, reading),
        async_events=tuple(event for event, _ in _since(host, AsyncEvent, began)),
        counters=counters,
        kernel_log=log,
        unread=reading.unread,
        netdevs=_netdevs(info, port),
        memory=_memory(),
    )


def _device(host: LocalHost, deadline: Deadline, name: str) -> DeviceInfo:
    """Return the device as it is now; its `error` says that it is gone, or why it does not open."""
    if is_gone(host, name):
        return unopened(name, "is gone")
    try:
        return op_device(host, deadline, name)
    except RdmaEnvironmentError as error:
        return unopened(name, f"does not open: {error}")


def _watched(host: LocalHost, reading: Reading) -> tuple[dict[str, int], tuple[str, ...]]:
    """Return what the gates have seen of counters and kernel log since the test began."""
    from pytest_rdma.verbs_gates import since_test_began

    found = reading.bounded("counters and kernel log", partial(since_test_began, host))
    if found is None:
        return {}, ()
    counters, log, unread = found
    reading.unread.update((what, why) for what, why in unread.items() if what != "objects")
    return counters, log


class Reading:
    """Runs what may not come back in threads, and notes in `unread` what did not, and why."""

    def __init__(self, deadline: Deadline) -> None:
        self.unread: dict[str, str] = {}
        self._deadline = deadline

    def bounded(self, what: str, call: Callable[[], T]) -> T | None:
        done: list[T] = []
        errors: list[Exception] = []

        def run() -> None:
            try:
                done.append(call())
            except Exception as error:  # whatever it is, it is the reason why this was not read
                errors.append(error)

        limit = min(self._deadline.timeout_s / PARTS, self._deadline.remaining_s)
        thread = threading.Thread(target=run, name=f"rdma evidence of {what}", daemon=True)
        thread.start()
        thread.join(limit)
        if done:
            return done[0]
        error = errors[0] if errors else f"the kernel has not answered within {limit:.1f} s"
        self.unread[what] = str(error) if isinstance(error, (str, RdmaError)) else f"{type(error).__name__}: {error}"
        return None


def sweep(host: LocalHost, reading: Reading) -> None:
    """Enter in the ledgers what has completed and what events have come, and keep both for who asks for them.

    A CQ that a loop works on is left alone: its completions are the loop's.
    """
    entries: list[QPEntry] = host.entries("qp")
    busy = {id(entry.cq) for entry in entries if entry.ledger.loop is not None}
    queues = {id(entry.cq): entry.cq for entry in entries if id(entry.cq) not in busy}
    for cq in queues.values():
        reading.bounded(f"completions of {cq.front.label}", cq.sweep)
    for entry in {entry.context_pointer: entry for entry in entries}.values():
        reading.bounded("asynchronous events", partial(_read_events, host, entry))


def _read_events(host: LocalHost, entry: QPEntry) -> None:
    while read_async_event(host, entry, 0):
        pass


def _since(host: LocalHost, kind: type[T], began: int) -> list[tuple[T, int]]:
    """Return what the host's devices remember of a kind since the test began, and when each was."""
    past = [one for device in list(host.contexts.values()) for one in list(device.past)]
    return [(one, at) for at, one in past if at >= began and isinstance(one, kind)]


def _entries(host: LocalHost, kind: str, entry: type[T], began: int) -> list[tuple[T, int]]:
    """Return the entries of a kind, each with when it was closed during the test, 0 when it was not."""
    return [*((one, 0) for one in host.entries(kind)), *_since(host, entry, began)]


# -- QPs


def _qp(entry: QPEntry, reading: Reading, closed_ns: int) -> QPEvidence:
    attributes: dict[str, Any] = {}
    if not closed_ns:
        attributes = reading.bounded(entry.label, partial(query, entry)) or {}
    error = reading.unread.get(entry.label, "") if not attributes else ""
    locked = entry.lock.acquire(timeout=0.2)
    if not locked:
        error += f"{'; ' if error else ''}a post to it has not returned"
    try:
        return _qp_evidence(entry, attributes, closed_ns, error)
    finally:
        if locked:
            entry.lock.release()


def _qp_evidence(entry: QPEntry, attributes: dict[str, Any], closed_ns: int, error: str) -> QPEvidence:
    book, front = entry.ledger, entry.front
    if not closed_ns:
        book.look_at_loop()
    now = time.monotonic_ns()
    return QPEvidence(
        handle=front.handle,
        qp_num=entry.qp_num,
        device=entry.device.name,
        port=entry.port.number,
        state=QPState(attributes["qp_state"]) if attributes else None,
        attributes=attributes,
        caps=entry.caps,
        own=front.record,
        peer=entry.peer,
        connected=entry.connected,
        pd=entry.pd.front.handle,
        sends=_queue(book.sends, now),
        recvs=_queue(book.recvs, now),
        failure=_failure(book.failed, now),
        flushed=book.flushed,
        recent=tuple(book.recent),
        awaits=_awaits(book),
        shared_recvs=entry.srq is not None,
        closed=bool(closed_ns),
        closed_ago_s=_ago(closed_ns, now) if closed_ns else None,
        error=error,
        first_flush=_failure(book.first_flush, now),
        awaited_wr_ids=book.awaited if isinstance(book.awaited, tuple) else (),
    )


def _failure(failed: ledger.Failed | None, now: int) -> Failure | None:
    return Failure(failed.completion, _ago(failed.at_ns, now), _posted(failed.of, now)) if failed else None


def _queue(queue: ledger.Queue, now: int) -> QueueLedger:
    oldest = [one for one, _ in zip(list(queue.outstanding), range(LEDGER_SHOWN))]
    return QueueLedger(
        posted=queue.posted,
        completed=queue.completed,
        last_post_ago_s=_ago(queue.last_post_ns, now) if queue.last_post_ns else None,
        last_completion_ago_s=_ago(queue.last_completion_ns, now) if queue.last_completion_ns else None,
        outstanding_count=len(queue),
        outstanding=tuple(posted for posted in (_posted(one, now) for one in oldest) if posted),
        most_bytes_completed=max([queue.most_bytes, *map(_bytes_of, queue.cycle)]),
        silent=tuple(queue.silent),
        signaled_count=sum(one.signaled for one in list(queue.outstanding)),
    )


def _bytes_of(request: SendWR | RecvWR) -> int:
    return sum(sge.length for sge in request.sges)


def _ago(at_ns: int, now: int) -> float:
    return max(0.0, (now - at_ns) / 1e9)


def _posted(one: ledger.Outstanding | None, now: int) -> Posted | None:
    if one is None:
        return None
    opcode = getattr(one.request, "opcode", None)
    name = "RECV" if opcode is None else getattr(opcode, "name", str(opcode))
    return Posted(name, _bytes_of(one.request), _ago(one.posted_ns, now), one.signaled, one.request, one.wr_id)


def _awaits(book: ledger.Ledger) -> str:
    awaited = book.awaited
    if book.loop is not None:
        return "the end of a run"
    if isinstance(awaited, int):
        return f"{awaited} completions" if awaited != 1 else "1 completion"
    if isinstance(awaited, tuple):
        return f"wr_id {', '.join(hex(wr_id) for wr_id in awaited[:LEDGER_SHOWN])}"
    return awaited


@cache
def _libibverbs() -> Any:
    library = ctypes.CDLL("libibverbs.so.1")
    library.ibv_query_qp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)
    return library


def query(entry: QPEntry) -> dict[str, Any]:
    """Return what `verbs_modify.query` does, without the GIL: the kernel may not answer."""
    found, created = QPAttr(), (ctypes.c_uint8 * 256)()
    with entry.in_use:
        number = _libibverbs().ibv_query_qp(entry.pointer, ctypes.byref(found), QUERY_MASK, created)
    if number:
        raise VerbsError(f"ibv_query_qp: {errno_text(number)}", errno=number)
    values: dict[str, Any] = {name: int(getattr(found, name)) for name in QUERIED if name != "rate_limit"}
    values["path_mtu"] = mtu_bytes(values["path_mtu"])
    vector = found.ah_attr
    values.update(dlid=vector.dlid, sl=vector.sl, ah_port=vector.port_num)
    if vector.is_global:
        route = vector.grh
        values.update(dgid=str(ipaddress.IPv6Address(bytes(route.dgid))), sgid_index=route.sgid_index)
        values.update(hop_limit=route.hop_limit, traffic_class=route.traffic_class)
    return values


# -- the rest


def regions_of(host: LocalHost, began: int, reading: Reading) -> tuple[Region, ...]:
    entries, now = _entries(host, "mr", MREntry, began), time.monotonic_ns()
    found = [
        Region(
            one.addr, one.length, one.lkey, one.rkey, one.access, one.pd.front.handle, bool(closed_ns),
            closed_ago_s=_ago(closed_ns, now) if closed_ns else None,
        )
        for one, closed_ns in entries[-REGIONS_SHOWN:]
    ]  # fmt: skip
    for window in host.entries("mw"):
        memory = window.memory
        if memory is not None:
            pd = window.qp.pd.front.handle
            found.append(
                Region(memory.addr, memory.length, 0, memory.rkey, Access(window.access), pd, False, window=True)
            )
    if any(qp.pd.lent for qp, _ in _entries(host, "qp", QPEntry, began)):
        reading.unread["regions"] = "what was registered with the pyverbs objects that `raw` gave"
    if len(entries) > REGIONS_SHOWN:
        reading.unread["regions"] = f"the oldest {len(entries) - REGIONS_SHOWN} of {len(entries)}"
    return tuple(found)


def _netdevs(device: DeviceInfo | None, port: int) -> dict[str, dict[str, str]]:
    """Return MTU and state of the netdevs that the port's GID rows stand for."""
    rows = [row for one in device.ports if one.number == port for row in one.gids] if device else []
    names = dict.fromkeys(row.netdev for row in rows if row.netdev)
    return {name: {fact: _text(NET / name / fact) for fact in ("mtu", "operstate", "carrier")} for name in names}


def _memory() -> dict[str, int]:
    """Return this process's locked, pinned and resident memory in bytes, by the names in proc_pid_status(5)."""
    lines = (line.split() for line in _text(Path("/proc/self/status")).splitlines())
    wanted = ("VmLck:", "VmPin:", "VmRSS:")
    return {words[0][:-1]: int(words[1]) * 1024 for words in lines if len(words) == 3 and words[0] in wanted}


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError as error:
        return error.strerror or "unreadable"
