"""What there is of our process on a host: verbs objects, descriptors, pinned memory; and what a test left of them."""

from __future__ import annotations

import contextlib
import fcntl
import gc
import os
import sys
import threading
from collections import Counter
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from pytest_rdma import host as hosts
from pytest_rdma.host import Resource
from pytest_rdma.rdma_netlink import KernelObject, RdmaNetlink

STATUS_BYTES = 1 << 13
KERNEL_KINDS = {"pd": "PD", "cq": "CQ", "srq": "SRQ", "mr": "MR", "qp": "QP", "cm": "cm_id"}
KERNEL_KINDS.update(cm_request="cm_id", cm_listener="cm_id")
"""What the kernel calls the object behind a handle."""
OURS = ("scratch",)
"""Kinds of handles that a host makes for itself and keeps."""
VERBS_FILE, EVENT_FILE, CM_FILE = "/dev/infiniband/uverbs", "anon_inode:[infinibandevent]", "/dev/infiniband/rdma_cm"
FILES_OF = {"cq": (EVENT_FILE,), "program": ("pipe:", "anon_inode:[pidfd]")}
FILES_OF.update(dict.fromkeys(("cm", "cm_request", "cm_listener"), (CM_FILE, EVENT_FILE)))
"""The descriptors that come and go with a handle."""

Key = tuple[str, str, int]
LOOKING = threading.Lock()
"""Two hosts of one process look at it at once, and what one look opens for a moment is not the other's to see."""


@dataclass(frozen=True)
class Snapshot:
    """What there was at one moment. `entries` are by host and handle, `contexts` those that our hosts keep open."""

    entries: dict[tuple[int, int], Resource] = field(default_factory=dict)
    contexts: Counter[str] = field(default_factory=Counter)
    objects: dict[Key, KernelObject] = field(default_factory=dict)
    descriptors: frozenset[int] = frozenset()
    pinned_kb: int = 0
    uses_rdma_cm: bool = False

    def with_new(self, before: Snapshot, after: Snapshot) -> Snapshot:
        """Return this with all that came between two others."""
        return Snapshot(
            {**self.entries, **_new(before.entries, after.entries)},
            after.contexts,
            {**self.objects, **_new(before.objects, after.objects)},
            self.descriptors | (after.descriptors - before.descriptors),
            self.pinned_kb + max(0, after.pinned_kb - before.pinned_kb),
            after.uses_rdma_cm,
        )


def _new(before: dict[Any, Any], after: dict[Any, Any]) -> dict[Any, Any]:
    return {key: value for key, value in after.items() if key not in before}


class Process:
    """This process, looked at through /proc, our tables of handles and, where the kernel answers, RDMA netlink."""

    rdma_cm_noticed: ClassVar[bool] = False

    def __init__(self, netlink: RdmaNetlink | None, device: str) -> None:
        self._netlink = netlink
        self._device = device
        self._beside_pyverbs = opened_beside_pyverbs()
        self._status = os.open("/proc/self/status", os.O_RDONLY | os.O_CLOEXEC)

    def close(self) -> None:
        os.close(self._status)

    def snapshot(self) -> Snapshot:
        with LOOKING:
            return self._snapshot()

    def _snapshot(self) -> Snapshot:
        entries: dict[tuple[int, int], Resource] = {}
        contexts: Counter[str] = Counter()
        for host in list(hosts.LIVE):
            entries.update({(id(host), number): entry for number, entry in host.table().items()})
            contexts.update(list(host.contexts))
        status = os.pread(self._status, STATUS_BYTES, 0)
        return Snapshot(
            entries,
            contexts,
            {(one.device, one.kind, one.number): one for one in self._objects({self._device, *contexts})},
            frozenset(open_descriptors()),
            _kilobytes(status, b"VmPin:") + _kilobytes(status, b"VmLck:"),
            uses_rdma_cm(),
        )

    def notices_rdma_cm(self) -> bool:
        """Whether it shows only now that a test uses librdmacm by itself, which keeps the devices that it opens."""
        if uses_rdma_cm():
            return False
        before, self._beside_pyverbs = self._beside_pyverbs, opened_beside_pyverbs()
        Process.rdma_cm_noticed = self._beside_pyverbs > before
        return Process.rdma_cm_noticed

    def _objects(self, devices: Iterable[str]) -> list[KernelObject]:
        found: list[KernelObject] = []
        if self._netlink is None:
            return found
        for device in sorted(devices):
            with contextlib.suppress(OSError, KeyError):  # a device that is gone has no objects
                found += own_objects(self._netlink.objects(device))
        return found


