"""Our loops beside perftest's tools, in turn, between the two hosts of the lab, with the same parameters.

    python benchmarks/against_perftest.py [--pairs 15] [--cells send-bw-2,write-lat-8]

Each pair of runs is one of ours and one of perftest's, the first in turn; all are shown and none is left out. A ratio
above 1 is in our favour. How parameters map is in docs/traffic.md. Of perftest's two ways to post, the one that is the
faster in three trial runs counts. The exit code is 1 when the geometric mean of all ratios is below 1.00, or a cell's
95 % bootstrap interval lies wholly below 0.97.
"""

from __future__ import annotations

import argparse
import itertools
import math
import random
import re
import statistics
import sys
from dataclasses import dataclass

from pytest_rdma import EndpointCaps, Opcode, Pair, PingPong, Pipeline, RecvDrain, run_pairs
from pytest_rdma.host import Host
from pytest_rdma.lab import obtain
from pytest_rdma.rail import Rail, choose_rail
from pytest_rdma.remote import RemoteHost
from pytest_rdma.session import lab_target

DEPTH, RECV_DEPTH, SIGNAL_EVERY = 128, 512, 100
OPERATIONS = {"send": Opcode.SEND, "write": Opcode.RDMA_WRITE, "read": Opcode.RDMA_READ}
MESSAGES = {2: 2000, 8: 500, 1 << 10: 2000, 64 << 10: 200, 1 << 20: 20}
RNR_RETRY_FOR_EVER = 7
TRIALS, RESAMPLES = 3, 2000
LEAST_MEAN, LEAST_CELL = 1.00, 0.97
PORTS = itertools.count(18600)
WAIT_FOR_PORT = (
    "n=0; until grep -qi :{port:04X}. /proc/net/tcp; do n=$((n+1)); [ $n -gt 600 ] && exit 9; sleep 0.05; done"
)


@dataclass(frozen=True)
class Cell:
    """One operation at one size; bandwidth in bytes a second, latency in microseconds at p50."""

    operation: str
    kind: str
    size: int

    @property
    def name(self) -> str:
        return f"{self.operation}-{self.kind}-{self.size}"

    @property
    def messages(self) -> int:
        return MESSAGES[self.size]

    def ratio(self, ours: float, theirs: float) -> float:
        return ours / theirs if self.kind == "bw" else theirs / ours


CELLS = [Cell(operation, "bw", size) for operation in OPERATIONS for size in (2, 1 << 10, 64 << 10, 1 << 20)]
CELLS += [Cell(operation, "lat", 8) for operation in OPERATIONS]


def ours(cell: Cell, local: Host, peer: Host, rail: Rail) -> float:
    caps = EndpointCaps(send_depth=DEPTH, recv_depth=RECV_DEPTH, buffer_bytes=max(4096, 2 * cell.size))
    pair = Pair.create(local, peer, rail, caps, rnr_retry=RNR_RETRY_FOR_EVER)
    try:
        pair.connect()
        op = OPERATIONS[cell.operation]
        if cell.kind == "lat":
            latency = run_pairs(pair, PingPong(op, cell.size, iterations=cell.messages)).active.latency
            assert latency is not None
            return (latency.percentile(50) or math.nan) / 1e3
        spec = Pipeline(op, cell.size, iterations=cell.messages, depth=DEPTH, signal_every=SIGNAL_EVERY)
        drain = RecvDrain(cell.size, cell.messages, RECV_DEPTH) if op == Opcode.SEND else None
        return run_pairs(pair, spec, drain, timeout_s=120).active.bytes_per_second
    finally:
        pair.close()


def theirs(cell: Cell, local: Host, peer: Host, rail: Rail, address: str, old_posts: bool) -> float:
    port = next(PORTS)
    argv = [f"ib_{cell.operation}_{cell.kind}", "-p", str(port), "-s", str(cell.size), "-n", str(cell.messages), "-F"]
    argv += ["-m", str(rail.mtu)]
    if cell.kind == "bw":
        argv += ["-N", "-t", str(DEPTH), "-Q", str(SIGNAL_EVERY)]
        argv += ["-r", str(RECV_DEPTH)] if cell.operation == "send" else []
    argv += ["-o", str(rail.rd_atomic)] if cell.operation == "read" else []
    argv += ["--use_old_post_send"] if old_posts else []
    server, client = (
        [*argv, "-d", end.device.name, "-i", str(end.port.number), *(["-x", str(end.gid.index)] if end.gid else [])]
        for end in (rail.peer, rail.local)
    )
    serving = peer.start(server)
    try:
        peer.run(["sh", "-c", WAIT_FOR_PORT.format(port=port)])
        done = local.run([*client, address], timeout_s=120)
        return parse(cell, done.stdout.decode())
    finally:
        serving.close()


