"""perftest beside us: the same traffic by its tools, between the same devices and GID rows, with the same parameters.

The tool runs as the client at the active end and as the server at the passive one, which listens on the address of its
GID row. What has no equal there is refused with the reason, never compared with something else.
"""

from __future__ import annotations

import json
import math
import re
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Union

from pytest_rdma.errors import DeadlineError, RdmaEnvironmentError
from pytest_rdma.host import Host
from pytest_rdma.model import ConnectionAttributes, Opcode
from pytest_rdma.rail import ETHERNET, RailEnd
from pytest_rdma.servers import PORT
from pytest_rdma.traffic import ATOMICS, READING, PingPong, Pipeline, RecvDrain, Spec
from pytest_rdma.traffic_pair import Specs, resolve

if TYPE_CHECKING:
    from pytest_rdma.pairing import Pair

TOOLS = {
    Opcode.SEND: "send",
    Opcode.RDMA_WRITE: "write",
    Opcode.RDMA_READ: "read",
    Opcode.ATOMIC_CMP_AND_SWP: "atomic",
    Opcode.ATOMIC_FETCH_AND_ADD: "atomic",
}
ATOMIC_TYPES = {Opcode.ATOMIC_CMP_AND_SWP: "CMP_AND_SWAP", Opcode.ATOMIC_FETCH_AND_ADD: "FETCH_AND_ADD"}
LEAST_ITERATIONS = 5
TRIES = 3
MIB = 1 << 20
BANDWIDTH_STEP = MIB / 100
"""What the last digit of BW_average is worth in bytes a second; that of MsgRate is worth one message a second."""
SHORTENED = ("TX_depth", "CQ_Moderation")
"""What perftest lowers to the iterations, when those are fewer."""
OLD_POSTS = "--use_old_post_send"


class NoReferenceError(Exception):
    """Why perftest's number is not beside ours."""


class NoNumberError(NoReferenceError):
    """perftest ran and told 0: under emulation its calibration of the clock fails now and then."""


# -- what perftest is told


