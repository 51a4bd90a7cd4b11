"""One look at a host around a test: what was left behind, what the kernel log says, what the counters counted."""

from __future__ import annotations

import time
import weakref
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pytest_rdma.deadline import Deadline
from pytest_rdma.device_counters import DeviceCounters
from pytest_rdma.errors import errno_text
from pytest_rdma.host import LocalHost, close_all, op
from pytest_rdma.kernel_log import KernelLog
from pytest_rdma.leftovers import Process, Snapshot, find_leaks
from pytest_rdma.rdma_netlink import RdmaNetlink

WATCH_S = 0.005


@dataclass(frozen=True)
class Watch:
    """How to look at a host: at which device, and whether its process is all ours, as that of an agent is.

    Without `process`, only the counters are looked at: another host of the same process is looked at for the rest.
    `kept` are handles that outlive the test on purpose. `settle_s` is how long an object may take to go. With `count`
    the counters are told.
    """

    device: str
    port: int
    ours: bool
    process: bool = True
    kept: Sequence[int] = ()
    settle_s: float = 0.5
    judge_objects: bool = True
    count: bool = False


@dataclass(frozen=True)
class Look:
    """What a look brought: leaks and harm in words, and what the counters counted where that was asked for."""

    leaks: Sequence[str]
    harm: Sequence[str]
    counted: dict[str, int]


class Gates:
    """What is watched of one host, and what there was when the test began."""

    finalize: weakref.finalize[[], LocalHost]

    def __init__(self, watch: Watch) -> None:
        self.place = watch.device, watch.port
        self.unread: dict[str, str] = {}
        self.log: KernelLog | None = None
        self.netlink: RdmaNetlink | None = None
        try:
            self.log = KernelLog()
        except OSError as error:
            self.unread["kernel log"] = (
                f"{errno_text(error.errno or 0)}; it takes root, or CAP_SYSLOG and read access to /dev/kmsg"
            )
        try:
            self.netlink = RdmaNetlink()
            self.netlink.objects(watch.device)
        except (OSError, KeyError) as error:
            number = getattr(error, "errno", 0) or 0
            self.unread["objects"] = f"RDMA netlink answers {errno_text(number) if number else error!r}"
        self.process = Process(self.netlink if "objects" not in self.unread else None, watch.device)
        self.counters = DeviceCounters(self.netlink, watch.device, watch.port)
        if self.counters.unread:
            self.unread["counters"] = self.counters.unread
        self.known: Snapshot = self.process.snapshot()
        self.aside = self.known

    def close(self) -> None:
        """Give back the descriptors; the host that was watched is gone."""
        closers = [one.close for one in (self.log, self.netlink, self.process, self.counters) if one is not None]
        close_all(closers)

    def begin(self, test: str, now: Snapshot | None = None) -> None:
        """Compare what follows with what there is now, and write the name of the test into the kernel log."""
        if now is None:
            self.process.notices_rdma_cm()  # else a test that leaks a context would be excused by what was there before
        self.known = self.aside = now or self.process.snapshot()
        self.counters.begin()
        if self.log is not None:
            self.log.forget()
            if test:
                self.log.mark(test)

    def leaks(self, host: LocalHost, watch: Watch) -> tuple[list[str], Snapshot]:
        """Return what is left, once it has not gone within the time to settle: drivers destroy some objects later."""
        deadline = Deadline(watch.settle_s)
        kept = {(id(host), handle) for handle in watch.kept}
        while True:
            now = self.process.snapshot()
            judged = watch.process and watch.judge_objects
            found = find_leaks(self.known, now, kept, watch.ours) if judged else []
            if (found or not judged) and self.process.notices_rdma_cm():
                continue
            if not found or deadline.passed:
                return found, now
            time.sleep(WATCH_S)  # netlink tells what there is, not when it goes

    def harm(self) -> list[str]:
        return self.log.harm() if self.log is not None else []


_GATES: weakref.WeakKeyDictionary[LocalHost, Gates] = weakref.WeakKeyDictionary()


def gates_of(host: LocalHost) -> Gates | None:
    """Return what is watched of the host, None before its first look."""
    return _GATES.get(host)


def since_test_began(host: LocalHost) -> tuple[dict[str, int], tuple[str, ...], dict[str, str]]:
    """Return for a report what the counters counted, what the kernel logged, and what could not be read and why."""
    gates = gates_of(host)
    if gates is None:
        return {}, (), {"counters": "not watched in this test", "kernel log": "not watched in this test"}
    log = gates.log.lines() if gates.log is not None else ()
    return gates.counters.counted(), log, dict(gates.unread)


@op("gates.begin")
def op_begin(host: LocalHost, deadline: Deadline, watch: dict[str, Any], test: str) -> dict[str, str]:
    """Begin a test: return what cannot be measured here and why, by what it is."""
    gates = _gates_for(host, Watch(**watch))
    gates.begin(test)
    return gates.unread


def _gates_for(host: LocalHost, watch: Watch) -> Gates:
    """Return what watches this device of the host; a configuration of the user's own may name another one."""
    gates = gates_of(host)
    if gates is not None and gates.place == (watch.device, watch.port):
        return gates
    if gates is not None:
        gates.finalize()
    gates = _GATES[host] = Gates(watch)
    gates.finalize = weakref.finalize(host, gates.close)
    return gates


@op("gates.end")
def op_end(host: LocalHost, deadline: Deadline, how: dict[str, Any], next_test: str) -> dict[str, Any] | None:
    """Judge the test that ends and begin the next, whose name is "" where none follows.

    `how` are the fields of a Watch; returns those of a Look, None when no test had begun.
    """
    gates = gates_of(host)
    if gates is None:
        return None
    watch = Watch(**how)
    leaks, now = gates.leaks(host, watch)
    look = Look(
        leaks,
        gates.harm() if watch.process else [],
        gates.counters.settled(Deadline(watch.settle_s)) if watch.count else {},
    )
    gates.begin(next_test, now)
    return asdict(look)


@op("gates.aside")
def op_aside(host: LocalHost, deadline: Deadline) -> None:
    """Note what there is: what comes until `gates.adopt` is not the test's."""
    gates = gates_of(host)
    if gates is not None:
        gates.aside = gates.process.snapshot()


@op("gates.adopt")
def op_adopt(host: LocalHost, deadline: Deadline) -> None:
    """Count what came since `gates.aside` to what was there before the test."""
    gates = gates_of(host)
    if gates is not None:
        gates.process.notices_rdma_cm()
        now = gates.process.snapshot()
        gates.known, gates.aside = gates.known.with_new(gates.aside, now), now


@op("gates.counter_names")
def op_counter_names(host: LocalHost, deadline: Deadline) -> list[str]:
    """Return the names of the counters that this host's device has."""
    gates = gates_of(host)
    return sorted(gates.counters.values()) if gates is not None else []
