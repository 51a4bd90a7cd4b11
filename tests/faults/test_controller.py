"""The controller itself is interrupted, killed or stopped: nothing of it is left on either host."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from guests import Guests
from harness import INNER, RUNNING, Way

from pytest_rdma.lab import Lab

pytestmark = pytest.mark.lab

START_S = 60.0
CLEAN_S = 2.0


@contextmanager
def waiting(way: Way, folder: Path, test: str) -> Iterator[subprocess.Popen[str]]:
    """Run the test until it waits; end what is left of it."""
    command = [sys.executable, "-m", "pytest", f"{INNER / 'interrupted.py'}::{test}", *way.options, *RUNNING]
    process = subprocess.Popen(
        command, cwd=folder, env=way.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        end = time.monotonic() + START_S
        while not (folder / "waiting").exists():
            assert process.poll() is None, process.communicate(timeout=60)[0]
            assert time.monotonic() < end, "the inner test does not begin"
            time.sleep(0.02)
        yield process
    finally:
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.communicate(timeout=60)


def test_ctrl_c(heeds_ctrl_c: None, way: Way, guests: Guests, lab: Lab, tmp_path: Path) -> None:
    """Verify: it ends and both hosts are clean within 2 s, times the scale."""
    with waiting(way, tmp_path, "test_waits") as process:
        started = time.monotonic()
        process.send_signal(signal.SIGINT)
        text, _ = process.communicate(timeout=60)
        assert guests.left() == []
        took = time.monotonic() - started
    assert process.returncode == pytest.ExitCode.INTERRUPTED, text
    assert took < CLEAN_S * lab.timeout_scale


def test_controller_killed(way: Way, guests: Guests, tmp_path: Path) -> None:
    """Verify: the agents end with the streams, and what they held with them."""
    with waiting(way, tmp_path, "test_waits") as process:
        process.kill()
        process.communicate(timeout=60)
        assert guests.left() == []


def test_controller_stopped_for_a_while(way: Way, guests: Guests, lab: Lab, tmp_path: Path) -> None:
    """Verify: one that was stopped for longer than its own wait goes on and passes; it takes no host for lost."""
    with waiting(way, tmp_path, "test_waits_a_little") as process:
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        time.sleep(2.0 * lab.timeout_scale)  # being stopped is what is tested
        process.send_signal(signal.SIGCONT)
        text, _ = process.communicate(timeout=120)
    assert process.returncode == 0, text
    assert guests.left() == []
