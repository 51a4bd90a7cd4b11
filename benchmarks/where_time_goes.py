"""Where a message's time goes on Soft-RoCE: our loop, the kernel's rxe workers, its network stack, or nowhere at all.

    python benchmarks/where_time_goes.py [--seconds 2] [--cells send-2,write-65536]

For each cell a pipeline runs between the two hosts of the lab with `split=True`. The first line tells how the active
end's loop passed its time; the others, for each host, what its processor did meanwhile, in parts of its busy time:
our process in user mode (the loop and the provider) and in the kernel (posts that enter it, copies), the kernel's
workers (where rxe handles requests, answers and completions), soft interrupts (network receive). The
kernel counts by clock ticks, so a run takes seconds.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from dataclasses import replace
from typing import Any

from pytest_rdma import EndpointCaps, Opcode, Pair, Pipeline, RecvDrain, TrafficResult, run_pairs
from pytest_rdma.host import Host
from pytest_rdma.lab import obtain
from pytest_rdma.rail import choose_rail
from pytest_rdma.remote import RemoteHost
from pytest_rdma.session import lab_target

DEPTH, RECV_DEPTH, SIGNAL_EVERY = 128, 512, 16
OPERATIONS = {"send": Opcode.SEND, "write": Opcode.RDMA_WRITE, "read": Opcode.RDMA_READ}
CELLS = [(operation, size, batch) for operation in OPERATIONS for size, batch in ((2, 1), (2, 16), (1 << 16, 1))]
WARM_UP_S = 0.1
WORKERS = ("kworker", "ksoftirqd")
READ = ["sh", "-c", "cat /proc/stat; cat /proc/[0-9]*/task/[0-9]*/stat 2>/dev/null; true"]


def name_of(cell: tuple[str, int, int]) -> str:
    return f"{cell[0]}-{cell[1]}-batch{cell[2]}"


def used(host: Host) -> Counter[str]:
    """Return what each kind of work has had of the host's processor so far, in ticks of 10 ms."""
    lines = host.run(READ).stdout.decode(errors="replace").splitlines()
    whole = [int(word) for word in lines[0].split()[1:9]]
    times = Counter(idle=whole[3] + whole[4], interrupts=whole[5], **{"soft interrupts": whole[6]}, steal=whole[7])
    for line in lines:
        task, closed, rest = line.rpartition(")")
        words = rest.split()
        if not closed or not task.split("(")[0].strip().isdigit():
            continue
        user, system = int(words[11]), int(words[12])
        if task.partition("(")[2].startswith(WORKERS):
            times["kernel workers"] += user + system
        elif "python" in task or "rdma" in task:
            times["our user"] += user
            times["our system"] += system
        else:
            times["others"] += user + system
    return times


def share(before: Counter[str], after: Counter[str]) -> str:
    """Return each kind's part of the time that the processor was busy, the largest first.

    The loops poll, so it is idle only before and behind the run: that is left out. Tasks that ended took their ticks
    with them.
    """
    spent = {name: max(0, after[name] - before[name]) for name in after if name not in ("idle", "steal")}
    busy = sum(spent.values()) or 1
    ordered = sorted(spent.items(), key=lambda item: -item[1])
    return ", ".join(f"{name} {100 * ticks / busy:.0f} %" for name, ticks in ordered if ticks)


def loop_line(result: TrafficResult) -> str:
    each = 1e6 / result.messages
    post, poll = result.post_seconds * each, result.poll_seconds * each
    whole = result.seconds * each
    return (
        f"{whole:8.1f} us a message: post {post:.1f}, poll {poll:.1f}, waiting {whole - post - poll:.1f}; "
        f"{result.empty_polls / result.messages:.1f} empty polls a message"
    )


def measure(cell: tuple[str, int, int], hosts: list[RemoteHost], rail: Any, seconds: float) -> None:
    operation, size, batch = cell
    op = OPERATIONS[operation]
    caps = EndpointCaps(send_depth=DEPTH, recv_depth=RECV_DEPTH, buffer_bytes=max(4096, size))
    pair = Pair.create(hosts[0], hosts[1], rail, caps, rnr_retry=7)
    try:
        pair.connect()
        spec = Pipeline(op, size, duration_s=seconds, depth=DEPTH, batch=batch, signal_every=SIGNAL_EVERY, split=True)
        drain = RecvDrain(size, 0, RECV_DEPTH) if op == Opcode.SEND else None
        run_pairs(pair, replace(spec, duration_s=WARM_UP_S), drain, timeout_s=60)
        before = [used(host) for host in hosts]
        result = run_pairs(pair, spec, drain, timeout_s=seconds + 60).active
        after = [used(host) for host in hosts]
    finally:
        pair.close()
    print(f"{name_of(cell):18} {loop_line(result)}")
    for host, *times in zip(hosts, before, after, strict=True):
        print(f"{'':18} {host.name}: {share(times[0], times[1])}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description="where the time of a message goes on Soft-RoCE")
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--cells", default=",".join(map(name_of, CELLS)))
    options = parser.parse_args()
    with obtain(print) as lab:
        hosts = [RemoteHost(lab_target(host), timeout_scale=lab.timeout_scale) for host in lab.hosts]
        for host in hosts:
            host.open()
        names = (hosts[0].name, hosts[1].name)
        rail = choose_rail(hosts[0].devices(), hosts[1].devices(), same_host=False, names=names)
        for cell in CELLS:
            if name_of(cell) in options.cells.split(","):
                measure(cell, hosts, rail, options.seconds)
        for host in hosts:
            host.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
