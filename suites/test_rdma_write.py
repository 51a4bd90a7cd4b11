"""RDMA Write: the bytes are in the target's memory, nothing else is, and the target is told nothing.

InfiniBand specification, volume 1, section 9.4.3 (RDMA Write).
"""

from __future__ import annotations

import pytest
from targets import BUFFER_BYTES, GUARD_BYTES, Direction, GuardedTarget, assert_quiet, finish

from pytest_rdma import DataMismatchError, Pair, WCOpcode

FOUR_GIB = 1 << 32


@pytest.mark.rdma_caps(buffer_bytes=BUFFER_BYTES)
def test_write_places_every_byte(direction: Direction, size_bytes: int, signaled: bool) -> None:
    """Steps: write a pattern into the peer's guarded buffer. Verify: bytes, guards, the writer's completion."""
    source, target = direction.source, direction.target
    arrival = GuardedTarget(target.buffer, size_bytes)
    source.buffer.fill(3, 0, size_bytes)
    written = source.write(length=size_bytes, remote_offset=GUARD_BYTES, signaled=signaled)
    finish(source, written, WCOpcode.RDMA_WRITE, signaled)
    arrival.verify(3)
    assert_quiet(source, target)


def test_plain_write_completes_nothing_at_the_target(direction: Direction) -> None:
    """Steps: post a receive at the target, write, then send: RC keeps their order.

    Verify: when the message has arrived, so has the write, and the receive took the message: the write took nothing.
    """
    source, target = direction.source, direction.target
    arrival = GuardedTarget(target.buffer, 1000)
    source.buffer.fill(5, 0, 1000)
    received = target.post_recv(offset=8192, length=100)
    written = source.write(length=1000, remote_offset=GUARD_BYTES)
    sent = source.send(offset=2000, length=100)
    (completion,) = target.wait(received)
    assert (completion.opcode, completion.byte_len) == (WCOpcode.RECV, 100)
    arrival.verify(5)
    source.wait(written, sent)
    assert target.poll(1, timeout_s=0, exactly=False) == []


def test_write_reaches_addresses_above_4_gib(rdma_pair: Pair) -> None:
    """Both buffers lie above 4 GiB, so an address cut to 32 bits cannot arrive where it should."""
    target = rdma_pair.peer.buffer
    assert rdma_pair.local.buffer.addr > FOUR_GIB
    assert target.addr > FOUR_GIB
    assert rdma_pair.local.remote is not None
    assert rdma_pair.local.remote.addr == target.addr
    rdma_pair.local.buffer.fill(6, 0, 256)
    rdma_pair.local.wait(rdma_pair.local.write(length=256, remote_offset=512))
    target.verify(6, 512, 256)


def test_verification_sees_a_single_wrong_byte(rdma_pair: Pair) -> None:
    """The check that all of this rests on fails when one byte differs, and names its offset."""
    rdma_pair.local.buffer.fill(7, 0, 4096)
    rdma_pair.local.wait(rdma_pair.local.write(length=4096))
    last = rdma_pair.peer.buffer.read(4095, 1)
    rdma_pair.peer.buffer.write(bytes([last[0] ^ 1]), 4095)
    with pytest.raises(DataMismatchError) as mismatch:
        rdma_pair.peer.buffer.verify(7, 0, 4096)
    assert mismatch.value.offset == 4095
