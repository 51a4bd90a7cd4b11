"""`rdma link delete` from a side process, in the middle of a run."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from guests import Guests
from harness import Way, run_file

from pytest_rdma.lab import Lab

pytestmark = pytest.mark.lab

REMOVED_S = 10.0
NEXT_S = 10.0


def test_device_deleted_during_a_run(way: Way, guests: Guests, lab: Lab, tmp_path: Path) -> None:
    """Verify: the run that has it open passes; then it is gone, and the next run says so at once, with exit code 4."""
    try:
        ran = run_file(way, tmp_path, "removed")
        assert ran.returncode == 0, ran.text
        end = time.monotonic() + REMOVED_S * lab.timeout_scale
        while guests.have_device(1):
            assert time.monotonic() < end, "the device is still there"
        after = run_file(way, tmp_path, "removed")
    finally:
        guests.mend()
    assert after.returncode == pytest.ExitCode.USAGE_ERROR, after.text
    (line,) = [line for line in after.text.splitlines() if line.startswith("ERROR: rdma: ")]
    assert "host2" in line and "no RDMA device" in line
    assert after.seconds < NEXT_S * lab.timeout_scale
    assert guests.left() == []
