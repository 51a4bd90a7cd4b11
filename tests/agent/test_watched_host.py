"""An op that never returns in the controller's own process ends the run with a word; one that is held up does not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pytest_rdma import watched_host

CONTROLLER = """
import ctypes, faulthandler, os, sys, time
from pytest_rdma import watched_host, watcher
from pytest_rdma.host import op

watched_host.GRACE_S = 0.6
faulthandler.enable()

@op("call.hold_the_gil")
def hold_the_gil(host, deadline, seconds):
    print("in", flush=True)
    ctypes.PyDLL(None).usleep(int(seconds * 1e6))

@op("call.wait")
def wait(host, deadline, seconds):
    print("in", flush=True)
    time.sleep(seconds)


host = watched_host.WatchedHost("local host", timeout_scale=1.0, stderr=2)
host.open()
"""


def controller(code: str) -> subprocess.Popen[str]:
    argv = [sys.executable, "-c", CONTROLLER + code]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_call_that_holds_the_gil_for_ever_ends_the_process_and_is_named() -> None:
    with controller("host.invoke('call.hold_the_gil', 600, timeout_s=0.2)") as process:
        started = time.monotonic()
        _, text = process.communicate(timeout=30)
        assert time.monotonic() - started < 15
    assert process.returncode == -signal.SIGABRT
    assert "rdma: call.hold_the_gil in this process has not returned" in text
    assert "in hold_the_gil" in text  # the stacks that faulthandler prints
    assert text.splitlines()[-1].startswith("rdma: the run was ended by SIGABRT: call.hold_the_gil in this process has")


def test_an_op_that_is_late_while_python_runs_gets_more_time() -> None:
    code = "host.invoke('call.wait', 3, timeout_s=0.2); host.invoke('call.wait', 600, timeout_s=0.2)"
    with controller(code) as process:
        started = time.monotonic()
        out, text = process.communicate(timeout=40)
        assert time.monotonic() - started > 10
    assert (process.returncode, out) == (-signal.SIGABRT, "in\nin\n")
    assert "rdma: call.wait in this process has not returned" in text


def test_a_controller_that_was_stopped_is_not_late() -> None:
    with controller("host.invoke('call.wait', 0.5, timeout_s=0.2); print('out')") as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGSTOP)
        time.sleep(9)
        process.send_signal(signal.SIGCONT)
        out, text = process.communicate(timeout=30)
    assert (process.returncode, out, text) == (0, "out\n", "")


def test_the_watcher_ends_with_the_controller() -> None:
    code = "print(watched_host._WATCH[0]._process.pid, flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", CONTROLLER + code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        watcher = int(process.stdout.readline())
        os.kill(watcher, 0)
        process.kill()
        process.wait(10)
        deadline = time.monotonic() + 10
        while Path(f"/proc/{watcher}").is_dir():
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_objects_that_came_over_a_fork_are_the_parents_to_destroy() -> None:
    code = """
class Kept:
    close_rank = 0
    def close(self): print("closed in", "parent" if os.getpid() == parent else "child", flush=True)
from pytest_rdma.host import Handle
parent = os.getpid()
host.add(Kept(), Handle, {})
if os.fork() == 0:
    sys.exit(0)
os.wait()
"""
    with controller(code) as process:
        out, text = process.communicate(timeout=30)
    assert (process.returncode, out, text) == (0, "closed in parent\n", "")


def test_the_watcher_ends_with_the_last_host_that_is_open() -> None:
    code = """
import threading
two = [watched_host.WatchedHost("local host", timeout_scale=1.0, stderr=2) for _ in range(2)]
both = [threading.Thread(target=one.open) for one in two]
[one.start() for one in both], [one.join() for one in both]
(watch,) = watched_host._WATCH
process = watch._process
two[0].close()
two[1].restart("a test")
assert watched_host._WATCH == [watch] and process.poll() is None
two[1].close(), host.close()
assert watched_host._WATCH == [] and process.returncode is not None and not watch._beater.is_alive()
host.restart("another")
assert watched_host._WATCH[0]._process.poll() is None
"""
    with controller(code) as process:
        out, text = process.communicate(timeout=30)
    assert (process.returncode, out, text) == (0, "", "")


def test_the_helper_is_there_before_the_first_op_that_has_a_deadline() -> None:
    with controller("from pytest_rdma import native; print(native._loaded is not None)") as process:
        out, text = process.communicate(timeout=60)
    assert (process.returncode, out, text) == (0, "True\n", "")


def test_a_python_without_memfd_create_can_watch_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    watch = watched_host.Watch(60.0, 2)
    slot = watch.begin("call.wait", 1)
    assert slot >= 0
    watch.end(slot)
    watch.close()
    assert watch._process.returncode is not None
