"""Inline data: taken out of memory when it is posted, up to the limit that was granted and not a byte beyond it.

ibv_post_send(3), IBV_SEND_INLINE; the InfiniBand specification leaves it to the implementation.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from targets import GUARD_BYTES, Direction, GuardedTarget, assert_quiet, finish

from pytest_rdma import Opcode, PostError, RefusedError, SendWR, Sge, WCOpcode

ASKED_BYTES = 64
pytestmark = pytest.mark.rdma_caps(inline_bytes=ASKED_BYTES, send_sges=2)

LENGTHS = pytest.mark.combined(length=("0", "1", "limit-1", "limit"))


def bytes_of(length: str, limit: int) -> int:
    return {"0": 0, "1": 1, "limit-1": limit - 1, "limit": limit}[length]


@LENGTHS
def test_inline_send(direction: Direction, signaled: bool, length: str) -> None:
    """Steps: send inline, then overwrite what was sent. Verify: the bytes as they were, and guards, at the target."""
    source, target = direction.source, direction.target
    size = bytes_of(length, source.caps.inline_bytes)
    arrival = GuardedTarget(target.buffer, size)
    source.buffer.fill(1, 0, size)
    received = target.post_recv(offset=GUARD_BYTES, length=size)
    sent = source.send(length=size, inline=True, signaled=signaled)
    source.buffer.memset(0xFF, 0, size)
    (completion,) = target.wait(received)
    assert completion.byte_len == size
    finish(source, sent, WCOpcode.SEND, signaled)
    arrival.verify(1)
    assert_quiet(source, target)


@LENGTHS
def test_inline_write(direction: Direction, signaled: bool, length: str) -> None:
    source, target = direction.source, direction.target
    size = bytes_of(length, source.caps.inline_bytes)
    arrival = GuardedTarget(target.buffer, size)
    source.buffer.fill(2, 0, size)
    written = source.write(length=size, remote_offset=GUARD_BYTES, inline=True, signaled=signaled)
    source.buffer.memset(0xFF, 0, size)
    finish(source, written, WCOpcode.RDMA_WRITE, signaled)
    arrival.verify(2)
    assert_quiet(source, target)


def test_inline_data_is_gathered_from_pieces(direction: Direction) -> None:
    """Two pieces, together as long as the limit, from both ends of the buffer. Verify: in order, and nothing else."""
    source, target = direction.source, direction.target
    limit = source.caps.inline_bytes
    first, second = limit // 3, limit - limit // 3
    arrival = GuardedTarget(target.buffer, limit)
    source.buffer.fill(3, 8192, first)
    source.buffer.fill(3, 0, second, pattern_offset=first)
    received = target.post_recv(offset=GUARD_BYTES, length=limit)
    sent = source.send(sges=[source.buffer.sge(8192, first), source.buffer.sge(0, second)], inline=True)
    target.wait(received)
    arrival.verify(3)
    source.wait(sent)


def test_inline_data_needs_no_key(direction: Direction) -> None:
    """The lkey of inline data is not looked at: a wrong one does no harm."""
    source, target = direction.source, direction.target
    arrival = GuardedTarget(target.buffer, 16)
    source.buffer.fill(4, 0, 16)
    piece = source.buffer.sge(0, 16)
    received = target.post_recv(offset=GUARD_BYTES, length=16)
    sent = source.send(sges=[replace(piece, lkey=0)], inline=True)
    target.wait(received)
    arrival.verify(4)
    source.wait(sent)


@pytest.mark.parametrize("pieces", [1, 2])
def test_a_byte_beyond_the_limit_is_refused(direction: Direction, pieces: int) -> None:
    """Verify: refused by the checked post, with the numbers, and by the driver; what follows is not disturbed."""
    source, target = direction.source, direction.target
    limit = source.caps.inline_bytes
    whole = source.buffer.sge(0, limit + 1)
    sges = [whole] if pieces == 1 else [Sge(whole.addr, limit, whole.lkey), Sge(whole.addr + limit, 1, whole.lkey)]
    with pytest.raises(RefusedError, match=f"{limit + 1} bytes inline, and QP 0x[0-9a-f]+ was granted {limit}"):
        source.send(sges=sges, inline=True)
    with pytest.raises(PostError, match=f"{limit + 1} bytes inline of {limit}") as error:
        source.post_raw(SendWR(Opcode.SEND, tuple(sges), inline=True))
    assert error.value.bad_index == 0
    received = target.post_recv(length=64)
    source.buffer.fill(5, 0, 8)
    sent = source.send(length=8, inline=True)
    assert target.wait(received)[0].byte_len == 8
    target.buffer.verify(5, 0, 8)
    source.wait(sent)
    assert_quiet(source, target)


def test_the_granted_limit_is_what_was_asked_for_at_least(direction: Direction) -> None:
    assert direction.source.caps.inline_bytes >= ASKED_BYTES
