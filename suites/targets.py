"""What the suites share: sizes, which end is active, a target whose every other byte is watched, how requests end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pytest_rdma import Buffer, Endpoint, WCOpcode

GUARD_BYTES = 64
GUARD = 0xA5
LARGEST_BYTES = 1 << 20
BUFFER_BYTES = LARGEST_BYTES + 2 * GUARD_BYTES

SIZES: dict[str, Callable[[int], int]] = {
    "0": lambda mtu: 0,
    "1": lambda mtu: 1,
    "MTU-1": lambda mtu: mtu - 1,
    "MTU": lambda mtu: mtu,
    "MTU+1": lambda mtu: mtu + 1,
    "2MTU+1": lambda mtu: 2 * mtu + 1,
    "64KiB": lambda mtu: 64 << 10,
    "1MiB": lambda mtu: LARGEST_BYTES,
}


@dataclass(frozen=True)
class Direction:
    """Which end is active: `source` holds the data, `target` must have it in the end."""

    source: Endpoint
    target: Endpoint


class GuardedTarget:
    """A stretch of a buffer between guard bytes: the data may change, nothing around it may."""

    def __init__(self, buffer: Buffer, length: int) -> None:
        self.buffer, self.offset, self.length = buffer, GUARD_BYTES, length
        buffer.memset(GUARD, 0, length + 2 * GUARD_BYTES)

    def verify(self, seed: int) -> None:
        """Compare every byte of the data, and of the guards, on the host that holds them."""
        self.buffer.verify(seed, self.offset, self.length)
        self.buffer.check_untouched(GUARD, 0, GUARD_BYTES)
        self.buffer.check_untouched(GUARD, self.offset + self.length, GUARD_BYTES)

    def verify_untouched(self) -> None:
        """Check that nothing at all has arrived."""
        self.buffer.check_untouched(GUARD, 0, self.length + 2 * GUARD_BYTES)


def finish(source: Endpoint, wr_id: int, opcode: WCOpcode, signaled: bool = True) -> None:
    """Wait until a request is done.

    An unsignaled one is done when a later one is, and must not complete itself: the later completion comes first.
    """
    if signaled:
        (completion,) = source.wait(wr_id)
    else:
        wr_id, opcode = source.write(length=0), WCOpcode.RDMA_WRITE
        (completion,) = source.poll(1)
    assert (completion.wr_id, completion.status, completion.opcode) == (wr_id, 0, opcode)


def assert_quiet(*ends: Endpoint) -> None:
    """Check that no completion came which was not asked for."""
    for end in ends:
        assert end.poll(1, timeout_s=0, exactly=False) == []
