"""What the outer tests do inside a guest: see what a run has left there, and set right what it broke."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from pathlib import Path

OBJECTS = ("qp", "cq", "mr", "pd")
NETDEV, DEVICE, MTU = "fabric", "rxe0", 9000
OTHER_NETDEV = "other9"  # of the device that tests add to it
TABLE = "pytest_rdma_fault"
KERNELS = " comm ["  # what the kernel made for itself, anew with each device
HOLDER = "sleep 1000"  # it has that device open
LISTENER = "sshd: /usr/sbin/sshd"  # its title counts connections


def look() -> list[str]:
    """Return a line for each process, verbs object, queueing discipline, table of rules and file there is."""
    found = [f"process {pid} {state} {words}" for pid, state, words in processes()]
    for kind in OBJECTS:
        found += [f"{kind} {line}" for line in lines("rdma", "resource", "show", kind) if KERNELS not in line]
    found += [f"qdisc {line}" for line in lines("tc", "qdisc", "show", "dev", NETDEV) if "netem" in line]
    found += lines("nft", "list", "tables")
    found += [f"files {path}" for path in Path("/tmp").glob("pytest-rdma-files-*")]
    if not has_device():
        found.append(f"no device {DEVICE}")
    return found


def processes() -> list[tuple[int, str, str]]:
    """Return number, state and command line of each process but the kernel's threads and this one's children."""
    found = []
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if folder.name.isdigit() and (titled := command_line(folder)):
                words, thread = titled
                state, parent = (thread / "stat").read_text().rpartition(")")[2].split()[:2]
                text = words.replace(b"\0", b" ").decode(errors="replace").split("\n")[0]
                if int(parent) != os.getpid() and not text.startswith(LISTENER):
                    found.append((int(folder.name), state, text[:80]))
    return found


def command_line(process: Path) -> tuple[bytes, Path] | None:
    """Return the command line of a process, and the thread it is of: the first one may have ended before others."""
    for thread in sorted((process / "task").iterdir(), key=lambda one: int(one.name)):
        with contextlib.suppress(OSError):
            if words := (thread / "cmdline").read_bytes():
                return words, thread
    return None


def lines(*command: str) -> list[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=60).stdout.splitlines()


def has_device() -> bool:
    return Path("/sys/class/infiniband", DEVICE).exists()


def mend(number: int) -> None:
    """Undo all that a fault may have done to the guest of this number; what is whole stays as it is."""
    for pid, state, words in processes():
        if state == "T" or words.startswith(HOLDER):
            os.kill(pid, signal.SIGKILL)
    lines("ip", "link", "delete", OTHER_NETDEV)
    lines("tc", "qdisc", "del", "dev", NETDEV, "root")
    lines("nft", "delete", "table", "inet", TABLE)
    lines("ip", "link", "set", "dev", NETDEV, "mtu", str(MTU), "up")
    lines("ip", "address", "add", f"10.99.0.{number}/24", "dev", NETDEV)
    lines("ip", "address", "add", f"fd99::{number}/64", "nodad", "dev", NETDEV)
    if not has_device():
        lines("rdma", "link", "add", DEVICE, "type", "rxe", "netdev", NETDEV)
