"""Memory windows of both types: keys for parts of a buffer, given and taken back while the buffer stays.

InfiniBand specification, volume 1, sections 10.6.7 and 10.6.7.2 (memory windows), 9.4.1 (Send with Invalidate). The end
that owns the window binds it; the other writes and reads through it.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from targets import BUFFER_BYTES, GUARD, GUARD_BYTES, Direction, GuardedTarget, assert_quiet, finish

from pytest_rdma import (
    Access,
    CompletionError,
    EndOutcome,
    Endpoint,
    Expectation,
    MemoryWindow,
    Opcode,
    Probe,
    QPState,
    RefusedError,
    RemoteMemory,
    SendWR,
    WCOpcode,
    WCStatus,
)

WINDOWED = Access.ALL | Access.MW_BIND
pytestmark = [
    pytest.mark.rdma_requires("memory_windows"),
    pytest.mark.rdma_caps(access=WINDOWED, qp_access=Access.ALL, buffer_bytes=BUFFER_BYTES),
]
TYPES = pytest.mark.parametrize(
    "type", [1, pytest.param(2, marks=pytest.mark.rdma_requires("memory_windows_type_2", "local_invalidate"))]
)
TYPE_2 = pytest.mark.rdma_requires("memory_windows_type_2", "local_invalidate")


def bound(owner: Endpoint, type: int, offset: int, length: int, access: Access = Access.ALL) -> MemoryWindow:
    window = owner.memory_window(type)
    posted = window.bind(owner.buffer, offset, length, access=access & ~Access.LOCAL_WRITE)
    assert owner.wait(posted)[0].opcode == WCOpcode.BIND_MW
    return window


def assert_refused(user: Endpoint, memory: RemoteMemory, *, read: bool = False) -> None:
    """Check that the far end refuses; the connection is broken after it."""
    posted = user.read(length=8, source=memory) if read else user.write(length=8, to=memory)
    with pytest.raises(CompletionError) as error:
        user.wait(posted)
    assert error.value.completions[0].status == WCStatus.REM_ACCESS_ERR


@TYPES
def test_write_through_a_window(direction: Direction, size_bytes: int, signaled: bool, type: int) -> None:
    """Steps: bind the whole stretch between the guards, write into it. Verify: bytes and guards."""
    source, owner = direction.source, direction.target
    arrival = GuardedTarget(owner.buffer, size_bytes)
    window = bound(owner, type, GUARD_BYTES, size_bytes or 1)
    source.buffer.fill(1, 0, size_bytes)
    finish(source, source.write(length=size_bytes, to=window, signaled=signaled), WCOpcode.RDMA_WRITE, signaled)
    arrival.verify(1)
    assert_quiet(source, owner)


@TYPES
def test_read_through_a_window(direction: Direction, type: int) -> None:
    reader, owner = direction.source, direction.target
    sink = GuardedTarget(reader.buffer, 5000)
    owner.buffer.fill(2, 1000, 5000)
    window = bound(owner, type, 1000, 5000, Access.REMOTE_READ)
    reader.wait(reader.read(offset=GUARD_BYTES, length=5000, source=window))
    sink.verify(2)


@TYPES
@pytest.mark.rdma_requires("atomics")
def test_atomic_through_a_window(direction: Direction, type: int) -> None:
    source, owner = direction.source, direction.target
    owner.buffer.write((41).to_bytes(8, "little"), 4096)
    window = bound(owner, type, 4096, 8)
    source.wait(source.fetch_add(1, to=window))
    assert int.from_bytes(source.buffer.read(0, 8), "little") == 41
    assert int.from_bytes(owner.buffer.read(4096, 8), "little") == 42


@TYPES
@pytest.mark.parametrize("where", ["before", "after"])
def test_a_window_ends_where_it_ends(direction: Direction, rdma_expect: Expectation, type: int, where: str) -> None:
    """Steps: write eight bytes that lie half out of the window, within the buffer. Verify: refused, nothing written."""
    source, owner = direction.source, direction.target
    owner.buffer.memset(GUARD, 0, 8192)
    window = bound(owner, type, 4096, 64)
    shift = -4 if where == "before" else 60
    if written_beyond(direction, rdma_expect, "window.beyond-its-end", window.remote, window.remote.addr + shift):
        assert owner.buffer.read(4096 + shift, 8) == source.buffer.read(0, 8)
        owner.buffer.memset(GUARD, 0, 8192)
        buffer_end = owner.buffer.addr + (-4 if where == "before" else owner.buffer.length - 4)
        assert not written_beyond(direction, rdma_expect, "window.refused", window.remote, buffer_end)
    owner.buffer.check_untouched(GUARD, 0, 8192)


def written_beyond(direction: Direction, expect: Expectation, case: str, memory: RemoteMemory, addr: int) -> bool:
    """Write eight bytes to an address that the key does not cover; whether the table says that they arrive."""
    active, passive = Probe(direction.source), Probe(direction.target)
    sge = direction.source.buffer.sge(0, 8)
    active.send(SendWR(Opcode.RDMA_WRITE, (sge,), remote_addr=addr, rkey=memory.rkey))
    refused = EndOutcome(sends=(WCStatus.REM_ACCESS_ERR,), state=QPState.ERR)
    violated = EndOutcome(state=QPState.ERR, events=("QP_ACCESS_ERR",))
    return expect(case, active=(active, refused), passive=(passive, violated))["active"].sends == (WCStatus.SUCCESS,)


@TYPES
@pytest.mark.parametrize("read", [False, True], ids=["write", "read"])
def test_a_window_allows_no_more_than_it_was_bound_for(direction: Direction, type: int, read: bool) -> None:
    source, owner = direction.source, direction.target
    owner.buffer.memset(GUARD, 0, 8192)
    window = bound(owner, type, 0, 64, Access.REMOTE_WRITE if read else Access.REMOTE_READ)
    assert_refused(source, window.remote, read=read)
    owner.buffer.check_untouched(GUARD, 0, 8192)


@TYPES
def test_a_window_that_moves_gets_a_new_key(direction: Direction, type: int) -> None:
    """Steps: bind, take back where type 2 needs it, bind elsewhere. Verify: the new key works, the old one does not."""
    source, owner = direction.source, direction.target
    window = bound(owner, type, 0, 4096)
    old = window.remote
    if type == 2:
        owner.wait(owner.invalidate(old.rkey))
    owner.wait(window.bind(owner.buffer, 8192, 4096))
    assert window.remote.rkey != old.rkey
    source.buffer.fill(3, 0, 4096)
    source.wait(source.write(length=4096, to=window))
    owner.buffer.verify(3, 8192, 4096)
    assert_refused(source, old)


def test_type_1_is_taken_back_by_binding_nothing(direction: Direction) -> None:
    source, owner = direction.source, direction.target
    window = bound(owner, 1, 0, 64)
    last = window.remote
    owner.wait(window.bind(owner.buffer, 0, 0))
    assert_refused(source, last)


@TYPE_2
def test_type_2_is_taken_back_by_local_invalidation(direction: Direction) -> None:
    source, owner = direction.source, direction.target
    window = bound(owner, 2, 0, 64)
    (completion,) = owner.wait(owner.invalidate(window.remote.rkey))
    assert completion.opcode == WCOpcode.LOCAL_INV
    assert_refused(source, window.remote)


@TYPE_2
def test_send_with_invalidate(direction: Direction, rdma_expect: Expectation, size_bytes: int, signaled: bool) -> None:
    """Steps: write through a window, then send with its key. Verify: the message, its bytes; the key works no more."""
    source, owner = direction.source, direction.target
    arrival = GuardedTarget(owner.buffer, size_bytes)
    window = bound(owner, 2, GUARD_BYTES, size_bytes or 1)
    source.wait(source.write(length=min(size_bytes, 64), to=window))
    source.buffer.fill(4, 0, size_bytes)
    received, _ = (owner.post_recv(offset=GUARD_BYTES, length=size_bytes) for _ in range(2))
    sent = source.send(length=size_bytes, invalidate=window.remote.rkey, signaled=signaled)
    (completion,) = owner.wait(received)
    assert (completion.opcode, completion.byte_len, completion.imm) == (WCOpcode.RECV, size_bytes, None)
    told = Probe(owner)
    told.note(recv=[completion])
    specified = EndOutcome(recvs=(WCStatus.SUCCESS,), invalidated=(window.remote.rkey,))
    rdma_expect("send-with-invalidate", passive=(told, specified))
    finish(source, sent, WCOpcode.SEND, signaled)
    arrival.verify(4)
    assert_quiet(source, owner)
    assert_refused(source, replace(window.remote, length=8))


@TYPES
def test_two_windows_on_one_buffer_have_keys_of_their_own(direction: Direction, type: int) -> None:
    source, owner = direction.source, direction.target
    first, second = bound(owner, type, 0, 4096), bound(owner, type, 4096, 4096)
    assert len({first.remote.rkey, second.remote.rkey, owner.buffer.rkey}) == 3
    source.buffer.fill(5, 0, 4096)
    source.wait(source.write(length=4096, to=second), source.write(length=100, to=first))
    owner.buffer.verify(5, 4096, 4096)
    owner.buffer.verify(5, 0, 100)
    last = first.remote
    owner.wait(first.bind(owner.buffer, 0, 0) if type == 1 else owner.invalidate(last.rkey))
    source.wait(source.write(length=4096, to=second))
    assert_refused(source, last)


@TYPES
def test_an_unsignaled_binding_is_in_force_for_what_is_posted_after_it(direction: Direction, type: int) -> None:
    """Steps: bind without a completion, then a message that tells of it. Verify: the peer that got it can write."""
    source, owner = direction.source, direction.target
    received = source.post_recv(offset=8192, length=8)
    window = owner.memory_window(type)
    window.bind(owner.buffer, 0, 64, signaled=False)
    sent = owner.send(length=8)
    source.wait(received)
    source.buffer.fill(6, 0, 64)
    source.wait(source.write(length=64, to=window))
    owner.buffer.verify(6, 0, 64)
    owner.wait(sent)


@pytest.mark.rdma_caps(access=Access.ALL)
def test_a_buffer_that_was_not_registered_for_windows_is_refused(direction: Direction) -> None:
    with pytest.raises(RefusedError, match="without MW_BIND"):
        direction.target.memory_window(1).bind(direction.target.buffer)


def test_a_window_that_was_never_bound_has_no_key(direction: Direction) -> None:
    with pytest.raises(RefusedError, match="was never bound"):
        direction.source.write(length=8, to=direction.target.memory_window(1))
