"""What a fault does on a host, inside the agent there; nothing but the standard library is to be had."""

from __future__ import annotations

import ctypes
import os
import subprocess
import time
from pathlib import Path


def signal_self(number: int) -> None:
    os.kill(os.getpid(), number)


def signal_sshd(number: int) -> None:
    """Send a signal to the sshd process that this agent came through."""
    pid = os.getppid()
    while not Path(f"/proc/{pid}/comm").read_text().startswith("sshd"):
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(pid, number)


def sleep(seconds: float) -> None:
    time.sleep(seconds)


def sleep_with_the_gil(seconds: int) -> None:
    """Sleep in C without giving other threads of Python a chance, as a driver that hangs does."""
    ctypes.PyDLL(None).sleep(seconds)


def start_alone(argv: list[str]) -> None:
    """Start a program that outlives this agent."""
    subprocess.Popen(argv, stdin=subprocess.DEVNULL, start_new_session=True)


def say_in_the_kernel_log(line: str) -> None:
    """Write a line, which without its end nobody can read before the next one is written."""
    Path("/dev/kmsg").write_text(line)


LEAKED: list[object] = []


def leak_a_pd(device: str) -> None:
    """Allocate a PD and forget about it."""
    from pyverbs.device import Context
    from pyverbs.pd import PD

    context = Context(name=device)
    LEAKED.extend((context, PD(context)))


def leak_a_file() -> None:
    LEAKED.append(open("/dev/null"))  # noqa: SIM115 - it is to stay open
