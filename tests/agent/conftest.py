"""Agents over real streams: a child process, OpenSSH's client, and paramiko, against a real sshd on loopback."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sshd import Sshd
from streams_tools import script, stub_pyverbs

from pytest_rdma.host import Host, LocalHost
from pytest_rdma.remote import ExecTarget, RemoteHost

NOISE = """#!/bin/sh
printf 'stty: standard input: Inappropriate ioctl for device\\n' >&2
printf 'Welcome to host2!\\n\\nLast login: yesterday\\nno newline at the end:'
head -c 100000 /dev/zero | tr '\\0' 'x'
exec /bin/sh -c "$SSH_ORIGINAL_COMMAND"
"""


@pytest.fixture(scope="session")
def pythonpath(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return what PYTHONPATH must be for /usr/bin/python3 to import pyverbs: the tests here use no verbs."""
    probe = subprocess.run(["/usr/bin/python3", "-c", "import pyverbs.device"], capture_output=True, check=False)
    return "" if probe.returncode == 0 else str(stub_pyverbs(tmp_path_factory.mktemp("stub")))


@pytest.fixture(scope="session")
def sshd(tmp_path_factory: pytest.TempPathFactory, pythonpath: str) -> Iterator[Sshd]:
    folder = tmp_path_factory.mktemp("sshd")
    (folder / "banner").write_text("*** authorized use only ***\n" * 20)
    shells = {name: shutil.which(name) for name in ("fish", "tcsh", "dash", "bash")}
    forced = {name: f'{path} -c "$SSH_ORIGINAL_COMMAND"' for name, path in shells.items() if path}
    forced["noise"] = script(folder / "noise", NOISE)
    forced["daemon"] = script(folder / "daemon", "#!/bin/sh\nsleep 60 &\necho no agent here\nexit 3\n")
    server = Sshd(
        folder,
        kinds=("ed25519", "rsa"),
        forced=forced,
        lines=f"Banner {folder}/banner\nSetEnv PYTHONPATH={pythonpath or '/nonexistent'}\n",
    )
    yield server
    server.close()


@pytest.fixture
def open_host(pythonpath: str) -> Iterator[Callable[..., RemoteHost]]:
    """Return a function that opens a RemoteHost; what it opened is closed at the end."""
    opened: list[RemoteHost] = []

    def open_one(target: Any = None, **options: Any) -> RemoteHost:
        host = RemoteHost(target or ExecTarget(f"env PYTHONPATH={pythonpath}"), **{"name": "host2", **options})
        opened.append(host)
        host.open()
        return host

    yield open_one
    for host in opened:
        host.close()


@pytest.fixture(scope="session")
def agent(pythonpath: str) -> Iterator[RemoteHost]:
    """An agent that all tests may use that do not harm it."""
    host = RemoteHost(ExecTarget(f"env PYTHONPATH={pythonpath}"), name="host2")
    host.open()
    yield host
    host.close()


@pytest.fixture(params=["local", "remote"])
def host(request: pytest.FixtureRequest) -> Iterator[Host]:
    """Each kind of host in turn: a test cannot tell which it has."""
    if request.param == "remote":
        yield request.getfixturevalue("agent")
        return
    local = LocalHost()
    yield local
    local.close()


@pytest.fixture
def other_sshd(tmp_path: Path, sshd: Sshd) -> Iterator[Callable[..., Sshd]]:
    """Return a function that starts another server, which knows the user's key of the first."""
    started = []

    def start(lines: str = "", **options: Any) -> Sshd:
        environment = next(line for line in sshd.lines.splitlines() if line.startswith("SetEnv"))
        server = Sshd(tmp_path / f"sshd{len(started)}", lines=f"{environment}\n{lines}", **options)
        started.append(server)
        return server

    yield start
    for server in started:
        server.close()
