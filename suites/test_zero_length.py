"""Messages of no bytes: legal for every operation, without an SGE and with an empty one; they touch no memory.

InfiniBand specification, volume 1, sections 9.4.3 and 9.4.4 (of a length of zero no key is checked). Soft-RoCE had a
regression here once that ended in an oops of the kernel.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from targets import Direction, GuardedTarget, assert_quiet, finish

from pytest_rdma import Endpoint, Opcode, SendWR, Sge, WCOpcode

FORMS = pytest.mark.combined(pieces=("none", "one_empty", "two_empty"))
pytestmark = pytest.mark.rdma_caps(send_sges=2, recv_sges=2)


def sges(end: Endpoint, pieces: str) -> Sequence[Sge]:
    return [end.buffer.sge(0, 0)] * {"none": 0, "one_empty": 1, "two_empty": 2}[pieces]


@FORMS
def test_send(direction: Direction, signaled: bool, pieces: str) -> None:
    source, target = direction.source, direction.target
    arrival = GuardedTarget(target.buffer, 0)
    received, _ = (target.post_recv(sges=sges(target, pieces)) for _ in range(2))
    sent = source.send(sges=sges(source, pieces), signaled=signaled)
    (completion,) = target.wait(received)
    assert (completion.opcode, completion.byte_len) == (WCOpcode.RECV, 0)
    finish(source, sent, WCOpcode.SEND, signaled)
    arrival.verify_untouched()
    assert_quiet(source, target)


@FORMS
def test_send_with_immediate_into_a_receive_without_memory(direction: Direction, signaled: bool, pieces: str) -> None:
    source, target = direction.source, direction.target
    received, _ = (target.post_recv(sges=[]) for _ in range(2))
    sent = source.send(sges=sges(source, pieces), imm=0x89ABCDEF, signaled=signaled)
    (completion,) = target.wait(received)
    assert (completion.opcode, completion.byte_len, completion.imm) == (WCOpcode.RECV, 0, 0x89ABCDEF)
    finish(source, sent, WCOpcode.SEND, signaled)
    assert_quiet(source, target)


@FORMS
def test_write(direction: Direction, signaled: bool, pieces: str) -> None:
    source, target = direction.source, direction.target
    arrival = GuardedTarget(target.buffer, 0)
    written = source.write(sges=sges(source, pieces), signaled=signaled)
    finish(source, written, WCOpcode.RDMA_WRITE, signaled)
    arrival.verify_untouched()
    assert_quiet(source, target)


@FORMS
def test_write_with_immediate(direction: Direction, signaled: bool, pieces: str) -> None:
    source, target = direction.source, direction.target
    arrival = GuardedTarget(target.buffer, 0)
    received, _ = (target.post_recv(sges=sges(target, pieces)) for _ in range(2))
    written = source.write(sges=sges(source, pieces), imm=1, signaled=signaled)
    (completion,) = target.wait(received)
    assert (completion.opcode, completion.byte_len, completion.imm) == (WCOpcode.RECV_RDMA_WITH_IMM, 0, 1)
    finish(source, written, WCOpcode.RDMA_WRITE, signaled)
    arrival.verify_untouched()
    assert_quiet(source, target)


@FORMS
def test_read(direction: Direction, signaled: bool, pieces: str) -> None:
    reader, owner = direction.source, direction.target
    sink = GuardedTarget(reader.buffer, 0)
    read = reader.read(sges=sges(reader, pieces), signaled=signaled)
    finish(reader, read, WCOpcode.RDMA_READ, signaled)
    sink.verify_untouched()
    assert_quiet(reader, owner)


@pytest.mark.parametrize("opcode", [Opcode.RDMA_WRITE, Opcode.RDMA_READ])
def test_no_key_and_no_address_is_looked_at(direction: Direction, opcode: Opcode) -> None:
    """Steps: a Write and a Read of nothing, at address 0 with key 0. Verify: both succeed."""
    source = direction.source
    source.post_raw(SendWR(opcode, (Sge(0, 0, 0),), wr_id=77))
    (completion,) = source.wait(77)
    assert completion.opcode == (WCOpcode.RDMA_WRITE if opcode == Opcode.RDMA_WRITE else WCOpcode.RDMA_READ)
    source.buffer.fill(1, 0, 100)
    source.wait(source.write(length=100))
    direction.target.buffer.verify(1, 0, 100)


def test_a_receive_with_memory_is_left_as_it_was(direction: Direction) -> None:
    source, target = direction.source, direction.target
    arrival = GuardedTarget(target.buffer, 4096)
    received = target.post_recv(length=4096)
    sent = source.send(sges=[])
    assert target.wait(received)[0].byte_len == 0
    arrival.verify_untouched()
    source.wait(sent)
