"""RDMA Read: the reader gets the target's bytes, whole and in bounds, and the target notices nothing.

InfiniBand specification, volume 1, section 9.4.4 (RDMA Read).
"""

from __future__ import annotations

import pytest
from targets import BUFFER_BYTES, GUARD_BYTES, Direction, GuardedTarget, assert_quiet, finish

from pytest_rdma import WCOpcode


@pytest.mark.rdma_caps(buffer_bytes=BUFFER_BYTES)
def test_read_fetches_every_byte(direction: Direction, size_bytes: int, signaled: bool) -> None:
    """Steps: read the peer's pattern into a guarded buffer. Verify: bytes and guards here, the reader's completion."""
    reader, owner = direction.source, direction.target
    sink = GuardedTarget(reader.buffer, size_bytes)
    owner.buffer.fill(8, 0, size_bytes)
    read = reader.read(offset=GUARD_BYTES, length=size_bytes, signaled=signaled)
    finish(reader, read, WCOpcode.RDMA_READ, signaled)
    sink.verify(8)
    owner.buffer.verify(8, 0, size_bytes)
    assert_quiet(reader, owner)


def test_read_after_write_returns_what_was_written(direction: Direction) -> None:
    """Steps: write, then read the same stretch back, posted together. Verify: the read saw the write (fenced)."""
    source, target = direction.source, direction.target
    source.buffer.fill(9, 0, 2000)
    written = source.write(length=2000, remote_offset=4096)
    back = source.read(offset=16384, length=2000, remote_offset=4096, fence=True)
    source.wait(written, back)
    source.buffer.verify(9, 16384, 2000)
    target.buffer.verify(9, 4096, 2000)


def test_reads_from_many_offsets(direction: Direction) -> None:
    """Steps: eight reads from different places of one buffer at once. Verify: each got its own piece."""
    reader, owner = direction.source, direction.target
    owner.buffer.fill(10, 0, 32768)
    reads = [reader.read(offset=i * 4096, length=1000, remote_offset=i * 3001) for i in range(8)]
    reader.wait(*reads)
    for i in range(8):
        reader.buffer.verify(10, i * 4096, 1000, pattern_offset=i * 3001)
