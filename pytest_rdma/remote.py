"""RemoteHost: the same Host, whose ops run in an agent at the other end of a stream."""

from __future__ import annotations

import contextlib
import itertools
import signal as signals
import threading
import time
from typing import TYPE_CHECKING, Any

from pytest_rdma import bootstrap, endpoint, programs, watchdog, wire
from pytest_rdma.deadline import Deadline
from pytest_rdma.errors import HostLostError, HostUnreachableError, RdmaUsageError, from_plain
from pytest_rdma.host import DEFAULT_TIMEOUT_S, INTERRUPT_GRACE_S, Call, Host
from pytest_rdma.model import HostInfo
from pytest_rdma.routes import ExecTarget as ExecTarget
from pytest_rdma.routes import Route, Target, route_to
from pytest_rdma.streams import Stream
from pytest_rdma.watchdog import Seen

if TYPE_CHECKING:
    pass

CONNECT_TIMEOUT_S = 20.0
BOOTSTRAP_TIMEOUT_S = 60.0
BEAT_INTERVAL_MS = 500
SILENCE_LIMIT_S = 6.0
ORPHAN_S = 10
OVERDUE_GRACE_S = 5.0
CLOSE_GRACE_S = 5.0
READ_SLICE_S = 0.5
WAIT_SLICE_S = 0.5


class RemoteCall(Call):
    """A request on its way. `result` waits for the agent's answer, which keeps the op's deadline itself."""

    def __init__(self, link: Link, number: int, name: str, deadline: Deadline, test: str | None) -> None:
        self.number = number
        self.name = name
        self.test = test
        self.submitted_ns = time.monotonic_ns()
        self.deadline = deadline
        self._link = link
        self._done = threading.Event()
        self._value: Any = None
        self._error: BaseException | None = None

    @property
    def done(self) -> bool:
        return self._done.is_set()

    def result(self) -> Any:
        try:
            while not self._done.wait(WAIT_SLICE_S):
                self._link.check_overdue(self)
        except KeyboardInterrupt:
            with contextlib.suppress(HostLostError):
                self.cancel()
            self._done.wait(INTERRUPT_GRACE_S)
            raise
        if self._error is not None:
            raise self._error
        return self._value

    def cancel(self) -> None:
        if not self.done:
            self._link.send({"t": "cancel", "id": self.number}, Deadline(self._link.grace_s))

    def settle(self, value: Any = None, error: BaseException | None = None) -> None:
        self._value = value
        self._error = error
        self._done.set()


