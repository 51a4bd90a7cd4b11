"""Immediate data: 32 bits that come with a message or a Write, the same number at both ends.

InfiniBand specification, volume 1, sections 9.4.1 (Send) and 9.4.3 (RDMA Write). A number with its highest bit set
shows sign extension, 0x01020304 the byte order; a Write with immediate takes a receive, also one without any SGE.
"""

from __future__ import annotations

import pytest
from targets import BUFFER_BYTES, GUARD_BYTES, Direction, GuardedTarget, assert_quiet, finish

from pytest_rdma import RefusedError, WCOpcode

IMMEDIATES = pytest.mark.combined(imm=(0, 0x01020304, 0x89ABCDEF, 0xFFFFFFFF))


@IMMEDIATES
@pytest.mark.rdma_caps(buffer_bytes=BUFFER_BYTES)
def test_send_with_immediate(direction: Direction, size_bytes: int, signaled: bool, imm: int) -> None:
    """Verify: number, length, bytes and guards at the target; the sender's completion tells of no immediate."""
    source, target = direction.source, direction.target
    arrival = GuardedTarget(target.buffer, size_bytes)
    source.buffer.fill(1, 0, size_bytes)
    received, _ = (target.post_recv(offset=GUARD_BYTES, length=size_bytes) for _ in range(2))
    sent = source.send(length=size_bytes, imm=imm, signaled=signaled)
    (completion,) = target.wait(received)
    assert (completion.opcode, completion.byte_len, completion.imm) == (WCOpcode.RECV, size_bytes, imm)
    finish(source, sent, WCOpcode.SEND, signaled)
    arrival.verify(1)
    assert_quiet(source, target)


@IMMEDIATES
@pytest.mark.rdma_caps(buffer_bytes=BUFFER_BYTES)
def test_write_with_immediate(direction: Direction, size_bytes: int, signaled: bool, imm: int) -> None:
    """Steps: a receive without SGEs; write. Verify: number and length by its completion, bytes and guards in place."""
    source, target = direction.source, direction.target
    arrival = GuardedTarget(target.buffer, size_bytes)
    source.buffer.fill(2, 0, size_bytes)
    received, _ = (target.post_recv(sges=[]) for _ in range(2))
    written = source.write(length=size_bytes, remote_offset=GUARD_BYTES, imm=imm, signaled=signaled)
    (completion,) = target.wait(received)
    assert (completion.opcode, completion.byte_len, completion.imm) == (WCOpcode.RECV_RDMA_WITH_IMM, size_bytes, imm)
    arrival.verify(2)
    finish(source, written, WCOpcode.RDMA_WRITE, signaled)
    assert_quiet(source, target)


def test_write_with_immediate_leaves_the_memory_of_its_receive_alone(direction: Direction) -> None:
    """The data goes where the Write says; the receive that it takes is only told."""
    source, target = direction.source, direction.target
    arrival = GuardedTarget(target.buffer, 1000)
    source.buffer.fill(3, 0, 1000)
    target.buffer.memset(0x5A, 8192, 2000)
    received = target.post_recv(offset=8192, length=2000)
    written = source.write(length=1000, remote_offset=GUARD_BYTES, imm=7)
    (completion,) = target.wait(received)
    assert (completion.opcode, completion.byte_len, completion.imm) == (WCOpcode.RECV_RDMA_WITH_IMM, 1000, 7)
    arrival.verify(3)
    target.buffer.check_untouched(0x5A, 8192, 2000)
    source.wait(written)


def test_each_message_has_its_own_immediate(direction: Direction) -> None:
    """Steps: messages with and without immediate, and Writes with, in turn. Verify: what each receive was told."""
    source, target = direction.source, direction.target
    receives = [target.post_recv(length=64) for _ in range(8)]
    sent = []
    for n in range(4):
        sent.append(source.send(length=n, imm=None if n % 2 else 0x80000000 + n))
        sent.append(source.write(length=n, imm=n))
    completions = target.wait(*receives)
    assert [one.imm for one in completions] == [0x80000000, 0, None, 1, 0x80000002, 2, None, 3]
    assert [one.byte_len for one in completions] == [0, 0, 1, 1, 2, 2, 3, 3]
    source.wait(*sent)
    assert_quiet(source, target)


@pytest.mark.parametrize("imm", [-1, 1 << 32])
def test_a_number_of_more_than_32_bits_is_refused(direction: Direction, imm: int) -> None:
    with pytest.raises(RefusedError, match=f"immediate {imm} is not a number of 32 bits"):
        direction.source.send(length=8, imm=imm)
