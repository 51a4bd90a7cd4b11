"""The traps of a hand-written RC echo: each row of the seed's table, provoked, and each shown again done right.

InfiniBand specification, volume 1: 9.7.5.2.8 (receiver not ready), 10.8.3 (posting), 10.6.3 (keys), 9.9.2 (requester
errors), 11.4.2 (completions). The rows are T1 to T5; T6 to T9 are what its program itself gets wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from pytest_rdma import (
    Access,
    CompletionError,
    DeadlineError,
    Endpoint,
    Opcode,
    Pair,
    PostError,
    QPState,
    RecvWR,
    RefusedError,
    SendWR,
    VerbsError,
    WCOpcode,
    WCStatus,
)

QUICK = {"ack_timeout": 8, "retry_count": 1}
SOON_S = 0.25
MOST_RECEIVES = 1 << 16

# the first of each is what the specification says, the others are Soft-RoCE; suites/test_error_*.py judge them exactly
OWN_MEMORY = (WCStatus.LOC_PROT_ERR, WCStatus.LOC_QP_OP_ERR, WCStatus.WR_FLUSH_ERR)
TOO_LONG = (
    (WCStatus.LOC_LEN_ERR, WCStatus.REM_INV_REQ_ERR),
    (WCStatus.REM_INV_REQ_ERR, WCStatus.REM_INV_REQ_ERR),
    (WCStatus.LOC_QP_OP_ERR, WCStatus.REM_OP_ERR),
)


def both_ends(changes: dict[str, int]) -> dict[str, dict[str, int]]:
    return {"local": changes, "peer": changes}


def status_of(endpoint: Endpoint, wr_id: int) -> WCStatus:
    """Return the status with which a request of the endpoint fails."""
    with pytest.raises(CompletionError) as error:
        endpoint.wait(wr_id)
    return WCStatus(error.value.completions[0].status)


# -- T1: the peer sends before a receive is posted


def test_t1_send_without_a_posted_receive_exhausts_the_rnr_retries(rdma_pairs: Callable[..., Pair]) -> None:
    pair = rdma_pairs(overrides=both_ends({"rnr_retry": 1, "min_rnr_timer": 1}))
    pair.peer.buffer.memset(0xA5, 0, 64)
    assert status_of(pair.local, pair.local.send(length=64)) == WCStatus.RNR_RETRY_EXC_ERR
    pair.peer.buffer.check_untouched(0xA5, 0, 64)
    assert pair.local.state == QPState.ERR


def test_t1_receive_posted_before_the_connection_is_never_too_late(rdma_pairs: Callable[..., Pair]) -> None:
    """A receive may be posted in INIT: with no retry at all, a send at once after connecting arrives."""
    pair = rdma_pairs(connect=False)
    received = pair.peer.post_recv(length=64)
    pair.connect(both_ends({"rnr_retry": 0}))
    pair.local.buffer.fill(61, 0, 64)
    pair.local.wait(pair.local.send(length=64))
    pair.peer.wait(received)
    pair.peer.buffer.verify(61, 0, 64)


# -- T2: more receives than the QP was made for


def test_t2_receives_beyond_the_granted_depth_are_refused_with_the_depth(rdma_pairs: Callable[..., Pair]) -> None:
    pair = rdma_pairs(recv_depth=4)
    depth = pair.local.caps.recv_depth
    for _ in range(depth):
        pair.local.post_recv(length=64)
    with pytest.raises(RefusedError, match=f"do not fit its {depth}"):
        pair.local.post_recv(length=64)


def test_t2_driver_says_enomem_beyond_the_depth_and_names_the_first(rdma_pairs: Callable[..., Pair]) -> None:
    """Never before the granted depth; what was accepted before is in use, and arrives."""
    pair = rdma_pairs(recv_depth=4)
    end = pair.local
    receive = RecvWR((end.buffer.sge(0, 64),))
    with pytest.raises(PostError, match="ENOMEM") as error:
        for first in range(0, MOST_RECEIVES, 512):
            end.post_raw([replace(receive, wr_id=first + index) for index in range(512)])
    assert first + error.value.bad_index >= end.caps.recv_depth
    pair.peer.buffer.fill(62, 0, 64)
    pair.peer.wait(pair.peer.send(length=64))
    (completion,) = end.wait(0)
    assert completion.byte_len == 64
    end.buffer.verify(62, 0, 64)


# -- T3: an SGE that leads to memory that is not registered, or not for this


def test_t3_send_from_unregistered_memory_fails_at_the_sender(rdma_pair: Pair) -> None:
    """The checked post names the key; the raw one fails locally, and the peer never hears of it."""
    local, peer = rdma_pair.local, rdma_pair.peer
    stranger = replace(local.buffer.sge(0, 64), lkey=local.buffer.lkey ^ 0xFFFF00)
    with pytest.raises(RefusedError, match="is of no buffer"):
        local.send(sges=[stranger])
    received = peer.post_recv(length=64)
    local.post_raw(SendWR(Opcode.SEND, (stranger,), wr_id=7))
    assert status_of(local, 7) in OWN_MEMORY
    with pytest.raises(DeadlineError, match=f"receives: {received:#x}"):
        peer.wait(received, timeout_s=SOON_S)


def test_t3_receive_into_memory_without_local_write_fails_at_the_receiver(rdma_pairs: Callable[..., Pair]) -> None:
    pair = rdma_pairs(access=Access.NONE, qp_access=Access.ALL)
    local, peer = pair.local, pair.peer
    with pytest.raises(RefusedError, match="without LOCAL_WRITE"):
        peer.post_recv(length=64)
    peer.post_raw(RecvWR((peer.buffer.sge(0, 64),), wr_id=8))
    sent = local.send(length=64)
    assert status_of(peer, 8) in OWN_MEMORY
    assert status_of(local, sent) == WCStatus.REM_OP_ERR
    peer.buffer.check_untouched(0, 0, 64)


# -- T4: sent, and the peer never gets it: the two ends are not on one network


def test_t4_address_of_a_gid_row_of_another_network_never_arrives(rdma_pairs: Callable[..., Pair]) -> None:
    """Told the GID of a host that is not there, the local end fails to connect, or its retries are exhausted."""
    pair = rdma_pairs(connect=False)
    if pair.local.record.link_layer != "Ethernet":
        pytest.skip("a GID row is chosen on RoCE only: this port is addressed by LIDs")
    nowhere = "2001:db8::77" if ":" in str(pair.rail.peer.gid and pair.rail.peer.gid.address) else "::ffff:192.0.2.77"
    received = pair.peer.post_recv(length=64)
    try:
        pair.connect({"local": QUICK, "peer": {"gid": nowhere}})
    except VerbsError as error:
        assert nowhere.rpartition(":")[2] in str(error)
    else:
        assert status_of(pair.local, pair.local.send(length=64)) == WCStatus.RETRY_EXC_ERR
    with pytest.raises(DeadlineError, match=f"receives: {received:#x}"):
        pair.peer.wait(received, timeout_s=SOON_S)


def test_t4_gid_row_of_the_other_family_is_refused_or_never_arrives(rdma_pairs: Callable[..., Pair]) -> None:
    """The index of the wrong row is the usual mistake: the peer's GID of the other address family is told."""
    pair = rdma_pairs(connect=False)
    rows = [row for row in pair.rail.peer.port.gids if row.netdev and not row.address.is_link_local]
    others = [row for row in rows if pair.rail.peer.gid and row.address.version != pair.rail.peer.gid.address.version]
    if not others:
        pytest.skip("the peer's port has GID rows of one address family only")
    try:
        pair.connect({"local": QUICK, "peer": {"gid": others[0].gid}})
    except VerbsError:
        assert pair.local.state == QPState.INIT
    else:
        assert status_of(pair.local, pair.local.send(length=64)) == WCStatus.RETRY_EXC_ERR


