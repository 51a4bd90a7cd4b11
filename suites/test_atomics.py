"""Compare-and-Swap and Fetch-and-Add: eight aligned bytes change as one, and the old value comes back.

InfiniBand specification 1.2.1 volume 1, section 9.4.5. The edges are those of 64 bits: carries, the sign, wrapping.
"""

from __future__ import annotations

import pytest
from targets import GUARD, GUARD_BYTES, Direction, GuardedTarget, assert_quiet, finish

from pytest_rdma import Access, Buffer, Pair, RefusedError, WCOpcode

pytestmark = [pytest.mark.rdma_requires("atomics"), pytest.mark.rdma_caps(access=Access.ALL)]

TOP = 1 << 63
MOST = (1 << 64) - 1
WORD = 8


def put(buffer: Buffer, value: int, offset: int = GUARD_BYTES) -> None:
    buffer.write(value.to_bytes(WORD, "little"), offset)


def get(buffer: Buffer, offset: int = GUARD_BYTES) -> int:
    return int.from_bytes(buffer.read(offset, WORD), "little")


def guard(*buffers: Buffer) -> None:
    for buffer in buffers:
        GuardedTarget(buffer, WORD)


def check_guards(*buffers: Buffer) -> None:
    for buffer in buffers:
        buffer.check_untouched(GUARD, 0, GUARD_BYTES)
        buffer.check_untouched(GUARD, GUARD_BYTES + WORD, GUARD_BYTES)


@pytest.mark.combined(
    old_and_add=(
        (0, 1),
        (5, 0),
        (0xFFFFFFFF, 1),
        (TOP - 1, 1),
        (TOP, TOP),
        (MOST, 1),
        (MOST, MOST),
        (0x0123456789ABCDEF, 1),
    )
)
def test_fetch_add(direction: Direction, signaled: bool, old_and_add: tuple[int, int]) -> None:
    """Verify: the sum, modulo 2^64, at the target, the old value here, and nothing else at either end."""
    source, target = direction.source, direction.target
    old, add = old_and_add
    guard(source.buffer, target.buffer)
    put(target.buffer, old)
    added = source.fetch_add(add, offset=GUARD_BYTES, remote_offset=GUARD_BYTES, signaled=signaled)
    finish(source, added, WCOpcode.FETCH_ADD, signaled)
    assert (get(source.buffer), get(target.buffer)) == (old, (old + add) & MOST)
    check_guards(source.buffer, target.buffer)
    assert_quiet(source, target)


@pytest.mark.combined(
    old_expected_swap=(
        (0, 0, MOST), (MOST, MOST, 0), (TOP, TOP, TOP - 1), (0x0123456789ABCDEF, 0x0123456789ABCDEF, 1),
        (1, 0, 2), (TOP, 0, 1), (1 << 32, 0, 1), (0x89ABCDEF, MOST << 32 & MOST | 0x89ABCDEF, 1),
    )
)  # fmt: skip
def test_compare_swap(direction: Direction, signaled: bool, old_expected_swap: tuple[int, int, int]) -> None:
    """Verify: swapped only where all 64 bits are as expected; the old value comes back in either case."""
    source, target = direction.source, direction.target
    old, expected, swap = old_expected_swap
    guard(source.buffer, target.buffer)
    put(target.buffer, old)
    swapped = source.compare_swap(expected, swap, offset=GUARD_BYTES, remote_offset=GUARD_BYTES, signaled=signaled)
    finish(source, swapped, WCOpcode.COMP_SWAP, signaled)
    assert (get(source.buffer), get(target.buffer)) == (old, swap if old == expected else old)
    check_guards(source.buffer, target.buffer)
    assert_quiet(source, target)


def test_many_at_once_take_effect_one_after_the_other(direction: Direction) -> None:
    """Steps: a hundred additions in flight, more than any responder keeps. Verify: each old value once, in order."""
    source, target = direction.source, direction.target
    put(target.buffer, MOST - 49)
    posted = [source.fetch_add(1, offset=WORD * n, remote_offset=GUARD_BYTES) for n in range(100)]
    source.wait(*posted)
    assert [get(source.buffer, WORD * n) for n in range(100)] == [(MOST - 49 + n) & MOST for n in range(100)]
    assert get(target.buffer) == 50


def test_both_ends_add_at_once(rdma_pair: Pair) -> None:
    """Steps: each end adds to a word of the other, twenty times, both at once. Verify: the sum of each."""
    local, peer = rdma_pair.local, rdma_pair.peer
    ours = [local.fetch_add(3, offset=1024 + WORD * n, remote_offset=0) for n in range(20)]
    theirs = [peer.fetch_add(5, offset=1024 + WORD * n, remote_offset=0) for n in range(20)]
    local.wait(*ours)
    peer.wait(*theirs)
    assert (get(peer.buffer, 0), get(local.buffer, 0)) == (60, 100)


@pytest.mark.parametrize("offset", [1, 4, 7])
def test_a_word_that_is_not_aligned_is_refused(rdma_pair: Pair, offset: int) -> None:
    with pytest.raises(RefusedError, match="aligned to 8"):
        rdma_pair.local.fetch_add(1, remote_offset=offset)
