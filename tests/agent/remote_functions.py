"""What the tests of host.call run on a host."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import time
from typing import Any

from pytest_rdma.errors import RdmaError


class TooSlowError(RdmaError):
    """One of a user's own, which is not made of a message."""

    def __init__(self, seconds: float, *, limit: float) -> None:
        super().__init__(f"{seconds:g} s, and the limit is {limit:g} s", seconds=seconds)


def be_too_slow() -> None:
    raise TooSlowError(3.0, limit=2.0)


def add(one: int, two: int, *, three: int = 0) -> int:
    return one + two + three


def whoami() -> dict[str, Any]:
    return {"pid": os.getpid(), "modules": sorted(sys.modules)}


def nap(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


def hold_the_gil(seconds: float) -> None:
    ctypes.PyDLL(None).usleep(int(seconds * 1e6))


def hold_the_gil_for_ever() -> None:
    while True:
        ctypes.PyDLL(None).usleep(1_000_000_000)


def fail() -> None:
    raise KeyError("no such thing")


def fail_with_errno() -> None:
    os.open("/nonexistent", os.O_RDONLY)


class SaysNothing(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


class OddNumber(Exception):
    errno = object()


def fail_oddly(kind: str) -> None:
    raise {"no text": SaysNothing(), "odd errno": OddNumber("odd"), "long": ValueError("x" * (65 << 20))}[kind]


def refuse() -> None:
    from pytest_rdma.errors import PostError

    raise PostError("the driver refused it", errno=22, bad_index=3)


def give(kind: str) -> Any:
    return {"object": object(), "set": {1}, "tuple": (1, b"\x00", None), "module": sys}[kind]


def names_of_types(*values: Any, **named: Any) -> list[str]:
    return [type(value).__name__ for value in (*values, *named.values())]


def program_runs(program: Any) -> bool:
    return program.poll() is None and program.host.run(["true"]).returncode == 0


def shout(size: int) -> int:
    written = 0
    while written < size:
        written += os.write(2, b"e" * 65535 + b"\n")
    return written


def print_everywhere() -> None:
    libc = ctypes.CDLL(None)
    libc.printf(b"from C\n")
    libc.fflush(None)
    os.write(1, b"\x00\x00\x00\x05junk from descriptor 1\n")
    print("from Python", flush=True)
    subprocess.run(["echo", "from a child"], check=True)
    subprocess.run(["cat"], check=True)


def leave_a_daemon() -> int:
    """Start what outlives us and keeps the descriptors that we give to children."""
    return subprocess.Popen(["sleep", "60"], start_new_session=True).pid
