"""What native loops are to do, and what came of it: specifications and results, plain data that crosses the stream.

`Endpoint.run(spec)` runs one end, `traffic_pair.run_pairs` both.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, replace
from typing import Any, Union

from pytest_rdma.errors import RefusedError
from pytest_rdma.model import Opcode, SendWR
from pytest_rdma.wire import plain_data

LARGEST_BYTES = 1 << 31
LARGEST_COUNT = (1 << 63) - 1
LONGEST_S = 10**9
LEAST_RATE = 0.01
LARGEST = {"duration_s": LONGEST_S, "buffers": 1 << 16, "imm": (1 << 32) - 1}
KINDS: dict[str, tuple[Any, str]] = {
    "int": (int, "a whole number"),
    "float": ((int, float), "a number"),
    "bool": (bool, "True or False"),
    "Opcode": (Opcode, "an Opcode"),
    "tuple[SendWR, ...]": (tuple, "a tuple of SendWR"),
}
ATOMIC_BYTES = 8
ALIGNMENT = 64
TAIL_SAMPLES = 10
PERCENTILES = (50.0, 90.0, 99.0, 99.9, 99.99, 99.999)
CONSUMING = (Opcode.SEND, Opcode.SEND_WITH_IMM, Opcode.RDMA_WRITE_WITH_IMM)
ATOMICS = (Opcode.ATOMIC_CMP_AND_SWP, Opcode.ATOMIC_FETCH_AND_ADD)
READING = (Opcode.RDMA_READ, *ATOMICS)
PIPELINED = (*CONSUMING, Opcode.RDMA_WRITE, *READING)
PINGPONGED = (Opcode.SEND, Opcode.RDMA_WRITE, *READING)


def _refuse(spec: object, text: str) -> RefusedError:
    return RefusedError(f"{type(spec).__name__}: {text}")


def _check_kinds(spec: object) -> None:
    """Each field is what its annotation says, and a number is finite and within what the loops count with."""
    for one in fields(spec):  # type: ignore[arg-type]
        value = getattr(spec, one.name)
        allowed, what = KINDS.get(str(one.type), (object, ""))
        if not isinstance(value, allowed) or (isinstance(value, bool) and one.type != "bool"):
            raise _refuse(spec, f"{one.name} is {value!r}, and must be {what}")
        if one.type == "float" and not math.isfinite(value):
            raise _refuse(spec, f"{one.name} is {value}, and must be a finite number")
        most = LARGEST.get(one.name, LARGEST_COUNT)
        if one.type in ("int", "float") and value > most:
            raise _refuse(spec, f"{one.name} is {value}, and the most is {most}")


def check_timeout(timeout_s: float) -> None:
    """Refuse a deadline that is none."""
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, (int, float)) or not 0 < timeout_s <= LONGEST_S:
        raise RefusedError(f"timeout_s is {timeout_s!r}, and must be a number of seconds above 0, at most {LONGEST_S}")


def _check_positive(spec: object, *names: str) -> None:
    for name in names:
        value = getattr(spec, name)
        if not value > 0:
            raise _refuse(spec, f"{name} is {value}, and must be above 0")


def _check_length(spec: Pipeline | PingPong) -> None:
    """Exactly one of iterations and duration_s says how long the run is."""
    for name in ("iterations", "duration_s"):
        if getattr(spec, name) < 0:
            raise _refuse(spec, f"{name} is {getattr(spec, name)}, and must be above 0")
    if bool(spec.iterations) == bool(spec.duration_s):
        raise _refuse(spec, f"give iterations or duration_s, not {'both' if spec.iterations else 'neither'}")


def _check_size(spec: Pipeline | RecvDrain | PingPong, smallest: int = 0) -> None:
    if not smallest <= spec.size_bytes <= LARGEST_BYTES:
        raise _refuse(
            spec, f"size_bytes is {spec.size_bytes}; a message has {smallest} to {LARGEST_BYTES} bytes (2 GiB)"
        )
    if spec.offset < 0:
        raise _refuse(spec, f"offset is {spec.offset}, and must not be negative")


@plain_data
@dataclass(frozen=True)
class Pipeline:
    """Keep up to `depth` requests in flight on each QP, posted `batch` at a time, one in `signal_every` completing.

    `iterations` counts the messages of all QPs together, dealt round robin. With `buffers` above 1 message k takes
    slot k % buffers of `size_bytes` each, from `offset` of the own and `remote_offset` of the peer's buffer on.
    `requests`, a cycle of ready work requests, replaces op, size, offsets and buffers. `rate_per_s` limits messages.
    `split` measures the time in posts and polls, at the cost of four readings of the clock a round.
    """

    op: Opcode = Opcode.SEND
    size_bytes: int = 65536
    iterations: int = 0
    duration_s: float = 0.0
    depth: int = 64
    batch: int = 1
    signal_every: int = 1
    inline: bool = False
    offset: int = 0
    remote_offset: int = 0
    buffers: int = 1
    rate_per_s: float = 0.0
    imm: int = 0
    split: bool = False
    requests: tuple[SendWR, ...] = ()

    def __post_init__(self) -> None:
        _check_kinds(self)
        if self.op not in PIPELINED:
            raise _refuse(self, f"{self.op.name} cannot be pipelined")
        _check_length(self)
        _check_positive(self, "depth", "batch", "signal_every", "buffers")
        _check_size(self)
        if self.batch > self.depth:
            raise _refuse(self, f"batch {self.batch} is over depth {self.depth}: a list would never have room")
        if 0 < self.rate_per_s < LEAST_RATE:
            raise _refuse(self, f"rate_per_s is {self.rate_per_s}, and the least is {LEAST_RATE}")
        for name in ("rate_per_s", "remote_offset", "imm"):
            if getattr(self, name) < 0:
                raise _refuse(self, f"{name} is {getattr(self, name)}, and must not be negative")
        if self.op in ATOMICS and self.size_bytes != ATOMIC_BYTES:
            raise _refuse(self, f"{self.op.name} takes {ATOMIC_BYTES} bytes, not {self.size_bytes}")

    def consumed(self, messages: int) -> int:
        """Return how many receives the first `messages` of one QP take at the other end."""
        cycle = [request.opcode in CONSUMING for request in self.requests] or [self.op in CONSUMING]
        rounds, rest = divmod(messages, len(cycle))
        return rounds * sum(cycle) + sum(cycle[:rest])

    @property
    def consumes_receives(self) -> bool:
        return self.consumed(len(self.requests) or 1) > 0


@plain_data
@dataclass(frozen=True)
class RecvDrain:
    """Post `depth` receives on each QP before the start, post each again `batch` at a time, count what arrives.

    `messages` is how many will come on all QPs together, and no more receives than that are posted; 0 is until told.
    """

    size_bytes: int = 65536
    messages: int = 0
    depth: int = 64
    batch: int = 1
    offset: int = 0
    buffers: int = 1

    def __post_init__(self) -> None:
        _check_kinds(self)
        _check_positive(self, "depth", "batch", "buffers")
        _check_size(self)
        if self.messages < 0:
            raise _refuse(self, f"messages is {self.messages}, and must not be negative; 0 is until told")
        if self.batch > self.depth:
            raise _refuse(self, f"batch {self.batch} is over depth {self.depth}: a list would never be consumed")


@plain_data
@dataclass(frozen=True)
class PingPong:
    """One message under way: Send or Write answered by the like, or a Read or an atomic alone.

    A Write is noticed by the last bytes of its message in memory. `answers` is the passive end. The message leaves from
    `offset` of the buffer and arrives behind it, at the next multiple of 64 bytes.
    """

    op: Opcode = Opcode.SEND
    size_bytes: int = 8
    iterations: int = 0
    duration_s: float = 0.0
    inline: bool = False
    offset: int = 0
    answers: bool = False

    def __post_init__(self) -> None:
        _check_kinds(self)
        if self.op not in PINGPONGED:
            raise _refuse(self, f"{self.op.name} cannot be ping-ponged")
        _check_length(self)
        _check_size(self, smallest=0 if self.op == Opcode.SEND else 1)
        if self.op in ATOMICS and self.size_bytes != ATOMIC_BYTES:
            raise _refuse(self, f"{self.op.name} takes {ATOMIC_BYTES} bytes, not {self.size_bytes}")
        if self.answers and self.op in READING:
            raise _refuse(self, f"nobody answers a {self.op.name}: run the active end alone")

    @property
    def target_offset(self) -> int:
        """Where in the buffer the peer's message arrives."""
        return self.offset + -(-self.size_bytes // ALIGNMENT) * ALIGNMENT

    @property
    def measures(self) -> str:
        return "round trip" if self.op in READING else "half of a round trip"


Spec = Union[Pipeline, RecvDrain, PingPong]


@plain_data
@dataclass(frozen=True)
class Latency:
    """Latencies in log-linear buckets, each within 1 % of all in it. `measures` says what of: whole or half trips."""

    measures: str
    count: int
    mean_ns: float
    min_ns: float
    max_ns: float
    values_ns: tuple[float, ...] = field(repr=False)
    counts: tuple[int, ...] = field(repr=False)

    def percentile(self, percent: float) -> float | None:
        """Return the latency in nanoseconds that `percent` of the samples do not exceed; None with too few samples.

        Enough are ten beyond it: p99 takes 1,000 samples.
        """
        if self.count * (100.0 - percent) / 100.0 < TAIL_SAMPLES * (1 - 1e-9):
            return None
        wanted, seen = self.count * percent / 100.0, 0
        for value, count in zip(self.values_ns, self.counts):
            seen += count
            if seen >= wanted:
                return min(max(value, self.min_ns), self.max_ns)
        return self.max_ns

    @property
    def percentiles_ns(self) -> dict[str, float]:
        """Those of p50 to p99.999 that have samples enough."""
        found = {f"p{percent:g}": self.percentile(percent) for percent in PERCENTILES}
        return {name: value for name, value in found.items() if value is not None}


@plain_data
@dataclass(frozen=True)
class TrafficResult:
    """What a run did. `seconds` is from the first post to the last completion of what is sent.

    Of an end that only receives it is from the first arrival to the last. `consumed` is how many receives of the other
    end the messages of a Pipeline took. `series` holds messages by intervals of `interval_s`: a dip in it is a stall.
    `post_seconds` and `poll_seconds` are 0 unless asked for; what they leave was waiting. `outstanding_reads` is how
    many reads or atomics could really be open. `clock` timed the run, a reading of it costs `clock_cost_ns`. `cpu` is
    the processor that the loop ended on, `numa_node` where that is (-1: not told); loops stay beside the device where
    the process may run there.
    """

    messages: int
    bytes: int
    received: int
    received_bytes: int
    seconds: float
    latency: Latency | None
    series: tuple[int, ...] = field(repr=False)
    interval_s: float
    post_seconds: float
    poll_seconds: float
    signaled: int
    post_calls: int
    polls: int
    empty_polls: int
    outstanding_reads: int | None
    clock: str
    clock_cost_ns: float
    cpu: int
    numa_node: int = -1
    consumed: int = 0

    @property
    def messages_per_second(self) -> float:
        return (self.messages or self.received) / self.seconds if self.seconds else 0.0

    @property
    def bytes_per_second(self) -> float:
        return (self.bytes if self.messages else self.received_bytes) / self.seconds if self.seconds else 0.0

    @property
    def gigabits_per_second(self) -> float:
        return self.bytes_per_second * 8e-9


def partner_of(spec: Spec, recv_depth: int = 64, qps: int = 1) -> Spec | None:
    """Return what the other end of an active specification runs on `qps` QPs; None where it has nothing to do."""
    if isinstance(spec, PingPong):
        return None if spec.op in READING else replace(spec, answers=True)
    if isinstance(spec, Pipeline) and spec.consumes_receives:
        size = max((sum(sge.length for sge in one.sges) for one in spec.requests), default=spec.size_bytes)
        # several QPs that send a mixed cycle do not take the same number of receives each
        messages = 0 if spec.requests and qps > 1 else spec.consumed(spec.iterations)
        return RecvDrain(size, messages, recv_depth, min(16, -(-recv_depth // 4)))
    return None


def check_match(active: tuple[Spec, ...], passive: tuple[Spec, ...]) -> None:
    """Refuse two ends that cannot end together."""
    both_send = all(any(isinstance(spec, Pipeline) for spec in specs) for specs in (active, passive))
    for here, there in ((active, passive), (passive, active)):
        for pipeline in (spec for spec in here if isinstance(spec, Pipeline)):
            drains = [spec for spec in there if isinstance(spec, RecvDrain)]
            if pipeline.consumes_receives and not drains:
                raise _refuse(pipeline, "the other end posts no receives: give it a RecvDrain")
            if not pipeline.consumes_receives or not drains[0].messages:
                continue
            needed, expected = pipeline.consumed(pipeline.iterations), drains[0].messages
            if pipeline.duration_s:
                raise _refuse(
                    drains[0],
                    f"{expected} messages are expected of a sender that sends by duration_s: 0 drains until told",
                )
            if expected < needed:
                raise _refuse(drains[0], f"{expected} receives are fewer than the {needed} messages sent")
            if both_send and expected > needed:
                raise _refuse(drains[0], f"{expected} messages are expected, and the other end sends {needed}")
