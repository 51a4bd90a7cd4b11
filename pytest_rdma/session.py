"""RdmaSession: from the configuration to the lab, both hosts and the rail between them, each made once when needed."""

from __future__ import annotations

import math
import os
import queue
import secrets
import socket
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pytest_rdma.config import RdmaConfig, Setting, Source
from pytest_rdma.errors import HostLostError, HostUnreachableError, RdmaError, RdmaUsageError
from pytest_rdma.losses import Losses

if TYPE_CHECKING:
    from pytest_rdma.cm import CMPair
    from pytest_rdma.endpoint import CQ, PD, Endpoint
    from pytest_rdma.host import Host
    from pytest_rdma.lab import Booting, Lab, LabHost
    from pytest_rdma.model import DeviceInfo, EndpointCaps
    from pytest_rdma.pairing import Pair, Shared
    from pytest_rdma.rail import Rail, RailEnd
    from pytest_rdma.ssh import SshTarget

T = TypeVar("T")
Note = Callable[[str], None]

LOCK_TIMEOUT_S = 5.0
LOCAL_NAME = "local host"


class Once(Generic[T]):
    """Something that is made at the first call; its error is remembered too and raised again as it was."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._made: list[T] = []
        self._error: Exception | None = None

    def __call__(self) -> T:
        with self._lock:
            if self._error is not None:
                raise self._error.with_traceback(None)
            if not self._made:
                try:
                    self._made.append(self._make())
                except Exception as error:
                    self._error = error
                    raise
            return self._made[0]

    @property
    def made(self) -> T | None:
        """What there is so far, without making it."""
        return self._made[0] if self._made else None


class Background(Generic[T]):
    """A call in a thread of its own; its progress lines are shown by the thread that waits for it."""

    def __init__(self, call: Callable[[Note], T], name: str) -> None:
        self._call = call
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._results: list[T] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._results.append(self._call(self._lines.put))
        except BaseException as error:  # crosses to the thread that waits, whatever it is
            self._error = error
        finally:
            self._lines.put(None)

    def result(self, note: Note | None = None) -> T:
        """Wait for the call, which keeps a deadline of its own; raises what it raised."""
        while (line := self._lines.get()) is not None:
            if note is not None:
                note(line)
        self._lines.put(None)
        if self._error is not None:
            raise self._error
        return self._results[0]


def in_parallel(calls: list[Callable[[], T]]) -> list[T]:
    """Run all at once, wait for all, and return their results or raise the first error in the order given."""
    running = [Background(lambda note, call=call: call(), "rdma session") for call in calls[1:]]  # type: ignore[misc]
    errors: list[Exception] = []
    results: list[T] = []
    for wait in [*calls[:1], *(one.result for one in running)]:
        try:
            results.append(wait())
        except Exception as error:  # the others must be waited for first
            errors.append(error)
    if errors:
        raise errors[0]
    return results


@dataclass(frozen=True)
class DeviceContext:
    """The device, port and GID row that the run uses on a host, and what can be made on them."""

    host: Host
    end: RailEnd

    @property
    def device(self) -> DeviceInfo:
        return self.end.device

    def pd(self) -> PD:
        return self.host.pd(self.end.device.name)

    def cq(self, depth: int = 256, *, events: bool = False) -> CQ:
        return self.host.cq(self.end.device.name, depth, events=events)

    def endpoint(self, caps: EndpointCaps | None = None, **options: Any) -> Endpoint:
        """Return an RC QP in INIT that is connected to nothing; options as those of `Host.endpoint`."""
        gid_index = self.end.gid.index if self.end.gid else None
        return self.host.endpoint(self.end.device.name, self.end.port.number, gid_index, caps, **options)


class LabBoot:
    """The lab on its way up, in a thread; `close` gives it up, or takes it down when it is this run's own."""

    def __init__(self, timeout_scale: float) -> None:
        self._timeout_scale = timeout_scale
        self._closed = False
        self._booting: Booting | None = None
        self._lab = Background(self._boot, "rdma lab")

    def _boot(self, note: Note) -> Lab:
        from pytest_rdma.lab import begin

        self._booting = begin(note, timeout_scale=self._timeout_scale)
        if self._closed:
            self._booting.close()
        return self._booting.ready()

    def ready(self, note: Note | None) -> Lab:
        return self._lab.result(note)

    def close(self) -> None:
        self._closed = True
        if self._booting is not None:
            self._booting.close()


