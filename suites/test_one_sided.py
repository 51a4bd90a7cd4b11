"""Raw one-sided work with exchanged keys, and the ways down to pyverbs: what a RawConn is for.

InfiniBand specification, volume 1: 9.4.3 (RDMA Write), 9.4.4 (RDMA Read), 10.6.3 (remote keys), 9.5 (order).
Covers C9, C10 and C13 of the seeds, and gordma's connections whose keys were told before there was any memory.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

import pytest
import raw_work

from pytest_rdma import (
    Access,
    Buffer,
    CompletionError,
    Opcode,
    Pair,
    QPState,
    RefusedError,
    RemoteMemory,
    SendWR,
    WCStatus,
)
from pytest_rdma.errors import RdmaUsageError, RemoteError

KEYS = struct.Struct(">QIQ")
MEMORY_BYTES = 32768
REMOTE = Access.LOCAL_WRITE | Access.REMOTE_WRITE | Access.REMOTE_READ


@pytest.fixture
def memory(rdma_pair: Pair) -> Iterator[Buffer]:
    """Memory of the peer's own, registered after the pair was connected."""
    buffer = rdma_pair.peer.host.mr(rdma_pair.peer.pd, MEMORY_BYTES, REMOTE)
    yield buffer
    buffer.close()


def tell(pair: Pair, memory: Buffer) -> RemoteMemory:
    """Let the peer tell the address, key and length of its memory in a message; return what has arrived."""
    received = pair.local.post_recv(length=KEYS.size)
    pair.peer.buffer.write(KEYS.pack(memory.addr, memory.rkey, memory.length))
    pair.peer.wait(pair.peer.send(length=KEYS.size))
    pair.local.wait(received)
    return RemoteMemory(*KEYS.unpack(pair.local.buffer.read(0, KEYS.size)))