# -- T5: the program hangs in its poll loop


def test_t5_wait_for_an_unsignaled_send_says_that_nothing_can_come(rdma_pair: Pair) -> None:
    received = rdma_pair.peer.post_recv(length=64)
    sent = rdma_pair.local.send(length=64, signaled=False)
    rdma_pair.peer.wait(received)
    with pytest.raises(DeadlineError, match="completes only when it fails"):
        rdma_pair.local.wait(sent, timeout_s=SOON_S)


def test_t5_signaled_send_retires_the_unsignaled_ones_before_it(rdma_pair: Pair) -> None:
    for index in range(3):
        rdma_pair.peer.post_recv(offset=64 * index, length=64)
    for _ in range(2):
        rdma_pair.local.send(length=64, signaled=False)
    rdma_pair.local.wait(rdma_pair.local.send(length=64))
    with pytest.raises(DeadlineError, match="no completion can arrive here: no request is outstanding"):
        rdma_pair.local.poll(1, timeout_s=SOON_S)


def test_t5_peer_that_sends_nothing_leaves_the_receive_outstanding(rdma_pair: Pair) -> None:
    received = rdma_pair.local.post_recv(length=64)
    with pytest.raises(DeadlineError, match=rf"outstanding: 1 receives: {received:#x}"):
        rdma_pair.local.wait(received, timeout_s=SOON_S)


