"""Peers that do not answer: their QP is in another state, gone, another one, or expects other packets."""

from __future__ import annotations

import os
import signal

import pytest
from green import ENDLESS_RNR, Quick, green_after

from pytest_rdma import Host, Pair, QPState


def send(pair: Pair, timeout_s: float = 5.0) -> None:
    pair.local.wait(pair.local.send(length=64), timeout_s=timeout_s)


@pytest.mark.fault("peer-qp-reset", words="reset", bound_s=5)
def test_peer_qp_in_reset(quick: Quick) -> None:
    pair = quick()
    pair.peer.modify(QPState.RESET)
    send(pair)


@pytest.mark.fault("peer-qp-not-in-rtr", words="INIT", bound_s=5)
def test_peer_qp_in_init(quick: Quick) -> None:
    pair = quick()
    pair.peer.reset()
    send(pair)


@pytest.mark.fault("peer-qp-in-error", words="ERR", bound_s=5)
def test_peer_qp_in_err(quick: Quick) -> None:
    pair = quick()
    pair.peer.post_recv()
    pair.peer.to_error()
    send(pair)


@pytest.mark.fault("qp-in-error", words="ERR", bound_s=5)
def test_own_qp_moved_to_err_behind_the_tests_back(quick: Quick) -> None:
    pair = quick(ENDLESS_RNR)
    sent = pair.local.send(length=64)
    pair.local.to_error()
    pair.local.wait(sent)


@pytest.mark.fault("peer-qp-gone", bound_s=5)
def test_peer_qp_destroyed(quick: Quick) -> None:
    pair = quick()
    pair.peer.close()
    send(pair)


@pytest.mark.fault("peer-qp-gone|process-gone", bound_s=20)
def test_peer_process_killed(rdma_pair: Pair, rdma_peer: Host) -> None:
    """Its QP goes with it; the agent of the other tests lives on."""
    spawned = rdma_peer.spawn()
    pair = Pair.create(rdma_pair.local.host, spawned, rdma_pair.rail, ack_timeout=11, retry_count=3)
    try:
        pair.connect()
        rdma_peer.call(os.kill, spawned.info.pid, int(signal.SIGKILL))
        send(pair)
    finally:
        pair.local.close()
        spawned.close()


@pytest.mark.fault("wrong-destination-qpn", bound_s=5)
def test_wrong_qp_number(quick: Quick) -> None:
    send(quick(peer={"qp_num": 0xFFFFF0}))


@pytest.mark.fault("wrong-psn", bound_s=10)
def test_psn_ahead_of_what_the_peer_expects(rdma_pairs: Quick) -> None:
    pair = rdma_pairs(connect=False)
    told = (pair.local.record.psn - 100) & 0xFFFFFF
    pair.connect({"local": {"psn": told, "ack_timeout": 11, "retry_count": 3}})
    send(pair)


test_green = green_after(__name__)
