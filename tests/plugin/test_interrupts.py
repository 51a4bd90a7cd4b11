"""What pytest says of Ctrl-C in a run with RDMA tests."""

from __future__ import annotations

import pytest

CONFTEST = """
import pytest

@pytest.hookimpl(trylast=True)
def pytest_keyboard_interrupt(excinfo):
    print("frames:", len(excinfo.traceback))
"""
TESTS = """
import pytest, signal, threading
from pytest_rdma.host import LocalHost

def hidden_waits():
    __tracebackhide__ = True
    threading.Event().wait(100)

def waits():
    threading.Event().wait(100)

def ours_waits():
    LocalHost().call(waits)

@pytest.mark.rdma_caps(send_depth=8)
@pytest.mark.parametrize("wait", [hidden_waits, waits, ours_waits])
def test_waits(wait):
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    wait()
"""


@pytest.mark.parametrize(
    "wait, stood",
    [
        ("waits", "    threading.Event().wait(100)"),
        ("hidden_waits", "    wait()"),
        ("ours_waits", "    LocalHost().call(waits)"),
    ],
)
def test_it_is_said_where_the_test_stood(pytester: pytest.Pytester, wait: str, stood: str) -> None:
    pytester.makeconftest(CONFTEST)
    lines = pytester.makepyfile(test_it=TESTS).read_text().splitlines()
    line = len(lines) - lines[::-1].index(stood)
    result = pytester.runpytest_subprocess(f"test_it.py::test_waits[{wait}]")
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines(["*frames: 1", f"*test_it.py:{line}: KeyboardInterrupt"])


def test_all_is_said_with_full_trace(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=TESTS)
    result = pytester.runpytest_subprocess("--full-trace")
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines(["*wait()", "*threading.py:*: KeyboardInterrupt"])
