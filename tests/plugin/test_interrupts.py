"""What pytest says of Ctrl-C in a run with RDMA tests."""

from __future__ import annotations

import pytest

TESTS = """
import pytest, signal, threading

def hidden_waits():
    __tracebackhide__ = True
    threading.Event().wait(100)

def waits():
    threading.Event().wait(100)

@pytest.mark.rdma_caps(send_depth=8)
@pytest.mark.parametrize("wait", [hidden_waits, waits])
def test_waits(wait):
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    wait()
"""


@pytest.mark.parametrize("wait, stood", [("waits", "    threading.Event().wait(100)"), ("hidden_waits", "    wait()")])
def test_it_is_said_where_the_test_stood(pytester: pytest.Pytester, wait: str, stood: str) -> None:
    lines = pytester.makepyfile(test_it=TESTS).read_text().splitlines()
    line = len(lines) - lines[::-1].index(stood)
    result = pytester.runpytest_subprocess(f"test_it.py::test_waits[{wait}]")
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines([f"*test_it.py:{line}: KeyboardInterrupt"])


def test_all_is_said_with_full_trace(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=TESTS)
    result = pytester.runpytest_subprocess("--full-trace")
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines(["*wait()", "*threading.py:*: KeyboardInterrupt"])
