"""The Host interface, its handles, and LocalHost: the one that holds verbs objects, in this process.

Everything a host can do is an *op*: a function `op(host, deadline, *args)` in the table `OPS`. LocalHost runs ops here;
RemoteHost sends their names and arguments to an agent, which runs them on a LocalHost of its own.
"""

from __future__ import annotations

import atexit
import ctypes
import importlib
import os
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Callable, ClassVar, TypeVar

from pytest_rdma.deadline import Deadline, StopFlag
from pytest_rdma.errors import DeadlineError, RdmaUsageError, RefusedError, StaleHandleError
from pytest_rdma.model import Access, DeviceInfo, EndpointCaps, HostInfo

if TYPE_CHECKING:
    from pytest_rdma.endpoint import CQ, PD, SRQ, Buffer, Endpoint

Op = Callable[..., Any]
OpT = TypeVar("OpT", bound=Op)

OPS: dict[str, Op] = {}
OP_MODULES = {
    "call": ("shipping",),
    "cm": ("verbs_cm",),
    "cq": ("verbs_cq", "verbs_post"),
    "device": ("verbs_device", "verbs_health"),
    "evidence": ("verbs_evidence", "pinging"),
    "file": ("programs",),
    "gates": ("verbs_gates",),
    "host": ("verbs_device", "device_lock"),
    "mr": ("verbs_memory",),
    "mw": ("verbs_mw",),
    "pd": ("verbs_memory",),
    "process": ("programs",),
    "program": ("programs",),
    "qp": ("verbs_create", "verbs_queue", "verbs_post"),
    "server": ("servers",),
    "srq": ("verbs_srq",),
    "traffic": ("verbs_traffic",),
}
"""Where ops are, by the first word of their names; loaded when first used, since an emulated host compiles slowly."""

DEFAULT_TIMEOUT_S = 10.0
INTERRUPT_GRACE_S = 1.0
"""How long Ctrl-C waits for an op that it cancels, since what the op uses is closed next."""


def op(name: str) -> Callable[[OpT], OpT]:
    """Register the function in `OPS` under `name`."""

    def register(function: OpT) -> OpT:
        OPS[name] = function
        return function

    return register


def find_op(name: str) -> Op | None:
    """Return the op of that name, after loading the modules where it may be."""
    if name not in OPS:
        for module in OP_MODULES.get(name.partition(".")[0], ()):
            importlib.import_module(f"pytest_rdma.{module}")
    return OPS.get(name)


class Call(ABC):
    """An op that was started and has not been waited for."""

    @abstractmethod
    def result(self) -> Any:
        """Wait within the op's own deadline and return what it returned, or raise what it raised."""

    @abstractmethod
    def cancel(self) -> None:
        """Ask the op to end; `result()` then raises StoppedError if it was still waiting."""


class Handle:
    """The front of an object that lives in a host's table: identity and facts that never change, nothing else.

    `facts` are plain data or other handles; each is an attribute too. They travel with the handle.
    """

    kind: ClassVar[str] = ""
    KINDS: ClassVar[dict[str, type[Handle]]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        Handle.KINDS[cls.kind] = cls

    def __init__(self, host: Host, handle: int, facts: dict[str, Any]) -> None:
        self.host = host
        self.handle = handle
        self.generation = host.generation
        self.facts = facts
        self.closed = False
        self.__dict__.update(facts)

    def describe(self) -> dict[str, Any]:
        return {"kind": self.kind, "handle": self.handle, "generation": self.generation, "facts": self.facts}

    @staticmethod
    def from_description(host: Host, description: dict[str, Any]) -> Handle:
        """Return a front object bound to `host` and its present generation."""
        return Handle.KINDS[description["kind"]](host, description["handle"], description["facts"])

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.label} on {self.host.name}>"

    @property
    def label(self) -> str:
        """What messages call the object."""
        return f"{self.kind} {self.handle}"

    def check_usable(self) -> None:
        if self.closed:
            raise RdmaUsageError(f"{self.label} on {self.host.name} is closed")
        if self.generation != self.host.generation:
            cause = self.host.restart_cause or "its agent was restarted"
            raise StaleHandleError(f"{self.label} on {self.host.name} is gone: {cause}")

    def _invoke(self, name: str, *args: Any, timeout_s: float = DEFAULT_TIMEOUT_S) -> Any:
        self.check_usable()
        return self.host.invoke(name, self.handle, *args, timeout_s=timeout_s)

    def _invoke_close(self, name: str) -> None:
        """Close once; what went with an agent that is no more counts as closed."""
        if self.closed:
            return
        self.mark_closed()
        if self.generation == self.host.generation:
            try:
                self.host.invoke(name, self.handle)
            except RefusedError:
                self.closed = False
                raise

    def mark_closed(self) -> None:
        self.closed = True


