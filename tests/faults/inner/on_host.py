"""What a fault does on a host, inside the agent there; nothing but the standard library is to be had."""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import struct
import subprocess
import time
from pathlib import Path

UVERBS = Path("/sys/class/infiniband_verbs")
NETLINK_RDMA, RDMA_NL_NLDEV, NLDEV_CMD_DELLINK, NLDEV_ATTR_DEV_INDEX = 20, 5, 4, 1
NLM_F_REQUEST, NLM_F_ACK = 1, 4


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


def uverbs_of(device: str) -> list[str]:
    """Return the device file of a device by its name; none once the kernel has begun to delete it."""
    found = []
    for folder in UVERBS.glob("uverbs*"):
        with contextlib.suppress(OSError):  # it may go meanwhile
            if (folder / "ibdev").read_text().strip() == device:
                found.append(folder.name)
    return found


def begin_to_delete(device: str, timeout_s: float) -> None:
    """Have a device deleted from the side, which ends only when nobody has it open any more."""
    start_alone(["rdma", "link", "delete", device])
    end = time.monotonic() + timeout_s
    while uverbs_of(device):
        assert time.monotonic() < end, f"the kernel does not begin to delete {device}"
        time.sleep(0.02)


def add_device_in_use(device: str, netdev: str) -> None:
    """Add a device on a netdev of its own, and a program that has it open and sleeps."""
    for line in (
        f"ip link add {netdev} type dummy",
        f"ip link set {netdev} up",
        f"rdma link add {device} type rxe netdev {netdev}",
    ):
        subprocess.run(line.split(), check=True, timeout=60)
    (name,) = uverbs_of(device)
    opened = os.open(f"/dev/infiniband/{name}", os.O_RDWR)
    subprocess.Popen(["sleep", "1000"], stdin=subprocess.DEVNULL, start_new_session=True, pass_fds=[opened])
    os.close(opened)


def delete_with_the_gil(device: str) -> None:
    """Have the kernel delete a device: this very thread sleeps there until nobody has the device open.

    No other thread of Python gets a chance, as where a driver hangs.
    """
    told = subprocess.run(["rdma", "dev", "show", device], capture_output=True, check=True, timeout=60).stdout
    header = struct.pack("=IHHII", 24, RDMA_NL_NLDEV << 10 | NLDEV_CMD_DELLINK, NLM_F_REQUEST | NLM_F_ACK, 1, 0)
    request = header + struct.pack("=HHI", 8, NLDEV_ATTR_DEV_INDEX, int(told.split(b":")[0]))
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_RDMA) as kernel:
        ctypes.PyDLL(None).send(kernel.fileno(), request, len(request), 0)


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