class Link:
    """One agent and the stream to it, from HELLO to its end."""

    def __init__(self, host: RemoteHost, stream: Stream, rest: bytes) -> None:
        self.stream = stream
        self.lost: str | None = None
        self.loss: str | None = None
        self._host = host
        self.grace_s = OVERDUE_GRACE_S * host.timeout_scale
        self._numbers = itertools.count(1)
        self._pending: dict[int, RemoteCall] = {}
        self._running: dict[int, float] = {}
        self._lock = threading.Lock()
        self._frames = wire.FrameReader(host.name)
        self._closing = False
        self._watch: threading.Thread | None = None
        self._said: str | None = None
        self.seen: Seen | None = None
        self._rest = rest
        self._reader = threading.Thread(target=self._read, name=f"frames of {host.name}", daemon=True)
        self._reader.start()

    def submit(self, name: str, args: tuple[Any, ...], timeout_s: float) -> RemoteCall:
        number = next(self._numbers)
        request = {"t": "call", "id": number, "op": name, "args": list(args), "timeout_s": timeout_s}
        frame = wire.encode(request, self._host)
        call = RemoteCall(self, number, name, Deadline(timeout_s), self._host.current_test)
        with self._lock:
            if self.lost is not None:
                raise self._loss(call)
            self._pending[call.number] = call
        self._write(frame, Deadline(timeout_s + self.grace_s))
        return call

    def send(self, message: dict[str, Any], deadline: Deadline) -> None:
        self._write(wire.encode(message, self._host), deadline)

    def check_overdue(self, call: RemoteCall) -> None:
        """Declare the agent lost when an op has outlived its deadline.

        It does not count while another, which was there before and may hold the GIL, is within its own.
        """
        if not self._overdue(call):
            return
        with self._lock:
            before = [other for other in self._pending.values() if other.submitted_ns < call.deadline.at_ns]
        if all(self._overdue(other) for other in before):
            limit = call.deadline.timeout_s
            self.give_up(f"{call.name} outlived its deadline of {limit:g} s by {self.grace_s:g} s{self._doing()}")

    def _overdue(self, call: RemoteCall) -> bool:
        return time.monotonic_ns() > call.deadline.at_ns + self.grace_s * 1e9

    def _doing(self) -> str:
        """Say what the agent's last beat said it was doing."""
        with self._lock:
            names = {number: call.name for number, call in self._pending.items()}
        doing = [f"{names[number]} for {seconds:.1f} s" for number, seconds in self._running.items() if number in names]
        return f"; at its last beat the agent was in {', '.join(doing)}" if doing else ""

    def give_up(self, cause: str) -> None:
        """Have the agent looked at and ended over a second channel, and declare it lost with what was seen."""
        with self._lock:
            if self._watch is not None or self.lost is not None:
                return
            self._watch = threading.Thread(target=self._look, args=(cause,), name="rdma watchdog", daemon=True)
        self._watch.start()

    def _look(self, cause: str) -> None:
        self._said = self.stream.stderr.last_lines()  # before the agent's stack comes there
        try:
            self.seen = self._host.look()
            cause = f"{cause}; {self.seen.headline}"
        finally:
            self.lose(cause)

    def lose(self, cause: str) -> None:
        """Note why there is no agent any more, and let all that wait for it know; the first cause stays.

        While the watchdog looks, it is left to that: what else there is to see now is of its doing.
        """
        watch = self._watch
        if watch is not None and watch.is_alive() and watch is not threading.current_thread():
            return
        with self._lock:
            if self.lost is None:
                test = f" in {self._host.current_test}" if self._host.current_test else ""
                self.lost, self.loss = cause, f"{self._host.name} was lost{test}: {cause}"
            pending, self._pending = list(self._pending.values()), {}
        for call in pending:
            call.settle(error=self._loss(call))
        self.stream.end_input()  # last: it waits for a writer that is stuck

    def close(self, grace_s: float) -> None:
        """End the agent; idempotent."""
        self._closing = True
        if self.lost is not None:
            grace_s = min(grace_s, 1.0)
        if not self.stream.close(grace_s) and self.seen is None:
            self.seen = self._host.look()
        if self._watch is not None:
            self._watch.join(watchdog.LOOK_S * self._host.timeout_scale)
        if self._reader is not threading.current_thread():
            self._reader.join(READ_SLICE_S * 4)
        self.lose("it was closed")
        self.stream.release()

    def _loss(self, call: RemoteCall) -> HostLostError:
        words = self.stream.stderr.last_lines() if self._said is None else self._said
        test = f" in {call.test}" if call.test else ""
        said = f"; the last on its stderr: {words}" if words else ""
        return HostLostError(
            f"{self._host.name} was lost during {call.name}{test}: {self.lost}{said}",
            cause=self.lost,
            stderr=self.stream.stderr.text(),
            seen=self.seen.text if self.seen else "",
        )

    def _write(self, frame: bytes, deadline: Deadline) -> None:
        try:
            self.stream.write(wire.frame(frame), deadline)
        except HostLostError as error:
            # The reader knows better how it ended, and tells all that wait.
            self._reader.join(READ_SLICE_S * 4)
            self.lose(str(error))
        except BaseException:
            self.lose("a request to it was interrupted, and half a frame may have gone out")
            raise

    def _read(self) -> None:
        try:
            self._take(self._rest)
            silent_s = 0.0
            # Silence is what was listened to without hearing: a controller that was stopped itself heard nothing.
            while silent_s < SILENCE_LIMIT_S * self._host.timeout_scale:
                data = self.stream.read(READ_SLICE_S)
                if data == b"":
                    self._end_of_stream()
                    return
                silent_s = 0.0 if data else silent_s + READ_SLICE_S
                self._take(data or b"")
            self.give_up(f"nothing was heard of the agent for {silent_s:g} s{self._doing()}")
        except Exception as error:  # whatever it is, nobody reads any more
            self.lose(f"its stream cannot be read: {error}")

    def _end_of_stream(self) -> None:
        if self._closing:
            self.lose("it was closed")
            return
        ended = self.stream.exit_text(1.0)
        if self.stream.cut:
            self.give_up(f"its stream ended with {ended}")
        else:
            self.lose(f"the agent ended: {ended}")

    def _take(self, data: bytes) -> None:
        for frame in self._frames.feed(data):
            message = wire.decode(frame, self._host)
            if message["t"] == "beat":
                self._running = dict(message["calls"])
                continue
            # What may fail comes before the call is pending no more: a loss is told only to those that are.
            if message["t"] == "result":
                outcome: dict[str, Any] = {"value": message["value"]}
            else:
                outcome = {"error": from_plain(message["error"], self._host.name)}
            with self._lock:
                if self._watch is not None:
                    return  # given up already: who was stopped goes on now, and may answer before it is ended
                call = self._pending.pop(message["id"], None)
            self._host.round_trips += 1
            if call is not None:
                call.settle(**outcome)


HANDLE_MODULES = (endpoint, programs)
"""What defines the handles that an agent may answer with."""


