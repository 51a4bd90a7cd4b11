"""How long a wait may take, and the flag that ends it early."""

from __future__ import annotations

import ctypes
import time
from typing import Any

from pytest_rdma.errors import DeadlineError, StoppedError


class StopFlag:
    """A flag that Python sets and that the native loops read."""

    def __init__(self) -> None:
        self.cell = ctypes.c_int(0)

    def set(self) -> None:
        self.cell.value = 1

    def __bool__(self) -> bool:
        return bool(self.cell.value)


class Deadline:
    """A point on the monotonic clock after which a wait ends, together with its stop flag.

    `timeout_s` is in seconds from now; it is already scaled by `--rdma-timeout-scale`.
    """

    def __init__(self, timeout_s: float, stop: StopFlag | None = None) -> None:
        self.timeout_s = timeout_s
        self.stop = stop if stop is not None else StopFlag()
        self.at_ns = time.monotonic_ns() + int(timeout_s * 1e9)

    @property
    def remaining_s(self) -> float:
        return max(0.0, (self.at_ns - time.monotonic_ns()) / 1e9)

    @property
    def passed(self) -> bool:
        return time.monotonic_ns() >= self.at_ns

    def slice_ns(self, at_most_s: float) -> int:
        """Return the end, on the monotonic clock, of a wait of at most `at_most_s` that stays within the deadline."""
        return min(self.at_ns, time.monotonic_ns() + int(at_most_s * 1e9))

    def check(self, awaited: str, **fields: Any) -> None:
        """Raise when the wait for `awaited` must end: StoppedError when stopped, DeadlineError when time is up.

        `fields` are those of the error.
        """
        if self.stop:
            raise StoppedError(f"stopped while waiting for {awaited}")
        if self.passed:
            raise DeadlineError(f"no {awaited} within {self.timeout_s:g} s", **fields)
