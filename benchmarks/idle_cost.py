"""Measure what the plugin costs a pytest run that does not use it, against `-p no:rdma`.

Both sides run in turns, each in a process of its own: medians of the wall time and of the processor time. The target is
at most 10 ms and 3 %, by the wall clock, or on a machine with other work by the processor's; the
exit code is 1 beyond it.
usage: python benchmarks/idle_cost.py [RUNS]
"""

from __future__ import annotations

import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RUNS = 40
LIMIT_MS = 10.0
LIMIT_RATIO = 1.03
PLAIN_TEST = "import pytest\n\n@pytest.mark.parametrize('number', range(100))\ndef test_plain(number):\n    pass\n"


def run_ms(folder: str, *options: str) -> tuple[float, float]:
    """Return the wall time and the processor time of one run of the plain tests."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("RDMA_", "PYTEST_", "PYTHON"))}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, folder]
    before, begin_s = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, cwd=folder, env=kept, check=True, stdout=subprocess.DEVNULL, timeout=120)
    wall_s, after = time.perf_counter() - begin_s, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall_s * 1e3, (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1e3


def report(clock: str, used: list[float], idle: list[float]) -> bool:
    """Print one clock's medians; return whether they keep the limits."""
    cost_ms = statistics.median(used) - statistics.median(idle)
    ratio = statistics.median(used) / statistics.median(idle)
    print(
        f"{clock:>9} time: with the plugin, unused {statistics.median(used):6.1f} ms, "
        f"-p no:rdma {statistics.median(idle):6.1f} ms, cost {cost_ms:+5.1f} ms, ratio {ratio:.3f}"
    )
    return cost_ms <= LIMIT_MS and ratio <= LIMIT_RATIO


def main() -> int:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else RUNS
    sides: dict[tuple[str, ...], list[tuple[float, float]]] = {(): [], ("-p", "no:rdma"): []}
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "test_plain.py").write_text(PLAIN_TEST)
        Path(folder, "pytest.ini").write_text("[pytest]\n")
        for options in sides:
            run_ms(folder, *options)
        for number in range(runs):
            for options in list(sides)[:: 1 if number % 2 else -1]:
                sides[options].append(run_ms(folder, *options))
    (used_wall, used_cpu), (idle_wall, idle_cpu) = (zip(*times) for times in sides.values())
    print(
        f"medians of {runs} runs in turns of 100 empty tests; Python {platform.python_version()}, {os.cpu_count()} CPUs"
    )
    kept = [
        report("wall", list(used_wall), list(idle_wall)),
        report("processor", list(used_cpu), list(idle_cpu)),
    ]
    print(f"limits {LIMIT_MS:g} ms and {LIMIT_RATIO:g}: {'kept' if any(kept) else 'EXCEEDED'}")
    return 0 if any(kept) else 1


if __name__ == "__main__":
    sys.exit(main())
