"""Ctrl-C in a run between two hosts: loops at both ends stop at once, and nothing of the run is left on either host."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_rdma.lab import Lab

pytestmark = pytest.mark.lab

HERE = Path(__file__).parent
DRIVER, CASES = HERE / "interrupt.py", HERE / "interrupted_cases.py"
LOOP, WAIT = "test_sends_both_ways", "test_wait"
OUTSIDE = (LOOP, "test_poll", "test_cm_connect")
MORE_OUTSIDE = ("test_large_writes", "test_ping_pong_by_write", "test_program")
STOP_S, GONE_S = 0.1, 2.0
GUEST_FOLDER = "/root/interrupted"
LOOK = r"""
rdma -j resource show qp | grep -o '"type":"RC"' | wc -l
test -e /proc/{pid} && tr '\0' ' ' < /proc/{pid}/cmdline
pgrep -fx 'sleep 1234'
flock -n /run/lock/pytest-rdma-rxe0.lock true || echo locked
"""


def check(found: dict[str, Any], lab: Lab, on_guest: Callable[..., str]) -> None:
    """Compare the times with their limits, and look at once at what is left on both hosts."""
    pids = found.get("pids", ["none"] * 2)
    left = [on_guest(LOOK.format(pid=pid), host=host) for pid, host in zip(pids, lab.hosts)]
    assert found["code"] == pytest.ExitCode.INTERRUPTED, found["output"]
    assert found["users"] == [0, 0]
    stopped_s = found["ended"] - found["began"]
    limit_s = (STOP_S + found["round_trip_s"]) * lab.timeout_scale
    times = f"stopped after {stopped_s:.3f} s, pytest ended after {found['took_s']:.3f} s"
    print(times, f"(a round trip takes {found['round_trip_s'] * 1e3:.1f} ms, the scale is {lab.timeout_scale:g})")
    assert stopped_s <= limit_s, times
    assert found["took_s"] <= GONE_S * lab.timeout_scale, times
    assert left == ["0\n", "0\n"], left


def cases(some: tuple[str, ...], more: tuple[str, ...]) -> list[Any]:
    return [*some, *(pytest.param(case, marks=pytest.mark.full) for case in more)]


@pytest.mark.parametrize("case", cases(OUTSIDE, MORE_OUTSIDE))
def test_with_the_controller_outside(
    case: str, lab: Lab, ssh_config: Path, on_guest: Callable[..., str], tmp_path: Path
) -> None:
    hosts = ["--rdma-host=host1", "--peer=host2", f"--rdma-timeout-scale={lab.timeout_scale:g}"]
    command = ["-m", "pytest", "-p", "no:cacheprovider", *hosts, f"--rootdir={tmp_path}"]
    (tmp_path / CASES.name).write_text(CASES.read_text())
    done = subprocess.run(
        [sys.executable, str(DRIVER), sys.executable, *command, f"{CASES.name}::{case}"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": "", "HOME": str(ssh_config.parents[1])},
        stdout=subprocess.PIPE,
        timeout=300,
        check=True,
    )
    check(json.loads(done.stdout), lab, on_guest)


@pytest.mark.parametrize("case", cases((LOOP,), (WAIT, "test_program", "test_large_writes")))
def test_with_one_end_in_the_process_of_pytest(
    case: str, lab: Lab, on_guest: Callable[..., str], guest_pytest: Callable[..., str]
) -> None:
    on_guest(f"mkdir -p {GUEST_FOLDER} && cat > {GUEST_FOLDER}/{DRIVER.name}", data=DRIVER.read_bytes())
    on_guest(f"cat > {GUEST_FOLDER}/{CASES.name}", data=CASES.read_bytes())
    options = f"-p pytest_rdma.plugin --rdma-device rxe0 --peer host2 --rdma-timeout-scale={lab.timeout_scale:g}"
    command = f"python3 -m pytest -p no:cacheprovider --rootdir=. {options} '{CASES.name}::{case}'"
    text = on_guest(f"cd {GUEST_FOLDER} && PYTHONPATH=/root/tree python3 {DRIVER.name} {command}")
    check(json.loads(text), lab, on_guest)
