"""Causes in a host or its device: a process or device that is gone, limits, and what a status says by itself."""

from __future__ import annotations

import re

from pytest_rdma.diagnosis_view import Cause, Causes, View, failed_as
from pytest_rdma.status import MEANINGS, WCStatus, name_of

FROM_VERBS = ("VerbsError", "PostError")
MEMLOCK = re.compile(r"cannot register (\d+) bytes .*ENOMEM")


def process_gone(view: View) -> Causes:
    """A host no longer answers, so that its QPs are gone, too, or not served."""
    for host in (view.evidence.peer, view.evidence.local):
        if host.lost:
            yield Cause(
                "process-gone",
                f"the process on {host.name} that holds its QPs is gone: {host.lost}",
                "look at what ended it: its stderr, the kernel log (out of memory, a crash), a signal, the network",
                True,
            )


def device_gone(view: View) -> Causes:
    for end in view.ends:
        device = end.host.device
        if device is not None and device.error:
            yield Cause(
                "device-gone",
                f"{device.name} on {end.name} {device.error}",
                "see what took it: `rdma link`, an unloaded driver, a netdev that went, permissions, the kernel log",
                True,
            )
        event = end.has_event("DEVICE_FATAL")
        if event:
            yield Cause("device-fatal", f"{end.name} reported {event}", "see the kernel log and the firmware", True)


def disk_full(view: View) -> Causes:
    host = view.evidence.peer if view.evidence.failed_side == "peer" else view.evidence.local
    if view.evidence.error_type in FROM_VERBS:  # there it is a device that has no room
        return
    if "ENOSPC" in view.evidence.error or "No space left on device" in view.evidence.error:
        yield Cause(
            "disk-full",
            f"no space is left on {host.name}: {view.evidence.error}",
            "make room in its temporary directory",
            True,
        )


def memlock(view: View) -> Causes:
    """A registration that RLIMIT_MEMLOCK does not let through."""
    found = MEMLOCK.search(view.evidence.error)
    host = view.evidence.peer if view.evidence.failed_side == "peer" else view.evidence.local
    limit = host.info.memlock_soft
    if found is None:
        return
    asked = int(found[1])
    if limit < 0 or host.info.uid == 0:
        yield Cause(
            "out-of-memory",
            f"{asked} bytes could not be registered on {host.name}: ENOMEM, and RLIMIT_MEMLOCK does not limit it"
            + (f", unless root lacks CAP_IPC_LOCK there: it is {limit} bytes" if 0 <= limit < asked else ""),
            "see what memory is left, and the limits of the device and of the cgroup; root in a container needs "
            "--cap-add=IPC_LOCK or --ulimit memlock=-1",
            False,
        )
        return
    yield Cause(
        "memlock",
        f"{asked} bytes could not be registered on {host.name}: RLIMIT_MEMLOCK of uid {host.info.uid} there is {limit} "
        "bytes",
        "raise memlock where the process is started: limits.conf and a new login, LimitMEMLOCK= of sshd's unit, or "
        "`ulimit -l` before; --ulimit memlock=-1 for a container",
        asked > limit,
    )


def status_alone(view: View) -> Causes:
    """What a status means, where no rule knows more."""
    failure = view.failure or view.receive_failure
    if failure is None or failure.completion.status == WCStatus.WR_FLUSH_ERR:
        return
    status = failure.completion.status
    meaning, causes = MEANINGS.get(status, ("", ""))
    text = failed_as(view) if view.failure else f"a receive of {view.passive.label} failed with {name_of(status)}"
    vendor = f" (vendor_err {failure.completion.vendor_err:#x})" if failure.completion.vendor_err else ""
    yield Cause(
        "status",
        f"{text}{vendor}" + (f": {meaning}" if meaning else ""),
        f"often: {causes}" if causes else "look at vendor_err and the kernel log",
        False,
    )
