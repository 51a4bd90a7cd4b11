"""What the watchdog says of what it saw: one line for the error, all of it for the report."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_rdma.bootstrap import new_marker
from pytest_rdma.routes import ChildRoute
from pytest_rdma.watchdog import Suspect, look, seen

SUSPECT = Suspect(17, "RDMA-x", "host2", age_s=60.0)


def said(*lines: str) -> str:
    return seen(SUSPECT, ["uptime 3600.12", *lines]).headline


@pytest.mark.parametrize(
    ("lines", "headline"),
    [
        (
            ["task do_signal_stop 17 (python3) T 9 17 17", "carrier 0 9 (sshd) S 1 9", "ended SIGTERM"],
            "agent 17 on host2 was stopped (state T); SIGTERM ended it",
        ),
        (
            [
                "task futex_wait_queue 17 (python3) S 9 17",
                "task rxe_cleanup 21 (rdma op_0 (x)) D 9 17",
                "ended SIGKILL",
            ],
            "agent 17 on host2 is in uninterruptible sleep in rxe_cleanup; SIGKILL ended it",
        ),
        (
            ["task 0 17 (python3) D 9", "left 0 17 (python3) D 9", "stands"],
            "agent 17 on host2 is in uninterruptible sleep in the kernel; SIGKILL does not end it: "
            "thread 17 is in uninterruptible sleep in the kernel",
        ),
        (
            [
                "task pipe_read 17 (python3) S 9",
                "task hrtimer_nanosleep 18 (python3) S 9",
                "task futex_do_wait 19 (python3) S 9",
                "carrier do_signal_stop 9 (sshd) T 1 9",
                "ended SIGTERM",
            ],
            "agent 17 on host2 was alive (thread 18: state S in hrtimer_nanosleep); "
            "sshd 9, which carries it, was stopped (state T); SIGTERM ended it",
        ),
        (["gone"], "host2 answers on another channel, but its agent 17 is gone"),
    ],
    ids=["stopped", "in the kernel", "stands", "carrier stopped", "gone"],
)
def test_the_headline_says_what_held_it_up_and_what_became_of_it(lines: list[str], headline: str) -> None:
    assert said(*lines) == headline


def test_a_host_that_was_booted_anew_is_told_apart() -> None:
    assert seen(SUSPECT, ["uptime 12.5", "gone"]).headline == "host2 was booted anew 12 s ago"


def test_all_that_was_seen_is_for_the_report() -> None:
    stack = ("stack [<0>] rxe_wait+0x1/0x2", "stack [<0>] do_syscall_64+0x5d/0x90")
    found = seen(SUSPECT, ["uptime 3600", "task rxe_wait 17 (python3) D 9", *stack, "carrier 0 9 (sshd) S 1", "stands"])
    assert found.stands
    assert found.text.splitlines()[1:] == [
        "17 python3: state D in rxe_wait",
        "[<0>] rxe_wait+0x1/0x2",
        "[<0>] do_syscall_64+0x5d/0x90",
        "carried by 9 sshd: state S",
    ]


HEEDING_NO_SIGUSR1 = """
import ctypes, signal, threading, time
signal.signal(signal.SIGUSR1, signal.SIG_IGN)
"""
WITHOUT_MAIN_THREAD = """
threading.Thread(target=time.sleep, args=(100,)).start()
print("ready", flush=True)
ctypes.CDLL(None).pthread_exit(None)
"""
HEEDING_NO_SIGTERM = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
time.sleep(100)
"""


@contextmanager
def running(code: str) -> Iterator[Suspect]:
    marker = "".join(new_marker())
    command = [sys.executable, "-c", HEEDING_NO_SIGUSR1 + code, marker]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        yield Suspect(process.pid, marker, "host2")
    finally:
        process.kill()
        process.communicate(timeout=60)


@pytest.fixture
def headless() -> Iterator[Suspect]:
    """A process whose main thread has ended and another one has not, as when SIGKILL met a thread in the kernel."""
    with running(WITHOUT_MAIN_THREAD) as suspect:
        yield suspect


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][:1]


@pytest.mark.parametrize(("killed", "end"), [(False, "SIGTERM"), (True, "SIGKILL")])
def test_a_process_lives_while_any_thread_of_it_does(headless: Suspect, killed: bool, end: str) -> None:
    """Verify: it is seen, and ended; one that was killed in vain before is not asked again."""
    deadline = time.monotonic() + 10
    while state(headless.pid) != "Z":
        assert time.monotonic() < deadline
        time.sleep(0.01)
    found = look(ChildRoute().shell, replace(headless, killed=killed), 1.0)
    assert (found.error, found.end) == ("", end)
    assert [task.state for task in found.tasks] == ["Z", "S"]


def test_it_is_killed_in_time_where_all_is_slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = tmp_path / "sleep"
    slow.write_text(f"#!/bin/sh\nexec {shutil.which('sleep')} 1\n")
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with running(HEEDING_NO_SIGTERM) as suspect:
        assert look(ChildRoute().shell, suspect, 1.0).end == "SIGKILL"
