"""Scatter and gather: a message put together from many pieces, of many buffers, and taken apart into others.

InfiniBand specification, volume 1, sections 10.8.2 and 11.4.1 (lists of buffers in work requests). The pieces lie in
memory in the opposite order of that in the message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random

import pytest
from targets import GUARD, Direction, assert_quiet, finish

from pytest_rdma import Buffer, Endpoint, Opcode, Pair, PostError, RecvWR, RefusedError, SendWR, Sge, WCOpcode

MOST = 16
PIECE_BYTES = 777
STRIDE_BYTES = 1024
pytestmark = pytest.mark.rdma_caps(send_sges=MOST, recv_sges=MOST)

COUNTS = pytest.mark.combined(count=("1", "2", "most"), empty=("none", "first", "last"))


def lengths_of(end: Endpoint, count: str, empty: str) -> list[int]:
    """Return the bytes of each piece; one of them is empty, beside the others where there is room."""
    pieces = {"1": 1, "2": 2, "most": min(MOST, end.caps.send_sges)}[count]
    lengths = [PIECE_BYTES] * pieces
    if empty == "none":
        return lengths
    lengths = lengths[: MOST - 1]
    return [0, *lengths] if empty == "first" else [*lengths, 0]


def pieces_of(buffer: Buffer, lengths: list[int]) -> list[Sge]:
    """Return one SGE a length, from the last stride of the buffer to the first."""
    return [buffer.sge((len(lengths) - 1 - n) * STRIDE_BYTES, length) for n, length in enumerate(lengths)]


def data_of(lengths: list[int]) -> bytes:
    return Random(sum(lengths)).randbytes(sum(lengths))


def image(lengths: list[int]) -> bytes:
    """Return the memory in which `data_of` lies in those pieces, and guard bytes everywhere else."""
    data = data_of(lengths)
    strides = [
        data[sum(lengths[:n]) :][:length].ljust(STRIDE_BYTES, bytes([GUARD])) for n, length in enumerate(lengths)
    ]
    return b"".join(reversed(strides))


@COUNTS
def test_send_is_gathered_and_scattered(direction: Direction, signaled: bool, count: str, empty: str) -> None:
    source, target = direction.source, direction.target
    lengths = lengths_of(source, count, empty)
    target.buffer.memset(GUARD)
    source.buffer.write(image(lengths))
    received = target.post_recv(sges=pieces_of(target.buffer, lengths))
    sent = source.send(sges=pieces_of(source.buffer, lengths), signaled=signaled)
    assert target.wait(received)[0].byte_len == sum(lengths)
    finish(source, sent, WCOpcode.SEND, signaled)
    assert target.buffer.read(0, len(lengths) * STRIDE_BYTES) == image(lengths)
    assert_quiet(source, target)


@COUNTS
def test_write_is_gathered(direction: Direction, signaled: bool, count: str, empty: str) -> None:
    source, target = direction.source, direction.target
    lengths = lengths_of(source, count, empty)
    target.buffer.memset(GUARD)
    source.buffer.write(image(lengths))
    written = source.write(sges=pieces_of(source.buffer, lengths), remote_offset=64, signaled=signaled)
    finish(source, written, WCOpcode.RDMA_WRITE, signaled)
    guard = bytes([GUARD]) * 64
    assert target.buffer.read(0, sum(lengths) + 128) == guard + data_of(lengths) + guard
    assert_quiet(source, target)


@COUNTS
@pytest.mark.rdma_requires(max_sge_rd=MOST)
def test_read_is_scattered(direction: Direction, signaled: bool, count: str, empty: str) -> None:
    reader, owner = direction.source, direction.target
    lengths = lengths_of(reader, count, empty)
    reader.buffer.memset(GUARD)
    owner.buffer.write(data_of(lengths), 64)
    read = reader.read(sges=pieces_of(reader.buffer, lengths), remote_offset=64, signaled=signaled)
    finish(reader, read, WCOpcode.RDMA_READ, signaled)
    assert reader.buffer.read(0, len(lengths) * STRIDE_BYTES) == image(lengths)
    assert_quiet(reader, owner)


def test_a_receive_is_filled_piece_after_piece(direction: Direction) -> None:
    """A message shorter than its receive fills the first pieces, ends within one, and leaves the rest alone."""
    source, target = direction.source, direction.target
    target.buffer.memset(GUARD)
    source.buffer.fill(4, 0, 250)
    received = target.post_recv(sges=[target.buffer.sge(1000 * n, 100) for n in range(5)])
    sent = source.send(length=250)
    assert target.wait(received)[0].byte_len == 250
    for n, length in enumerate((100, 100, 50)):
        target.buffer.verify(4, 1000 * n, length, pattern_offset=100 * n)
        target.buffer.check_untouched(GUARD, 1000 * n + length, 1000 - length)
    target.buffer.check_untouched(GUARD, 3000, 2000)
    source.wait(sent)


def test_pieces_to_be_sent_may_overlap(direction: Direction) -> None:
    """What is only read may be named twice: the message holds it twice."""
    source, target = direction.source, direction.target
    source.buffer.fill(5, 0, 1000)
    received = target.post_recv(length=4000)
    sent = source.send(sges=[source.buffer.sge(0, 1000), source.buffer.sge(500, 500), source.buffer.sge(0, 1000)])
    assert target.wait(received)[0].byte_len == 2500
    target.buffer.verify(5, 0, 1000)
    target.buffer.verify(5, 1000, 500, pattern_offset=500)
    target.buffer.verify(5, 1500, 1000)
    source.wait(sent)


def test_requests_may_read_the_same_memory_at_once(direction: Direction) -> None:
    """Steps: sends, writes and the peer's reads of one stretch, all in flight. Verify: each has it whole."""
    source, target = direction.source, direction.target
    source.buffer.fill(6, 0, 5000)
    receives = [target.post_recv(offset=5000 * n, length=5000) for n in range(2)]
    reads = [target.read(offset=10000 + 5000 * n, length=5000) for n in range(2)]
    posted = [source.send(length=5000) for _ in range(2)]
    posted += [source.write(length=5000, remote_offset=20000 + 5000 * n) for n in range(2)]
    source.wait(*posted)
    target.wait(*receives, *reads)
    for n in range(6):
        target.buffer.verify(6, 5000 * n, 5000)


