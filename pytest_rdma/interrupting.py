"""Ctrl-C: what pytest lays out of it before anything is torn down. Not in use with --full-trace."""

from __future__ import annotations

import pytest

from pytest_rdma.explaining import may_be_the_test


@pytest.hookimpl(tryfirst=True)
def pytest_keyboard_interrupt(excinfo: pytest.ExceptionInfo[BaseException]) -> None:
    """Leave of the traceback where the test stood, which pytest then names.

    It would read and parse the source of each frame first, for a text that it does not show: 2 to 5 s in a guest of the
    lab, for which both hosts keep what the test made.
    """
    entries = excinfo.traceback
    shown = [
        at
        for at, entry in enumerate(entries)
        if may_be_the_test(entry.frame.raw) and not entry.frame.f_locals.get("__tracebackhide__", False)
    ]
    if shown:
        excinfo.traceback = entries[shown[-1] : shown[-1] + 1]