def test_c9_memory_registered_later_is_reached_once_its_key_was_told(rdma_pair: Pair, memory: Buffer) -> None:
    """Steps: connect, register, tell the key in a message, write, read back. Verify: all bytes at both ends."""
    told = tell(rdma_pair, memory)
    assert told == memory.remote
    local = rdma_pair.local
    local.buffer.fill(81, 0, MEMORY_BYTES // 2)
    local.wait(local.write(length=MEMORY_BYTES // 2, to=told, remote_offset=1000))
    memory.verify(81, 1000, MEMORY_BYTES // 2)
    memory.check_untouched(0, 0, 1000)
    local.buffer.memset(0)
    local.wait(local.read(length=MEMORY_BYTES // 2, source=told, remote_offset=1000))
    local.buffer.verify(81, 0, MEMORY_BYTES // 2)


def test_c9_write_with_immediate_into_told_memory_wakes_its_owner(rdma_pair: Pair, memory: Buffer) -> None:
    """The owner needs no key of the other end, and no SGE: the immediate is all that it has to receive."""
    told, local, peer = tell(rdma_pair, memory), rdma_pair.local, rdma_pair.peer
    received = peer.post_recv(sges=[])
    local.buffer.fill(82, 0, 300)
    local.wait(local.write(length=300, to=told, imm=300))
    (completion,) = peer.wait(received)
    assert completion.imm == completion.byte_len == 300
    memory.verify(82, 0, 300)


def test_key_of_zero_is_refused_and_raw_it_is_the_peers_access_error(rdma_pair: Pair) -> None:
    """gordma tells its keys before any memory is registered: address and key are 0."""
    local = rdma_pair.local
    nothing = RemoteMemory(0, 0, 64)
    with pytest.raises(RefusedError, match="rkey 0: the peer has told no key"):
        local.write(length=64, to=nothing)
    local.post_raw(SendWR(Opcode.RDMA_WRITE, (local.buffer.sge(0, 64),), wr_id=1))
    with pytest.raises(CompletionError, match="REM_ACCESS_ERR") as error:
        local.wait(1)
    assert error.value.completions[0].status == WCStatus.REM_ACCESS_ERR


def test_key_outlives_its_memory_by_nothing(rdma_pair: Pair) -> None:
    """An owner that tears its memory down while others still write makes their requests fail: it must wait for them."""
    memory = rdma_pair.peer.host.mr(rdma_pair.peer.pd, 4096, REMOTE)
    told, local = memory.remote, rdma_pair.local
    local.wait(local.write(length=64, to=told))
    memory.close()
    late = local.write(length=64, to=told)
    with pytest.raises(CompletionError, match="REM_ACCESS_ERR"):
        local.wait(late)
    assert local.state == QPState.ERR


@pytest.mark.rdma_caps(send_depth=64)
def test_c10_raw_list_with_one_signal_writes_every_piece(rdma_pair: Pair, memory: Buffer) -> None:
    """Steps: 32 writes in one list on the host itself, the last one signaled. Verify: one completion, all bytes."""
    told, local = tell(rdma_pair, memory), rdma_pair.local
    local.buffer.fill(83, 0, 32 * 1000)
    assert local.host.call(raw_work.post_chain, local, told.addr, told.rkey, 32, 1000) == 31
    memory.verify(83, 0, 32 * 1000)
    assert local.poll(1, timeout_s=0, exactly=False) == []


def test_writer_is_watched_in_memory_beyond_a_wrap_of_eight_bits(rdma_pair: Pair) -> None:
    """Steps: the owner watches its memory while 300 numbers are written there. Verify: they only grow, to the last.

    A number that is as wide as the loop is long cannot be taken for an older one; a watch has a deadline.
    """
    count, peer = 300, rdma_pair.peer
    watching = peer.host.submit_call(raw_work.watch_sequence, peer, count, 25.0)
    assert rdma_pair.local.host.call(raw_work.write_sequence, rdma_pair.local, count) == count
    seen = watching.result()
    assert seen == sorted(set(seen))
    assert seen[-1] == count


def test_watch_of_memory_that_nobody_writes_ends_at_its_deadline(rdma_pair: Pair) -> None:
    with pytest.raises(RemoteError, match="0 of 1 was seen") as error:
        rdma_pair.peer.host.call(raw_work.watch_sequence, rdma_pair.peer, 1, 0.2)
    assert error.value.type_name == "TimeoutError"


def test_c13_pyverbs_objects_are_those_of_the_endpoint(rdma_pair: Pair) -> None:
    """`host.call` reaches the pyverbs objects wherever the endpoint lives, and the pointer below them."""
    for end in rdma_pair.ends:
        found = end.host.call(raw_work.facts_by_pyverbs, end)
        assert found["qp_num"] == end.qp_num == end.host.call(raw_work.qp_number_by_pointer, end)
        assert found["state"] == QPState.RTS
        assert (found["lkey"], found["rkey"]) == (end.buffer.lkey, end.buffer.rkey)
        assert found["cqe"] >= end.caps.send_depth + end.caps.recv_depth


def test_c13_work_posted_by_pyverbs_alone_arrives(rdma_pair: Pair) -> None:
    told, local = rdma_pair.peer.buffer.remote, rdma_pair.local
    local.buffer.fill(84, 0, 2000)
    status = local.host.call(raw_work.write_by_pyverbs, local, told.addr + 4096, told.rkey, 2000)
    assert status == WCStatus.SUCCESS
    rdma_pair.peer.buffer.verify(84, 4096, 2000)


def test_c13_raw_is_here_or_names_the_way(rdma_pairs: Callable[..., Pair]) -> None:
    """`.raw` gives the objects in this process; of an agent's it says how to work on them there."""
    for end in rdma_pairs().ends:
        try:
            raw = end.raw
        except RdmaUsageError as error:
            assert "host.call" in str(error)
            assert end.host.name in str(error)
        else:
            assert raw.qp.qp_num == end.qp_num
