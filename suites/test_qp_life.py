"""What a QP does with requests in each of its states, many QPs at once, and QPs that are used again and again.

InfiniBand specification 1.4, volume 1: 10.3.1 (QP states: what may be posted, what is flushed), 10.8.3 (a CQ may serve
many queues), 10.3.1.1 (RESET releases all requests without completion).
"""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest
from qp_attributes import init_attributes, rtr_attributes, rts_attributes
from trials import FLUSH, MESSAGE_BYTES, NOTHING, SUCCESS, TrialFactory, echo

from pytest_rdma import Endpoint, Pair, QPState, RecvWR, RefusedError
from pytest_rdma.host import close_all

STATES = {"RESET": QPState.RESET, "INIT": QPState.INIT, "RTR": QPState.RTR}
MANY_PAIRS = 64
RECONNECTIONS = 200


def put_into(endpoint: Endpoint, state: QPState, pair: Pair) -> None:
    """From INIT, where a new QP is, to the state."""
    if state == QPState.RESET:
        endpoint.modify(QPState.RESET)
    elif state == QPState.RTR:
        pair.connect()
        endpoint.modify(QPState.RESET)
        other = pair.peer if endpoint is pair.local else pair.local
        endpoint.modify(QPState.INIT, **init_attributes(endpoint.port))
        endpoint.modify(QPState.RTR, **rtr_attributes(endpoint, other.record, pair.attributes))
    assert endpoint.state == state


@pytest.mark.parametrize("state", STATES)
def test_checked_send_before_rts_is_refused_by_us(rdma_pairs: Callable[..., Pair], state: str) -> None:
    """The driver never sees it: nothing runs once the QP is in RTS."""
    pair = rdma_pairs(connect=False)
    put_into(pair.local, STATES[state], pair)
    with pytest.raises(RefusedError, match=f"is {state}, not RTS"):
        pair.local.send(length=MESSAGE_BYTES)
    pair.reconnect()
    pair.peer.post_recv(length=MESSAGE_BYTES, wr_id=77)
    assert pair.peer.poll(1, timeout_s=0, exactly=False) == []
    assert pair.local.poll(1, timeout_s=0, exactly=False) == []


def test_checked_receive_in_reset_is_refused_by_us(rdma_pairs: Callable[..., Pair]) -> None:
    pair = rdma_pairs(connect=False)
    pair.local.modify(QPState.RESET)
    with pytest.raises(RefusedError, match="is RESET: receives can be posted from INIT on"):
        pair.local.post_recv()


@pytest.mark.combined(state=tuple(STATES))
def test_raw_send_before_rts(trial: TrialFactory, state: str) -> None:
    """The driver refuses it; a request that was refused must not run after the QP is connected."""
    made = trial(connect=False)
    put_into(made.requester, STATES[state], made.pair)
    made.active.send(made.message())
    if state == "RTR":
        made.requester.modify(QPState.RTS, **rts_attributes(made.requester.record, made.pair.attributes))
    else:
        if state == "RESET":
            made.requester.modify(QPState.INIT, **init_attributes(made.requester.port))
        made.pair.connect()
    made.post_receives(made.passive)
    made.active.send(made.message())
    made.expect(
        f"raw-send-in.{state}",
        NOTHING.with_(sends=(SUCCESS,), post_errno=errno.EINVAL),
        NOTHING.with_(recvs=(SUCCESS,)),
        untouched=False,
    )


def test_raw_receive_in_reset(trial: TrialFactory) -> None:
    """The driver refuses it; it must not take the message that a good receive is meant for."""
    made = trial(connect=False)
    made.responder.modify(QPState.RESET)
    made.passive.recv(RecvWR((made.responder.buffer.sge(1024, MESSAGE_BYTES),)))
    made.responder.modify(QPState.INIT, **init_attributes(made.responder.port))
    made.pair.connect()
    made.passive.recv(RecvWR((made.responder.buffer.sge(2048, MESSAGE_BYTES),)))
    made.active.send(made.message())
    made.expect(
        "raw-receive-in.RESET",
        NOTHING.with_(sends=(SUCCESS,)),
        NOTHING.with_(recvs=(SUCCESS,), post_errno=errno.EINVAL),
        untouched=False,
    )


