"""Where loops run: on the processors beside the device, and what a number depends on of the machine."""

from __future__ import annotations

import contextlib
import functools
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pytest_rdma.deadline import Deadline
from pytest_rdma.host import LocalHost, op

CPUS = Path("/sys/devices/system/cpu")


@contextlib.contextmanager
def near(node: int, cpus: Path = CPUS) -> Iterator[None]:
    """Let threads that are started here run on the processors of the device's NUMA node alone.

    Not where it has none (-1), or this process may not run there. A loop is not bound to one processor: which of the
    node's is free, the kernel knows better.
    """
    allowed = os.sched_getaffinity(0)
    beside = {cpu for cpu in allowed if node >= 0 and node_of(cpu, cpus) == node}
    if not beside or beside == allowed:
        yield
        return
    os.sched_setaffinity(0, beside)  # of this thread, and its children inherit it
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


@functools.lru_cache(maxsize=1024)
def node_of(cpu: int, cpus: Path = CPUS) -> int:
    """Return the NUMA node of a processor, -1 where the kernel tells none."""
    return next((int(path.name[4:]) for path in (cpus / f"cpu{cpu}").glob("node[0-9]*")), -1)


@op("traffic.machine")
def op_machine(host: LocalHost, deadline: Deadline, device: str) -> dict[str, Any]:
    """Tell what of the machine a number depends on: CPU, governor, and the NUMA nodes that this process may run on."""
    cpus = sorted(os.sched_getaffinity(0))
    model = re.search(r"^model name\s*: (.*)$", _text("/proc/cpuinfo"), re.MULTILINE)
    return {
        "cpu": model[1] if model else os.uname().machine,
        "emulated": bool(model and "TCG" in model[1]),
        "governor": _text(f"{CPUS}/cpu{cpus[0]}/cpufreq/scaling_governor").strip(),
        "cpu_numa_nodes": sorted({node_of(cpu) for cpu in cpus} - {-1}),
    }


def _text(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