@dataclass(frozen=True)
class Command:
    """A tool and what both of its ends are told; `asked` is what its report must show of that.

    The iterations of each QP must be a multiple of `multiple`. With `both_ways` what it tells is of both ends together.
    """

    tool: str
    words: tuple[str, ...]
    size: int
    asked: dict[str, int]
    qps: int = 1
    multiple: int = 1
    both_ways: bool = False

    @property
    def latency(self) -> bool:
        return self.tool.endswith("_lat")

    def iterations(self, messages: int) -> int:
        """Return the iterations of each QP that make at least so many messages in all."""
        wanted = max(-(-messages // self.qps), LEAST_ITERATIONS)
        return -(-wanted // self.multiple) * self.multiple


def command_of(active: Sequence[Spec], passive: Sequence[Spec], qps: int, attributes: ConnectionAttributes) -> Command:
    """Return the equal of what both ends run; NoReferenceError where perftest has none."""
    spec = next((one for one in active if not isinstance(one, RecvDrain)), None)
    if spec is None:
        raise NoReferenceError("the active end only receives")
    _check_equal(spec, active, passive)
    words = ["-F", "-m", str(attributes.mtu), "-S", str(attributes.sl), "-u", str(attributes.ack_timeout)]
    if attributes.traffic_class:
        words.append(f"--tclass={attributes.traffic_class}")
    if attributes.pkey_index:
        words.append(f"--pkey_index={attributes.pkey_index}")
    words += ["-A", ATOMIC_TYPES[spec.op]] if spec.op in ATOMICS else ["-s", str(spec.size_bytes)]
    if spec.op in READING:
        words += ["-o", str(attributes.rd_atomic)]
    else:
        words += ["-I", str(spec.size_bytes if spec.inline else 0)]
    asked = {"Mtu": attributes.mtu}
    if isinstance(spec, PingPong):
        return Command(f"ib_{TOOLS[spec.op]}_lat", tuple(words), spec.size_bytes, asked)
    command = Command(f"ib_{TOOLS[spec.op]}_bw", tuple(words), spec.size_bytes, asked, qps)
    drain = next((one for one in passive if isinstance(one, RecvDrain)), None)
    return _pipelined(command, spec, drain, any(isinstance(one, Pipeline) for one in passive))


def _pipelined(command: Command, spec: Pipeline, drain: RecvDrain | None, both_ways: bool) -> Command:
    signal_every = min(spec.signal_every, spec.depth)
    words = ["-N", "-t", str(spec.depth), "-Q", str(signal_every), "-q", str(command.qps)]
    multiple = spec.batch
    if spec.batch > 1:
        words += ["-l", str(spec.batch)]
    if drain is not None:
        words += ["-r", str(drain.depth)]
        if drain.batch > 1:
            words.append(f"--recv_post_list={drain.batch}")
            multiple = math.lcm(multiple, drain.batch)
    if both_ways:
        words.append("-b")
    asked = {**command.asked, "TX_depth": spec.depth, "CQ_Moderation": signal_every, "Number_of_qps": command.qps}
    return replace(command, words=(*command.words, *words), asked=asked, multiple=multiple, both_ways=both_ways)


def _check_equal(spec: Union[Pipeline, PingPong], active: Sequence[Spec], passive: Sequence[Spec]) -> None:
    """Refuse what perftest has no equal of."""
    if spec.op not in TOOLS:
        raise NoReferenceError(f"perftest has no {spec.op.name}")
    if any(one.offset or getattr(one, "remote_offset", 0) for one in (*active, *passive)):
        raise NoReferenceError("perftest begins at the head of its buffer, not at an offset")
    if any(getattr(one, "buffers", 1) > 1 for one in (*active, *passive)):
        raise NoReferenceError("perftest does not rotate through buffers")
    if isinstance(spec, PingPong):
        return
    if spec.requests:
        raise NoReferenceError("perftest has no mixed requests")
    if spec.rate_per_s:
        raise NoReferenceError("perftest limits rates in another way")
    if spec.batch > 1 and spec.batch % spec.signal_every:
        raise NoReferenceError(f"perftest signals in each list of {spec.batch}, not every {spec.signal_every}")
    if any(isinstance(one, Pipeline) for one in passive) and set(active) != set(passive):
        raise NoReferenceError("perftest runs both ways with equal ends only")


# -- what it tells


@dataclass(frozen=True)
class Told:
    """What one run told: `value` is messages a second each way, or the median latency in nanoseconds.

    `new_posts` says that the tool posted by ibv_wr_start(3), as it does by default where it knows the device.
    """

    value: float
    new_posts: bool


def parse(command: Command, iterations: int, text: str) -> Told:
    """Return what the report tells: by its JSON where that is whole, else by its table.

    Up to 2023 the JSON was none that could be read. Its digits are those of the table.
    """
    found = _from_json(text) or _from_table(command, iterations, text)
    if found is None:
        raise NoReferenceError(f"{command.tool} told no number: {last_line(text)}")
    info, results = found
    asked = {name: min(value, iterations) if name in SHORTENED else value for name, value in command.asked.items()}
    wrong = [f"{name} {info[name]}, not {value}" for name, value in asked.items() if info.get(name, value) != value]
    if wrong:
        raise NoReferenceError(f"{command.tool} ran otherwise than it was asked to: {', '.join(wrong)}")
    value = _value(command, results)
    if value <= 0:
        raise NoNumberError(f"{command.tool} told 0: what it measured is less than its last digit")
    return Told(value, new_posts=info.get("ibv_wr_API") == "ON")


def _value(command: Command, results: dict[str, float]) -> float:
    if command.latency:
        return results["t_typical"] * 1e3
    rate = results["MsgRate"] * 1e6
    if command.size > BANDWIDTH_STEP:
        rate = results["BW_average"] * MIB / command.size
    return rate / 2 if command.both_ways else rate


Report = tuple[dict[str, Any], dict[str, float]]


def _from_json(text: str) -> Report | None:
    start = text.find("{\n")
    try:
        report = json.JSONDecoder().raw_decode(text, start)[0] if start >= 0 else {}
    except ValueError:
        return None
    return (report["test_info"], report["results"]) if "results" in report else None


def _from_table(command: Command, iterations: int, text: str) -> Report | None:
    row = re.search(rf"^ *{command.size} +{iterations * command.qps} +(\d.*)$", text, re.MULTILINE)
    if row is None:
        return None
    names = ("t_min", "t_max", "t_typical") if command.latency else ("BW_peak", "BW_average", "MsgRate")
    facts = re.findall(r"(TX depth|CQ Moderation|Mtu|Number of qps|ibv_wr\* API) +: (\w+)", text)
    info = {name.replace("*", "").replace(" ", "_"): int(value) if value.isdigit() else value for name, value in facts}
    return info, dict(zip(names, map(float, row[1].split())))


def last_line(text: str) -> str:
    """Return the last line that says something."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip(" -")), "it was silent")


# -- running it


class Reference:
    """A tool of perftest, ready to run at two ends: the client's first, then the server's."""

    def __init__(self, command: Command, hosts: tuple[Host, Host], ends: tuple[RailEnd, RailEnd]) -> None:
        self.command = command
        self._hosts = hosts
        helps = [_help(host, command.tool) for host in hosts]
        self._address, listens_on = _addresses(*ends, hosts[1])
        words = [command.tool, *command.words, "-p", PORT]
        if ":" in self._address:
            if not all("--ipv6-addr" in text for text in helps):
                raise NoReferenceError(f"this perftest cannot connect to an IPv6 address, {self._address}")
            words.append("--ipv6-addr")
        self._client = [*words, *_place(ends[0])]
        if "--out_json" in helps[0]:
            self._client += ["--out_json", "--out_json_file=/dev/stdout"]
        self._server = [*words, *_place(ends[1])]
        self._probe = listens_on or "0.0.0.0"
        if listens_on and "--bind_source_ip" in helps[1]:
            self._server.append(f"--bind_source_ip={listens_on}")

    def run(self, messages: int, *, old_posts: bool = False, timeout_s: float = 60.0) -> Told:
        """Run it once with at least so many messages; NoReferenceError says why there is no number."""
        iterations = self.command.iterations(messages)
        more = ["-n", str(iterations), *([OLD_POSTS] if old_posts else [])]
        argv = [*self._server, *more]
        try:
            server = self._hosts[1].invoke("server.start", argv, self._probe, timeout_s=timeout_s)
            try:
                text = self._run_client(server, more, timeout_s)
            finally:
                server.close()
        except (RdmaEnvironmentError, DeadlineError) as error:
            raise NoReferenceError(str(error)) from None
        return parse(self.command, iterations, text)

    def _run_client(self, server: Any, more: list[str], timeout_s: float) -> str:
        argv = [str(server.port) if word == PORT else word for word in self._client]
        done = self._hosts[0].run([*argv, *more, self._address], timeout_s=timeout_s)
        if done.returncode:
            texts = [text for text in (done.stderr, server.read()[1]) if text.strip()] or [done.stdout]
            lines = [last_line(text.decode(errors="replace")) for text in texts]
            raise NoReferenceError(f"{self.command.tool} failed: {'; '.join(lines)}")
        return str(done.stdout.decode(errors="replace"))


def reference_of(
    pairs: Pair | Sequence[Pair], active: Specs, passive: Specs | None = None, *, reverse: bool = False
) -> Reference:
    """Return the tool that does what `run_pairs` does with these; NoReferenceError where there is none."""
    sides, specs = resolve(pairs, active, passive, reverse)
    first = sides[0][0]
    pair: Pair = pairs[0] if isinstance(pairs, (list, tuple)) else pairs  # type: ignore[assignment]
    if first.caps.transport != "RC":
        raise NoReferenceError(f"perftest stands beside RC only, not {first.caps.transport}")
    command = command_of(*specs, len(sides[0]), pair.attributes)
    ends = (pair.rail.peer, pair.rail.local) if reverse else (pair.rail.local, pair.rail.peer)
    return Reference(command, (first.host, sides[1][0].host), ends)


def _help(host: Host, tool: str) -> str:
    try:
        return str(host.run([tool, "--help"]).stdout.decode(errors="replace"))
    except DeadlineError as error:
        raise NoReferenceError(str(error)) from None
    except RdmaEnvironmentError:
        raise NoReferenceError(f"{host.name} has no {tool}: install the package perftest there") from None


def _place(end: RailEnd) -> list[str]:
    words = ["-d", end.device.name, "-i", str(end.port.number)]
    return [*words, "-x", str(end.gid.index)] if end.gid else words


def _addresses(client: RailEnd, server: RailEnd, host: Host) -> tuple[str, str | None]:
    """Return the server's address as the client names it, and as the server itself does; None is all that it has.

    A link-local address goes with the own netdev. The GIDs of InfiniBand are no addresses: the host's name must do.
    """
    if server.gid is None or client.gid is None or server.port.link_layer != ETHERNET:
        return host.info.hostname, None
    address = server.gid.address
    if address.version == 6 and address.is_link_local:
        return f"{address}%{client.gid.netdev}", f"{address}%{server.gid.netdev}"
    return str(address), str(address)


# -- beside a measurement


class Beside:
    """What perftest told, a run at a time in turn with ours; once there is a `reason` why not, it is not run again."""

    def __init__(self, find: Callable[[], Reference]) -> None:
        self.reason = ""
        self.told_nothing = 0
        self.values: dict[bool, list[float]] = {False: [], True: []}
        self._reference: Reference | None = None
        try:
            self._reference = find()
        except NoReferenceError as error:
            self.reason = str(error)

    def run(self, messages: int, timeout_s: float) -> None:
        """Run it once, or by both of its ways to post where it has two."""
        if self.reason or self._reference is None:
            return
        try:
            if self._run(self._reference, messages, timeout_s, old_posts=False).new_posts:
                self._run(self._reference, messages, timeout_s, old_posts=True)
        except NoReferenceError as error:
            self.reason = str(error)

    def _run(self, reference: Reference, messages: int, timeout_s: float, *, old_posts: bool) -> Told:
        """Run it until it tells a number; `told_nothing` counts the runs of all that told none."""
        for _ in range(TRIES - 1):
            try:
                told = reference.run(messages, old_posts=old_posts, timeout_s=timeout_s)
                break
            except NoNumberError:
                self.told_nothing += 1
        else:
            told = reference.run(messages, old_posts=old_posts, timeout_s=timeout_s)
        self.values[old_posts].append(told.value)
        return told

    def compared(self, ours: float) -> Compared | str:
        """Return the comparison with our median, in the units of Told; else the reason why there is none."""
        if self.reason or self._reference is None:
            return self.reason
        latency = self._reference.command.latency
        medians = {old: statistics.median(values) for old, values in self.values.items() if values}
        if not medians:
            return "it was not run"
        old = (min if latency else max)(medians, key=medians.__getitem__)
        ratio = medians[old] / ours if latency else ours / medians[old]
        return Compared(self._reference.command, medians[old], ratio, tuple(self.values[old]), old, self.told_nothing)


@dataclass(frozen=True)
class Compared:
    """perftest's median beside ours, by the better of its ways to post; a `ratio` above 1 is in our favour."""

    command: Command
    value: float
    ratio: float
    runs: tuple[float, ...]
    old_posts: bool
    told_nothing: int = 0

    @property
    def cell(self) -> str:
        """Return its number for the table."""
        if self.command.latency:
            return f"{self.value / 1e3:.1f} us"
        return f"{self.value * self.command.size * 8e-9:.3g} Gb/s"

    def info(self) -> dict[str, Any]:
        """Return what goes into pytest-benchmark's JSON."""
        unit = "p50_ns" if self.command.latency else "messages_per_second"
        return {
            "tool": self.command.tool,
            "arguments": list(self.command.words),
            unit: self.value,
            "ratio": self.ratio,
            "runs": list(self.runs),
            "use_old_post_send": self.old_posts,
            "runs_without_a_number": self.told_nothing,
        }