@dataclass(frozen=True)
class LabFacts:
    """What a session needs to know of the lab; plain enough to be handed to the workers of xdist."""

    hosts: tuple[LabHost, ...]
    timeout_scale: float
    description: str

    def to_plain(self) -> dict[str, Any]:
        return {**asdict(self), "hosts": [asdict(host) for host in self.hosts]}

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> LabFacts:
        from pytest_rdma.lab import LabHost

        return cls(**{**plain, "hosts": tuple(LabHost(**host) for host in plain["hosts"])})


class RdmaSession:
    """The hosts of one run and the rail between them. Nothing is made before it is asked for; `close` ends all."""

    def __init__(self, config: RdmaConfig, run_id: str | None = None, lab: LabFacts | None = None) -> None:
        self.config = config
        self.run_id = run_id or f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        self.note: Note | None = None
        self.stderr = 2
        self.hosts = Once(self._open_hosts)
        self.rail = Once(self._open_rail)
        self.lab = Once(self._obtain_lab) if lab is None else Once(lambda: lab)
        self._booting: LabBoot | None = None
        self._opened: list[Host] = []
        self._generations = [0, 0]
        self._derived: list[RdmaSession] = []
        self._pd: PD | None = None
        self.losses = Losses()
        self._stderr_before: list[tuple[str, str]] = []

    @property
    def local(self) -> Host:
        return self.hosts()[0]

    @property
    def peer(self) -> Host:
        return self.hosts()[1]

    @property
    def timeout_scale(self) -> Setting[float]:
        found = self.lab().timeout_scale if self.config.lab.value else 1.0
        if self.config.timeout_scale.given or found == 1.0:
            return self.config.timeout_scale
        return Setting(found, Source.FOUND)

    def start_lab(self) -> None:
        """Begin to boot the lab, or to find the one that is up, in a thread; `lab()` waits for it."""
        self._booting = LabBoot(self.config.timeout_scale.value)

    def for_config(self, config: RdmaConfig) -> RdmaSession:
        """Return this session, or, for an `rdma_config` of the user's own, another on the same hosts.

        The fixtures of the hosts last for the whole run, so one run has one pair of hosts.
        """
        for session in (self, *self._derived):
            if session.config == config:
                return session
        opened = next((session for session in (self, *self._derived) if session.hosts.made), self)
        if opened.hosts.made and opened.config.hosts != config.hosts:
            raise RdmaUsageError("an own rdma_config names other hosts than those that this run has opened already")
        derived = RdmaSession(config, self.run_id, self.lab() if config.lab.value else None)
        derived.stderr = self.stderr
        if opened.config.hosts == config.hosts:
            derived.hosts = opened.hosts
            derived.losses = opened.losses
        self._derived.append(derived)
        return derived

    def prepare(self, test: str) -> None:
        """Make both hosts ready for a test: restart what was lost, take its device again, say which test runs.

        BlockedError when what was lost does not come back, or --rdma-on-peer-loss=stop says not to wait for it.
        """
        self.rail()
        self._mend()
        if self.losses.in_doubt:
            try:
                troubles = self._troubles()
            except (HostLostError, HostUnreachableError):  # only asking it has told that it is lost
                self._mend()
                troubles = self._troubles()
            self.losses.judge(troubles, self.local.current_test)
        for host in self.hosts():
            host.current_test = test
        self._stderr_before = self._stderr_tails()

    def _mend(self) -> None:
        reconnect = self.config.on_peer_loss.value == "reconnect"
        for index, host in enumerate(self.hosts()):
            self.losses.mend(host, partial(self._bring_back, index), self.timeout_scale.value, reconnect=reconnect)

    def _troubles(self) -> list[str | None]:
        """Ask both hosts at once what keeps their devices from being used; renew what is dead there for us alone.

        A GID row that nobody has asked for is chosen anew where it is no longer what it was.
        """
        from pytest_rdma.pairing import both
        from pytest_rdma.verbs_health import OTHER_ROW, RENEW

        ends = (self.rail().local, self.rail().peer)
        rows = [(end.gid.index, end.gid.gid) if end.gid else (None, None) for end in ends]
        args = [(end.device.name, end.port.number, *row) for end, row in zip(ends, rows)]
        found = both(self.hosts(), "device.health", args)
        for index, host in enumerate(self.hosts()):
            if found[index] == RENEW:
                host.restart(f"{ends[index].device.name} on {host.name} went away and came back")
                self._bring_back(index)
        again = both(self.hosts(), "device.health", args) if RENEW in found else found
        if OTHER_ROW in again:
            return self._without_rows([text == OTHER_ROW for text in again])
        return [ends[i].device.name + " answers no more" if text == RENEW else text for i, text in enumerate(again)]

    def _without_rows(self, lost: list[bool]) -> list[str | None]:
        """Choose the rail anew after GID rows were lost, on the same ports; return in words why that cannot be."""
        ends = (self.rail().local, self.rail().peer)
        asked = (self.config.gid_index, self.config.peer_gid_index)
        for host, end, option, gone in zip(self.hosts(), ends, asked, lost):
            if gone and end.gid and option.value is not None:
                what = f"row {end.gid.index} of the GID table of {end.place} on {host.name}"
                return [f"{what} ({option.origin}) is no longer {end.gid.gid}"]
        try:
            chosen = self._open_rail((ends[0].place, ends[1].place))
        except RdmaError as error:
            return [str(error)]
        self.rail = Once(lambda: chosen)
        return []

    def _bring_back(self, index: int) -> None:
        host = self.hosts()[index]
        host.ensure()
        if host.generation != self._generations[index]:
            self._lock(index)

    def new_stderr(self) -> dict[str, str]:
        """Return what the agents have on their standard error, by host, of those that wrote since the test began."""
        tails = zip(self._stderr_tails(), self._stderr_before)
        return {name: text for (name, text), before in tails if (name, text) != before and text.strip()}

    def _stderr_tails(self) -> list[tuple[str, str]]:
        return [(host.name, host.stderr_tail() if hasattr(host, "stderr_tail") else "") for host in self.hosts()]

    def pd(self) -> PD:
        """Return the PD of the local host's device; made anew when the host was restarted."""
        if self._pd is None or self._pd.closed or self._pd.generation != self.local.generation:
            self._pd = self.local.pd(self.rail().local.device.name)
        return self._pd

    def kept_handles(self) -> tuple[int, ...]:
        """Return the handles on the local host that outlive a test on purpose."""
        made = (one._pd for one in (self, *self._derived))
        return tuple(pd.handle for pd in made if pd is not None and pd.generation == self.local.generation)

    def pair(self, local: Host, peer: Host, caps: EndpointCaps | None = None, shared: Shared | None = None) -> Pair:
        """Return a pair that is not yet connected, with the attributes that the options ask for."""
        from pytest_rdma.pairing import Pair

        return Pair.create(local, peer, self.rail(), caps, shared, **self.attributes())

    def cm_pair(self, local: Host, peer: Host, caps: EndpointCaps | None = None) -> CMPair:
        """Return what `pair` does, to be connected by rdma_cm."""
        from pytest_rdma.cm import CMPair

        return CMPair.create(local, peer, self.rail(), caps, None, **self.attributes())

    def attributes(self) -> dict[str, int]:
        """Return the connection attributes that the options ask for."""
        names = ("sl", "traffic_class", "pkey_index", "retry_count", "rnr_retry", "ack_timeout")
        chosen: dict[str, int] = {name: getattr(self.config, name).value for name in names}
        if not self.config.ack_timeout.given:  # an acknowledgement takes longer where all else does
            longer = math.ceil(math.log2(max(1.0, self.timeout_scale.value)))
            chosen["ack_timeout"] += longer
        return chosen

    def close(self) -> None:
        """End the agents, then the lab if it is this run's own; idempotent. The first error is raised last."""
        derived, self._derived = self._derived, []
        opened, self._opened = self._opened, []
        booting, self._booting = self._booting, None
        steps: list[Callable[[], object]] = [session.close for session in derived]
        steps.append(lambda: in_parallel([host.close for host in opened]))
        if booting is not None:
            steps.append(booting.close)
        from pytest_rdma.host import close_all

        close_all(steps)

    # -- how each is made

    def _obtain_lab(self) -> LabFacts:
        if self._booting is None:
            self.start_lab()
        assert self._booting is not None
        lab = self._booting.ready(self.note)
        how = f"booted in {lab.boot_s:.1f} s" if lab.boot_s else "was up"
        return LabFacts(lab.hosts, lab.timeout_scale, f"{lab.accel}, {how}")

    def _open_hosts(self) -> tuple[Host, Host]:
        local, peer = self._make_hosts()
        self._opened = [local, peer]
        in_parallel([host.open for host in self._opened])
        if self.config.peer_exec.value:
            peer.name = peer.info.hostname  # a command says nothing of where it leads
        return local, peer

    def _make_hosts(self) -> tuple[Host, Host]:
        config = self.config
        scale = self.timeout_scale.value
        if config.lab.value:
            from pytest_rdma.remote import RemoteHost

            one, two = (RemoteHost(lab_target(host), timeout_scale=scale) for host in self.lab().hosts)
            return one, two
        local = _remote(config.host.value, config.python.value, scale) if config.host.value else self._own_host(scale)
        return local, self._make_peer(scale)

    def _make_peer(self, scale: float) -> Host:
        config = self.config
        if config.peer_exec.value:
            from pytest_rdma.remote import ExecTarget, RemoteHost

            target = ExecTarget(config.peer_exec.value)
            return RemoteHost(target, name="peer", python=config.peer_python.value, timeout_scale=scale)
        if config.peer.value:
            return _remote(config.peer.value, config.peer_python.value, scale)
        if config.host.value:
            return _remote(config.host.value, config.python.value, scale)
        return self._own_host(scale)

    def _own_host(self, scale: float) -> Host:
        from pytest_rdma.watched_host import WatchedHost

        return WatchedHost(LOCAL_NAME, timeout_scale=scale, stderr=self.stderr)

    @property
    def one_process(self) -> bool:
        """True when both ends are in this process."""
        return self.looped_back and not self.config.host.value

    @property
    def looped_back(self) -> bool:
        """True when both ends are on one host."""
        config = self.config
        return not (config.lab.value or config.peer.value or config.peer_exec.value)

    def _open_rail(self, ports: tuple[str, str] | None = None) -> Rail:
        from pytest_rdma.rail import choose_rail

        config = self.config
        local, peer = self.hosts()
        local_devices, peer_devices = in_parallel([local.devices, peer.devices])
        rail = choose_rail(
            local_devices,
            peer_devices,
            local_device=ports[0] if ports else config.device.value,
            peer_device=ports[1] if ports else config.peer_device.value,
            local_gid_index=config.gid_index.value,
            peer_gid_index=config.peer_gid_index.value,
            mtu=config.mtu.value,
            same_host=self.looped_back,
            names=(local.name, peer.name),
        )
        for index, end in enumerate((rail.local, rail.peer)):
            self._lock(index, end.device.name)
        return rail

    def _lock(self, index: int, device: str | None = None) -> None:
        """Take the device of a host for this run, and note with which generation of the host."""
        host = self.hosts()[index]
        if device is None:
            rail = self.rail()
            device = (rail.local, rail.peer)[index].device.name
        host.lock_device(device, self.run_id, LOCK_TIMEOUT_S)
        self._generations[index] = host.generation


def lab_target(host: LabHost) -> SshTarget:
    from pytest_rdma.ssh import SshTarget

    return SshTarget(
        name=host.name,
        host=host.address,
        port=host.port,
        user=host.user,
        identity_files=(host.identity_file,),
        known_hosts_files=(host.known_hosts_file,),
        identities_only=True,
    )


def _remote(address: str, python: str | None, scale: float) -> Host:
    from pytest_rdma.remote import RemoteHost
    from pytest_rdma.ssh import resolve

    return RemoteHost(resolve(address), name=address, python=python, timeout_scale=scale)
