"""What the files with faults share: what must pass after a fault, waiting for it, and the types of their fixtures."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_rdma import Pair

Quick = Callable[..., Pair]
Break = Callable[..., None]
MENDED_S = 120.0
# how an end that asks for ever waits for acknowledgements: a busy machine must not end it sooner
ENDLESS_RNR = {"rnr_retry": 7, "ack_timeout": 16, "retry_count": 6}


def green_after(module: str) -> Callable[..., None]:
    """Return the test that must pass after each fault of a module, to be called `test_green` at its end."""
    names = [name for name, one in vars(sys.modules[module]).items() if marks_of(one)]

    @pytest.mark.parametrize("after", names)
    def test_green(rdma_pair: Pair, after: str) -> None:
        sends_both_ways(rdma_pair)

    return test_green


def sends_both_ways(pair: Pair) -> None:
    for seed, (source, target) in enumerate((pair.ends, pair.ends[::-1])):
        source.buffer.fill(seed, 0, 4096)
        received = target.post_recv(offset=8192, length=4096)
        source.wait(source.send(length=4096))
        target.wait(received)
        target.buffer.verify(seed, 8192, 4096)


def wait_to_be_mended() -> None:
    """Have the outer test mend the guests, in the middle of a run."""
    Path("broken").touch()
    end = time.monotonic() + MENDED_S
    while not Path("mended").exists():
        assert time.monotonic() < end, "nobody mends the guests"
        time.sleep(0.05)


def marks_of(test: object) -> list[pytest.Mark]:
    """Return the `fault` marks of a test."""
    marks = getattr(test, "pytestmark", [])
    return [mark for mark in marks if mark.name == "fault"] if isinstance(marks, list) else []