def parse(cell: Cell, text: str) -> float:
    """Return the number of perftest's table; below 1 KiB its message rate has more digits than its bandwidth."""
    row = re.search(rf"^ *{cell.size} +{cell.messages} +(.*)$", text, re.MULTILINE)
    if row is None:
        raise RuntimeError(f"{cell.name}: perftest gave no row:\n{text}")
    numbers = [float(word) for word in row[1].split()]
    if cell.kind == "lat":
        return numbers[2]
    return numbers[2] * 1e6 * cell.size if cell.size < 1 << 10 else numbers[1] * (1 << 20)


def geometric_mean(ratios: list[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, ratios)))


def interval(ratios: list[float]) -> tuple[float, float]:
    """Return the 95 % bootstrap interval of the geometric mean."""
    source = random.Random(1)
    means = sorted(geometric_mean(source.choices(ratios, k=len(ratios))) for _ in range(RESAMPLES))
    return means[int(0.025 * RESAMPLES)], means[int(0.975 * RESAMPLES)]


def measure(cell: Cell, pairs: int, local: Host, peer: Host, rail: Rail, address: str) -> list[float]:
    def perftest(old_posts: bool) -> float:
        return theirs(cell, local, peer, rail, address, old_posts)

    trials = {old: [perftest(old) for _ in range(TRIALS)] for old in (False, True)}
    medians = {old: statistics.median(values) for old, values in trials.items()}
    old_posts = cell.ratio(medians[True], medians[False]) > 1
    ratios = []
    for number in range(pairs):
        first, second = (ours(cell, local, peer, rail), perftest(old_posts)) if number % 2 else (None, None)
        if first is None or second is None:
            second = perftest(old_posts)
            first = ours(cell, local, peer, rail)
        ratios.append(cell.ratio(first, second))
        print(
            f"{cell.name:16} pair {number + 1:2}: ours {first:14.1f}  perftest {second:14.1f}  ratio {ratios[-1]:.3f}"
        )
    low, high = interval(ratios)
    way = "ibv_post_send" if old_posts else "default"
    print(
        f"{cell.name:16} geometric mean {geometric_mean(ratios):.3f}, 95 % {low:.3f} to {high:.3f} ({way})", flush=True
    )
    return ratios


def main() -> int:
    parser = argparse.ArgumentParser(description="our loops beside perftest's, in the lab")
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--cells", default=",".join(cell.name for cell in CELLS))
    options = parser.parse_args()
    wanted = options.cells.split(",")
    found: dict[Cell, list[float]] = {}
    with obtain(print) as lab:
        local, peer = (RemoteHost(lab_target(host), timeout_scale=lab.timeout_scale) for host in lab.hosts)
        for host in (local, peer):
            host.open()
        rail = choose_rail(local.devices(), peer.devices(), same_host=False, names=(local.name, peer.name))
        for cell in CELLS:
            if cell.name in wanted:
                found[cell] = measure(cell, options.pairs, local, peer, rail, lab.hosts[1].fabric_address)
        for host in (local, peer):
            host.close()
    mean = geometric_mean([ratio for ratios in found.values() for ratio in ratios])
    slow = [cell.name for cell, ratios in found.items() if interval(ratios)[1] < LEAST_CELL]
    print(f"all: geometric mean {mean:.3f} of {sum(map(len, found.values()))} pairs (aim: at least {LEAST_MEAN:.2f})")
    print(f"cells wholly below {LEAST_CELL}: {', '.join(slow) or 'none'}")
    return int(mean < LEAST_MEAN or bool(slow))


if __name__ == "__main__":
    sys.exit(main())
