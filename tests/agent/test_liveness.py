"""Nothing hangs: whoever dies, stops, or takes too long, the other side hears of it and says so."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import remote_functions
from sshd import Sshd
from streams_tools import gone, script, stub_pyverbs

from pytest_rdma import remote, ssh_connection, watchdog
from pytest_rdma.deadline import Deadline
from pytest_rdma.errors import HostLostError, HostUnreachableError, RdmaUsageError, StaleHandleError, StoppedError
from pytest_rdma.host import LocalHost
from pytest_rdma.remote import ExecTarget, RemoteHost
from pytest_rdma.streams import ProcessStream

Open = Callable[..., RemoteHost]


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    started = time.monotonic()
    yield
    assert time.monotonic() - started < seconds


CONTROLLER = """
import sys
from pytest_rdma.remote import ExecTarget, RemoteHost
from pytest_rdma.streams import ProcessStream
from pytest_rdma.ssh import SshTarget
host = RemoteHost({target!r}, name="host2")
host.open()
program = host.start(["sleep", "60"])
there = host.put("/etc/hostname")
print(host.info.pid, program.pid, there, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("way", ["process", "openssh", "paramiko"])
def test_agent_and_programs_end_with_a_controller_that_is_killed(sshd: Sshd, pythonpath: str, way: str) -> None:
    target = {
        "process": ExecTarget(f"env PYTHONPATH={pythonpath}"),
        "openssh": ExecTarget(sshd.ssh_command()),
        "paramiko": sshd.target(),
    }[way]
    argv = [sys.executable, "-c", CONTROLLER.format(target=target)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as controller:
        assert controller.stdout is not None
        agent, program, there = controller.stdout.readline().split()
        assert Path(there.decode()).exists()
        controller.kill()
        assert gone(int(agent))
        assert gone(int(program))
        assert not Path(there.decode()).exists()


def test_a_writer_that_is_stuck_does_not_hold_up_the_end_of_its_stream() -> None:
    stream = ProcessStream(["sleep", "60"], "sleep")
    errors: list[Exception] = []

    def write() -> None:
        try:
            stream.write(bytes(1 << 20), Deadline(60))
        except HostLostError as error:
            errors.append(error)

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    while not stream._write_lock.locked():
        time.sleep(0.01)
    with within(5):
        assert not stream.close(0.0)
        writer.join(5)
    stream.release()
    assert [str(error) for error in errors] == ["the stream is closed"]


@pytest.mark.parametrize("way", ["process", "openssh", "paramiko"])
def test_an_agent_killed_during_a_call_fails_the_call_at_once(
    open_host: Open, sshd: Sshd, pythonpath: str, way: str
) -> None:
    target = {
        "process": ExecTarget(f"env PYTHONPATH={pythonpath}"),
        "openssh": ExecTarget(sshd.ssh_command()),
        "paramiko": sshd.target(),
    }[way]
    host = open_host(target)
    host.current_test = "tests/test_x.py::test_y"
    # OpenSSH's client ends with 255 both for that and for a connection that broke, so that the host is asked
    ended = r"its stream ended with exit status 255; .* is gone" if way == "openssh" else "the agent ended"
    program = host.start(["sleep", "60"])
    call = host.submit_call(remote_functions.nap, 30)
    os.kill(host.info.pid, signal.SIGKILL)
    with (
        within(3),
        pytest.raises(HostLostError, match=rf"host2 was lost during call.run in tests/test_x.py::test_y: {ended}"),
    ):
        call.result()
    assert host.lost is not None
    assert gone(program.pid)
    with pytest.raises(HostLostError, match=r"during program.run"):
        host.run(["true"])


def test_the_first_cause_stays(open_host: Open) -> None:
    host = open_host()
    os.kill(host.info.pid, signal.SIGKILL)
    with pytest.raises(HostLostError):
        host.run(["true"])
    first = host.lost
    host.close()
    assert "ended" in str(first)


def test_a_lost_host_is_reborn_and_old_handles_say_why_they_are_stale(open_host: Open) -> None:
    host = open_host()
    host.current_test = "test_that_broke_it"
    program = host.start(["sleep", "60"])
    os.kill(host.info.pid, signal.SIGKILL)
    with pytest.raises(HostLostError):
        host.run(["true"])
    host.ensure()
    assert host.generation == 1
    assert host.run(["echo", "again"]).stdout == b"again\n"
    with pytest.raises(StaleHandleError, match="SIGKILL during test_that_broke_it"):
        program.poll()
    program.close()
    host.ensure()
    assert host.generation == 1


def test_a_call_that_holds_the_gil_for_long_is_not_a_dead_agent(
    open_host: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "SILENCE_LIMIT_S", 1.0)
    monkeypatch.setattr(remote, "OVERDUE_GRACE_S", 0.3)
    host = open_host()
    call = host.submit_call(remote_functions.hold_the_gil, 3.0)
    time.sleep(0.3)  # until it holds it; if it does not yet, the test shows less, but is not wrong
    assert host.invoke("process.kill", host.info.pid, 0, timeout_s=0.2) is None
    call.result()
    assert host.lost is None


def test_a_lost_host_that_does_not_come_back_says_why_it_was_lost_first(
    open_host: Open, pythonpath: str, tmp_path: Path
) -> None:
    once = script(tmp_path / "once", f'#!/bin/sh\nmkdir {tmp_path}/used || exit 9\nPYTHONPATH={pythonpath} exec "$@"\n')
    host = open_host(ExecTarget(once))
    host.current_test = "test_that_broke_it"
    os.kill(host.info.pid, signal.SIGKILL)
    with pytest.raises(HostLostError):
        host.run(["true"])
    first = "host2 was lost in test_that_broke_it: the agent ended: killed by SIGKILL"
    for _ in range(2):  # a host that is asked again has not forgotten what it was lost of
        with pytest.raises(HostUnreachableError, match=f"^{first}; it does not come back: .*exit status 9"):
            host.ensure()
        assert host.loss == first
    (tmp_path / "used").rmdir()
    host.ensure()
    assert (host.loss, host.run(["echo", "back"]).stdout) == (None, b"back\n")


def test_an_agent_that_nothing_ended_is_not_forgotten_when_no_channel_opens(
    open_host: Open, tmp_path: Path, pythonpath: str
) -> None:
    refuse = tmp_path / "refuse"
    way = f'#!/bin/sh\nrm {refuse} 2>/dev/null && exit 1\nexec env PYTHONPATH={pythonpath} "$@"\n'
    host = open_host(ExecTarget(script(tmp_path / "way", way)))
    os.kill(host.info.pid, signal.SIGKILL)
    with pytest.raises(HostLostError):
        host.run(["true"])
    host._stands = watchdog.seen(watchdog.Suspect(host.info.pid, host._marker, host.name), ["stands"])
    refuse.touch()
    held = rf"agent {host.info.pid} held its device, and may yet: a second channel to host2 does not open"
    with pytest.raises(HostUnreachableError, match=held):
        host.ensure()
    host.ensure()
    assert host.lives


@pytest.mark.parametrize("way", ["process", "paramiko"])
def test_an_agent_that_is_stuck_in_c_ends_too_when_nobody_listens(
    open_host: Open, sshd: Sshd, pythonpath: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "OVERDUE_GRACE_S", 0.3)
    monkeypatch.setattr(remote, "ORPHAN_S", 1)
    host = open_host(sshd.target() if way == "paramiko" else ExecTarget(f"env PYTHONPATH={pythonpath}"))
    with pytest.raises(HostLostError, match="outlived its deadline"):
        host.call(remote_functions.hold_the_gil_for_ever, timeout_s=0.2)
    stuck = host.info.pid
    host.ensure()
    assert gone(stuck)


@pytest.mark.parametrize("way", ["openssh", "paramiko"])
def test_closing_ends_an_agent_that_is_stopped(
    open_host: Open, sshd: Sshd, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "CLOSE_GRACE_S", 0.5)
    host = open_host(sshd.target() if way == "paramiko" else ExecTarget(sshd.ssh_command()))
    os.kill(host.info.pid, signal.SIGSTOP)
    with within(12):
        host.close()
        assert gone(host.info.pid)


def session_of(pid: int) -> int:
    """Return the parent of an agent: sshd's process for this login."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_a_session_of_sshd_that_is_stopped_is_named_and_its_agent_ended(
    open_host: Open, other_sshd: Callable[..., Sshd], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "SILENCE_LIMIT_S", 1.5)
    monkeypatch.setattr(watchdog, "REACH_S", 4.0)
    host = open_host(other_sshd().target())
    agent, session = host.info.pid, session_of(host.info.pid)
    os.kill(session, signal.SIGSTOP)
    try:
        with (
            within(15),
            pytest.raises(HostLostError, match=rf"sshd\S* {session}, which carries it, was stopped") as lost,
        ):
            host.run(["true"])
        assert f"agent {agent} on host2 was alive" in str(lost.value)
        assert gone(agent)
        host.ensure()
        assert host.run(["true"]).returncode == 0
        assert gone(session)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(session, signal.SIGKILL)


def test_a_session_of_sshd_that_was_killed_is_told_apart_from_a_dead_host(
    open_host: Open, other_sshd: Callable[..., Sshd], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = other_sshd()
    host = open_host(server.target())
    agent = host.info.pid
    os.kill(session_of(agent), signal.SIGKILL)
    cut = rf"its stream ended with .*agent {agent} (on host2 was alive|is gone)"
    with within(10), pytest.raises(HostLostError, match=cut):
        host.run(["true"])
    assert gone(agent)
    host.ensure()
    server.close()
    os.kill(session_of(host.info.pid), signal.SIGKILL)
    with within(10), pytest.raises(HostLostError, match=r"second channel to host2 does not open: .*connection refused"):
        host.run(["true"])


def test_an_op_that_outlives_its_deadline_loses_the_host(open_host: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "OVERDUE_GRACE_S", 0.3)
    host = open_host()
    with within(3), pytest.raises(HostLostError, match=r"call.run outlived its deadline of 0.2 s"):
        host.call(remote_functions.nap, 30, timeout_s=0.2)
    assert gone(host.info.pid)


def test_calls_that_come_later_do_not_keep_a_hung_one_alive(open_host: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "OVERDUE_GRACE_S", 0.3)
    host = open_host()
    hung = host.submit_call(remote_functions.nap, 30, timeout_s=0.2)
    time.sleep(0.3)
    host.submit_call(remote_functions.nap, 30)
    with within(3), pytest.raises(HostLostError, match=r"outlived its deadline .* the agent was in call.run for"):
        hung.result()


@pytest.mark.parametrize("way", ["process", "openssh", "paramiko"])
def test_an_agent_that_is_stopped_is_found_out_by_its_silence(
    open_host: Open, sshd: Sshd, pythonpath: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "SILENCE_LIMIT_S", 1.5)
    target = {
        "process": ExecTarget(f"env PYTHONPATH={pythonpath}"),
        "openssh": ExecTarget(sshd.ssh_command()),
        "paramiko": sshd.target(),
    }[way]
    host = open_host(target)
    stopped = host.info.pid
    os.kill(stopped, signal.SIGSTOP)
    with within(6), pytest.raises(HostLostError, match="nothing was heard of the agent for") as lost:
        host.run(["true"])
    seen = rf"; agent {stopped} on host2 was stopped \(state T\); SIG(TERM|KILL) ended it"  # it has 3 s to clean up
    assert re.search(seen, str(lost.value)), str(lost.value)
    assert gone(stopped)
    assert "(most recent call first)" in host.stderr_tail()  # the stacks that it was asked for
    host.ensure()
    assert host.run(["true"]).returncode == 0


def test_a_controller_that_was_stopped_itself_does_not_blame_the_agent(sshd: Sshd) -> None:
    code = CONTROLLER.format(target=sshd.target()).replace(
        "import sys\n", "import sys\nfrom pytest_rdma import remote\nremote.SILENCE_LIMIT_S = 1.0\n"
    )
    argv = [sys.executable, "-c", code + "print(host.lost, host.run(['true']).returncode, flush=True)\n"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as controller:
        assert controller.stdout is not None
        assert controller.stdin is not None
        controller.stdout.readline()
        controller.send_signal(signal.SIGSTOP)
        time.sleep(2.0)
        controller.send_signal(signal.SIGCONT)
        controller.stdin.close()
        assert controller.stdout.readline() == b"None 0\n"


def test_a_cancel_ends_the_wait_and_not_the_host(open_host: Open) -> None:
    host = open_host()
    program = host.start(["sleep", "60"])
    call = host.submit("program.wait", program.handle, timeout_s=60)
    call.cancel()
    with within(2), pytest.raises(StoppedError):
        call.result()
    assert program.poll() is None


def test_ctrl_c_ends_a_wait_at_once_and_the_host_lives(heeds_ctrl_c: None, open_host: Open) -> None:
    host = open_host()
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    with within(2), pytest.raises(KeyboardInterrupt):
        host.run(["sleep", "60"])
    assert host.run(["echo", "alive"]).stdout == b"alive\n"


@pytest.mark.parametrize("way", ["process", "paramiko"])
def test_ctrl_c_ends_the_wait_for_a_host_that_does_not_come_back(
    heeds_ctrl_c: None, open_host: Open, sshd: Sshd, tmp_path: Path, way: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        sleeps = ExecTarget(script(tmp_path / "sleeps", "#!/bin/sh\nexec sleep 60\n"))
        target = sleeps if way == "process" else dataclasses.replace(sshd.target(), port=silent.getsockname()[1])
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
        with within(3), pytest.raises(KeyboardInterrupt):
            open_host(target)


def test_answers_come_in_the_order_in_which_ops_end(open_host: Open) -> None:
    host = open_host()
    slow = host.submit_call(remote_functions.nap, 1.0)
    quick = host.submit_call(remote_functions.nap, 0.0)
    assert quick.result() == 0.0
    assert not slow.done  # type: ignore[attr-defined]
    assert slow.result() == 1.0


@pytest.mark.parametrize("way", ["process", "paramiko"])
def test_stderr_that_nobody_reads_blocks_nothing(open_host: Open, sshd: Sshd, pythonpath: str, way: str) -> None:
    host = open_host(sshd.target() if way == "paramiko" else ExecTarget(f"env PYTHONPATH={pythonpath}"))
    assert host.call(remote_functions.shout, 10 << 20) >= 10 << 20
    assert 0 < len(host.stderr_tail()) <= 65536


def test_what_c_python_and_children_print_does_not_touch_the_stream(open_host: Open) -> None:
    host = open_host()
    host.call(remote_functions.print_everywhere)
    assert host.run(["echo", "fine"]).stdout == b"fine\n"
    deadline = time.monotonic() + 5
    while "from a child" not in host.stderr_tail() and time.monotonic() < deadline:
        time.sleep(0.01)
    for words in ("from C", "junk from descriptor 1", "from Python", "from a child"):
        assert words in host.stderr_tail()


@pytest.mark.parametrize("way", ["process", "paramiko"])
def test_a_daemon_left_behind_does_not_hold_up_the_end(
    open_host: Open, sshd: Sshd, pythonpath: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "SILENCE_LIMIT_S", 2.0)
    host = open_host(sshd.target() if way == "paramiko" else ExecTarget(f"env PYTHONPATH={pythonpath}"))
    daemon = host.call(remote_functions.leave_a_daemon)
    try:
        with within(8):
            os.kill(host.info.pid, signal.SIGKILL)
            with pytest.raises(HostLostError):
                host.run(["true"])
            host.close()
    finally:
        os.kill(daemon, signal.SIGKILL)


def test_a_spawned_host_may_be_killed_and_its_parent_lives(open_host: Open, sshd: Sshd) -> None:
    host = open_host(sshd.target())
    spawned = host.spawn()
    try:
        assert spawned.info.pid != host.info.pid
        spawned.kill(signal.SIGTERM)
        with within(5), pytest.raises(HostLostError):
            spawned.call(remote_functions.nap, 5)
        assert host.run(["true"]).returncode == 0
        with pytest.raises(RdmaUsageError, match="was not spawned"):
            host.kill()
    finally:
        spawned.close()


def test_a_local_host_spawns_a_child_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(stub_pyverbs(tmp_path)))
    host = LocalHost()
    spawned = host.spawn()
    try:
        assert spawned.info.pid != os.getpid()
        assert spawned.run(["echo", "spawned"]).stdout == b"spawned\n"
        spawned.kill()  # type: ignore[attr-defined]
        with within(5), pytest.raises(HostLostError, match="killed by SIGKILL"):
            spawned.run(["true"])
    finally:
        spawned.close()
        host.close()


def test_closing_ends_the_agent_and_is_idempotent(open_host: Open, sshd: Sshd) -> None:
    host = open_host(sshd.target())
    there = host.put("/etc/hostname")
    host.close()
    host.close()
    assert gone(host.info.pid)
    assert not Path(there).exists()
    with pytest.raises(RdmaUsageError, match="host2 is not open"):
        host.run(["true"])


def test_a_connection_that_takes_nothing_is_given_up(
    open_host: Open, sshd: Sshd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stopped sshd stands for a host that has lost power; a small buffer lets the writer be stuck in paramiko."""
    dial = ssh_connection._dial

    def dial_with_small_buffer(*args: Any) -> socket.socket:
        dialled = dial(*args)
        dialled.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        return dialled

    monkeypatch.setattr(ssh_connection, "_dial", dial_with_small_buffer)
    monkeypatch.setattr(remote, "CONNECT_TIMEOUT_S", 6.0)
    monkeypatch.setattr(remote, "SILENCE_LIMIT_S", 2.0)
    host = open_host(sshd.target())
    session = session_of(host.info.pid)
    os.kill(session, signal.SIGSTOP)
    try:
        with within(20):
            with pytest.raises(HostLostError):
                host.invoke("file.write", "x", 0, b"x" * (16 << 20), 0o600, timeout_s=60)
            host.close()
    finally:
        with contextlib.suppress(ProcessLookupError):  # the watchdog may have let it go on, and it has ended
            os.kill(session, signal.SIGCONT)


def test_a_request_to_an_agent_that_reads_nothing_is_given_up(open_host: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "OVERDUE_GRACE_S", 0.3)
    host = open_host()
    os.kill(host.info.pid, signal.SIGSTOP)
    try:
        with within(8), pytest.raises(HostLostError, match=r"took no input|nothing was heard"):
            host.invoke("file.write", "x", 0, b"x" * (8 << 20), 0o600, timeout_s=0.5)
    finally:
        os.kill(host.info.pid, signal.SIGCONT)
