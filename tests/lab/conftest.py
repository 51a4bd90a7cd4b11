"""The lab that these tests share: the one that is up, or one of their own."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pytest_rdma import native
from pytest_rdma.lab import Lab, LabHost, obtain
from pytest_rdma.lab.ssh_command import ssh_command

TREE = Path(__file__).parents[2]
GUEST_TREE = "/root/tree"
TRAVELS = ("pytest_rdma", "suites", "conftest.py", "pyproject.toml")


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    with obtain(print) as booted:
        yield booted


@pytest.fixture(scope="session")
def on_guest(lab: Lab) -> Callable[..., str]:
    """Run a shell command on a host of the lab, the first unless another is given, and return what it printed."""

    def run(command: str, *, host: LabHost = lab.hosts[0], data: bytes = b"", expect: int = 0) -> str:
        done = subprocess.run(
            [*ssh_command(host), command], input=data, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=150
        )
        text = done.stdout.decode(errors="replace")
        assert done.returncode == expect, text
        return text

    return run


@pytest.fixture(scope="session")
def guest_pytest(on_guest: Callable[..., str]) -> Callable[..., str]:
    """Run the distribution's pytest in this tree on the first host, and return what it printed."""
    packed = subprocess.run(
        ["tar", "-C", str(TREE), "--exclude=__pycache__", "-c", *TRAVELS],
        stdout=subprocess.PIPE,
        check=True,
        timeout=60,
    )
    on_guest(f"rm -rf {GUEST_TREE} && mkdir {GUEST_TREE} && tar -C {GUEST_TREE} -x", data=packed.stdout)
    helper = native.library_bytes()
    if helper is not None:  # a guest needs minutes to compile it while the machine is busy
        on_guest(f"cat > {GUEST_TREE}/pytest_rdma/native/helper-{os.uname().machine}.so", data=helper)

    def run(options: str, *, expect: int = 0) -> str:
        return on_guest(f"cd {GUEST_TREE} && python3 -m pytest -p no:cacheprovider {options}", expect=expect)

    return run


@pytest.fixture(scope="session")
def ssh_config(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ssh_config of a home that knows the hosts of the lab as host1 and host2."""
    file = tmp_path_factory.mktemp("home") / ".ssh" / "config"
    file.parent.mkdir(mode=0o700)
    file.write_text(
        "".join(
            f"Host {host.name}\n HostName {host.address}\n Port {host.port}\n User {host.user}\n"
            f" IdentityFile {host.identity_file}\n IdentitiesOnly yes\n UserKnownHostsFile {host.known_hosts_file}\n"
            for host in lab.hosts
        )
    )
    return file
