"""Hosts that are lost, stuck or full, in the middle of a test."""

from __future__ import annotations

import signal
from pathlib import Path

import on_host
import pytest
from green import Break, green_after

from pytest_rdma import Host, Pair


@pytest.mark.fault("process-gone", words="the agent ended: no exit status, as after a signal", bound_s=10)
def test_agent_killed(rdma_pair: Pair, rdma_peer: Host) -> None:
    rdma_peer.call(on_host.signal_self, int(signal.SIGKILL))


@pytest.mark.fault("process-gone", bound_s=10)
def test_agent_of_the_local_host_killed(rdma_pair: Pair, rdma_local: Host) -> None:
    rdma_local.call(on_host.signal_self, int(signal.SIGKILL))


@pytest.mark.fault("process-gone", words=r"was stopped \(state T\); SIG(TERM|KILL) ended it", bound_s=15)
def test_agent_stopped(rdma_pair: Pair, rdma_peer: Host) -> None:
    rdma_peer.call(on_host.signal_self, int(signal.SIGSTOP))


@pytest.mark.fault("process-gone", bound_s=10)
def test_sshd_session_killed(rdma_pair: Pair, rdma_peer: Host) -> None:
    rdma_peer.call(on_host.signal_sshd, int(signal.SIGKILL))


@pytest.mark.fault("process-gone", bound_s=15, full=True)
def test_sshd_session_stopped(rdma_pair: Pair, rdma_peer: Host) -> None:
    rdma_peer.call(on_host.signal_sshd, int(signal.SIGSTOP))


@pytest.mark.fault("process-gone", bound_s=15, full=True)
def test_call_that_hangs(rdma_pair: Pair, rdma_peer: Host) -> None:
    rdma_peer.call(on_host.sleep, 1000.0, timeout_s=0.5)


@pytest.mark.fault("process-gone", bound_s=15, full=True)
def test_call_that_hangs_and_holds_the_gil(rdma_pair: Pair, rdma_peer: Host) -> None:
    rdma_peer.call(on_host.sleep_with_the_gil, 1000, timeout_s=0.5)


@pytest.mark.fault("disk-full", words="ENOSPC|No space left", bound_s=15)
def test_disk_of_the_peer_is_full(rdma_pair: Pair, rdma_peer: Host, broken: Break, tmp_path: Path) -> None:
    large = tmp_path / "large"
    large.write_bytes(bytes(2 << 20))
    there = rdma_peer.put(Path(__file__)).rpartition("/")[0].rpartition("/")[0]
    broken(rdma_peer, ["mount", "-t", "tmpfs", "-o", "size=64k,mode=700", "full", there], ["umount", "-l", there])
    rdma_peer.put(large)


test_green = green_after(__name__)
