"""The two loops of the thousand echoes; they travel to the hosts of the pair and run there."""

from __future__ import annotations

from pytest_rdma.endpoint import Endpoint, check_success
from pytest_rdma.model import Completion

SLOT_BYTES = 256
MESSAGE_BYTES = 64
MOST_AT_ONCE = 64
SILENCE_S = 20
SEND, RECV, SLOT = 1 << 32, 2 << 32, (1 << 32) - 1


def succeeded(endpoint: Endpoint) -> list[Completion]:
    """Return what completed, at least one; DeadlineError says what is outstanding when nothing does."""
    found = endpoint.poll(MOST_AT_ONCE, timeout_s=SILENCE_S, exactly=False) or endpoint.poll(1, timeout_s=0)
    check_success(found, endpoint.label)
    return found


def post_receives(endpoint: Endpoint, slots: int) -> None:
    """Post one receive a slot, before the other end is told to send."""
    for slot in range(slots):
        endpoint.post_recv(offset=slot * SLOT_BYTES, length=MESSAGE_BYTES, wr_id=RECV | slot)


def echo_back(endpoint: Endpoint, count: int) -> int:
    """Send back `count` messages from the slots that they arrive in; return how many were echoed."""
    received = sent = 0
    while sent < count:
        for completion in succeeded(endpoint):
            slot = completion.wr_id & SLOT
            if completion.wr_id & RECV:
                received += 1
                endpoint.send(offset=slot * SLOT_BYTES, length=MESSAGE_BYTES, wr_id=SEND | slot)
            else:
                sent += 1
                endpoint.post_recv(offset=slot * SLOT_BYTES, length=MESSAGE_BYTES, wr_id=RECV | slot)
    return received


def send_and_expect_back(endpoint: Endpoint, count: int, in_flight: int) -> int:
    """Keep up to `in_flight` messages under way until `count` came back, each as it left; return that count."""
    idle = list(range(in_flight))
    under_way: dict[int, int] = {}
    half_done: set[int] = set()
    launched = home = 0
    while home < count or under_way:
        while idle and launched < count:
            slot = idle.pop()
            under_way[slot] = launched
            endpoint.buffer.fill(launched, slot * SLOT_BYTES, MESSAGE_BYTES)
            endpoint.post_recv(offset=(in_flight + slot) * SLOT_BYTES, length=MESSAGE_BYTES, wr_id=RECV | slot)
            endpoint.send(offset=slot * SLOT_BYTES, length=MESSAGE_BYTES, wr_id=SEND | slot)
            launched += 1
        for completion in succeeded(endpoint):
            slot = completion.wr_id & SLOT
            if completion.wr_id & RECV:
                assert completion.byte_len == MESSAGE_BYTES
                endpoint.buffer.verify(under_way[slot], (in_flight + slot) * SLOT_BYTES, MESSAGE_BYTES)
                home += 1
            if slot not in half_done:
                half_done.add(slot)
            else:
                half_done.remove(slot)
                del under_way[slot]
                idle.append(slot)
    return home
