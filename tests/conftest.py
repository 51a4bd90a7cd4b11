"""What all kinds of tests share."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest


@pytest.fixture
def heeds_ctrl_c() -> Iterator[None]:
    """Heed SIGINT, here and in what is started from here: a run in the background of a script inherits it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
