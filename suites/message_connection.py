"""Messages over a connected RC pair: boundaries kept, fragments, credits, end of stream. It travels to the hosts.

A receive slot holds one frame: a header, then the payload. A data frame may be sent only against a credit, which the
receiver gives back when it has taken the frame, so that no message ever meets a receiver without a receive. Frames of
credits and the end of stream need none: of those at most `CONTROL_SLOTS` can be under way at once, since each frame of
credits gives back half of all that there are.
"""

from __future__ import annotations

import random
import struct
import time
from collections import deque
from dataclasses import dataclass, field

from pytest_rdma.endpoint import Endpoint
from pytest_rdma.errors import DeadlineError
from pytest_rdma.model import Completion

HEADER = struct.Struct(">BBHI")
DATA, CREDIT, FIN = 1, 2, 3
CONTROL_SLOTS = 4
RECV = 1 << 32
WAIT_S = 10.0
LARGEST_MESSAGE = 4 << 20


class MessageTooLargeError(ValueError):
    """A message over the limit of the connection; nothing of it was sent."""


class ShortBufferError(ValueError):
    """The next message is longer than the receiver's buffer; it is kept and can be received with a larger one."""


class EndOfStreamError(EOFError):
    """The other end has closed, and all that it sent has been received."""


class ConnectionLostError(ConnectionError):
    """A work request failed; the text has its status."""


@dataclass
class Counts:
    """What a connection has done."""

    frames_sent: int = 0
    credit_frames_sent: int = 0
    waits_for_credit: int = 0


