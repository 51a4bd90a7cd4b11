"""Messages of 16 MiB: beyond what fits any queue of packets, and beyond the 8 MiB that Soft-RoCE says it can do.

InfiniBand specification, volume 1, sections 9.4.1, 9.4.3 and 9.4.4: a message of RC has up to 2^31 bytes.
"""

from __future__ import annotations

import pytest
from targets import GUARD_BYTES, Direction, GuardedTarget, assert_quiet, finish

from pytest_rdma import WCOpcode

MESSAGE_BYTES = 16 << 20
TIMEOUT_S = 60.0
pytestmark = [pytest.mark.rdma_caps(buffer_bytes=MESSAGE_BYTES + 2 * GUARD_BYTES)]


def test_send(direction: Direction) -> None:
    source, target = direction.source, direction.target
    arrival = GuardedTarget(target.buffer, MESSAGE_BYTES)
    source.buffer.fill(1, 0, MESSAGE_BYTES)
    received = target.post_recv(offset=GUARD_BYTES, length=MESSAGE_BYTES)
    sent = source.send(length=MESSAGE_BYTES)
    (completion,) = target.wait(received, timeout_s=TIMEOUT_S)
    assert completion.byte_len == MESSAGE_BYTES
    finish(source, sent, WCOpcode.SEND)
    arrival.verify(1)
    assert_quiet(source, target)


def test_write(direction: Direction) -> None:
    source, target = direction.source, direction.target
    arrival = GuardedTarget(target.buffer, MESSAGE_BYTES)
    source.buffer.fill(2, 0, MESSAGE_BYTES)
    source.wait(source.write(length=MESSAGE_BYTES, remote_offset=GUARD_BYTES), timeout_s=TIMEOUT_S)
    arrival.verify(2)
    assert_quiet(source, target)


def test_read(direction: Direction) -> None:
    reader, owner = direction.source, direction.target
    sink = GuardedTarget(reader.buffer, MESSAGE_BYTES)
    owner.buffer.fill(3, 0, MESSAGE_BYTES)
    reader.wait(reader.read(offset=GUARD_BYTES, length=MESSAGE_BYTES), timeout_s=TIMEOUT_S)
    sink.verify(3)
    assert_quiet(reader, owner)