# -- what the seed's program gets wrong beside its table


def test_t6_completions_are_matched_by_wr_id_not_by_order(rdma_pair: Pair) -> None:
    """An echo gives one CQ a send and a receive: whichever is first, each has its own wr_id and opcode."""
    local, peer = rdma_pair.local, rdma_pair.peer
    for number in range(20):
        arrives, comes_back = peer.post_recv(length=100), local.post_recv(offset=4096, length=4096)
        sent = local.send(length=100)
        peer.wait(arrives)
        answered = peer.send(length=50 + number)
        first, second = local.wait(sent, comes_back)
        assert (first.opcode, second.opcode) == (WCOpcode.SEND, WCOpcode.RECV)
        assert second.byte_len == 50 + number
        peer.wait(answered)


def test_t7_message_longer_than_the_receive_fails_at_both_ends(rdma_pair: Pair) -> None:
    """4096 bytes are posted, and nobody has told the peer."""
    local, peer = rdma_pair.local, rdma_pair.peer
    peer.buffer.memset(0xA5)
    received = peer.post_recv(offset=0, length=4096)
    sent = local.send(length=4097)
    assert (status_of(peer, received), status_of(local, sent)) in TOO_LONG
    peer.buffer.check_untouched(0xA5, 4096)


def test_t8_empty_poll_is_no_success(rdma_pair: Pair) -> None:
    """A poll that finds nothing gives no completion: nothing is there whose status could read as success."""
    assert rdma_pair.local.poll(1, timeout_s=0, exactly=False) == []
    with pytest.raises(DeadlineError, match="0 of 1 completions"):
        rdma_pair.local.poll(1, timeout_s=0)


def test_t9_receive_that_is_posted_late_still_gets_the_message(rdma_pairs: Callable[..., Pair]) -> None:
    """Steps: send, see that the sender waits, post the receive. Verify: endless RNR retries (7) deliver in the end."""
    pair = rdma_pairs(overrides=both_ends({"rnr_retry": 7, "min_rnr_timer": 1}))
    pair.local.buffer.fill(69, 0, 64)
    sent = pair.local.send(length=64)
    with pytest.raises(DeadlineError):
        pair.local.wait(sent, timeout_s=0.05)
    received = pair.peer.post_recv(length=64)
    pair.local.wait(sent)
    pair.peer.wait(received)
    pair.peer.buffer.verify(69, 0, 64)
