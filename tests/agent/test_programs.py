"""Programs and files, on a LocalHost and on a RemoteHost alike."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from streams_tools import gone

from pytest_rdma import programs
from pytest_rdma.errors import DeadlineError, RdmaEnvironmentError, RdmaUsageError
from pytest_rdma.host import Host, LocalHost
from pytest_rdma.programs import Finished


def test_a_program_runs_and_its_outputs_come_back_as_bytes(host: Host) -> None:
    code = "cat; printf '\\377\\000'; printf error >&2; exit 3"
    assert host.run(["sh", "-c", code], input=b"in\n") == Finished(3, b"in\n\xff\x00", b"error")


def test_no_shell_sees_the_arguments(host: Host) -> None:
    words = ["$HOME", "a b", "; exit 1", "'", '"', "", "*", "ü\n"]
    assert host.run(["printf", "%s|", *words]).stdout.decode().split("|")[:-1] == words


def test_environment_directory_and_input_are_the_callers(host: Host, tmp_path: Path) -> None:
    found = host.run(["sh", "-c", 'echo "$NAME"; pwd; cat'], env={"NAME": "value"}, cwd=str(tmp_path)).stdout
    assert found.decode().split("\n") == ["value", str(tmp_path), ""]
    assert host.run(["sh", "-c", 'test -n "$PATH"'], env={"NAME": "x"}).returncode == 0


def test_a_program_of_a_relative_path_is_looked_for_in_its_directory(host: Host, tmp_path: Path) -> None:
    (tmp_path / "hello").write_text("#!/bin/sh\necho hello\n")
    (tmp_path / "hello").chmod(0o755)
    assert host.run(["./hello"], cwd=str(tmp_path)).stdout == b"hello\n"


def test_a_program_that_dies_of_a_signal_says_so(host: Host) -> None:
    assert host.run(["sh", "-c", "kill -TERM $$"]).returncode == -signal.SIGTERM


@pytest.mark.parametrize(
    ("argv", "options", "why"),
    [
        (["no-such-program"], {}, "`no-such-program` on .*host.*: no such program there"),
        ([__file__], {}, "no such program there"),
        (["true"], {"cwd": "/nonexistent"}, "cannot run `true`.*/nonexistent"),
        (["true"], {"user": "nobody-of-this-name"}, "there is no user 'nobody-of-this-name' there"),
        ([], {}, "empty command line"),
        ("ls -l", {}, "'ls -l' is not a command line: give a list of strings"),
        (["sleep", 1], {}, "'sleep', 1. is not a command line"),
        (["cat"], {"input": "text"}, "the input of `cat` must be bytes, not str"),
    ],
)
def test_a_program_that_cannot_run_is_one_clear_line(host: Host, argv: list[str], options: dict, why: str) -> None:
    with pytest.raises((RdmaEnvironmentError, RdmaUsageError), match=why) as refused:
        host.run(argv, **options)
    assert "\n" not in str(refused.value)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can run a program as another user")
def test_a_program_may_run_as_another_user(host: Host) -> None:
    found = host.run(["sh", "-c", "id -un; id -gn; id -Gn; echo $HOME"], user="nobody").stdout.decode().split()
    assert found[:3] == ["nobody", "nogroup", "nogroup"]
    assert found[3] != os.environ.get("HOME")


def test_megabytes_on_both_outputs_do_not_block(host: Host) -> None:
    code = "head -c 5000000 /dev/zero >&2 & head -c 5000000 /dev/zero; wait"
    finished = host.run(["sh", "-c", code])
    assert (len(finished.stdout), len(finished.stderr), finished.dropped) == (5000000, 5000000, 0)


def test_too_much_output_is_refused_with_the_way_out(host: Host) -> None:
    with pytest.raises(RdmaUsageError, match=r"over the limit of 16777216: let it write into a file"):
        host.run(["head", "-c", "17000000", "/dev/zero"])


def test_a_program_that_takes_too_long_is_killed_with_its_children_and_its_output_shown(
    host: Host, tmp_path: Path
) -> None:
    code = f"echo $$ > {tmp_path}/pid; echo getting there; sleep 60 & echo $! > {tmp_path}/child; wait"
    with pytest.raises(DeadlineError, match=r"`sh -c .* has not ended: no end of the program within 0.5 s; .*getting"):
        host.run(["sh", "-c", code], timeout_s=0.5)
    for name in ("pid", "child"):
        assert gone(int((tmp_path / name).read_text()))


def test_a_daemon_that_keeps_the_output_open_does_not_hold_up_a_run(host: Host) -> None:
    started = time.monotonic()
    code = "setsid sleep 60 & echo $!"
    finished = host.run(["sh", "-c", code])
    assert time.monotonic() - started < 5
    os.kill(int(finished.stdout), signal.SIGKILL)


def test_a_started_program_is_waited_for_polled_read_and_killed(host: Host) -> None:
    with_output = host.start(["sh", "-c", "echo ready; read line < /dev/zero"], env={"X": "y"})
    deadline = time.monotonic() + 5
    while with_output.read() != (b"ready\n", b"") and time.monotonic() < deadline:
        time.sleep(0.01)
    assert with_output.poll() is None
    with pytest.raises(DeadlineError, match="ready"):
        with_output.wait(timeout_s=0.1)
    with_output.kill(signal.SIGTERM)
    assert with_output.wait(timeout_s=5) == Finished(-signal.SIGTERM, b"ready\n", b"")
    assert with_output.poll() == -signal.SIGTERM
    with_output.kill()
    with_output.close()
    with_output.close()


def test_closing_kills_and_reaps_the_whole_group(host: Host, tmp_path: Path) -> None:
    program = host.start(["sh", "-c", f"sleep 60 & echo $! > {tmp_path}/child; wait"])
    deadline = time.monotonic() + 5
    while not (tmp_path / "child").exists() or not (tmp_path / "child").read_text():
        assert time.monotonic() < deadline
    program.close()
    for pid in (program.pid, int((tmp_path / "child").read_text())):
        assert gone(pid)
    with pytest.raises(RdmaUsageError, match=r"program sh -c .* \(pid \d+\) on .* is closed"):
        program.poll()


def test_only_the_last_output_of_a_started_program_is_kept(host: Host) -> None:
    program = host.start(["sh", "-c", "head -c 3000000 /dev/zero; echo end"])
    finished = program.wait()
    program.close()
    assert len(finished.stdout) == programs.START_OUTPUT_BYTES
    assert finished.stdout.endswith(b"end\n")
    assert finished.dropped == 3000004 - programs.START_OUTPUT_BYTES


def test_a_file_is_put_whole_with_its_mode_into_a_private_directory(host: Host, tmp_path: Path) -> None:
    data = os.urandom(2 * programs.CHUNK_BYTES) + b"the end"
    (tmp_path / "data.bin").write_bytes(data)
    (tmp_path / "data.bin").chmod(0o640)
    there = Path(host.put(tmp_path / "data.bin"))
    assert there.read_bytes() == data
    assert there.name == "data.bin"
    assert there.stat().st_mode & 0o777 == 0o640
    assert there.parent.parent.stat().st_mode & 0o777 == 0o700
    again = host.put(tmp_path / "data.bin")
    assert again != str(there)


@pytest.mark.parametrize("size", [0, 1, programs.CHUNK_BYTES - 1, programs.CHUNK_BYTES, programs.CHUNK_BYTES + 1])
def test_files_of_all_sizes_arrive(host: Host, tmp_path: Path, size: int) -> None:
    (tmp_path / "file").write_bytes(os.urandom(size))
    assert Path(host.put(tmp_path / "file")).read_bytes() == (tmp_path / "file").read_bytes()


@pytest.mark.parametrize(("executable", "mode"), [(None, 0o644), (True, 0o755), (False, 0o644)])
def test_a_put_file_can_be_made_executable(host: Host, tmp_path: Path, executable: bool | None, mode: int) -> None:
    (tmp_path / "tool").write_text("#!/bin/sh\necho tool\n")
    (tmp_path / "tool").chmod(0o644)
    there = host.put(tmp_path / "tool", executable=executable)
    assert Path(there).stat().st_mode & 0o777 == mode
    if executable:
        assert host.run([there]).stdout == b"tool\n"


def test_a_directory_tree_is_put(host: Host, tmp_path: Path) -> None:
    (tmp_path / "tree/empty").mkdir(parents=True)
    (tmp_path / "tree/deep/er").mkdir(parents=True)
    (tmp_path / "tree/deep/er/file").write_text("x")
    (tmp_path / "tree/link").symlink_to("deep/er/file")
    there = Path(host.put(tmp_path / "tree"))
    assert sorted(str(p.relative_to(there)) for p in there.rglob("*")) == [
        "deep",
        "deep/er",
        "deep/er/file",
        "empty",
        "link",
    ]
    assert (there / "link").read_text() == "x"


@pytest.mark.parametrize("make", [lambda path: path.symlink_to("/nonexistent"), os.mkfifo], ids=["dangling", "fifo"])
def test_a_tree_with_what_cannot_be_copied_is_one_clear_line(
    host: Host, tmp_path: Path, make: Callable[[Path], None]
) -> None:
    make(tmp_path / "odd")
    with pytest.raises(RdmaUsageError, match=r"cannot put .*odd on .*: it is no file that can be read here"):
        host.put(tmp_path)


def test_putting_what_is_not_there_is_one_clear_line(host: Host) -> None:
    with pytest.raises(RdmaUsageError, match=r"cannot put /nonexistent on .*: no such file"):
        host.put("/nonexistent")


@pytest.mark.parametrize("relative", ["../x", "/etc/x", "a/../../x", "."])
def test_no_file_is_written_outside_the_private_directory(host: Host, relative: str) -> None:
    with pytest.raises(RdmaUsageError, match="leads out of"):
        host.invoke("file.write", relative, 0, b"", 0o600)


def test_closing_a_host_removes_its_files_and_ends_its_programs(tmp_path: Path) -> None:
    host = LocalHost()
    there = host.put("/etc/hostname")
    program = host.start(["sleep", "60"])
    host.close()
    assert not Path(there).parent.parent.exists()
    with pytest.raises(ProcessLookupError):
        os.kill(program.pid, 0)


def test_a_process_that_was_forked_runs_programs_too() -> None:
    code = (
        "import os, signal\n"
        "from pytest_rdma.host import LocalHost\n"
        "host = LocalHost()\n"
        "host.run(['true'])\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    signal.alarm(20)\n"
        "    os._exit(host.run(['sh', '-c', 'exit 3'], timeout_s=10).returncode)\n"
        "print(os.waitpid(child, 0)[1] >> 8)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("3\n", "")


def test_a_start_that_hangs_does_not_keep_the_interpreter_from_ending() -> None:
    code = (
        "import threading, time\n"
        "from pytest_rdma.spawner import in_spawner\n"
        "began = threading.Event()\n"
        "hang = lambda: (began.set(), time.sleep(600))\n"
        "threading.Thread(target=in_spawner, args=(hang,), daemon=True).start()\n"
        "print(began.wait(10))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")


def test_what_a_killed_agent_left_is_removed_by_the_next(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(programs.tempfile, "tempdir", str(tmp_path))
    left, young = tmp_path / f"{programs.SCRATCH_PREFIX}left", tmp_path / f"{programs.SCRATCH_PREFIX}young"
    for path in (left, young):
        path.mkdir()
    os.utime(left, (0, 0))
    other = LocalHost()
    held = Path(other.put("/etc/hostname")).parent.parent
    os.utime(held, (0, 0))
    host = LocalHost()
    host.put("/etc/hostname")
    host.close()
    assert (left.exists(), young.exists(), held.exists()) == (False, True, True)
    other.close()
