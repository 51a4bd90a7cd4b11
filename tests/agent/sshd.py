"""A real sshd of the tests' own on loopback: own configuration, own keys, an unprivileged port."""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import socket
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

from pytest_rdma.ssh import SshTarget


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def make_key(path: Path, kind: str = "ed25519", *options: str) -> Path:
    subprocess.run(["ssh-keygen", "-q", "-t", kind, "-N", "", "-C", path.name, "-f", path, *options], check=True)
    return path


@dataclass
class Sshd:
    """One server. `ports` maps what a login runs into: `plain`, and the login shells of `FORCED`."""

    folder: Path
    kinds: tuple[str, ...] = ("ed25519",)
    forced: dict[str, str] = field(default_factory=dict)
    lines: str = ""

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.host_keys = [make_key(self.folder / f"host_{kind}", kind) for kind in self.kinds]
        self.user_key = make_key(self.folder / "user_key")
        (self.folder / "authorized_keys").write_text((self.folder / "user_key.pub").read_text())
        self.ports = {name: free_port() for name in ("plain", *self.forced)}
        self.port = self.ports["plain"]
        self.known_hosts = self.folder / "known_hosts"
        self.known_hosts.write_text("".join(self.known_hosts_line(port) for port in self.ports.values()))
        self._start()

    def known_hosts_line(self, port: int) -> str:
        keys = [Path(f"{key}.pub").read_text().split()[:2] for key in self.host_keys]
        return "".join(f"[127.0.0.1]:{port} {' '.join(key)}\n" for key in keys)

    def _start(self) -> None:
        if os.getuid() == 0:
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        ports = "".join(f"Port {port}\n" for port in self.ports.values())
        keys = "".join(f"HostKey {key}\n" for key in self.host_keys)
        matches = "".join(
            f"Match LocalPort {self.ports[name]}\n  ForceCommand {command}\n" for name, command in self.forced.items()
        )
        config = self.folder / "sshd_config"
        config.write_text(
            f"{self.lines}ListenAddress 127.0.0.1\n{ports}{keys}AuthorizedKeysFile {self.folder}/authorized_keys\n"
            "StrictModes no\nUsePAM no\nPasswordAuthentication no\nKbdInteractiveAuthentication no\n"
            "PermitRootLogin prohibit-password\nPidFile none\nAcceptEnv LC_* LANG\nMaxStartups 100\n"
            f"{matches}"
        )
        self.log = self.folder / "log"
        with open(self.log, "wb") as log:
            program = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin") or "sshd"
            self.process = subprocess.Popen([program, "-D", "-e", "-f", config], stdout=log, stderr=log)
        self._await_ports()

    def _await_ports(self) -> None:
        deadline = time.monotonic() + 10
        for port in self.ports.values():
            while True:
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                    break
                assert time.monotonic() < deadline, self.log.read_text()
                assert self.process.poll() is None, self.log.read_text()
                time.sleep(0.01)

    def target(self, name: str = "plain", **changes: object) -> SshTarget:
        options: dict[str, object] = {
            "name": "host2",
            "host": "127.0.0.1",
            "port": self.ports[name],
            "user": getpass.getuser(),
            "identity_files": (str(self.user_key),),
            "known_hosts_files": (str(self.known_hosts),),
            "identities_only": True,
        }
        return SshTarget(**{**options, **changes})  # type: ignore[arg-type]

    def ssh_command(self, name: str = "plain") -> str:
        """Return the command line of OpenSSH's client that logs in here."""
        return (
            f"ssh -F none -o BatchMode=yes -o IdentitiesOnly=yes -o UserKnownHostsFile={self.known_hosts} "
            f"-i {self.user_key} -p {self.ports[name]} 127.0.0.1"
        )

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(10)
