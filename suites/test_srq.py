"""Shared receive queues: many QPs take from one queue of receives, first come first served.

InfiniBand specification, volume 1, section 10.2.9 (Shared Receive Queue); ibv_modify_srq(3) for the limit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from pytest_rdma import SRQ, AsyncEvent, Buffer, Host, Pair, PostError, RecvWR, RefusedError

pytestmark = pytest.mark.rdma_requires("srq")

DEPTH = 32
SLOT_BYTES = 8192


@dataclass
class Shared:
    """Two pairs whose peers take their receives from one queue, and the memory that it is filled with."""

    queue: SRQ
    buffer: Buffer
    pairs: list[Pair]

    def post(self, *slots: int) -> None:
        self.queue.post_recvs([RecvWR((self.buffer.sge(n * SLOT_BYTES, SLOT_BYTES),), wr_id=n) for n in slots])


@pytest.fixture
def shared(rdma_pairs: Callable[..., Pair], rdma_pair: Pair, rdma_peer: Host) -> Iterator[Shared]:
    pd = rdma_peer.pd(rdma_pair.peer.device)
    queue = rdma_peer.srq(pd, DEPTH)
    buffer = rdma_peer.mr(pd, DEPTH * SLOT_BYTES)
    pairs = [rdma_pairs(shared={"peer": {"srq": queue}}) for _ in range(2)]
    yield Shared(queue, buffer, pairs)
    for pair in pairs:
        pair.close()
    for made in (buffer, queue, pd):
        made.close()


def send(pair: Pair, seed: int, length: int = 5000) -> None:
    pair.local.buffer.fill(seed, 0, length)
    pair.local.wait(pair.local.send(length=length))


def test_receives_are_taken_in_order_by_whoever_gets_a_message(shared: Shared) -> None:
    """Steps: eight receives; messages over one QP and the other by turns. Verify: slot, QP and bytes of each."""
    shared.post(*range(8))
    for n, which in enumerate((0, 1, 1, 0, 1, 0, 0, 1)):
        pair = shared.pairs[which]
        send(pair, n, 1000 + n)
        (completion,) = pair.peer.poll(1)
        assert (completion.wr_id, completion.byte_len, completion.qp_num) == (n, 1000 + n, pair.peer.qp_num)
        shared.buffer.verify(n, n * SLOT_BYTES, 1000 + n)
        shared.buffer.check_untouched(0, n * SLOT_BYTES + 1000 + n, SLOT_BYTES - 1000 - n)


def test_one_qp_may_take_all_receives(shared: Shared) -> None:
    shared.post(*range(DEPTH))
    greedy, other = shared.pairs
    greedy.local.buffer.fill(1, 0, 64)
    greedy.local.wait(*[greedy.local.send(length=64) for _ in range(DEPTH)])
    assert [one.wr_id for one in greedy.peer.poll(DEPTH)] == list(range(DEPTH))
    shared.post(0)
    send(other, 2)
    assert other.peer.poll(1)[0].wr_id == 0
    shared.buffer.verify(2, 0, 5000)


def test_writes_with_immediate_take_receives_too(shared: Shared) -> None:
    shared.post(0, 1)
    for n, pair in enumerate(shared.pairs):
        pair.local.buffer.fill(n, 0, 100)
        pair.local.wait(pair.local.write(length=100, imm=0x80000000 + n))
        (completion,) = pair.peer.poll(1)
        assert (completion.wr_id, completion.imm, completion.byte_len) == (n, 0x80000000 + n, 100)
        pair.peer.buffer.verify(n, 0, 100)


def test_the_limit_makes_one_event(shared: Shared) -> None:
    """Steps: six receives, limit four; take them one by one. Verify: no event with four left, one with three, no other.

    The limit is disarmed by its event, and query tells so.
    """
    first = shared.pairs[0]
    shared.post(*range(6))
    shared.queue.set_limit(4)
    assert shared.queue.query()["srq_limit"] == 4
    for n in range(2):
        send(first, n, 100)
        first.peer.poll(1)
    assert first.peer.async_events() == []
    send(first, 2, 100)
    first.peer.poll(1)
    assert first.peer.async_events(2.0) == [AsyncEvent("SRQ_LIMIT_REACHED", shared.queue.label)]
    send(first, 3, 100)
    first.peer.poll(1)
    assert first.peer.async_events() == []
    assert shared.queue.query()["srq_limit"] == 0


def test_a_limit_can_be_set_again(shared: Shared) -> None:
    first = shared.pairs[0]
    for _ in range(2):
        shared.post(0, 1)
        shared.queue.set_limit(1)
        for n in range(2):
            send(first, n, 100)
        first.peer.poll(2)
        assert first.peer.async_events(2.0) == [AsyncEvent("SRQ_LIMIT_REACHED", shared.queue.label)]


def test_receives_are_posted_to_the_queue_alone(shared: Shared) -> None:
    with pytest.raises(RefusedError, match=f"takes its receives from {shared.queue.label}: post them there"):
        shared.pairs[0].peer.post_recv()


def test_a_queue_that_is_full_says_so(shared: Shared) -> None:
    """Verify: exactly as many receives as were granted fit, and the next is refused with the index and the depth."""
    shared.queue.post_recvs([RecvWR((shared.buffer.sge(0, 64),), wr_id=n) for n in range(shared.queue.depth)])
    with pytest.raises(PostError, match=f"SRQ of {shared.queue.depth}"):
        shared.queue.post_recv(shared.buffer)


def test_a_queue_in_use_is_not_closed(shared: Shared) -> None:
    with pytest.raises(RefusedError, match="is still used by QP 0x"):
        shared.queue.close()
    shared.post(0)
    send(shared.pairs[0], 9)
    shared.pairs[0].peer.poll(1)
    shared.buffer.verify(9, 0, 5000)