class Host(ABC):
    """A machine with an RDMA device, as a test sees it. All but the abstract methods is written in terms of ops."""

    name: str
    info: HostInfo
    generation: int = 0
    timeout_scale: float = 1.0
    round_trips: int = 0
    current_test: str | None = None
    restart_cause: str | None = None
    loss: str | None = None

    @abstractmethod
    def invoke(self, name: str, *args: Any, timeout_s: float = DEFAULT_TIMEOUT_S) -> Any:
        """Run one op and wait for it; `timeout_s` is scaled by `timeout_scale` here."""

    @abstractmethod
    def submit(self, name: str, *args: Any, timeout_s: float = DEFAULT_TIMEOUT_S) -> Call:
        """Start one op."""

    @abstractmethod
    def open(self) -> None:
        """Make the host answer: start its agent where there is one."""

    @abstractmethod
    def ensure(self) -> None:
        """Make the host answer again when it was lost."""

    @abstractmethod
    def restart(self, cause: str) -> None:
        """Give up all objects and begin anew; what hung on the old ones is stale, `cause` says why."""

    @abstractmethod
    def spawn(self) -> Host:
        """Return a second host on the same machine, in a process of its own that a test may kill."""

    @abstractmethod
    def close(self) -> None:
        """Destroy all objects of this host in verbs order; idempotent."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"

    def raw(self, kind: str, handle: int) -> Any:
        """Return the pyverbs objects behind a handle; only where they live in this process."""
        raise RdmaUsageError(
            f"the pyverbs objects of {kind} {handle} live in an agent on {self.name}: "
            'work on them there with host.call("module:function", endpoint)'
        )

    def devices(self) -> tuple[DeviceInfo, ...]:
        """Return the RDMA devices of the host that open; NoDeviceError says why there is none."""
        return tuple(self.invoke("device.list", timeout_s=30.0))

    def device(self, name: str) -> DeviceInfo:
        """Return one device, asked anew; RdmaUsageError lists the devices there are."""
        found: DeviceInfo = self.invoke("device.info", name, timeout_s=30.0)
        return found

    def lock_device(self, device: str, run_id: str, timeout_s: float = 0.0) -> None:
        """Take the device for this run until the host is closed; DeviceBusyError names who holds it."""
        self.invoke("host.lock", device, run_id, timeout_s * self.timeout_scale, timeout_s=timeout_s + 10.0)

    def pd(self, device: str) -> PD:
        """Return a new protection domain on the device."""
        made: PD = self.invoke("pd.create", device)
        return made

    def cq(self, device: str, depth: int = 256, *, events: bool = False) -> CQ:
        """Return a new completion queue; with `events` it has a completion channel."""
        made: CQ = self.invoke("cq.create", device, depth, events)
        return made

    def srq(self, pd: PD, depth: int = 128, sges: int = 1) -> SRQ:
        """Return a new shared receive queue for QPs of `pd`."""
        made: SRQ = self.invoke("srq.create", pd.handle, depth, sges)
        return made

    def mr(self, pd: PD, length: int, access: Access = EndpointCaps.access) -> Buffer:
        """Return new zeroed page-aligned memory of `length` bytes, registered in `pd`."""
        made: Buffer = self.invoke("mr.create", pd.handle, length, int(access))
        return made

    def endpoint(
        self,
        device: str,
        port: int = 1,
        gid_index: int | None = None,
        caps: EndpointCaps | None = None,
        *,
        pkey_index: int = 0,
        pd: PD | None = None,
        cq: CQ | None = None,
        srq: SRQ | None = None,
    ) -> Endpoint:
        """Return a new QP in INIT with its own buffer; PD and CQ are its own unless given; an SRQ brings its PD."""
        own = tuple(given.handle if given else None for given in (pd, cq, srq))
        made: Endpoint = self.invoke("qp.create", device, port, gid_index, caps or EndpointCaps(), pkey_index, *own)
        return made

    def run(self, argv: list[str], **options: Any) -> Any:
        """Run a program and wait for it; options and result as `programs.run` says."""
        return importlib.import_module("pytest_rdma.programs").run(self, argv, **options)

    def start(self, argv: list[str], **options: Any) -> Any:
        """Start a program; options and result as `programs.start` says."""
        return importlib.import_module("pytest_rdma.programs").start(self, argv, **options)

    def put(self, path: str | os.PathLike[str], **options: Any) -> str:
        """Copy a local file or directory to the host; returns its path there."""
        there: str = importlib.import_module("pytest_rdma.programs").put(self, path, **options)
        return there

    def call(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        """Run a function of the caller's own source on the host, as `shipping.call` says."""
        return importlib.import_module("pytest_rdma.shipping").call(self, function, *args, **kwargs)

    def submit_call(self, function: Any, *args: Any, **kwargs: Any) -> Call:
        """Start what `call` runs."""
        started: Call = importlib.import_module("pytest_rdma.shipping").submit_call(self, function, *args, **kwargs)
        return started


