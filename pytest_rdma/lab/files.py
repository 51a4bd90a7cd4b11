"""Small files of a lab: the keys, and the archive that gives each guest its identity."""

from __future__ import annotations

import fcntl
import os
import subprocess
import time
from pathlib import Path
from typing import IO

from pytest_rdma.deadline import Deadline
from pytest_rdma.errors import RdmaEnvironmentError

GUESTS = (1, 2)
RETRY_S = 0.05


def lock_within(file: IO[str], timeout_s: float, awaited: str) -> None:
    """Take the lock of the file; RdmaEnvironmentError names who holds it when that lasts longer than `timeout_s`."""
    deadline = Deadline(timeout_s)
    while not try_lock(file):
        if deadline.passed:
            file.seek(0)
            holder = file.read().strip() or "unknown"
            text = f"lab: {awaited} did not end within {timeout_s:g} s: {file.name} is locked by process {holder}"
            raise RdmaEnvironmentError(text)
        time.sleep(RETRY_S)  # flock has no form with a time-out


def try_lock(file: IO[str]) -> bool:
    """Take the lock of the file, which is open as `a+`, and write into it who has it; False when another one has."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    file.truncate(0)
    file.write(f"{os.getpid()}\n")
    file.flush()
    return True


def console_of_the_dead(runtime: Path) -> Path:
    """Return where the console of the last guest that died on its own is kept; its lab's directory is gone."""
    return runtime / "died.console"


def make_keys(directory: Path) -> None:
    """Make the key that opens both guests and one host key for each, all of this lab alone."""
    for name in ("id_ed25519", *(f"host{number}_key" for number in GUESTS)):
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "pytest-rdma-lab", "-f", str(directory / name)],
            check=True,
            stdin=subprocess.DEVNULL,
            timeout=30,
        )


def known_hosts(directory: Path, names: dict[int, list[str]]) -> str:
    """Return known_hosts lines for the guests under the names by which they are reached."""
    lines = []
    for number, addresses in names.items():
        kind, key = (directory / f"host{number}_key.pub").read_text().split()[:2]
        lines.append(f"{','.join(addresses)} {kind} {key}\n")
    return "".join(lines)


def write_initramfs(base: Path, directory: Path, number: int) -> Path:
    """Write the initramfs of guest `number`: the image's, followed by an archive with what only this guest knows."""
    fabric = {n: [f"host{n}", f"10.99.0.{n}", f"fd99::{n}"] for n in GUESTS}
    contents = {
        "identity": f"NUMBER={number}\n".encode(),
        "id_ed25519": (directory / "id_ed25519").read_bytes(),
        "id_ed25519.pub": (directory / "id_ed25519.pub").read_bytes(),
        "ssh_host_ed25519_key": (directory / f"host{number}_key").read_bytes(),
        "ssh_known_hosts": known_hosts(directory, fabric).encode(),
    }
    archive = bytearray(base.read_bytes())
    archive.extend(b"\0" * (-len(archive) % 512))
    for name, content in contents.items():
        _append(archive, f"lab/{name}", 0o100600, content)
    _append(archive, "TRAILER!!!", 0, b"")
    path = directory / f"host{number}.initramfs"
    path.write_bytes(archive)
    return path


def _append(archive: bytearray, name: str, mode: int, content: bytes) -> None:
    """Append an entry in the format of the kernel's Documentation/driver-api/early-userspace/buffer-format.rst."""
    encoded = name.encode() + b"\0"
    fields = (0, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(encoded), 0)
    for part in (b"070701" + b"".join(b"%08X" % field for field in fields) + encoded, content):
        archive.extend(part)
        archive.extend(b"\0" * (-len(archive) % 4))