BufferFactory = Callable[[Endpoint, int], list[Buffer]]


@pytest.fixture
def buffers(rdma_pair: Pair) -> Iterator[BufferFactory]:
    """Factory of further buffers in the PD of an endpoint, closed before it."""
    made: list[Buffer] = []

    def make(end: Endpoint, count: int) -> list[Buffer]:
        mine = [end.host.mr(end.pd, 4096) for _ in range(count)]
        made.extend(mine)
        return mine

    yield make
    for buffer in made:
        buffer.close()


def test_one_message_from_many_regions_into_many(direction: Direction, buffers: BufferFactory) -> None:
    """Each piece is of a region of its own, at both ends: every piece has another key."""
    source, target = direction.source, direction.target
    ours, theirs = buffers(source, 4), buffers(target, 4)
    assert len({one.lkey for one in ours}) == len({one.lkey for one in theirs}) == 4
    for n, buffer in enumerate(ours):
        buffer.fill(7, 10 * n, 500, pattern_offset=500 * n)
    received = target.post_recv(sges=[buffer.sge(0, 500) for buffer in theirs])
    sent = source.send(sges=[buffer.sge(10 * n, 500) for n, buffer in enumerate(ours)])
    assert target.wait(received)[0].byte_len == 2000
    for n, buffer in enumerate(theirs):
        buffer.verify(7, 0, 500, pattern_offset=500 * n)
        buffer.check_untouched(0, 500)
    source.wait(sent)


def test_one_piece_beyond_the_granted_is_refused(direction: Direction) -> None:
    """Verify: by the checked post with the numbers, and by the driver; what follows is as if nothing had been."""
    source, target = direction.source, direction.target
    sends, recvs = source.caps.send_sges, target.caps.recv_sges
    with pytest.raises(RefusedError, match=rf"SEND of {sends + 1} SGEs, and QP 0x[0-9a-f]+ was granted {sends}"):
        source.send(sges=[source.buffer.sge(0, 1)] * (sends + 1))
    with pytest.raises(RefusedError, match=rf"receive of {recvs + 1} SGEs, and QP 0x[0-9a-f]+ was granted {recvs}"):
        target.post_recv(sges=[target.buffer.sge(0, 1)] * (recvs + 1))
    with pytest.raises(PostError, match=f"{sends + 1} SGEs of {sends}"):
        source.post_raw(SendWR(Opcode.SEND, (source.buffer.sge(0, 1),) * (sends + 1)))
    with pytest.raises(PostError, match=f"{recvs + 1} SGEs of {recvs}"):
        target.post_raw(RecvWR((target.buffer.sge(0, 1),) * (recvs + 1)))
    received = target.post_recv(length=64)
    source.wait(source.send(length=8))
    target.wait(received)
    assert_quiet(source, target)


def test_the_device_grants_as_many_pieces_as_it_says(rdma_pairs: Callable[..., Pair], rdma_pair: Pair) -> None:
    """Steps: ask for max_sge of the device with less; send a message of that many pieces of one byte."""
    ends = (rdma_pair.rail.local, rdma_pair.rail.peer)
    most = min(end.device.limits["max_sge"] for end in ends)
    pair = rdma_pairs(send_depth=1, recv_depth=1, send_sges=most, recv_sges=most)
    pair.local.buffer.fill(8, 0, most)
    received = pair.peer.post_recv(sges=[pair.peer.buffer.sge(16 * n, 1) for n in range(most)])
    pair.local.wait(pair.local.send(sges=[pair.local.buffer.sge(n, 1) for n in range(most)]))
    assert pair.peer.wait(received)[0].byte_len == most
    found = pair.peer.buffer.read(0, 16 * most)
    assert found[::16] == pair.local.buffer.read(0, most)
