"""Completion channels: sleep until there is something to poll, and lose nothing between polling and sleeping.

InfiniBand specification, volume 1, section 11.4.2.2 (Request Completion Notification); ibv_get_cq_event(3). A queue
makes one event for each time it was armed, at the next completion that comes after: so after an event, arm, then poll
until nothing is left, then sleep.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from targets import Direction, assert_quiet

from pytest_rdma import CQ, Completion, DeadlineError, Endpoint, Host, Opcode, Pair, RecvWR, RefusedError, SendWR

pytestmark = pytest.mark.rdma_caps(events=True)

BURST = 64
BATCH = 4
SLOT_BYTES = 256
A_MOMENT_S = 0.05


def burst(source: Endpoint, seed: int, count: int = BURST) -> None:
    """Send messages from the slots of the buffer, in one list; only the last is signaled."""
    source.buffer.fill(seed, 0, count * SLOT_BYTES)
    slots = [source.buffer.sge(n * SLOT_BYTES, SLOT_BYTES) for n in range(count)]
    source.post([SendWR(Opcode.SEND, (slot,), wr_id=n, signaled=n == count - 1) for n, slot in enumerate(slots)])


def post_slots(target: Endpoint, count: int = BURST) -> None:
    slots = [target.buffer.sge(n * SLOT_BYTES, SLOT_BYTES) for n in range(count)]
    target.post_recvs([RecvWR((slot,), wr_id=n) for n, slot in enumerate(slots)])


def drain(queue: Endpoint | CQ, batch: int = BATCH) -> list[Completion]:
    """Poll in small batches until nothing is left."""
    found: list[Completion] = []
    while came := queue.poll(batch, timeout_s=0, exactly=False):
        found += came
    return found


def receive_by_events(target: Endpoint, queue: Endpoint | CQ, count: int) -> list[Completion]:
    """Take `count` completions, sleeping whenever there is none; the queue is armed already."""
    found: list[Completion] = []
    while len(found) < count:
        target.wait_event()
        target.arm()
        found += drain(queue)
    return found


def test_an_armed_queue_makes_one_event(direction: Direction) -> None:
    """Steps: arm; two messages. Verify: one event, both completions, no second event."""
    source, target = direction.source, direction.target
    receives = [target.post_recv(length=64) for _ in range(2)]
    target.arm()
    source.wait(source.send(length=8), source.send(length=8))
    target.wait_event()
    target.wait(*receives)
    with pytest.raises(DeadlineError, match="no completion event"):
        target.wait_event(A_MOMENT_S)


def test_a_queue_that_is_not_armed_makes_none(direction: Direction) -> None:
    source, target = direction.source, direction.target
    received = target.post_recv(length=64)
    source.wait(source.send(length=8))
    target.wait(received)
    with pytest.raises(DeadlineError, match="no completion event"):
        target.wait_event(A_MOMENT_S)


def test_what_came_before_the_queue_was_armed_is_found_by_polling(direction: Direction) -> None:
    """Steps: a message; arm; poll. Verify: it is found without an event, and the event is for the next one."""
    source, target = direction.source, direction.target
    first, second = (target.post_recv(length=64) for _ in range(2))
    source.wait(source.send(length=8))
    target.arm()
    assert [one.wr_id for one in drain(target)] == [first]
    source.wait(source.send(length=8))
    target.wait_event()
    assert [one.wr_id for one in drain(target)] == [second]


def test_a_burst_polled_in_small_batches_arrives_whole(direction: Direction) -> None:
    """Steps: sixty-four messages at once, polled four at a time. Verify: all, in order, and the loop ends by itself."""
    source, target = direction.source, direction.target
    post_slots(target)
    target.arm()
    burst(source, 1)
    completions = receive_by_events(target, target, BURST)
    assert [(one.wr_id, one.byte_len) for one in completions] == [(n, SLOT_BYTES) for n in range(BURST)]
    target.buffer.verify(1, 0, BURST * SLOT_BYTES)
    source.wait(BURST - 1)
    assert_quiet(source, target)


def test_many_bursts_end_without_waiting_for_one_event_more(direction: Direction) -> None:
    """Steps: five bursts, each when the one before is home. Verify: after the last, nothing is awaited or left."""
    source, target = direction.source, direction.target
    target.arm()
    for number in range(5):
        post_slots(target)
        burst(source, number)
        assert len(receive_by_events(target, target, BURST)) == BURST
        target.buffer.verify(number, 0, BURST * SLOT_BYTES)
        source.wait(BURST - 1)
    assert_quiet(source, target)


def test_one_channel_serves_many_queue_pairs(rdma_pairs: Callable[..., Pair], rdma_pair: Pair, rdma_peer: Host) -> None:
    """Steps: four QPs share one queue; a burst over each at once. Verify: each QP's messages, all and in order."""
    queue = rdma_peer.cq(rdma_pair.peer.device, 4 * BURST, events=True)
    try:
        shared = {"peer": {"cq": queue}}
        pairs = [rdma_pairs(send_depth=BURST, recv_depth=BURST, shared=shared) for _ in range(4)]
        for pair in pairs:
            post_slots(pair.peer)
        pairs[0].peer.arm()
        for number, pair in enumerate(pairs):
            burst(pair.local, number)
        completions = receive_by_events(pairs[0].peer, queue, 4 * BURST)
        for number, pair in enumerate(pairs):
            mine = [one.wr_id for one in completions if one.qp_num == pair.peer.qp_num]
            assert mine == list(range(BURST))
            pair.peer.buffer.verify(number, 0, BURST * SLOT_BYTES)
            pair.close()
    finally:
        queue.close()


def test_only_solicited_messages_wake_who_asks_for_them(direction: Direction) -> None:
    """Steps: arm for solicited ones; send a plain message, then a solicited one. Verify: the event is of the second."""
    source, target = direction.source, direction.target
    receives = [target.post_recv(length=64) for _ in range(2)]
    target.arm(solicited_only=True)
    source.wait(source.send(length=8))
    target.wait(receives[0])
    with pytest.raises(DeadlineError, match="no completion event"):
        target.wait_event(A_MOMENT_S)
    source.wait(source.send(length=8, solicited=True))
    target.wait_event()
    target.wait(receives[1])


def test_a_solicited_write_with_immediate_wakes_too(direction: Direction) -> None:
    source, target = direction.source, direction.target
    received = target.post_recv(sges=[])
    target.arm(solicited_only=True)
    source.wait(source.write(length=8, imm=5, solicited=True))
    target.wait_event()
    assert target.wait(received)[0].imm == 5


def test_completions_of_the_own_sends_make_events(direction: Direction) -> None:
    source = direction.source
    source.arm()
    written = source.write(length=8)
    source.wait_event()
    source.wait(written)


@pytest.mark.rdma_caps(events=False)
def test_an_endpoint_without_a_channel_says_so(rdma_pair: Pair) -> None:
    with pytest.raises(RefusedError, match="no completion channel: ask for it with events=True"):
        rdma_pair.local.arm()
