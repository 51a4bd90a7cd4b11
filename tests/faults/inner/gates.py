"""What a test that passed by itself must not leave: lines of harm in the kernel log, objects, open files, retries."""

from __future__ import annotations

import on_host
import pytest
from green import ENDLESS_RNR, Quick, green_after

from pytest_rdma import Host, Pair


@pytest.mark.fault("", words="kernel log of host2 says: refcount_t: underflow")
def test_kernel_log_poisoned(rdma_pair: Pair, rdma_peer: Host) -> None:
    rdma_peer.call(on_host.say_in_the_kernel_log, "<4>refcount_t: underflow; use-after-free.\n")


@pytest.mark.fault("", words="left behind on host2: context .* on rxe0")
def test_pd_leaked_behind_our_back(rdma_pair: Pair, rdma_peer: Host) -> None:
    rdma_peer.call(on_host.leak_a_pd, rdma_pair.peer.device)


@pytest.mark.fault("", words="left behind on host1: (pd|.*4096 bytes)")
def test_mr_leaked(rdma_pair: Pair, rdma_local: Host) -> None:
    rdma_local.mr(rdma_local.pd(rdma_pair.local.device), 4096)


@pytest.mark.fault("", words="left behind on host1: .*QP")
def test_qp_leaked(rdma_pair: Pair, rdma_local: Host) -> None:
    end = rdma_pair.rail.local
    rdma_local.endpoint(end.device.name, end.port.number, end.gid.index)


@pytest.mark.fault("", words="left behind on host2: .*/dev/null")
def test_file_leaked(rdma_pair: Pair, rdma_peer: Host) -> None:
    rdma_peer.call(on_host.leak_a_file)


@pytest.mark.fault("", words="rcvd_rnr_err.* grew by")
@pytest.mark.rdma_counters(rnr_naks=0)
def test_receiver_was_not_ready(quick: Quick) -> None:
    pair = quick(ENDLESS_RNR)
    sent = pair.local.send(length=64)
    assert pair.local.poll(1, timeout_s=0.05, exactly=False) == []
    pair.peer.post_recv()
    pair.local.wait(sent)


test_green = green_after(__name__)