class RemoteHost(Host):
    """A host reached through a stream. `open` brings up its agent; `ensure` makes it anew when it was lost."""

    def __init__(
        self,
        target: Target | None,
        *,
        name: str | None = None,
        python: str | None = None,
        timeout_scale: float = 1.0,
        parent: Host | None = None,
    ) -> None:
        self.target = target
        self.name = name or (target.name if target is not None else "spawned host")
        self.timeout_scale = timeout_scale
        self._python = python
        self._parent = parent
        self.spawned: list[RemoteHost] = parent.spawned if isinstance(parent, RemoteHost) else []
        self._route: Route = parent._route if isinstance(parent, RemoteHost) else route_to(target)
        self._link: Link | None = None
        self._gone: str | None = None
        self._stands: Seen | None = None

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know about the way to the host."""
        return getattr(self.target, "notes", ())

    @property
    def lives(self) -> bool:
        """Whether there is an agent that answers, as far as is known."""
        return self._link is not None and self._link.lost is None

    @property
    def lost(self) -> str | None:
        """Why the agent is no more; None while it lives, or before it was opened."""
        return self._link.lost if self._link is not None else self._gone

    @property
    def loss(self) -> str | None:  # type: ignore[override]
        """Who was lost, in which test and why, in one line; None while it lives, and again once it is back."""
        return self._link.loss if self._link is not None else self._gone

    def open(self) -> None:
        """Bring up the agent; HostUnreachableError says where that failed. A no-op when it is up."""
        if self._link is not None:
            return
        marker = bootstrap.new_marker()
        connect = Deadline(CONNECT_TIMEOUT_S * self.timeout_scale)
        stream = self._route.open(marker, self._python, connect)
        deadline = Deadline(BOOTSTRAP_TIMEOUT_S * self.timeout_scale)
        starting = bootstrap.Bootstrap(stream, self.name, marker, self._python, deadline)
        try:
            starting.run({"timeout_scale": self.timeout_scale, "beat_ms": BEAT_INTERVAL_MS, "orphan_s": ORPHAN_S})
        except BaseException:
            stream.close(0.0)
            stream.release()
            raise
        self.info: HostInfo = starting.info
        self._marker, self._opened_at = marker[0], time.monotonic()
        self._link = Link(self, stream, starting.rest)

    def invoke(self, name: str, *args: Any, timeout_s: float = DEFAULT_TIMEOUT_S) -> Any:
        return self.submit(name, *args, timeout_s=timeout_s).result()

    def submit(self, name: str, *args: Any, timeout_s: float = DEFAULT_TIMEOUT_S) -> RemoteCall:
        if self._link is None:
            raise RdmaUsageError(f"{self.name} is not open: {name} cannot run there")
        return self._link.submit(name, args, timeout_s * self.timeout_scale)

    def ensure(self) -> None:
        """Make the agent anew when it was lost."""
        if self.lost is not None:
            self.restart(self.lost)

    def restart(self, cause: str) -> None:
        """End the agent and bring up another; what hung on the old one is stale, `cause` says why."""
        if self._gone is None:
            test = f" during {self.current_test}" if self.current_test else ""
            self.restart_cause = f"{cause}{test}"
            self._gone = self.loss or f"{self.name} was given up{test}: {cause}"
        self._end(0.0)
        self.generation += 1
        try:
            self._check_nothing_stands()
            self.open()
        except HostUnreachableError as error:
            why = "" if str(error) in self._gone else f": {error}"
            error.args = (f"{self._gone}; it does not come back{why}",)
            raise
        self._gone = None

    def _check_nothing_stands(self) -> None:
        """Refuse a host where an agent is left that nothing ends, or may be left, since it would hold the device."""
        if self._stands is None:
            return
        seen = self.look()
        if seen.stands:
            self._stands = seen
            raise HostUnreachableError(f"agent {seen.pid} still holds its device, {seen.left_in}")
        if not seen.end:
            raise HostUnreachableError(f"agent {seen.pid} held its device, and may yet: {seen.headline}")
        self._stands = None

    def look(self) -> Seen:
        """See over a second channel what the agent does, and end it."""
        age_s, killed = time.monotonic() - self._opened_at, self._stands is not None
        suspect = watchdog.Suspect(self.info.pid, self._marker, self.name, age_s, killed)
        return watchdog.look(self._route.shell, suspect, self.timeout_scale)

    def spawn(self) -> RemoteHost:
        """Return a second agent on the same host; over SSH it shares the connection."""
        host = RemoteHost(
            self.target,
            name=f"{self.name} (spawned)",
            python=self._python,
            timeout_scale=self.timeout_scale,
            parent=self,
        )
        host.open()
        self.spawned.append(host)
        return host

    def kill(self, signal: int = signals.SIGKILL) -> None:
        """Send a signal to the agent of a spawned host, through the host that spawned it."""
        if self._parent is None:
            raise RdmaUsageError(f"{self.name} was not spawned: kill only what spawn() returned")
        self._parent.invoke("process.kill", self.info.pid, int(signal))

    def stderr_tail(self) -> str:
        """Return the last that the agent wrote to its standard error, for a report."""
        return self._link.stream.stderr.text() if self._link is not None else ""

    def close(self) -> None:
        self._end(CLOSE_GRACE_S * self.timeout_scale)
        if self in self.spawned:
            self.spawned.remove(self)
        if not isinstance(self._parent, RemoteHost):
            self._route.close()

    def _end(self, grace_s: float) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.close(grace_s)
            if link.seen is not None and link.seen.stands:
                self._stands = link.seen


def spawn_local(host: Host) -> RemoteHost:
    """Return a second agent on this machine, a child of this process."""
    spawned = RemoteHost(None, name=f"{host.name} (spawned)", timeout_scale=host.timeout_scale, parent=host)
    spawned.open()
    return spawned
