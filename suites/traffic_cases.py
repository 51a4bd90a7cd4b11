"""The cases of the throughput suite: who is active, how much is moved, and that the data is right."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product

from pairwise import cover

from pytest_rdma import Opcode, Pair, Pipeline, RecvDrain, Spec, run_pairs

OPERATIONS = (Opcode.SEND, Opcode.RDMA_WRITE, Opcode.RDMA_READ)
SIZES = (2, 1 << 10, 64 << 10, 1 << 20, 4 << 20)
DEPTHS = (1, 16, 128)
BATCHES = (1, 16, 64)
QPS = (1, 4)
DIRECTIONS = ("out", "back", "both")
MOST_IN_FLIGHT_BYTES = 8 << 20
SIGNAL_EVERY = 16
SECONDS = 0.1
RECV_DEPTH = 512


@dataclass(frozen=True)
class Case:
    """One combination; its text is the name of its test."""

    op: Opcode
    size: int
    depth: int
    batch: int
    qps: int
    direction: str

    def __str__(self) -> str:
        return f"{self.op.name}-{self.size}B-depth{self.depth}-batch{self.batch}-{self.qps}qp-{self.direction}"

    @property
    def spec(self) -> Pipeline:
        return Pipeline(
            self.op, self.size, duration_s=SECONDS, depth=self.depth, batch=self.batch, signal_every=SIGNAL_EVERY
        )

    @property
    def ends(self) -> tuple[Sequence[Spec], Sequence[Spec] | None]:
        """What the active and the passive end run; None where the other end finds it by itself."""
        if self.direction != "both":
            return (self.spec,), None
        specs: list[Spec] = [self.spec]
        if self.op == Opcode.SEND:
            specs.append(RecvDrain(self.size, depth=RECV_DEPTH // self.qps))
        return specs, specs


def cases(full: bool) -> list[Case]:
    """Return the whole product of what fits into memory, or a pairwise cover of it."""
    rows = [
        row
        for row in product(OPERATIONS, SIZES, DEPTHS, BATCHES, QPS, DIRECTIONS)
        if row[3] <= row[2] and row[1] * row[2] * row[4] <= MOST_IN_FLIGHT_BYTES
    ]
    return [Case(*row) for row in (rows if full else cover(rows))]


def connected(rdma_pairs: Callable[..., Pair], case: Case) -> list[Pair]:
    """Return as many pairs as the case has QPs; source and target lie beside each other in each buffer."""
    caps = {"send_depth": 128, "recv_depth": RECV_DEPTH, "buffer_bytes": case.size}
    return [rdma_pairs(**caps) for _ in range(case.qps)]


def verify_data(pairs: Sequence[Pair], spec: Pipeline, reverse: bool) -> None:
    """Move one message on each pair, and compare every byte at the end that must have it."""
    for number, pair in enumerate(pairs):
        source, target = pair.ends[::-1] if reverse != (spec.op == Opcode.RDMA_READ) else pair.ends
        source.buffer.fill(number)
        target.buffer.memset(0)
    few = replace(spec, iterations=len(pairs), duration_s=0.0)
    run_pairs(pairs, few, reverse=reverse)
    for number, pair in enumerate(pairs):
        target = pair.ends[0 if reverse != (spec.op == Opcode.RDMA_READ) else 1]
        target.buffer.verify(number)
