"""Programs and files on a host: run, start, put. Argument vectors only; no shell ever sees them."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pwd
import secrets
import select
import shlex
import shutil
import signal as signals
import stat
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from pytest_rdma.deadline import Deadline
from pytest_rdma.errors import DeadlineError, RdmaEnvironmentError, RdmaUsageError, StoppedError
from pytest_rdma.host import Handle, Host, LocalHost, Resource, op
from pytest_rdma.spawner import in_spawner
from pytest_rdma.wire import plain_data

CHUNK_BYTES = 1 << 20
RUN_OUTPUT_BYTES = 16 << 20
START_OUTPUT_BYTES = 1 << 20
DRAIN_GRACE_S = 0.5
SLICE_S = 0.05
SCRATCH_PREFIX = "pytest-rdma-files-"
STALE_S = 60.0


@plain_data
@dataclass(frozen=True)
class Finished:
    """How a program ended. `returncode` is negative for a signal; `dropped` counts bytes of output not kept."""

    returncode: int
    stdout: bytes
    stderr: bytes
    dropped: int = 0


class Program(Handle):
    """A program that was started on a host."""

    kind = "program"
    pid: int
    argv: list[str]

    @property
    def label(self) -> str:
        return f"program {shlex.join(self.argv)} (pid {self.pid})"

    def wait(self, timeout_s: float = 60.0) -> Finished:
        """Wait for its end; DeadlineError shows its last output."""
        finished: Finished = self._invoke("program.wait", timeout_s=timeout_s)
        return finished

    def poll(self) -> int | None:
        """Return the exit status, None while it runs."""
        status: int | None = self._invoke("program.poll")
        return status

    def read(self) -> tuple[bytes, bytes]:
        """Return what is kept of its standard output and standard error so far."""
        stdout, stderr = self._invoke("program.read")
        return stdout, stderr

    def kill(self, signal: int = signals.SIGKILL) -> None:
        """Send a signal to the program and its process group; nothing when it has ended."""
        self._invoke("program.kill", int(signal))

    def close(self) -> None:
        """Kill it with its process group, and reap it; idempotent."""
        self._invoke_close("program.close")


def run(
    host: Host,
    argv: Sequence[str],
    *,
    input: bytes = b"",
    timeout_s: float = 60.0,
    env: dict[str, str] | None = None,
    cwd: str | None = None,
    user: str | None = None,
) -> Finished:
    """Run a program to its end; at the deadline it is killed with its process group.

    `env` adds to the agent's environment; `user` is whom it runs as, for an agent that is root. Output over 16 MiB is
    an error.
    """
    if not isinstance(input, (bytes, bytearray, memoryview)):
        raise RdmaUsageError(f"the input of `{shlex.join(_words(argv))}` must be bytes, not {type(input).__name__}")
    finished: Finished = host.invoke("program.run", _words(argv), input, env, cwd, user, timeout_s=timeout_s)
    return finished


def start(host: Host, argv: Sequence[str], *, env: dict[str, str] | None = None, cwd: str | None = None) -> Program:
    """Start a program; the last 1 MiB of each of its outputs is kept. It ends with the agent at the latest."""
    program: Program = host.invoke("program.start", _words(argv), env, cwd)
    return program


def _words(argv: Sequence[str]) -> list[str]:
    """Return the command line as a list; a string would be taken apart into letters."""
    if isinstance(argv, (str, bytes)) or not all(isinstance(word, str) for word in argv):
        raise RdmaUsageError(f"{argv!r} is not a command line: give a list of strings, such as ['ls', '-l']")
    return list(argv)


def put(host: Host, path: str | os.PathLike[str], *, executable: bool | None = None) -> str:
    """Copy a file or a directory tree into the host's private temporary directory; return its path there.

    Each copy has a directory of its own, which goes when the host is closed. `executable` sets or clears the bits
    that the file itself has.
    """
    source = Path(path)
    folder = secrets.token_hex(4)
    if not source.exists():
        raise RdmaUsageError(f"cannot put {source} on {host.name}: no such file or directory")
    there: str = host.invoke("file.directory", f"{folder}/{source.name}" if source.is_dir() else folder)
    if not source.is_dir():
        return _put_file(host, source, f"{folder}/{source.name}", executable)
    for entry in sorted(source.rglob("*")):
        relative = f"{folder}/{source.name}/{entry.relative_to(source)}"
        if entry.is_dir():
            host.invoke("file.directory", relative)
        else:
            _put_file(host, entry, relative, executable)
    return there


def _put_file(host: Host, source: Path, relative: str, executable: bool | None) -> str:
    if not source.is_file() or not os.access(source, os.R_OK):
        raise RdmaUsageError(f"cannot put {source} on {host.name}: it is no file that can be read here")
    there = ""
    offset = 0
    with open(source, "rb") as file:
        mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o777
        if executable is not None:
            mode = mode | 0o111 if executable else mode & ~0o111
        for chunk in _chunks(file.read, CHUNK_BYTES):
            there = host.invoke("file.write", relative, offset, chunk, mode, timeout_s=30.0)
            offset += len(chunk)
    return there


def _chunks(read: Any, size: int) -> Iterator[bytes]:
    """Yield pieces, one also of an empty file."""
    chunk = read(size)
    yield chunk
    while len(chunk) == size:
        chunk = read(size)
        if chunk:
            yield chunk


# -- on the host


@cache
def _die_with_us() -> tuple[str, ...]:
    """Return the words before a command line that let the program die with this process, none where that cannot be.

    A preexec_fn could do it too, but Python then forks instead of vforks, which unsettles registered memory on old
    kernels. Without it programs still end in every orderly end of the agent.
    """
    setpriv = shutil.which("setpriv")
    words = (setpriv or "", "--pdeathsig", "KILL", "--")
    if setpriv is None or subprocess.run([*words, "true"], capture_output=True, check=False).returncode != 0:
        return ()
    return words


class Output:
    """Drains one pipe in a thread and keeps its last bytes."""

    def __init__(self, pipe: Any, limit: int) -> None:
        self.data = bytearray()
        self.dropped = 0
        self._pipe = pipe
        self._limit = limit
        self._given_up = False
        self._thread = threading.Thread(target=self._drain, name="rdma output", daemon=True)
        self._thread.start()

    def finish(self, grace_s: float) -> None:
        """Wait for the end of the pipe, or give up: a daemon may hold it open."""
        self._thread.join(grace_s)
        self._given_up = True

    def close(self) -> None:
        self._given_up = True
        self._thread.join(DRAIN_GRACE_S * 2)
        self._pipe.close()

    def _drain(self) -> None:
        poller = select.poll()
        poller.register(self._pipe.fileno(), select.POLLIN)
        while not self._given_up:
            if not poller.poll(DRAIN_GRACE_S * 1000):
                continue
            try:
                data = os.read(self._pipe.fileno(), CHUNK_BYTES)
            except OSError:  # closed under us, when the end took too long
                return
            if not data:
                return
            self.data += data
            excess = max(0, len(self.data) - self._limit)
            self.dropped += excess
            del self.data[:excess]


class Running(Resource):
    """A program with its drained outputs. Its process is not reaped before its group was killed: the number is ours."""

    close_rank: ClassVar[int] = 0

    def __init__(
        self,
        host: LocalHost,
        argv: list[str],
        env: dict[str, str] | None,
        cwd: str | None,
        user: str | None = None,
        input: bytes | None = None,
        limit: int = START_OUTPUT_BYTES,
    ) -> None:
        self.argv = argv
        self.where = host.name
        self.status: int | None = None
        self.ended = threading.Event()
        self._closed = False
        self._process = self._start(env, cwd, user, input is not None)
        self.pid = self._process.pid
        self.stdout = Output(self._process.stdout, limit)
        self.stderr = Output(self._process.stderr, limit)
        threading.Thread(target=self._await, name="rdma program", daemon=True).start()
        if input is not None:
            threading.Thread(target=self._feed, args=(input,), name="rdma input", daemon=True).start()

    def _start(
        self, env: dict[str, str] | None, cwd: str | None, user: str | None, has_input: bool
    ) -> subprocess.Popen[bytes]:
        attempt = f"cannot run `{shlex.join(self.argv)}` on {self.where}"
        if not self.argv:
            raise RdmaUsageError(f"cannot run an empty command line on {self.where}")
        environment, identity = _identity(user, attempt)
        environment.update(env or {})
        program = self.argv[0]
        if cwd is not None and "/" in program:
            program = str(Path(cwd, program))
        found = shutil.which(program, path=environment.get("PATH"))
        if found is None:
            raise RdmaEnvironmentError(f"{attempt}: no such program there")
        words = [*_die_with_us(), str(Path(found).absolute()), *self.argv[1:]]
        options: dict[str, Any] = {
            "stdin": subprocess.PIPE if has_input else subprocess.DEVNULL,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            "bufsize": 0,
            "env": environment,
            "cwd": cwd,
            "start_new_session": True,
            **identity,
        }
        try:
            return in_spawner(lambda: subprocess.Popen[bytes](words, **options))
        except (OSError, ValueError) as error:
            raise RdmaEnvironmentError(f"{attempt}: {error}") from None

    def _await(self) -> None:
        with contextlib.suppress(ChildProcessError):
            result = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
            assert result is not None
            self.status = result.si_status if result.si_code == os.CLD_EXITED else -result.si_status
        self.ended.set()

    def _feed(self, data: bytes) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError), self._process.stdin as stdin:
            rest = memoryview(data)
            while rest:
                rest = rest[stdin.write(rest) :]

    def kill(self, signal: int) -> None:
        if not self._closed:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal)

    def wait(self, deadline: Deadline) -> None:
        """Wait for the end within the deadline; a stop ends the wait, not the program."""
        while not self.ended.wait(min(SLICE_S, deadline.remaining_s)):
            try:
                deadline.check("end of the program")
            except (DeadlineError, StoppedError) as error:
                text = bytes(self.stderr.data or self.stdout.data).decode(errors="replace")
                last = " | ".join(line for line in text.split("\n")[-4:] if line.strip())
                said = f"its last output: {last}" if last else "it has written nothing"
                text = f"`{shlex.join(self.argv)}` on {self.where} (pid {self.pid}) has not ended: {error}; {said}"
                raise type(error)(text) from None

    def finished(self) -> Finished:
        """Return what came of it; only after its end."""
        last = Deadline(DRAIN_GRACE_S)
        for output in (self.stdout, self.stderr):
            output.finish(last.remaining_s)
        assert self.status is not None
        dropped = self.stdout.dropped + self.stderr.dropped
        return Finished(self.status, bytes(self.stdout.data), bytes(self.stderr.data), dropped)

    def close(self) -> None:
        if self._closed:
            return
        self.kill(signals.SIGKILL)
        self._closed = True
        self._process.wait(10.0)
        self.stdout.close()
        self.stderr.close()


def _identity(user: str | None, attempt: str) -> tuple[dict[str, str], dict[str, Any]]:
    """Return the environment and the options of Popen for running as `user`."""
    environment = dict(os.environ)
    if user is None:
        return environment, {}
    try:
        entry = pwd.getpwnam(user)
    except KeyError:
        raise RdmaUsageError(f"{attempt}: there is no user {user!r} there") from None
    environment.update(HOME=entry.pw_dir, USER=user, LOGNAME=user)
    groups = os.getgrouplist(user, entry.pw_gid)
    return environment, {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": groups}


@op("program.run")
def _run(
    host: LocalHost,
    deadline: Deadline,
    argv: list[str],
    input: bytes,
    env: dict[str, str] | None,
    cwd: str | None,
    user: str | None,
) -> Finished:
    running = Running(host, argv, env, cwd, user, input, RUN_OUTPUT_BYTES)
    try:
        running.wait(deadline)
        running.kill(signals.SIGKILL)
        finished = running.finished()
    finally:
        running.close()
    if finished.dropped:
        raise RdmaUsageError(
            f"`{shlex.join(argv)}` on {host.name} wrote {finished.dropped} bytes over the limit of {RUN_OUTPUT_BYTES}: "
            "let it write into a file, or use start()"
        )
    return finished


@op("program.start")
def _start(host: LocalHost, deadline: Deadline, argv: list[str], env: dict[str, str] | None, cwd: str | None) -> Any:
    running = Running(host, argv, env, cwd)
    return host.add(running, Program, {"pid": running.pid, "argv": argv})


@op("program.wait")
def _wait(host: LocalHost, deadline: Deadline, handle: int) -> Finished:
    running: Running = host.entry("program", handle)
    running.wait(deadline)
    return running.finished()


@op("program.poll")
def _poll(host: LocalHost, deadline: Deadline, handle: int) -> int | None:
    running: Running = host.entry("program", handle)
    return running.status


@op("program.read")
def _read(host: LocalHost, deadline: Deadline, handle: int) -> tuple[bytes, bytes]:
    running: Running = host.entry("program", handle)
    return bytes(running.stdout.data), bytes(running.stderr.data)


@op("program.kill")
def _kill(host: LocalHost, deadline: Deadline, handle: int, signal: int) -> None:
    host.entry("program", handle).kill(signal)


@op("program.close")
def _close(host: LocalHost, deadline: Deadline, handle: int) -> None:
    host.discard(handle)


@op("process.kill")
def _kill_process(host: LocalHost, deadline: Deadline, pid: int, signal: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal)


class ScratchFront(Handle):
    kind = "scratch"


class Scratch(Resource):
    """The private temporary directory of a host, held by a lock so that another run can tell it from a left one."""

    close_rank: ClassVar[int] = 90

    def __init__(self) -> None:
        _sweep()
        self.path = Path(tempfile.mkdtemp(prefix=SCRATCH_PREFIX))
        self._lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def place(self, relative: str) -> Path:
        place = Path(os.path.normpath(self.path / relative))
        if self.path not in place.parents:
            raise RdmaUsageError(f"{relative!r} leads out of the host's temporary directory")
        return place

    def close(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        with contextlib.suppress(OSError):
            os.close(self._lock)


def _sweep() -> None:
    """Remove what agents left that were killed: old directories of ours that nobody has locked."""
    for path in Path(tempfile.gettempdir()).glob(f"{SCRATCH_PREFIX}*"):
        with contextlib.suppress(OSError):
            state = path.lstat()
            if not stat.S_ISDIR(state.st_mode) or state.st_uid != os.getuid() or time.time() - state.st_mtime < STALE_S:
                continue
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(lock)


def _scratch(host: LocalHost) -> Scratch:
    with host.lock:
        found: list[Scratch] = host.entries("scratch")
        if not found:
            found = [Scratch()]
            host.add(found[0], ScratchFront, {})
    return found[0]


@op("file.directory")
def _directory(host: LocalHost, deadline: Deadline, relative: str) -> str:
    place = _scratch(host).place(relative)
    place.mkdir(parents=True, exist_ok=True)
    return str(place)


@op("file.write")
def _write(host: LocalHost, deadline: Deadline, relative: str, offset: int, data: bytes, mode: int) -> str:
    place = _scratch(host).place(relative)
    try:
        if offset:  # the file's own mode, which it has by now, may forbid to write
            place.chmod(stat.S_IRUSR | stat.S_IWUSR)
        with open(place, "r+b" if offset else "wb") as file:
            file.seek(offset)
            file.write(data)
            os.fchmod(file.fileno(), mode)
    except OSError as error:
        raise RdmaEnvironmentError(f"cannot write {place} on {host.name}: {error.strerror}") from None
    return str(place)
