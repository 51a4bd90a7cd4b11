"""Our loops beside perftest's tools, in turn, between the two hosts of the lab, with the same parameters.

    python benchmarks/against_perftest.py [--pairs 15] [--cells send-bw-2,write-lat-8]

Each pair of runs is one of ours and one of perftest's, the first in turn, each over a connection of its own; all are
shown and none is left out. A ratio above 1 is in our favour. How parameters map is in docs/traffic.md. Where perftest
has two ways to post, the better counts. The exit code is 1 when the geometric mean of all ratios is below 1.00, or a
cell's 95 % bootstrap interval lies wholly below 0.97. Nothing else may run meanwhile: see the load that is printed.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import statistics
import sys
import time
from dataclasses import dataclass

from pytest_rdma import EndpointCaps, Opcode, Pair, PingPong, Pipeline, RecvDrain, run_pairs
from pytest_rdma.host import Host
from pytest_rdma.lab import obtain
from pytest_rdma.rail import Rail, choose_rail
from pytest_rdma.reference import Beside, Compared, reference_of
from pytest_rdma.remote import RemoteHost
from pytest_rdma.session import lab_target

DEPTH, RECV_DEPTH, SIGNAL_EVERY = 128, 512, 100
OPERATIONS = {"send": Opcode.SEND, "write": Opcode.RDMA_WRITE, "read": Opcode.RDMA_READ}
MESSAGES = {2: 2000, 8: 500, 1 << 10: 2000, 64 << 10: 200, 1 << 20: 20}
RNR_RETRY_FOR_EVER = 7
TIMEOUT_S = 120.0
RESAMPLES = 2000
LEAST_MEAN, LEAST_CELL = 1.00, 0.97


@dataclass(frozen=True)
class Cell:
    """One operation at one size: its message rate, or its latency at p50."""

    operation: str
    kind: str
    size: int

    @property
    def name(self) -> str:
        return f"{self.operation}-{self.kind}-{self.size}"

    @property
    def spec(self) -> Pipeline | PingPong:
        op, messages = OPERATIONS[self.operation], MESSAGES[self.size]
        if self.kind == "lat":
            return PingPong(op, self.size, iterations=messages)
        return Pipeline(op, self.size, iterations=messages, depth=DEPTH, signal_every=SIGNAL_EVERY)

    @property
    def drain(self) -> RecvDrain | None:
        pipelined_send = self.kind == "bw" and self.operation == "send"
        return RecvDrain(self.size, MESSAGES[self.size], RECV_DEPTH) if pipelined_send else None

    def ratio(self, ours: float, theirs: float) -> float:
        return ours / theirs if self.kind == "bw" else theirs / ours

    def shown(self, value: float) -> str:
        return f"{value:9.0f}/s" if self.kind == "bw" else f"{value / 1e3:9.1f} us"


CELLS = [Cell(operation, "bw", size) for operation in OPERATIONS for size in (2, 1 << 10, 64 << 10, 1 << 20)]
CELLS += [Cell(operation, "lat", 8) for operation in OPERATIONS]


@dataclass(frozen=True)
class Ends:
    """Both hosts and what was chosen on them."""

    local: Host
    peer: Host
    rail: Rail

    def pair(self, cell: Cell) -> Pair:
        caps = EndpointCaps(send_depth=DEPTH, recv_depth=RECV_DEPTH, buffer_bytes=max(4096, 2 * cell.size))
        pair = Pair.create(self.local, self.peer, self.rail, caps, rnr_retry=RNR_RETRY_FOR_EVER)
        pair.connect()
        return pair

    def ours(self, cell: Cell) -> float:
        """Return messages a second, or the median latency in nanoseconds."""
        pair = self.pair(cell)
        try:
            active = run_pairs(pair, cell.spec, cell.drain, timeout_s=TIMEOUT_S).active
        finally:
            pair.close()
        return active.latency.percentile(50) or math.nan if active.latency else active.messages_per_second


def geometric_mean(ratios: list[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, ratios)))


def interval(ratios: list[float]) -> tuple[float, float]:
    """Return the 95 % bootstrap interval of the geometric mean."""
    source = random.Random(1)
    means = sorted(geometric_mean(source.choices(ratios, k=len(ratios))) for _ in range(RESAMPLES))
    return means[int(0.025 * RESAMPLES)], means[int(0.975 * RESAMPLES)]


def measure(cell: Cell, pairs: int, ends: Ends) -> list[float]:
    pair = ends.pair(cell)
    beside = Beside(lambda: reference_of(pair, cell.spec, cell.drain))
    pair.close()
    ours: list[float] = []
    loads: list[float] = []

    def run_ours() -> None:
        ours.append(ends.ours(cell))

    def run_theirs() -> None:
        beside.run(MESSAGES[cell.size], TIMEOUT_S)

    for number in range(pairs):
        for step in (run_theirs, run_ours) if number % 2 else (run_ours, run_theirs):
            step()
        loads.append(os.getloadavg()[0])
    found = beside.compared(statistics.median(ours))
    if not isinstance(found, Compared):
        raise SystemExit(f"{cell.name}: {found}")
    ratios = [cell.ratio(*values) for values in zip(ours, found.runs, strict=True)]
    for number, (own, their, ratio, load) in enumerate(zip(ours, found.runs, ratios, loads, strict=True), 1):
        text = f"pair {number:2}: ours {cell.shown(own)}  perftest {cell.shown(their)}  ratio {ratio:.3f}"
        print(f"{cell.name:16} {text}  load {load:.1f}")
    if found.told_nothing:
        print(f"{cell.name:16} perftest told 0 in {found.told_nothing} more runs, each made again")
    low, high = interval(ratios)
    print(f"{cell.name:16} geometric mean {geometric_mean(ratios):.3f}, 95 % {low:.3f} to {high:.3f}", flush=True)
    return ratios


def main() -> int:
    parser = argparse.ArgumentParser(description="our loops beside perftest's, in the lab")
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--cells", default=",".join(cell.name for cell in CELLS))
    options = parser.parse_args()
    by_name = {cell.name: cell for cell in CELLS}
    wanted = options.cells.split(",")
    if not set(wanted) <= set(by_name):
        parser.error(f"cells are {', '.join(by_name)}")
    found: dict[str, list[float]] = {}
    started = time.monotonic()
    with obtain(print) as lab:
        hosts = [RemoteHost(lab_target(host), timeout_scale=lab.timeout_scale) for host in lab.hosts]
        for host in hosts:
            host.open()
        names = (hosts[0].name, hosts[1].name)
        rail = choose_rail(hosts[0].devices(), hosts[1].devices(), same_host=False, names=names)
        for name in wanted:
            found[name] = measure(by_name[name], options.pairs, Ends(hosts[0], hosts[1], rail))
        for host in hosts:
            host.close()
    mean = geometric_mean([ratio for ratios in found.values() for ratio in ratios])
    slow = [name for name, ratios in found.items() if interval(ratios)[1] < LEAST_CELL]
    print(f"all: geometric mean {mean:.3f} of {sum(map(len, found.values()))} pairs (aim: at least {LEAST_MEAN:.2f})")
    print(f"cells wholly below {LEAST_CELL}: {', '.join(slow) or 'none'}; {time.monotonic() - started:.0f} s in all")
    return int(mean < LEAST_MEAN or bool(slow))


if __name__ == "__main__":
    sys.exit(main())