def own_objects(objects: list[KernelObject]) -> list[KernelObject]:
    """Return those of this process and its descendants.

    The kernel tells the thread that made an object, and nothing once that has ended; then the object is ours when
    another one in its context is.
    """
    parents = {(one.kind, one.number): one.parent for one in objects}
    verdicts: dict[int, bool] = {}

    def context(one: KernelObject) -> int | None:
        if one.kind in ("context", "cm_id"):
            return one.number if one.kind == "context" else None
        if one.kind in ("PD", "CQ") or one.parent is None:
            return one.parent
        return parents.get(("PD", one.parent))

    def made_here(pid: int) -> bool:
        if pid not in verdicts:
            verdicts[pid] = is_descendant(pid)
        return verdicts[pid]

    ours = [one for one in objects if one.pid and made_here(one.pid)]
    contexts = {context(one) for one in ours} - {None}
    made = set(ours)
    return [one for one in objects if one in made or (not one.pid and context(one) in contexts)]


def uses_rdma_cm() -> bool:
    """Whether librdmacm is used, by ops of ours or as was noticed by a test: that pyverbs links it says nothing."""
    library = sys.modules.get("pytest_rdma.cm_library")
    return Process.rdma_cm_noticed or (library is not None and bool(library.librdmacm.cache_info().currsize))


def opened_beside_pyverbs() -> int:
    """Return how many open devices no Context of pyverbs stands for: a C library has opened them."""
    files = sum(target.startswith(VERBS_FILE) for target in _targets(open_descriptors()).values())
    ours = sum(len(host.contexts) for host in list(hosts.LIVE))
    module = sys.modules.get("pyverbs.device")
    if files <= ours or module is None:
        return max(0, files - ours)
    # a Context that nobody has any more was closed by pyverbs; of all objects, because pyverbs lists them nowhere
    return max(0, files - sum(issubclass(type(one), module.Context) for one in gc.get_objects()))


def open_descriptors() -> Iterator[int]:
    """Yield the open descriptors but the one that lists them: its number is the next one's."""
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208  (no object for each)
        with contextlib.suppress(OSError):
            fcntl.fcntl(int(name), fcntl.F_GETFD)
            yield int(name)


def is_descendant(thread: int) -> bool:
    """Whether a thread is of this process or of one that descends from it."""
    if Path(f"/proc/self/task/{thread}").exists():
        return True
    while thread > 1:
        try:
            with open(f"/proc/{thread}/stat", "rb") as file:
                thread = int(file.read().rpartition(b")")[2].split()[1])
        except OSError:
            return False
        if thread == os.getpid():
            return True
    return False


def find_leaks(before: Snapshot, now: Snapshot, kept: Container[tuple[int, int]], ours: bool) -> list[str]:
    """Return in words what is there now and was not before; with `ours`, descriptors of any kind count."""
    entries = _new(before.entries, now.entries)
    left = {key: one for key, one in entries.items() if key not in kept and one.front.kind not in OURS}
    inner = {id(part) for one in left.values() for part in getattr(one, "owned", ())}
    words = [f"{one.front.label}, made in this test and not closed" for one in left.values() if id(one) not in inner]
    unknown = _unexplained(before, now, entries)
    words += [f"{one.text}, which our handles do not know{_maker(one)}" for one in unknown]
    own = [str(one.path) for one in entries.values() if one.front.kind in OURS and hasattr(one, "path")]
    words += _descriptors(before, now, [one.front.kind for one in left.values()], own, ours)
    grown = now.pinned_kb - before.pinned_kb
    if grown > 0 and not words and not entries:
        words.append(f"{grown} KiB of pinned memory more than before")
    return words


