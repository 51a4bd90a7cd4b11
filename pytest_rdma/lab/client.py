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
from pathlib import Path
from typing import IO, Any

import pytest_rdma
from pytest_rdma.errors import RdmaEnvironmentError
from pytest_rdma.lab.files import lock_within
from pytest_rdma.lab.image import Image, Note
from pytest_rdma.lab.supervisor import Task, argument

ANSWER_S = 200.0
DOWN_S = 20.0
START_LOCK_S = 60.0
# A socket of a lab adds its name and that of its directory, and the kernel allows 107 bytes.
LONGEST_DIRECTORY = 107 - len("/lab-12345678/fabric1")
UP = "up"
PRIVATE = "lab-"


def runtime_directory() -> Path:
    """Return the directory of this user's labs: private, short enough for the paths of sockets, gone after a reboot."""
    base = os.environ.get("XDG_RUNTIME_DIR", "")
    if not os.access(base, os.W_OK):
        base = tempfile.gettempdir()
    directory = Path(base) / f"pytest-rdma-{os.getuid()}"
    if len(str(directory)) > LONGEST_DIRECTORY:
        raise RdmaEnvironmentError(f"{directory} is too long for the paths of sockets: set XDG_RUNTIME_DIR or TMPDIR")
    with contextlib.suppress(FileExistsError):
        directory.mkdir(mode=0o700)
    status = directory.lstat()
    if not directory.is_dir() or directory.is_symlink() or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise RdmaEnvironmentError(f"{directory} is not a directory of this user with mode 0700: remove it")
    return directory


class Connection:
    """A client's end of a stream to a supervisor."""

    def __init__(self, stream: socket.socket, directory: Path) -> None:
        self._stream = stream
        self._log = directory / "supervisor.log"
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

    def _end(self) -> str:
        """Return why a supervisor that said nothing ended."""
        try:
            lines = self._log.read_text(errors="replace").split("\n")
        except OSError:
            return "the lab was taken down while it booted"
        said = next((line for line in reversed(lines) if line.strip()), "nothing: it was killed")
        return f"the lab's supervisor ended while the lab booted; its last word is {said}"

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
                raise RdmaEnvironmentError(self._end())
            self._buffer += data
        line, self._buffer = self._buffer.split(b"\n", 1)
        message: dict[str, Any] = json.loads(line)
        return message


def start_private(image: Image, timeout_scale: float) -> tuple[Connection, subprocess.Popen[bytes]]:
    """Start a lab that lives as long as the connection, hence at most as long as this process."""
    with _starting() as runtime:
        _sweep(runtime)
        directory = Path(tempfile.mkdtemp(prefix=PRIVATE, dir=runtime))
        lock = _try_lock(directory / "lock")
    assert lock is not None
    ours, theirs = socket.socketpair()
    with lock, theirs:
        task = Task(str(directory), str(image.directory), lock.fileno(), timeout_scale, owner_fd=theirs.fileno())
        process = _spawn(task, [lock.fileno(), theirs.fileno()])
    return Connection(ours, directory), process


def _sweep(runtime: Path) -> None:
    """Remove what private labs whose supervisor was killed have left."""
    for directory in runtime.glob(f"{PRIVATE}*"):
        lock = _try_lock(directory / "lock")
        if lock is not None:
            shutil.rmtree(directory, ignore_errors=True)
            lock.close()


def _try_lock(path: Path) -> IO[str] | None:
    """Return the lock, or None when a supervisor holds it; it does so for as long as it lives."""
    lock = path.open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        return None
    return lock


@contextmanager
def _starting() -> Iterator[Path]:
    """Hold the right to look at, start or clean this user's labs."""
    runtime = runtime_directory()
    with open(runtime / "start.lock", "a+") as lock:
        lock_within(lock, START_LOCK_S, "another start of a lab")
        yield runtime


def _spawn(task: Task, fds: list[int]) -> subprocess.Popen[bytes]:
    root = str(Path(pytest_rdma.__file__).parents[1])
    path = os.pathsep.join(part for part in (root, os.environ.get("PYTHONPATH", "")) if part)
    with open(Path(task.directory) / "supervisor.log", "wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "pytest_rdma.lab.supervisor", argument(task)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=fds,
            cwd="/",
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,
        )


# The lab that is up: at most one for a user.


def connect_up() -> Connection | None:
    """Return a connection to the lab that is up, or None when there is none; what a killed one left is removed."""
    with _starting() as runtime:
        lock = _take_up(runtime)
        if lock is not None:
            lock.close()
            return None
        return _connect(runtime)


def start_up(image: Image, idle_limit_s: float) -> tuple[Connection, bool]:
    """Return a connection to the lab that is up and whether this call has started it."""
    with _starting() as runtime:
        lock = _take_up(runtime)
        if lock is None:
            return _connect(runtime), False
        directory = runtime / UP
        directory.mkdir(mode=0o700)
        with lock, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(str(directory / "control"))
            listener.listen()
            fds = [listener.fileno(), lock.fileno()]
            task = Task(str(directory), str(image.directory), fds[1], listener_fd=fds[0], idle_limit_s=idle_limit_s)
            _spawn(task, fds)
        return _connect(runtime), True


def _take_up(runtime: Path) -> IO[str] | None:
    """Return the lock of the lab that is up, what is left of an old one removed, or None when a supervisor holds it."""
    lock = _try_lock(runtime / "up.lock")
    if lock is not None:
        shutil.rmtree(runtime / UP, ignore_errors=True)
    return lock


def _connect(runtime: Path) -> Connection:
    stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        stream.connect(str(runtime / UP / "control"))
    except OSError:
        stream.close()
        raise RdmaEnvironmentError("the lab that was up is just going down: try again") from None
    return Connection(stream, runtime / UP)
