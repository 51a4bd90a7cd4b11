"""Ctrl-C: what pytest lays out of it before anything is torn down. Not in use with --full-trace."""

from __future__ import annotations

from itertools import takewhile
from types import FrameType

import pytest

from pytest_rdma.explaining import is_ours, may_be_the_test

HIDES = "__tracebackhide__"


@pytest.hookimpl(tryfirst=True)
def pytest_keyboard_interrupt(excinfo: pytest.ExceptionInfo[BaseException]) -> None:
    """Leave of the traceback, whatever was interrupted, the frame that called us or the standard library.

    In a test that is the line where it stood, and pytest names it. It would read and parse the source of each frame
    first, for a text that it does not show: 2 to 5 s in a guest of the lab, and both hosts keep what the test made.
    """
    entries = excinfo.traceback
    frames = takewhile(lambda frame: not is_ours(frame), (entry.frame.raw for entry in entries))
    shown = [at for at, frame in enumerate(frames) if may_be_the_test(frame) and not _hides(frame)]
    if shown:
        excinfo.traceback = entries[shown[-1] : shown[-1] + 1]


def _hides(frame: FrameType) -> bool:
    """Whether pytest may leave it out; it needs one that it does not."""
    return HIDES in frame.f_code.co_varnames or bool(frame.f_globals.get(HIDES))
