"""The host of the controller's own process, watched from another one.

What verbs do in this process no other thread of it can end: a call that never returns from the kernel holds the main
thread, and often the GIL with it. So a small process looks, twice a second, at a page that both share: which ops run,
until when, and whether Python still runs here. When an op has outlived its deadline it says so on standard error,
with what /proc tells, has faulthandler print the stacks, and ends this process. It ends with the last host that it
watches, or with this process.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from pytest_rdma import native, watcher
from pytest_rdma.deadline import Deadline
from pytest_rdma.errors import RdmaEnvironmentError
from pytest_rdma.host import LocalHost

CLOSE_S = 30.0
_SLOT, _TIME = struct.Struct(watcher.SLOT), struct.Struct("q")
DEBUGGERS = ("bdb", "cmd", "code", "pdb", "debugpy", "pydevd", "_pydevd", "IPython")


class Watch:
    """The page that is shared with the watcher, and the watcher."""

    def __init__(self, grace_s: float, stderr: int) -> None:
        memory = _shared_memory()
        os.ftruncate(memory, watcher.PAGE_BYTES)
        self._page = mmap.mmap(memory, watcher.PAGE_BYTES)
        self._free = list(range(watcher.SLOTS))
        self._pid = os.getpid()
        self._main = threading.main_thread().ident
        self._beat()
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(watcher.__file__)), str(os.getpid()), str(memory), str(grace_s)],
            stdin=subprocess.PIPE,  # the watcher ends when this end of it is closed
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            pass_fds=[memory],
            start_new_session=True,  # Ctrl-C is not for it
        )
        os.close(memory)
        self._closed = threading.Event()
        self._beater = threading.Thread(target=self._keep_beating, name="rdma beat", daemon=True)
        self._beater.start()

    def close(self) -> None:
        """End the watcher and the beat; ops that still run are watched no more."""
        self._closed.set()
        self._process.kill()  # it holds nothing that it would have to give back
        self._process.communicate(timeout=END_S)
        self._beater.join(END_S)

    def begin(self, name: str, at_ns: int) -> int:
        """Have the op watched that begins now; returns what `end` takes, -1 for nothing. Each op pays for this."""
        try:
            slot = self._free.pop() if os.getpid() == self._pid else -1
        except IndexError:
            slot = -1
        if slot < 0:
            return slot
        at = watcher.slot_offset(slot)
        _SLOT.pack_into(self._page, at, 0, threading.get_native_id(), name.encode())
        _TIME.pack_into(self._page, at, at_ns)  # last: it makes the slot count
        return slot

    def end(self, slot: int) -> None:
        _TIME.pack_into(self._page, watcher.slot_offset(slot), 0)
        self._free.append(slot)

    def _keep_beating(self) -> None:
        while not self._closed.wait(watcher.TICK_S):
            self._beat()

    def _beat(self) -> None:
        struct.pack_into(watcher.HEAD, self._page, 0, time.monotonic_ns(), self._debugged())

    def _debugged(self) -> bool:
        """Whether somebody looks at the main thread with a debugger, and takes the time it takes."""
        frame = sys._current_frames().get(self._main or 0)
        while frame is not None:
            if str(frame.f_globals.get("__name__")).partition(".")[0] in DEBUGGERS:
                return True
            frame = frame.f_back
        return False


def _shared_memory() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("pytest-rdma-watch")
    with tempfile.TemporaryFile() as file:  # this Python was built with an old libc
        return os.dup(file.fileno())


class WatchedHost(LocalHost):
    """A LocalHost whose ops are watched from when it is opened until it is closed; `stderr` is where to complain."""

    def __init__(self, name: str, *, timeout_scale: float, stderr: int) -> None:
        super().__init__(name, timeout_scale=timeout_scale)
        self._stderr = stderr
        self._watch: Watch | None = None

    def open(self) -> None:
        with contextlib.suppress(RdmaEnvironmentError):  # the op that needs the helper tells
            native.load()  # compiling it, where that must be, takes longer than an op may
        with _LOCK:
            if not _WATCHED:
                _WATCH.append(Watch(GRACE_S * self.timeout_scale, self._stderr))
            _WATCHED.add(self)
            self._watch = _WATCH[0]

    def restart(self, cause: str) -> None:
        super().restart(cause)
        self.open()

    def run_op(self, name: str, deadline: Deadline, args: tuple[Any, ...]) -> Any:
        watch = self._watch
        slot = watch.begin(name, deadline.at_ns) if watch else -1
        try:
            return super().run_op(name, deadline, args)
        finally:
            if watch and slot >= 0:
                watch.end(slot)

    def close(self) -> None:
        watch = self._watch
        slot = watch.begin("closing", Deadline(CLOSE_S * self.timeout_scale).at_ns) if watch else -1
        try:
            super().close()
        finally:
            if watch and slot >= 0:
                watch.end(slot)
            self._forsake()

    def _forsake(self) -> None:
        with _LOCK:
            _WATCHED.discard(self)
            self._watch = None
            ended = [] if _WATCHED else [_WATCH.pop() for _ in _WATCH[:]]
        for watch in ended:
            watch.close()


GRACE_S = 5.0
END_S = 5.0
_LOCK = threading.Lock()
_WATCHED: set[WatchedHost] = set()
_WATCH: list[Watch] = []
"""The one watch of this process while any of its hosts is open."""
