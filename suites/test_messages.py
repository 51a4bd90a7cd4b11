"""A message connection over RC: InfiniBand specification, volume 1, 9.7.5 (Send) and 9.9.2.4 (receiver not ready).

The pair never retries a receiver that is not ready (rnr_retry 0): were one frame sent without a receive for it, the
connection would break. Covers C12 of the seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import message_connection as messages
import pytest

from pytest_rdma import Endpoint, Pair, QPState
from pytest_rdma.errors import RemoteError

DEPTH, FRAME_BYTES = 8, 1024
PAYLOAD_BYTES = FRAME_BYTES - messages.HEADER.size
SLOTS = DEPTH + messages.CONTROL_SLOTS
SIZES = [0, 1, PAYLOAD_BYTES - 1, PAYLOAD_BYTES, PAYLOAD_BYTES + 1, 2 * PAYLOAD_BYTES, 10 * PAYLOAD_BYTES + 3, 0]

pytestmark = pytest.mark.rdma_caps(send_depth=SLOTS, recv_depth=SLOTS, buffer_bytes=2 * SLOTS * FRAME_BYTES)


@pytest.fixture
def connected(rdma_pairs: Callable[..., Pair]) -> Iterator[Pair]:
    """A pair with a message connection open at both ends."""
    pair = rdma_pairs(overrides={"local": {"rnr_retry": 0}, "peer": {"rnr_retry": 0}})
    for end in (pair.local, pair.peer):
        ask(end, messages.open_connection, DEPTH, FRAME_BYTES)
    yield pair
    for end in (pair.local, pair.peer):
        ask(end, messages.drop_connection)


@pytest.fixture(params=["local-to-peer", "peer-to-local"])
def ends(request: pytest.FixtureRequest, connected: Pair) -> tuple[Endpoint, Endpoint]:
    """The sending end and the receiving end."""
    both = connected.local, connected.peer
    return both if request.param == "local-to-peer" else both[::-1]


def ask(end: Endpoint, function: Callable[..., Any], *args: Any) -> Any:
    """Run one of the functions of the message connection on the end's own host."""
    return end.host.call(function, end, *args)


def test_c12_boundaries_are_kept_whatever_the_size(ends: tuple[Endpoint, Endpoint]) -> None:
    """Messages of no bytes, of less than a frame, of one, and of more frames than there are credits."""
    sender, receiver = ends
    sending = sender.host.submit_call(messages.send_messages, sender, 1, SIZES)
    assert ask(receiver, messages.receive_messages, 1, SIZES) == len(SIZES)
    sending.result()


def test_message_much_larger_than_all_buffers_arrives_whole(ends: tuple[Endpoint, Endpoint]) -> None:
    sender, receiver = ends
    size = 4 * 2 * SLOTS * FRAME_BYTES + 7
    sending = sender.host.submit_call(messages.send_messages, sender, 2, [size])
    assert ask(receiver, messages.receive_messages, 2, [size]) == 1
    sending.result()
    frames = -(-size // PAYLOAD_BYTES)
    assert ask(sender, messages.counts)[0] >= frames


def test_both_ends_talk_at_once(connected: Pair) -> None:
    local, peer = connected.local, connected.peer
    sizes = [1, 100, 3 * PAYLOAD_BYTES, 0, PAYLOAD_BYTES] * 4
    talking = peer.host.submit_call(messages.exchange_messages, peer, 200, 100, sizes)
    assert ask(local, messages.exchange_messages, 100, 200, sizes) == len(sizes)
    assert talking.result() == len(sizes)


def test_sender_stops_when_its_credits_are_used_up(ends: tuple[Endpoint, Endpoint]) -> None:
    """Steps: send until there is no credit while the receiver takes nothing; receive all; send again.

    Verify: exactly as many as there are receives went out, the connection lives, and the credits have come back.
    """
    sender, receiver = ends
    assert ask(sender, messages.send_while_there_are_credits) == DEPTH
    assert ask(sender, messages.send_while_there_are_credits) == 0
    assert [ask(receiver, messages.receive_within, 8) for _ in range(DEPTH)] == [
        messages.content(number, 8) for number in range(DEPTH)
    ]
    sending = sender.host.submit_call(messages.send_messages, sender, 3, [8] * DEPTH)
    assert ask(receiver, messages.receive_messages, 3, [8] * DEPTH) == DEPTH
    sending.result()
    assert sender.state == receiver.state == QPState.RTS


def test_credits_come_back_in_bulk(ends: tuple[Endpoint, Endpoint]) -> None:
    """A receiver that only listens sends one frame of credits for each half of the depth that it has taken."""
    sender, receiver = ends
    count = 5 * DEPTH
    sending = sender.host.submit_call(messages.send_messages, sender, 4, [16] * count)
    assert ask(receiver, messages.receive_messages, 4, [16] * count) == count
    sending.result()
    frames, credit_frames, _ = ask(receiver, messages.counts)
    assert frames == credit_frames == count // (DEPTH // 2)


def test_end_of_stream_comes_after_all_that_was_sent(ends: tuple[Endpoint, Endpoint]) -> None:
    """The other direction stays open: what is received there after the end of stream is whole."""
    closer, other = ends
    ask(closer, messages.send_messages, 5, [10, 20])
    ask(closer, messages.close_connection)
    assert ask(other, messages.receive_messages, 5, [10, 20]) == 2
    for _ in range(2):
        with pytest.raises(RemoteError) as error:
            ask(other, messages.receive_within, 100)
        assert error.value.type_name == "EndOfStreamError"
    with pytest.raises(RemoteError) as error:
        ask(closer, messages.send_messages, 6, [1])
    assert error.value.type_name == "ConnectionLostError"
    ask(other, messages.send_messages, 7, [30])
    assert ask(closer, messages.receive_messages, 7, [30]) == 1


@pytest.mark.parametrize("size", [100, PAYLOAD_BYTES + 50])
def test_short_receive_buffer_loses_nothing(ends: tuple[Endpoint, Endpoint], size: int) -> None:
    """Verify: the error names both sizes; the message is still there, whole, for a buffer that is long enough."""
    sender, receiver = ends
    ask(sender, messages.send_messages, 8, [size, 5])
    with pytest.raises(RemoteError, match="and the buffer 99") as error:
        ask(receiver, messages.receive_within, 99)
    assert error.value.type_name == "ShortBufferError"
    assert ask(receiver, messages.receive_messages, 8, [size, 5]) == 2


def test_message_over_the_limit_is_refused_before_anything_is_sent(connected: Pair) -> None:
    with pytest.raises(RemoteError, match=str(messages.LARGEST_MESSAGE)) as error:
        ask(connected.local, messages.send_messages, 9, [messages.LARGEST_MESSAGE + 1])
    assert error.value.type_name == "MessageTooLargeError"
    assert ask(connected.local, messages.counts) == [0, 0, 0]


def test_loss_of_the_peer_is_an_error_at_once(connected: Pair) -> None:
    """Steps: the peer's QP goes to ERR under a sender. Verify: the sender ends with a status, not by a time-out."""
    connected.peer.to_error()
    with pytest.raises(RemoteError, match=r"status \d+") as error:
        ask(connected.local, messages.send_messages, 10, [PAYLOAD_BYTES * 4 * DEPTH])
    assert error.value.type_name == "ConnectionLostError"
