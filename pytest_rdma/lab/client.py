"""Starting supervisors, and talking to them."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import pytest_rdma
from pytest_rdma.errors import RdmaEnvironmentError
from pytest_rdma.lab.image import Image, Note
from pytest_rdma.lab.supervisor import Task, argument

ANSWER_S = 200.0
DOWN_S = 20.0


def runtime_directory() -> Path:
    """Return the directory of this user's labs: private, short enough for the paths of sockets, gone after a reboot."""
    base = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    directory = Path(base) / f"pytest-rdma-{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        directory.mkdir(mode=0o700)
    status = directory.lstat()
    if not directory.is_dir() or directory.is_symlink() or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise RdmaEnvironmentError(f"{directory} is not a directory of this user with mode 0700: remove it")
    return directory


class Connection:
    """A client's end of a stream to a supervisor."""

    def __init__(self, stream: socket.socket) -> None:
        self._stream = stream
        self._buffer = b""

    def state(self, note: Note, timeout_s: float = ANSWER_S) -> dict[str, Any]:
        """Wait until the lab is up and return its state; progress goes to `note`."""
        deadline = time.monotonic() + timeout_s
        self._send(b"state\n")
        while True:
            message = self._receive(deadline)
            if "note" in message:
                note(message["note"])
            elif "error" in message:
                raise RdmaEnvironmentError(message["error"])
            else:
                state: dict[str, Any] = message["state"]
                return state

    def down(self, timeout_s: float = DOWN_S) -> bool:
        """Take the lab down; return whether it was gone, guests and all, in time."""
        self._send(b"down\n")
        self._stream.settimeout(timeout_s)
        with contextlib.suppress(ConnectionError):
            try:
                while self._stream.recv(4096):
                    pass
            except TimeoutError:
                return False
        return True

    def close(self) -> None:
        """Close the stream; a private lab ends with it."""
        with contextlib.suppress(OSError):
            self._stream.shutdown(socket.SHUT_RDWR)
        self._stream.close()

    def _send(self, line: bytes) -> None:
        with contextlib.suppress(OSError):
            self._stream.sendall(line)

    def _receive(self, deadline: float) -> dict[str, Any]:
        while b"\n" not in self._buffer:
            self._stream.settimeout(max(0.001, deadline - time.monotonic()))
            try:
                data = self._stream.recv(65536)
            except TimeoutError:
                raise RdmaEnvironmentError("the lab's supervisor does not answer") from None
            except OSError:
                data = b""
            if not data:
                raise RdmaEnvironmentError("the lab was taken down while it booted, or its supervisor was killed")
            self._buffer += data
        line, self._buffer = self._buffer.split(b"\n", 1)
        message: dict[str, Any] = json.loads(line)
        return message


def start_private(image: Image, timeout_scale: float) -> tuple[Connection, subprocess.Popen[bytes]]:
    """Start a lab that lives as long as the connection, hence at most as long as this process."""
    directory = tempfile.mkdtemp(prefix="lab-", dir=_swept(runtime_directory()))
    ours, theirs = socket.socketpair()
    with theirs:
        task = Task(directory, str(image.directory), timeout_scale, owner_fd=theirs.fileno())
        process = _spawn(task, [theirs.fileno()])
    return Connection(ours), process


def _swept(runtime: Path) -> Path:
    return runtime


def _spawn(task: Task, fds: list[int]) -> subprocess.Popen[bytes]:
    root = str(Path(pytest_rdma.__file__).parents[1])
    path = os.pathsep.join(part for part in (root, os.environ.get("PYTHONPATH", "")) if part)
    with open(Path(task.directory) / "supervisor.log", "wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "pytest_rdma.lab.supervisor", argument(replace(task, inherited_fds=fds))],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=fds,
            cwd="/",
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,
        )


# The lab that is up: at most one for a user. Its supervisor holds a lock for as long as it lives.


@contextmanager
def _starting() -> Iterator[Path]:
    """Hold the right to look at, start or clean the lab that is up."""
    runtime = runtime_directory()
    with open(runtime / "start.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield runtime


def _take(runtime: Path) -> IO[str] | None:
    """Return the lock of the lab that is up, or None when a supervisor holds it."""
    lock = open(runtime / "up.lock", "w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        return None
    shutil.rmtree(runtime / "up", ignore_errors=True)
    return lock


def connect_up() -> Connection | None:
    """Return a connection to the lab that is up, or None when there is none; what a killed one left is removed."""
    with _starting() as runtime:
        lock = _take(runtime)
        if lock is not None:
            lock.close()
            return None
        return _connect(runtime)


def start_up(image: Image, idle_limit_s: float) -> tuple[Connection, bool]:
    """Return a connection to the lab that is up and whether this call has started it."""
    with _starting() as runtime:
        lock = _take(runtime)
        if lock is None:
            return _connect(runtime), False
        directory = runtime / "up"
        directory.mkdir(mode=0o700)
        with lock, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(str(directory / "control"))
            listener.listen()
            fds = [listener.fileno(), lock.fileno()]
            _spawn(Task(str(directory), str(image.directory), 1.0, listener_fd=fds[0], idle_limit_s=idle_limit_s), fds)
        return _connect(runtime), True


def _connect(runtime: Path) -> Connection:
    stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    stream.connect(str(runtime / "up" / "control"))
    return Connection(stream)
