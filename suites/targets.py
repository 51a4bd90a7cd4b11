"""A target whose every other byte is watched, and which end of a pair is active."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_rdma import Buffer, Endpoint

GUARD_BYTES = 64
GUARD = 0xA5
LARGEST_BYTES = 1 << 20
BUFFER_BYTES = LARGEST_BYTES + 2 * GUARD_BYTES


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
