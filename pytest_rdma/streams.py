"""Byte streams to a process that runs elsewhere: by a command of this machine here, by SSH in `ssh`."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence

from pytest_rdma.deadline import Deadline
from pytest_rdma.errors import HostLostError, HostUnreachableError

CHUNK_BYTES = 65536
TAIL_BYTES = 65536
DRAIN_S = 1.0
SSH_FAILED = 255
"""What ssh, and the like, end with when they lost the far side; also when a signal ended the process there."""


def one_line(text: str, count: int | None = None) -> str:
    """Return the lines that hold anything, the last `count` of them, as one that does no harm to a terminal."""
    printable = ("".join(c if c.isprintable() else " " for c in line).strip() for line in text.splitlines())
    held = [line for line in printable if line]
    return " | ".join(held if count is None else held[-count:])


class Tail:
    """The last bytes of an output, kept for reports."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._lock = threading.Lock()

    def add(self, data: bytes) -> None:
        with self._lock:
            self._data += data
            del self._data[:-TAIL_BYTES]

    def text(self) -> str:
        with self._lock:
            return self._data.decode(errors="replace")

    def last_lines(self, count: int = 3) -> str:
        """Return the last lines that hold anything, joined to one."""
        return one_line(self.text(), count)


class Stream(ABC):
    """Standard input and output of a process elsewhere. One thread reads, any may write; stderr is drained and kept.

    `description` is what messages call the way there.
    """

    description: str

    def __init__(self) -> None:
        self.stderr = Tail()

    @abstractmethod
    def read(self, timeout_s: float) -> bytes | None:
        """Return what came; None when nothing came in time; b"" when the process has ended or hung up."""

    @abstractmethod
    def write(self, data: bytes, deadline: Deadline) -> None:
        """Write all; HostLostError when the far side has gone or takes nothing before the deadline."""

    @abstractmethod
    def end_input(self) -> None:
        """Close the process's standard input, which asks an agent to end."""

    @abstractmethod
    def close(self, grace_s: float) -> bool:
        """Close the input, wait `grace_s` for the process to end, then cut it off; idempotent.

        True when the process there is known to have ended.
        """

    @abstractmethod
    def release(self) -> None:
        """Give back what the reader needed; only after `close`, when nothing reads any more."""

    @property
    @abstractmethod
    def cut(self) -> bool:
        """Whether the stream ended without word of the process at its other end, which may be there still."""

    @abstractmethod
    def exit_text(self, timeout_s: float) -> str:
        """Say how the process ended, as far as that comes to be known in time."""


class ProcessStream(Stream):
    """A child process in a session of its own: Ctrl-C does not reach it, and it cannot ask for a password."""

    def __init__(self, argv: Sequence[str], description: str) -> None:
        super().__init__()
        self.description = description
        self._write_lock = threading.Lock()
        self._ending = False
        try:
            self._process = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,
            )
        except OSError as error:
            raise HostUnreachableError(f"cannot run `{description}`: {error.strerror}: {error.filename}") from None
        assert self._process.stdin and self._process.stdout and self._process.stderr
        self._stdin, self._stdout, self._stderr = self._process.stdin, self._process.stdout, self._process.stderr
        os.set_blocking(self._stdin.fileno(), False)
        self._drain = threading.Thread(target=self._drain_stderr, name=f"stderr of {description}", daemon=True)
        self._drain.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def read(self, timeout_s: float) -> bytes | None:
        if _readable(self._stdout.fileno(), timeout_s):
            return os.read(self._stdout.fileno(), CHUNK_BYTES)
        # A daemon that the process left behind may hold its standard output open for ever.
        return b"" if self._process.poll() is not None and not _readable(self._stdout.fileno(), 0) else None

    def write(self, data: bytes, deadline: Deadline) -> None:
        rest = memoryview(data)
        with self._write_lock:
            while rest:
                if self._stdin.closed:
                    raise HostLostError("the stream is closed")
                try:
                    rest = rest[os.write(self._stdin.fileno(), rest) :]
                except BlockingIOError:
                    if self._ending:
                        raise HostLostError("the stream is closed") from None
                    if deadline.passed:
                        raise HostLostError(f"the far side took no input for {deadline.timeout_s:g} s") from None
                    poller = select.poll()
                    poller.register(self._stdin.fileno(), select.POLLOUT)
                    poller.poll(min(deadline.remaining_s, 0.5) * 1000)
                except OSError as error:
                    raise HostLostError(f"the stream ended: {error.strerror}") from None

    def end_input(self) -> None:
        self._ending = True  # ahead of the lock: a writer that is stuck holds it
        with self._write_lock, contextlib.suppress(OSError):
            self._stdin.close()

    def close(self, grace_s: float) -> bool:
        self.end_input()
        try:
            self._process.wait(grace_s)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(10.0)
            return False
        return not self.cut

    @property
    def cut(self) -> bool:
        return self._process.returncode in (None, SSH_FAILED)

    def release(self) -> None:
        self._drain.join(DRAIN_S)
        self._stdout.close()
        if not self._drain.is_alive():
            self._stderr.close()

    def exit_text(self, timeout_s: float) -> str:
        try:
            status = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return "its process has not ended"
        self._drain.join(DRAIN_S)  # its last words belong into the report
        return status_text(status)

    def _drain_stderr(self) -> None:
        """Read on until the end, or, where a daemon holds the other end, until the process is gone and all is read."""
        fd = self._stderr.fileno()
        while True:
            if _readable(fd, 0.5):
                data = os.read(fd, CHUNK_BYTES)
                if not data:
                    return
                self.stderr.add(data)
            elif self._process.returncode is not None:
                return


def status_text(status: int) -> str:
    """Return `exit status 3`, or the signal where the status is negative."""
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"killed by signal {-status}"


def read_until(stream: Stream, buffer: bytearray, wanted: bytes, deadline: Deadline) -> int:
    """Read into `buffer` until `wanted` is in it, and return where; -1 when the stream ends or time is up before.

    Of what comes before, the last `TAIL_BYTES` are kept: a stream may go on for ever without it.
    """
    fresh = len(buffer)
    while True:
        found = buffer.find(wanted, max(0, len(buffer) - fresh - len(wanted)))
        if found >= 0:
            return found
        del buffer[:-TAIL_BYTES]
        if deadline.passed:
            return -1
        data = stream.read(min(0.5, deadline.remaining_s))
        if data == b"":
            return -1
        fresh = len(data or b"")
        buffer += data or b""


def _readable(fd: int, timeout_s: float) -> bool:
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    return bool(poller.poll(timeout_s * 1000))