class Resource:
    """What LocalHost keeps beside a front object. `close_rank` orders destruction: lower ranks first."""

    close_rank: ClassVar[int] = 0
    front: Handle

    def close(self) -> None:
        """Destroy; idempotent; raises the first error after all has been tried."""


class InUse:
    """Counts the native calls that work on an object, so that none is destroyed under one: `with in_use: ...`."""

    LONGEST_CALL_S = 5.0

    def __init__(self, label: str) -> None:
        self._label = label
        self._condition = threading.Condition()
        self._users = 0
        self._ended = False
        self._stops: list[StopFlag] = []

    @contextmanager
    def until(self, stop: StopFlag) -> Iterator[None]:
        """Work on the object for as long as it takes; its end sets `stop`."""
        with self:
            with self._condition:
                self._stops.append(stop)
                if self._ended:
                    stop.set()
            try:
                yield
            finally:
                with self._condition:
                    self._stops.remove(stop)

    def __enter__(self) -> None:
        with self._condition:
            if self._ended:
                raise RdmaUsageError(f"{self._label} was closed meanwhile")
            self._users += 1

    def __exit__(self, *_: object) -> None:
        with self._condition:
            self._users -= 1
            self._condition.notify_all()

    def end(self) -> None:
        """Let no one in any more and wait for those that are: their waits are short, or heed the flag of `until`."""
        with self._condition:
            self._ended = True
            for stop in self._stops:
                stop.set()
            if not self._condition.wait_for(lambda: not self._users, self.LONGEST_CALL_S):
                raise DeadlineError(f"{self._label} is still in use {self.LONGEST_CALL_S:g} s after it was closed")


class LocalCall(Call):
    """An op in a thread of this process."""

    GRACE_S = 5.0

    def __init__(self, host: LocalHost, name: str, args: tuple[Any, ...], deadline: Deadline) -> None:
        self._name = name
        self._deadline = deadline
        self._result: Any = None
        self._error: BaseException | None = None
        self._done = threading.Event()  # a join that Ctrl-C interrupts says ever after that the thread has ended
        threading.Thread(target=self._run, args=(host, args), name=f"rdma {name}", daemon=True).start()

    def _run(self, host: LocalHost, args: tuple[Any, ...]) -> None:
        try:
            self._result = host.run_op(self._name, self._deadline, args)
        except BaseException as error:  # crosses to the waiting thread whatever it is
            self._error = error
        finally:
            self._done.set()

    def result(self) -> Any:
        try:
            ended = self._done.wait(self._deadline.remaining_s + self.GRACE_S)
        except KeyboardInterrupt:
            self.cancel()
            self._done.wait(INTERRUPT_GRACE_S)
            raise
        if not ended:
            raise DeadlineError(f"{self._name} has not returned {self.GRACE_S:g} s after its deadline")
        if self._error is not None:
            raise self._error
        return self._result

    def cancel(self) -> None:
        self._deadline.stop.set()


