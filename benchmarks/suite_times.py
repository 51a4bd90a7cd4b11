"""What a test costs here: an empty one with `rdma_pair`, and one of the functional suites, beside rdma-core's own.

    python benchmarks/suite_times.py

Uses the lab that is up, or boots one, and takes all figures in one run. rdma-core's suite runs in one process in one
guest; ours runs on two hosts. A test of ours costs its set-up, call and tear-down together.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from pytest_rdma.lab import Lab, obtain
from pytest_rdma.lab.ssh_command import ssh_command

SUITES = Path(__file__).parents[1] / "suites"
TIMED = ("test_batching.py", "test_latency.py", "test_throughput.py")  # these measure, and take the time for it
EMPTY_TEST = """
import pytest

@pytest.mark.parametrize("number", range(40))
def test_empty(rdma_pair, number):
    pass
"""
RECORDER = """
import json, pathlib

def pytest_runtest_logreport(report):
    with open(pathlib.Path(__file__).with_name("times"), "a") as file:
        file.write(json.dumps([report.nodeid, report.duration]) + chr(10))
"""
# pyverbs 56.1 crashes while Python 3.13 collects garbage; tests of other providers would be skipped one by one.
RDMA_CORE_SUITE = """
rm -rf /tmp/rdma-core && mkdir /tmp/rdma-core && cp -r /usr/share/doc/rdma-core/tests /tmp/rdma-core
cd /tmp/rdma-core && find . -name '*.gz' -exec gunzip {} + && rm -f tests/test_mlx5* tests/test_efa* tests/test_irdma*
echo 'import gc; gc.disable()' >sitecustomize.py
PYTHONPATH=. timeout 300 python3 tests/run_tests.py --dev rxe0 --gid 1 2>&1 | grep -E '^(Ran|OK|FAILED)'
"""
THEIRS = re.compile(r"Ran (?P<tests>\d+) tests in (?P<seconds>[\d.]+)s (?P<verdict>.*)")


def times_of_tests(directory: Path, *arguments: str) -> tuple[dict[str, float], float]:
    """Run pytest in the lab; return the seconds of each test, set-up and tear-down included, and of the whole run."""
    (directory / "times").unlink(missing_ok=True)
    (directory / "recorder.py").write_text(RECORDER)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "recorder", "--rdma-lab", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(directory)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=1800)
    if done.returncode:
        raise SystemExit(done.stdout[-3000:] + done.stderr[-1000:])
    seconds: dict[str, float] = {}
    for line in (directory / "times").read_text().splitlines():
        name, duration = json.loads(line)
        seconds[name] = seconds.get(name, 0.0) + duration
    match = re.search(r"in ([0-9.]+)s", done.stdout)
    assert match is not None
    return seconds, float(match[1])


def rdma_core_suite(lab: Lab) -> str:
    """Return what rdma-core's own suite says of itself in a guest."""
    command = [*ssh_command(lab.hosts[0]), "sh", "-s"]
    done = subprocess.run(command, input=RDMA_CORE_SUITE, capture_output=True, text=True, check=False, timeout=600)
    return " ".join(done.stdout.split()) or done.stderr.strip()


def cost_of_theirs(said: str) -> str:
    """Return what one of their tests cost: the time of the suite over the tests that were not skipped."""
    match = THEIRS.match(said)
    if match is None:
        return f"no figures: {said}"
    skipped = re.search(r"skipped=(\d+)", match["verdict"])
    ran = int(match["tests"]) - int(skipped[1] if skipped else 0)
    return f"mean {float(match['seconds']) / ran * 1e3:.0f} ms of the {ran} that ran in {match['seconds']} s ({said})"


def shown(seconds: dict[str, float]) -> str:
    times = seconds.values()
    return f"median {statistics.median(times) * 1e3:.1f} ms, mean {statistics.mean(times) * 1e3:.1f} ms of {len(times)}"


def main() -> None:
    with obtain(print) as lab, tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        (directory / "test_empty.py").write_text(EMPTY_TEST)
        empty, _ = times_of_tests(directory, str(directory / "test_empty.py"))
        theirs = rdma_core_suite(lab)
        suites, whole_s = times_of_tests(directory, str(SUITES), *(f"--ignore={SUITES / timed}" for timed in TIMED))
    echo = {name: seconds for name, seconds in suites.items() if "test_echo.py" in name}
    print(f"empty test with rdma_pair: {shown(empty)}")
    print(f"test of the echo suite: {shown(echo)}")
    print(f"test of the functional suites: {shown(suites)}; {whole_s:.1f} s as pytest tells")
    print(f"test of rdma-core's own suite, in one guest: {cost_of_theirs(theirs)}")


if __name__ == "__main__":
    main()