def _unexplained(before: Snapshot, now: Snapshot, entries: dict[Any, Resource]) -> list[KernelObject]:
    """Return the new kernel objects less those behind new handles: by number where we know it, else by their count."""
    numbers = {("QP", getattr(one, "qp_num", None)) for one in entries.values()}
    keys = {getattr(one, "lkey", 0) for one in entries.values()} - {0}
    explained = Counter(KERNEL_KINDS.get(one.front.kind, "") for one in entries.values())
    explained["PD"] += bool(explained["cm_id"])  # librdmacm's, one for all ids of a device
    left: dict[str, list[KernelObject]] = {}
    for one in _new(before.objects, now.objects).values():
        if (one.kind, one.number) in numbers or (one.kind == "MR" and one.key in keys):
            explained[one.kind] -= 1
        else:
            left.setdefault(one.kind, []).append(one)
    explained["context"] = len(left.get("context", ())) - _more_contexts(before, now)
    found: list[KernelObject] = []
    for kind, objects in left.items():
        found += sorted(objects, key=lambda one: one.number)[max(0, explained[kind]) :]
    return found


def _more_contexts(before: Snapshot, now: Snapshot) -> int:
    """Return how many contexts there are more than before, beyond those kept open: ours, and librdmacm's.

    librdmacm opens each device when it first needs it, and keeps it.
    """

    def beyond(snapshot: Snapshot) -> Counter[str]:
        there = Counter(device for device, kind, _ in snapshot.objects if kind == "context")
        kept = snapshot.contexts + Counter(dict.fromkeys(there, int(snapshot.uses_rdma_cm)))
        return there - kept

    return sum((beyond(now) - beyond(before)).values())


def _maker(one: KernelObject) -> str:
    if not one.pid:
        return ""
    try:
        with open(f"/proc/{one.pid}/comm") as file:
            return f" (made by {file.read().strip()}, thread {one.pid})"
    except OSError:
        return f" (made by thread {one.pid})"


def _descriptors(before: Snapshot, now: Snapshot, kinds: list[str], own: list[str], ours: bool) -> list[str]:
    """Return the new descriptors less `own`, those of new contexts, two each, and of handles that are told already."""
    new = _targets(now.descriptors - before.descriptors)
    if not new:
        return []
    counts = [Counter(kind for _, kind, _ in one.objects)["context"] for one in (before, now)]
    contexts = max(counts[1] - counts[0], _kept(before, now, new))
    free = {VERBS_FILE: contexts, EVENT_FILE: contexts}
    told = tuple(file for kind in kinds for file in FILES_OF.get(kind, ()))
    words: list[str] = []
    for number, target in sorted(new.items()):
        if target in own:
            continue
        kind = next((name for name in free if target.startswith(name)), "")
        if kind and free[kind] > 0:
            free[kind] -= 1
        elif not target.startswith(told or ("\0",)) and (ours or target.startswith((VERBS_FILE, EVENT_FILE, CM_FILE))):
            words.append(f"descriptor {number} ({target})")
    return words


def _targets(descriptors: Iterable[int]) -> dict[int, str]:
    """Return what each descriptor leads to, less those that are closed by now."""
    found: dict[int, str] = {}
    for number in descriptors:
        with contextlib.suppress(OSError):
            found[number] = str(Path(f"/proc/self/fd/{number}").readlink())
    return found


def _kept(before: Snapshot, now: Snapshot, new: dict[int, str]) -> int:
    """Return how many new contexts hosts keep, and librdmacm: that one's first on each device.

    Some are known by their descriptors alone: on a device that is not watched, or made by a thread that has ended.
    """
    kept = sum((now.contexts - before.contexts).values())
    if now.uses_rdma_cm:
        there = Counter(_targets(before.descriptors).values())
        files = {target for target in new.values() if target.startswith(VERBS_FILE)}
        kept += sum(there[file] <= before.contexts[_device_of(file)] for file in files)
    return kept


def _device_of(file: str) -> str:
    """Return the device of a file such as /dev/infiniband/uverbs0, "" when it is gone."""
    with contextlib.suppress(OSError):
        return Path("/sys/class/infiniband_verbs", Path(file).name, "ibdev").read_text().strip()
    return ""


def _kilobytes(status: bytes, name: bytes) -> int:
    start = status.find(name)
    return int(status[start + len(name) :].split(None, 1)[0]) if start >= 0 else 0
