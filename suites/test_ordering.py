"""Order on one queue: what is posted first is done first, reads run beside what follows them unless that is fenced.

InfiniBand specification, volume 1, sections 9.5 (transaction ordering) and 10.8.3.3 (order on the send queue), and
9.4.4 for how many reads a responder holds at once.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain

import pytest
from targets import Direction, assert_quiet

from pytest_rdma import Access, Endpoint, Opcode, Pair, SendWR, WCOpcode

READS = 64
SLOT_BYTES = 512


def reads(reader: Endpoint, count: int) -> list[SendWR]:
    """Return reads of the n-th slot of the peer into the n-th of the reader, the last slot first."""
    remote = reader.remote
    assert remote is not None
    return [
        SendWR(
            Opcode.RDMA_READ,
            (reader.buffer.sge((count - 1 - n) * SLOT_BYTES, SLOT_BYTES),),
            wr_id=n,
            remote_addr=remote.addr + n * SLOT_BYTES,
            rkey=remote.rkey,
        )
        for n in range(count)
    ]


def check_reads(reader: Endpoint, count: int, seed: int) -> None:
    for n in range(0, count, 7):
        reader.buffer.verify(seed, (count - 1 - n) * SLOT_BYTES, SLOT_BYTES, pattern_offset=n * SLOT_BYTES)


def test_more_reads_than_the_responder_holds(direction: Direction) -> None:
    """Steps: sixty-four reads in one list. Verify: the device holds back what is too many; each got its own piece."""
    reader, owner = direction.source, direction.target
    owner.buffer.fill(1, 0, READS * SLOT_BYTES)
    reader.post(reads(reader, READS))
    completions = reader.poll(READS)
    assert [(one.wr_id, one.status, one.opcode) for one in completions] == [
        (n, 0, WCOpcode.RDMA_READ) for n in range(READS)
    ]
    check_reads(reader, READS, 1)
    assert_quiet(reader, owner)


@pytest.mark.parametrize("rd_atomic", [1, 2])
def test_reads_over_a_connection_for_few(rdma_pairs: Callable[..., Pair], rdma_pair: Pair, rd_atomic: int) -> None:
    """Steps: connect for one or two reads in flight; post sixteen."""
    few = {side: {"rd_atomic": rd_atomic} for side in ("local", "peer")}
    pair = rdma_pairs(overrides=few)
    assert pair.local.query()["max_rd_atomic"] == rd_atomic
    pair.peer.buffer.fill(2, 0, 16 * SLOT_BYTES)
    pair.local.post(reads(pair.local, 16))
    assert [one.status for one in pair.local.poll(16)] == [0] * 16
    check_reads(pair.local, 16, 2)


@pytest.mark.rdma_caps(access=Access.ALL)
@pytest.mark.rdma_requires("atomics")
def test_completions_come_in_the_order_posted(direction: Direction) -> None:
    """Steps: every operation in turn, four times over. Verify: the completions of the queue, by wr_id and opcode."""
    source, target = direction.source, direction.target
    receives = [target.post_recv(offset=60000, length=64) for _ in range(8)]
    posted = []
    for n in range(4):
        posted += [
            (source.send(length=64), WCOpcode.SEND),
            (source.read(offset=8192, length=5000), WCOpcode.RDMA_READ),
            (source.write(length=5000, remote_offset=8192), WCOpcode.RDMA_WRITE),
            (source.fetch_add(1, offset=0, remote_offset=32768), WCOpcode.FETCH_ADD),
            (source.send(length=64, imm=n), WCOpcode.SEND),
            (source.compare_swap(0, 1, offset=0, remote_offset=32776), WCOpcode.COMP_SWAP),
        ]
    completions = source.poll(len(posted))
    assert [(one.wr_id, one.status, one.opcode) for one in completions] == [(wr_id, 0, code) for wr_id, code in posted]
    assert [one.imm for one in target.wait(*receives)] == list(chain(*((None, n) for n in range(4))))
    assert_quiet(source, target)


def test_the_last_of_many_writes_to_one_place_stays(direction: Direction) -> None:
    """Steps: twenty Writes of as many patterns to one place, the last signaled. Verify: the last pattern, whole."""
    source, target = direction.source, direction.target
    for n in range(20):
        source.buffer.fill(n, n * 3000, 3000)
    for n in range(19):
        source.write(offset=n * 3000, length=3000, signaled=False)
    source.wait(source.write(offset=19 * 3000, length=3000))
    target.buffer.verify(19, 0, 3000)
    assert_quiet(source, target)


def test_a_message_tells_that_the_writes_before_it_have_landed(direction: Direction) -> None:
    """Steps: unsignaled Writes, then a message. Verify: when it arrives, all of them are in place."""
    source, target = direction.source, direction.target
    source.buffer.fill(4, 0, 40000)
    received = target.post_recv(offset=50000, length=8)
    for n in range(10):
        source.write(offset=4000 * n, length=4000, remote_offset=4000 * n, signaled=False)
    sent = source.send(length=8)
    target.wait(received)
    target.buffer.verify(4, 0, 40000)
    source.wait(sent)


def test_a_fenced_message_holds_what_was_read_before_it(direction: Direction) -> None:
    """Steps: read 40000 bytes of the peer; at once send that memory on, fenced. Verify: it holds what was read."""
    source, target = direction.source, direction.target
    target.buffer.fill(5, 0, 20000)
    received = target.post_recv(offset=30000, length=20000)
    read = source.read(length=20000)
    sent = source.send(length=20000, fence=True)
    target.wait(received)
    target.buffer.verify(5, 30000, 20000)
    assert [one.wr_id for one in source.poll(2)] == [read, sent]


def test_a_fenced_write_holds_what_was_read_before_it(direction: Direction) -> None:
    source, target = direction.source, direction.target
    target.buffer.fill(6, 0, 20000)
    source.read(length=20000, signaled=False)
    source.wait(source.write(length=20000, remote_offset=30000, fence=True))
    target.buffer.verify(6, 30000, 20000)
    assert_quiet(source, target)


@pytest.mark.rdma_caps(access=Access.ALL)
@pytest.mark.rdma_requires("atomics")
def test_a_fenced_write_holds_what_an_atomic_returned(direction: Direction) -> None:
    """Steps: add to a counter of the peer; write the old value beside it, fenced; ten times. Verify: each old value."""
    source, target = direction.source, direction.target
    posted = []
    for n in range(10):
        posted.append(source.fetch_add(7, offset=8 * n, remote_offset=0))
        posted.append(source.write(offset=8 * n, length=8, remote_offset=1024 + 8 * n, fence=True))
    source.wait(*posted)
    found = target.buffer.read(1024, 80)
    assert [int.from_bytes(found[8 * n :][:8], "little") for n in range(10)] == [7 * n for n in range(10)]