@dataclass
class MessageConnection:
    """One end. `depth` data frames of `frame_bytes`, header included, may be under way in each direction."""

    endpoint: Endpoint
    depth: int
    frame_bytes: int
    credits: int = 0
    taken: int = 0
    ended: bool = False
    closed: bool = False
    counts: Counts = field(default_factory=Counts)
    idle: deque[int] = field(default_factory=deque)
    arrived: deque[int] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self.slots = self.depth + CONTROL_SLOTS
        self.credits = self.depth
        self.idle.extend(range(self.slots, 2 * self.slots))
        for slot in range(self.slots):
            self._post_recv(slot)

    @property
    def payload_bytes(self) -> int:
        return self.frame_bytes - HEADER.size

    # -- for users

    def send_message(self, data: bytes) -> None:
        """Send one message whole, waiting for credits where it must."""
        if self.closed:
            raise ConnectionLostError("this end has closed the connection")
        if len(data) > LARGEST_MESSAGE:
            raise MessageTooLargeError(f"a message of {len(data)} bytes, and the largest is {LARGEST_MESSAGE}")
        position = 0
        while True:
            piece = data[position : position + self.payload_bytes]
            position += len(piece)
            self._wait_for_credit()
            self.credits -= 1
            self._send_frame(DATA, position == len(data), piece)
            if position == len(data):
                return

    def try_send(self, data: bytes) -> bool:
        """Send a message of one frame if there is a credit for it now."""
        self._progress(0.0)
        if not self.credits:
            return False
        self.send_message(data)
        return True

    def receive_message(self, limit: int = LARGEST_MESSAGE) -> bytes:
        """Return the next message whole; ShortBufferError when it is longer than `limit` bytes and can be told so."""
        pieces: list[bytes] = []
        while True:
            last, piece = self._next_frame(limit if not pieces else LARGEST_MESSAGE)
            pieces.append(piece)
            if last:
                return b"".join(pieces)

    def close(self) -> None:
        """Tell the other end that no more will come, after all that was sent before."""
        if not self.closed:
            self.closed = True
            self._send_frame(FIN, True, b"")
            while len(self.idle) < self.slots:
                self._progress(WAIT_S)

    # -- frames

    def _next_frame(self, limit: int) -> tuple[bool, bytes]:
        while not self.arrived:
            if self.ended:
                raise EndOfStreamError("the other end has closed the connection")
            self._progress(WAIT_S)
        slot = self.arrived[0]
        _, last, _, length = self._header(slot)
        message_bytes = length if last else self.payload_bytes + 1
        if message_bytes > limit:
            at_least = "" if last else "more than "
            shown = length if last else self.payload_bytes
            raise ShortBufferError(f"the next message has {at_least}{shown} bytes, and the buffer {limit}")
        self.arrived.popleft()
        piece = self.endpoint.buffer.read(slot * self.frame_bytes + HEADER.size, length)
        self._post_recv(slot)
        self.taken += 1
        if self.taken >= max(1, self.depth // 2) and not self.ended:
            self.counts.credit_frames_sent += 1
            self._send_frame(CREDIT, True, b"")
        return bool(last), piece

    def _send_frame(self, kind: int, last: bool, payload: bytes) -> None:
        while not self.idle:
            self._progress(WAIT_S)
        slot = self.idle.popleft()
        frame = HEADER.pack(kind, last, self.taken, len(payload)) + payload
        self.taken = 0
        self.endpoint.buffer.write(frame, slot * self.frame_bytes)
        self.endpoint.send(offset=slot * self.frame_bytes, length=len(frame), wr_id=slot)
        self.counts.frames_sent += 1

    def _wait_for_credit(self) -> None:
        self._progress(0.0)
        if not self.credits:
            self.counts.waits_for_credit += 1
        while not self.credits:
            self._progress(WAIT_S)

    # -- the endpoint

    def _post_recv(self, slot: int) -> None:
        self.endpoint.post_recv(offset=slot * self.frame_bytes, length=self.frame_bytes, wr_id=RECV | slot)

    def _header(self, slot: int) -> tuple[int, int, int, int]:
        kind, last, credits, length = HEADER.unpack(self.endpoint.buffer.read(slot * self.frame_bytes, HEADER.size))
        return kind, last, credits, length

    def _progress(self, timeout_s: float) -> None:
        """Take what has completed; with a time, wait for at least one."""
        found = self.endpoint.poll(2 * self.slots, timeout_s=timeout_s, exactly=False)
        if not found and timeout_s:
            raise DeadlineError(f"nothing came within {timeout_s:g} s; credits {self.credits}")
        for completion in found:
            self._complete(completion)

    def _complete(self, completion: Completion) -> None:
        if completion.status:
            raise ConnectionLostError(f"status {completion.status} of wr_id {completion.wr_id:#x}")
        slot = completion.wr_id & ~RECV
        if not completion.wr_id & RECV:
            self.idle.append(slot)
            return
        kind, _, credits, length = self._header(slot)
        if completion.byte_len != HEADER.size + length:
            raise ConnectionLostError(f"a frame of {completion.byte_len} bytes says that it has {length}")
        self.credits += credits
        if kind == DATA:
            self.arrived.append(slot)
        else:
            self.ended = self.ended or kind == FIN
            self._post_recv(slot)


# -- what a host is asked to do; connections are kept here between the calls

_connections: dict[tuple[str, int], MessageConnection] = {}


def open_connection(endpoint: Endpoint, depth: int, frame_bytes: int) -> None:
    """Post all receives; both ends do this before either sends."""
    _connections[endpoint.device, endpoint.qp_num] = MessageConnection(endpoint, depth, frame_bytes)


def drop_connection(endpoint: Endpoint) -> None:
    _connections.pop((endpoint.device, endpoint.qp_num), None)


def _connection(endpoint: Endpoint) -> MessageConnection:
    return _connections[endpoint.device, endpoint.qp_num]


def content(seed: int, length: int) -> bytes:
    """Return the message of a seed: no two places of it look alike."""
    return random.Random(seed).randbytes(length)


def send_messages(endpoint: Endpoint, seed: int, sizes: list[int]) -> None:
    """Send one message a size."""
    for number, size in enumerate(sizes):
        _connection(endpoint).send_message(content(seed + number, size))


def receive_messages(endpoint: Endpoint, seed: int, sizes: list[int]) -> int:
    """Receive as many, compare each with what must come, and return their number."""
    for number, size in enumerate(sizes):
        got, want = _connection(endpoint).receive_message(), content(seed + number, size)
        if got != want:
            raise AssertionError(f"message {number} of {len(got)} bytes is not the one of {size} that was sent")
    return len(sizes)


def receive_timed(endpoint: Endpoint, count: int) -> float:
    """Receive as many messages, compare none, and return the seconds from the first to the last."""
    connection = _connection(endpoint)
    connection.receive_message()
    began = time.perf_counter()
    for _ in range(count - 1):
        connection.receive_message()
    return time.perf_counter() - began


def exchange_messages(endpoint: Endpoint, seed: int, peer_seed: int, sizes: list[int]) -> int:
    """Send and receive in turn, one message a size each way."""
    for number, size in enumerate(sizes):
        _connection(endpoint).send_message(content(seed + number, size))
        if _connection(endpoint).receive_message() != content(peer_seed + number, size):
            raise AssertionError(f"message {number} of {size} bytes is not the one that was sent")
    return len(sizes)


def send_while_there_are_credits(endpoint: Endpoint) -> int:
    """Send messages of one frame until there is no credit; return their number."""
    count = 0
    while _connection(endpoint).try_send(content(count, 8)):
        count += 1
    return count


def receive_within(endpoint: Endpoint, limit: int) -> bytes:
    return _connection(endpoint).receive_message(limit)


def close_connection(endpoint: Endpoint) -> None:
    _connection(endpoint).close()


def counts(endpoint: Endpoint) -> list[int]:
    """Return frames sent, frames of credits sent, and how often a credit was waited for."""
    found = _connection(endpoint).counts
    return [found.frames_sent, found.credit_frames_sent, found.waits_for_credit]
