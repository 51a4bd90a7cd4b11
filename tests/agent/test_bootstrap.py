"""An agent comes up through any stream, or one line says why not."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import pytest
from sshd import Sshd
from streams_tools import script, stub_pyverbs

from pytest_rdma import __version__, bootstrap, remote, wire
from pytest_rdma.errors import HostUnreachableError, RdmaUsageError
from pytest_rdma.remote import ExecTarget, RemoteHost

Open = Callable[..., RemoteHost]
PYENV = Path("~/.pyenv/versions").expanduser()


def interpreter(version: str) -> str:
    found = next(map(str, PYENV.glob(f"{version}.*/bin/python{version}")), None) or shutil.which(f"python{version}")
    # what which finds may be a shim of pyenv's that runs nothing
    if found is None or subprocess.run([found, "-c", ""], capture_output=True, check=False).returncode:
        pytest.skip(f"there is no python{version} on this machine")
    return found


def works(host: RemoteHost) -> None:
    assert host.run(["echo", "hello"]).stdout == b"hello\n"
    assert host.info.pid != os.getpid()


@pytest.mark.parametrize("command", ["env", "nice -n 1", "sh -c", "env 'NAME=with space'", "bash -lc"])
def test_any_command_that_runs_what_follows_it_will_do(open_host: Open, pythonpath: str, command: str) -> None:
    works(open_host(ExecTarget(f"env PYTHONPATH={pythonpath} {command}")))


def test_ssh_by_paramiko(open_host: Open, sshd: Sshd) -> None:
    works(open_host(sshd.target()))


def test_ssh_by_openssh_client(open_host: Open, sshd: Sshd) -> None:
    works(open_host(ExecTarget(sshd.ssh_command())))


@pytest.mark.parametrize(
    ("shell", "client"),
    [("fish", "paramiko"), ("tcsh", "paramiko"), ("dash", "paramiko"), ("noise", "paramiko"), ("noise", "openssh")],
)
def test_login_shells_of_all_kinds_and_their_noise(open_host: Open, sshd: Sshd, shell: str, client: str) -> None:
    if shell not in sshd.ports:
        pytest.skip(f"there is no {shell} on this machine")
    works(open_host(sshd.target(shell) if client == "paramiko" else ExecTarget(sshd.ssh_command(shell))))


def test_a_locale_that_is_not_there(open_host: Open, pythonpath: str) -> None:
    host = open_host(ExecTarget(f"env PYTHONPATH={pythonpath} LC_ALL=xx_XX.UTF-8 LC_CTYPE=UTF-8 bash -lc"))
    works(host)


def test_a_locale_that_is_sent_along(open_host: Open, sshd: Sshd) -> None:
    client = sshd.ssh_command().replace("ssh ", "env LC_ALL=xx_XX.UTF-8 LC_CTYPE=UTF-8 ssh -o SendEnv=LC_* ", 1)
    host = open_host(ExecTarget(client))
    assert b"LC_ALL=xx_XX.UTF-8" in host.run(["env"]).stdout


def test_modules_of_the_login_directory_are_not_imported(open_host: Open, pythonpath: str, tmp_path: Path) -> None:
    for name in ("json", "pytest_rdma", "logging", "struct"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('imported from the login directory')\n")
    works(open_host(ExecTarget(f"env -C {tmp_path} PYTHONPATH={pythonpath}")))


def test_nothing_is_written_there(open_host: Open, pythonpath: str, tmp_path: Path) -> None:
    host = open_host(ExecTarget(f"env -C {tmp_path} HOME={tmp_path} TMPDIR={tmp_path} PYTHONPATH={pythonpath}"))
    works(host)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("version", ["3.9", "3.13", "3.14"])
def test_what_travels_runs_on_python(open_host: Open, tmp_path: Path, version: str) -> None:
    python = interpreter(version)
    host = open_host(ExecTarget(f"env PYTHONPATH={stub_pyverbs(tmp_path)}"), python=python)
    works(host)
    assert host.info.python.startswith(version)


def test_the_payload_is_the_same_each_time_and_holds_no_more_than_travels() -> None:
    bootstrap.payload.cache_clear()
    first = bootstrap.payload()
    bootstrap.payload.cache_clear()
    assert bootstrap.payload() == first
    names = zipfile.ZipFile(BytesIO(first)).namelist()
    assert {"pytest_rdma/agent.py", "pytest_rdma/wire.py", "pytest_rdma/host.py"} <= set(names)
    assert not {f"pytest_rdma/{name}.py" for name in bootstrap.STAYS} & set(names)
    assert not [name for name in names if "/lab/" in name or name.endswith(".so")]


def fails(open_host: Open, command: str, **options: object) -> str:
    started = time.monotonic()
    with pytest.raises(HostUnreachableError) as failed:
        open_host(ExecTarget(command), **options)
    assert time.monotonic() - started < 10
    assert "\n" not in str(failed.value)
    assert "host2" in str(failed.value) or "cannot run" in str(failed.value)
    return str(failed.value)


def test_no_python_there(open_host: Open) -> None:
    text = fails(open_host, "env", python="/opt/none/bin/python3")
    assert "host2 has no Python to run the agent: /opt/none/bin/python3 not found there" in text


@pytest.mark.parametrize("version", ["2.7", "3.6", "3.7", "3.8"])
def test_a_python_that_is_too_old_is_named_with_its_version(open_host: Open, version: str) -> None:
    python = interpreter(version)
    assert f"{version}." in (text := fails(open_host, "env", python=python))
    assert "the agent needs 3.9 or newer" in text


def old_python(folder: Path) -> str:
    """Return a directory whose python3 takes itself for an old one."""
    folder.mkdir()
    code = "import sys; sys.version_info = (3, 6, 8); exec(sys.argv[1])"
    script(folder / "python3", f"#!/bin/sh\nshift 2\nexec {sys.executable} -c '{code}' \"$@\"\n")
    return str(folder)


def test_the_next_interpreter_is_taken_when_the_first_does_not_fit(
    open_host: Open, pythonpath: str, tmp_path: Path
) -> None:
    command = f"env PATH={old_python(tmp_path / 'bin')}:{os.environ['PATH']} PYTHONPATH={pythonpath}"
    assert open_host(ExecTarget(command)).info.executable == "/usr/bin/python3"


def test_no_pyverbs_is_one_line_that_says_what_to_install(open_host: Open) -> None:
    probe = subprocess.run([sys.executable, "-c", "import pyverbs"], capture_output=True, check=False)
    if probe.returncode == 0:
        pytest.skip(f"{sys.executable} has pyverbs")
    text = fails(open_host, "env", python=sys.executable)
    assert sys.executable in text
    assert "apt-get install python3-pyverbs" in text


def test_a_pyverbs_that_does_not_fit_rdma_core_is_shown_with_its_error(open_host: Open, tmp_path: Path) -> None:
    stub = stub_pyverbs(tmp_path)
    (stub / "pyverbs/device.py").write_text(
        'raise ImportError("libibverbs.so.1: version `IBVERBS_PRIVATE_34\' not found")'
    )
    text = fails(open_host, f"env PYTHONPATH={stub}")
    assert "IBVERBS_PRIVATE_34" in text
    assert str(stub / "pyverbs") in text


def test_an_interpreter_that_a_shell_would_take_apart_is_refused(open_host: Open) -> None:
    with pytest.raises(RdmaUsageError, match="not a plain path"):
        open_host(ExecTarget("env"), python="python3; reboot")


def test_a_command_that_ends_before_the_marker_is_shown_with_all_it_said(open_host: Open, tmp_path: Path) -> None:
    command = script(
        tmp_path / "junk", "#!/bin/sh\necho 'This account is not available.'\necho 'no shell' >&2\nexit 3\n"
    )
    text = fails(open_host, command)
    assert "exit status 3" in text
    assert "its output: This account is not available." in text
    assert "its stderr: no shell" in text


def test_what_a_command_wrote_does_no_harm_to_the_terminal(open_host: Open, tmp_path: Path) -> None:
    command = script(tmp_path / "odd", "#!/bin/sh\nprintf 'a\\033[2J\\000b'; printf 'c\\033]0;d' >&2\n")
    text = fails(open_host, command)
    assert "its output: a [2J b; its stderr: c ]0;d" in text


def test_a_command_killed_by_a_signal_says_so(open_host: Open, tmp_path: Path) -> None:
    assert "killed by SIGKILL" in fails(open_host, script(tmp_path / "dies", "#!/bin/sh\nkill -9 $$\n"))


@pytest.mark.parametrize(
    "body", ["echo hello; exec sleep 60", "exec cat", "exec yes"], ids=["silent", "echoing", "endless"]
)
def test_a_command_that_never_brings_an_agent_up_is_given_up(
    open_host: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str
) -> None:
    monkeypatch.setattr(remote, "BOOTSTRAP_TIMEOUT_S", 0.5)
    text = fails(open_host, script(tmp_path / "waits", f"#!/bin/sh\n{body}\n"))
    assert "time was up after 0.5 s, before an agent came up" in text


def test_a_daemon_that_keeps_the_output_open_does_not_hold_us_up(open_host: Open, sshd: Sshd) -> None:
    started = time.monotonic()
    for target in (sshd.target("daemon"), ExecTarget(str(sshd.folder / "daemon"))):
        with pytest.raises(HostUnreachableError, match=r"exit status 3 .*no agent here"):
            open_host(target)
    assert time.monotonic() - started < 10


@pytest.mark.parametrize(
    ("command", "why"),
    [("", "is empty"), ("ssh 'host2", "cannot be split"), ("  ", "is empty")],
)
def test_a_command_that_is_none_is_refused(open_host: Open, command: str, why: str) -> None:
    with pytest.raises(RdmaUsageError, match=why):
        open_host(ExecTarget(command))


def test_a_command_that_is_not_there_is_named(open_host: Open) -> None:
    assert "cannot run `no-such-command host2`: No such file" in fails(open_host, "no-such-command host2")


def test_an_agent_of_another_protocol_is_refused_with_both_versions(
    open_host: Open, monkeypatch: pytest.MonkeyPatch, pythonpath: str
) -> None:
    bootstrap.payload()
    monkeypatch.setattr(wire, "PROTOCOL", wire.PROTOCOL + 1)
    text = fails(open_host, f"env PYTHONPATH={pythonpath}")
    assert (
        f"pytest-rdma {__version__}, protocol {wire.PROTOCOL - 1}; this is {__version__}, protocol {wire.PROTOCOL}"
        in text
    )


def test_an_agent_that_dies_before_hello_shows_its_last_words(
    open_host: Open, monkeypatch: pytest.MonkeyPatch, pythonpath: str
) -> None:
    monkeypatch.setattr(bootstrap, "payload", lambda: b"not a zip")
    text = fails(open_host, f"env PYTHONPATH={pythonpath}")
    assert "after /usr/bin/python3 got the package" in text
    assert "No module named 'pytest_rdma'" in text


def test_a_failed_bootstrap_leaves_no_process(open_host: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "BOOTSTRAP_TIMEOUT_S", 0.3)
    fails(open_host, script(tmp_path / "waits", f"#!/bin/sh\necho $$ > {tmp_path}/pid\nsleep 60\n"))
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGCONT)