class LocalHost(Host):
    """The host of this process: a table of verbs objects, and the ops that work on them."""

    def __init__(self, name: str = "local host", *, timeout_scale: float = 1.0) -> None:
        self.name = name
        self.timeout_scale = timeout_scale
        self.contexts: dict[str, Any] = {}
        self.device_locks: dict[str, int] = {}
        self.lock = threading.RLock()
        self.pid = os.getpid()
        self._objects: dict[int, Resource] = {}
        self._next_handle = 1
        self._info: HostInfo | None = None
        LIVE.add(self)

    @property
    def info(self) -> HostInfo:  # type: ignore[override]
        if self._info is None:
            from pytest_rdma.verbs_library import host_info

            self._info = host_info()
        return self._info

    def open(self) -> None:
        """Do nothing: this process is there."""

    def ensure(self) -> None:
        """Do nothing: this process cannot be lost without its tests."""

    def restart(self, cause: str) -> None:
        self.close()
        self.restart_cause = cause
        self.generation += 1

    def invoke(self, name: str, *args: Any, timeout_s: float = DEFAULT_TIMEOUT_S, stop: StopFlag | None = None) -> Any:
        return self.run_op(name, Deadline(timeout_s * self.timeout_scale, stop), args)

    def submit(self, name: str, *args: Any, timeout_s: float = DEFAULT_TIMEOUT_S) -> Call:
        return LocalCall(self, name, args, Deadline(timeout_s * self.timeout_scale))

    def run_op(self, name: str, deadline: Deadline, args: tuple[Any, ...]) -> Any:
        function = find_op(name)
        if function is None:
            raise RdmaUsageError(f"{self.name} knows no op {name!r}")
        return function(self, deadline, *args)

    def spawn(self) -> Host:
        """Return a host in a child process of this one."""
        spawned: Host = importlib.import_module("pytest_rdma.remote").spawn_local(self)
        return spawned

    def add(self, entry: Resource, front: type[Handle], facts: dict[str, Any]) -> Any:
        """Put `entry` into the table and return its new front object."""
        with self.lock:
            entry.front = front(self, self._next_handle, facts)
            self._objects[self._next_handle] = entry
            self._next_handle += 1
        return entry.front

    def entry(self, kind: str, handle: int) -> Any:
        """Return what is kept beside the front object; RdmaUsageError when it is closed."""
        found = self._objects.get(handle)
        if found is None or found.front.kind != kind:
            raise RdmaUsageError(f"{kind} {handle} on {self.name} is closed")
        return found

    def entries(self, kind: str) -> list[Any]:
        with self.lock:
            return [entry for entry in self._objects.values() if entry.front.kind == kind]

    def table(self) -> dict[int, Resource]:
        with self.lock:
            return dict(self._objects)

    def resolve(self, kind: str, handle: int) -> Handle:
        """Return the live front object for a handle that came over the wire."""
        found: Handle = self.entry(kind, handle).front
        return found

    def raw(self, kind: str, handle: int) -> Any:
        return self.entry(kind, handle).raw

    def remove(self, handle: int) -> Resource | None:
        """Take an entry out of the table, for closing; None when it is gone already."""
        with self.lock:
            found = self._objects.pop(handle, None)
        if found is not None:
            found.front.mark_closed()
        return found

    def discard(self, handle: int) -> None:
        """Take an entry out of the table and close it; idempotent."""
        found = self.remove(handle)
        if found is not None:
            found.close()

    def close(self) -> None:
        with self.lock:
            entries = sorted(self._objects.items(), key=lambda item: (item[1].close_rank, -item[0]))
            contexts, self.contexts = list(self.contexts.values()), {}
            locks, self.device_locks = list(self.device_locks.values()), {}
        closers = [partial(self.discard, handle) for handle, _ in entries]
        unlockers = [partial(os.close, descriptor) for descriptor in locks]
        close_all([*closers, *(context.close for context in contexts), *unlockers])


LIVE: weakref.WeakSet[LocalHost] = weakref.WeakSet()


@atexit.register
def close_live_hosts() -> None:
    """Destroy in verbs order what nobody closed: pyverbs crashes when the interpreter's end picks the order.

    What came over a fork is kept for ever: the child has the parent's device file, and would destroy its objects.
    """
    for host in [host for host in LIVE if host.pid != os.getpid()]:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(host))
    close_all([host.close for host in LIVE if host.pid == os.getpid()])


def close_all(closers: list[Callable[[], Any]]) -> None:
    """Call all; raise the first error when all have been tried, the others named in its message."""
    errors: list[Exception] = []
    for closer in closers:
        try:
            closer()
        except Exception as error:  # every object must be tried, whatever the one before it did
            errors.append(error)
    if not errors:
        return
    if len(errors) > 1:
        rest = "; ".join(str(error) for error in errors[1:])
        errors[0].args = (f"{errors[0]} (and then: {rest})",)
    raise errors[0]
