"""One guest: its QEMU command line and its console."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
from pathlib import Path

from pytest_rdma.errors import RdmaEnvironmentError
from pytest_rdma.lab.image import Image

MEMORY_MIB = 1024
CONSOLE_KEPT = 1 << 16
READY = b"pytest-rdma: ready"
PORT_TAKEN = b"Could not set up host forwarding rule"
KVM_BROKEN = b"KVM internal error"
# The watchdogs would fill the log with stalls that are the emulation's own.
_KERNEL_ARGUMENTS = "console=ttyS0 quiet panic=-1 mitigations=off nowatchdog rcupdate.rcu_cpu_stall_suppress=1"
# QEMU before 8.0 emulates CMPXCHG16B with flags that may be no flags: an interrupt right behind it is a double fault.
# The others cost time: a byte at a time for `rep movsb`, a look at each user access, more state at each switch.
_TCG_CPU = "max,-cx16,-erms,-smap,-smep,-pku,-mpx,-umip,-avx,-avx2,-fma,-f16c,-vaes,-xsave,-xsaveopt"
_CPU = {"kvm": "host", "tcg": _TCG_CPU}
# Emulated code is translated for the address where it runs: at random addresses each process is translated anew.
# Without them the second host lays out its memory from below, so that an address of one host is none of the other.
_TCG_ARGUMENTS = "init_on_alloc=0 sysctl.kernel.randomize_va_space=0 sysctl.vm.legacy_va_layout="
_ACCEL = {"kvm": "kvm", "tcg": "tcg,thread=multi"}


def free_port() -> int:
    """Return a TCP port of the loopback address that is free now; another process may yet take it."""
    while True:
        # Below the range from which the kernel takes ports for outgoing connections.
        port = random.randrange(10240, 32768)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def kernel_arguments(number: int, accel: str) -> str:
    return f"{_KERNEL_ARGUMENTS} {_TCG_ARGUMENTS}{number - 1}" if accel == "tcg" else _KERNEL_ARGUMENTS


def command(image: Image, directory: Path, number: int, port: int, accel: str, wire: int) -> list[str]:
    """Return the command of guest `number`; the descriptor `wire` is its end of a stream to the other guest.

    A stream, for QEMU's datagram sockets swap packets when the machine is busy, and rxe takes each gap for a loss.
    """
    return [
        *("qemu-system-x86_64", "-name", f"host{number}", "-nodefaults", "-no-user-config", "-no-reboot"),
        *("-machine", "q35", "-display", "none"),
        *("-accel", _ACCEL[accel], "-cpu", _CPU[accel], "-smp", "1", "-m", str(MEMORY_MIB)),
        *("-kernel", str(image.kernel), "-initrd", str(directory / f"host{number}.initramfs")),
        *("-append", kernel_arguments(number, accel)),
        *("-serial", "stdio"),
        *("-drive", f"id=root,file={image.root},format=raw,if=none,readonly=on,cache=unsafe"),
        *("-device", "virtio-blk-pci,drive=root"),
        *("-netdev", f"user,id=control,ipv6=off,restrict=on,hostfwd=tcp:127.0.0.1:{port}-10.0.2.15:22"),
        *("-device", f"virtio-net-pci,netdev=control,romfile=,mac=52:54:00:0c:00:0{number}"),
        *("-netdev", f"stream,id=fabric,server=off,addr.type=fd,addr.str={wire}"),
        *("-device", f"virtio-net-pci,netdev=fabric,romfile=,mac=52:54:00:fa:00:0{number},host_mtu=9000"),
    ]


class Guest:
    """A running guest. Its QEMU dies with the process that started it; start it from the main thread."""

    def __init__(self, image: Image, directory: Path, number: int, accel: str, wire: int) -> None:
        self.number = number
        self.name = f"host{number}"
        self.port = free_port()
        self.console = bytearray()
        self.ready = False
        self._log = (directory / f"{self.name}.console").open("wb", buffering=0)
        self.process = subprocess.Popen(
            # The kernel's own promise: QEMU gets SIGKILL when its parent is gone, however that ends.
            ["setpriv", "--pdeathsig", "KILL", *command(image, directory, number, self.port, accel, wire)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=(wire,),
        )
        assert self.process.stdout is not None
        self.fd = self.process.stdout.fileno()
        os.set_blocking(self.fd, False)

    def read_console(self) -> bool:
        """Take what the console has to say; return False when it has ended."""
        try:
            data = os.read(self.fd, 65536)
        except BlockingIOError:
            return True
        self._log.write(data)
        self.console += data
        self.ready = self.ready or READY in self.console
        del self.console[:-CONSOLE_KEPT]
        return bool(data)

    def failure(self, what: str) -> RdmaEnvironmentError:
        """Return an error that shows the end of the console."""
        lines = [line.strip() for line in self.console.decode(errors="replace").splitlines() if line.strip()]
        tail = "".join(f"\n    {line}" for line in lines[-12:])
        return RdmaEnvironmentError(f"lab guest {self.name} {what}; its console ends with:{tail or ' nothing'}")

    def kill(self) -> None:
        """End the guest and wait until it is gone."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        self._log.close()