def test_everything_is_flushed_in_err(trial: TrialFactory) -> None:
    """What was outstanding when the QP went to ERR, and what is posted in ERR, is flushed in the order posted."""
    made = trial()
    made.post_receives(made.active)
    made.requester.to_error()
    made.active.send(made.message(), made.message())
    made.post_receives(made.active)
    made.active.send(made.message())
    made.expect("posted-in-ERR", NOTHING.with_(sends=(FLUSH,) * 3, recvs=(FLUSH,) * 4, state=QPState.ERR))


def test_checked_posts_in_err_are_flushed_too(rdma_pair: Pair) -> None:
    """A checked post in ERR is allowed: it has to flush."""
    rdma_pair.local.to_error()
    posted = [rdma_pair.local.post_recv(), rdma_pair.local.send(length=8), rdma_pair.local.write(length=8)]
    came = rdma_pair.local.poll(3)
    assert {one.wr_id: one.status for one in came} == dict.fromkeys(posted, FLUSH)
    rdma_pair.reconnect()
    echo(rdma_pair)


def test_reset_drops_what_was_outstanding(trial: TrialFactory) -> None:
    """Requests that were outstanding at RESET never complete, and no completion of before is seen after it."""
    made = trial()
    made.post_receives()
    made.pair.reconnect()
    assert made.requester.poll(1, timeout_s=0, exactly=False) == []
    assert made.responder.poll(1, timeout_s=0, exactly=False) == []
    echo(made.pair)


# -- many


def test_two_pairs_share_a_cq(rdma_pairs: Callable[..., Pair]) -> None:
    """Completions of both QPs come through one CQ, each with its own QP number; each endpoint sees only its own."""
    first = rdma_pairs()
    host, end = first.local.host, first.rail.local
    cq = host.cq(first.local.device, depth=64)
    gid_index = end.gid.index if end.gid else None
    caps = first.local.caps.with_(send_depth=16, recv_depth=8)
    shared = [host.endpoint(first.local.device, first.local.port, gid_index, caps, cq=cq) for _ in range(2)]
    pairs = []
    try:
        for endpoint in shared:
            other = rdma_pairs(connect=False)
            other.local.close()
            pairs.append(Pair(endpoint, other.peer, first.rail, first.attributes))
            pairs[-1].connect()
        for pair in pairs:
            pair.peer.post_recv(length=MESSAGE_BYTES, wr_id=1)
            pair.local.send(length=MESSAGE_BYTES, wr_id=5)
        # the second pair's own is found although the first pair's came before it
        assert pairs[1].local.wait(5)[0].qp_num == shared[1].qp_num
        (other_one,) = cq.poll(1)
        assert (other_one.qp_num, other_one.wr_id, other_one.status) == (shared[0].qp_num, 5, SUCCESS)
        for pair in pairs:
            pair.peer.wait(1)
            echo(pair)
    finally:
        close_all([*(endpoint.close for endpoint in shared), cq.close])


@pytest.mark.rdma_caps(send_depth=4, recv_depth=4, buffer_bytes=4096)
def test_sixty_four_pairs_at_once(rdma_pairs: Callable[..., Pair]) -> None:
    """All are connected at the same time; each carries its own pattern to its own peer."""
    pairs = [rdma_pairs() for _ in range(MANY_PAIRS)]
    for seed, pair in enumerate(pairs):
        pair.local.buffer.fill(seed, 0, 512)
        pair.local.write(length=512, remote_offset=1024, wr_id=seed)
    for seed, pair in enumerate(pairs):
        pair.local.wait(seed)
        pair.peer.buffer.verify(seed, 1024, 512)
    assert len({pair.local.qp_num for pair in pairs}) == MANY_PAIRS


def test_pair_reconnected_200_times(rdma_pair: Pair) -> None:
    """Each connection of the same two QPs carries data of its own, and one in twenty an echo."""
    local, peer = rdma_pair.ends
    for number in range(RECONNECTIONS):
        local.wait(local.write(offset=8 * number, length=8))
        rdma_pair.reconnect()
        if number % 20 == 0:
            peer.buffer.memset(0)
            local.buffer.fill(number)
            local.wait(local.write())
            peer.buffer.verify(number)
            echo(rdma_pair)
