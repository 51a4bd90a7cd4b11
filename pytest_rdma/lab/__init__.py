"""The Soft-RoCE lab: two small virtual machines with RDMA on a machine that has none."""

from __future__ import annotations

import contextlib
import subprocess
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from pytest_rdma.lab import accel, client
from pytest_rdma.lab.image import ensure_image
from pytest_rdma.lab.requirements import require

Note = Callable[[str], None]


@dataclass(frozen=True)
class LabHost:
    """How to reach one host of the lab."""

    name: str
    address: str
    port: int
    user: str
    identity_file: str
    known_hosts_file: str
    device: str
    fabric_address: str


class Lab:
    """Two booted hosts. Closing it ends a private lab, and leaves one that was up before as it is."""

    def __init__(
        self, state: dict[str, Any], connection: client.Connection, process: subprocess.Popen[bytes] | None
    ) -> None:
        self.accel: str = state["accel"]
        self.boot_s: float = state["boot_s"] if process is not None else 0.0
        self.timeout_scale: float = accel.TIMEOUT_SCALE[self.accel]
        self.directory = Path(state["directory"])
        self.state = state
        self.hosts: tuple[LabHost, LabHost] = hosts_of(state)
        self._connection = connection
        self._process = process
        self._closing = threading.Lock()

    def close(self) -> None:
        """Take a private lab down and wait until its guests are gone; may be called again."""
        with self._closing:
            _release(self._connection, self._process)

    def __enter__(self) -> Lab:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class Booting:
    """A lab on its way up: `ready()` waits for it, `close()` gives it up."""

    def __init__(
        self,
        connection: client.Connection,
        process: subprocess.Popen[bytes] | None,
        note: Note,
        timeout_s: float = client.ANSWER_S,
    ) -> None:
        self._connection = connection
        self._process = process
        self._note = note
        self._timeout_s = timeout_s

    def ready(self) -> Lab:
        """Wait until both hosts answer and return the lab."""
        try:
            state = self._connection.state(self._note, self._timeout_s)
            return Lab(state, self._connection, self._process)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Give the lab up; a thread that is in `ready()` gets an error."""
        _release(self._connection, self._process)


def begin(note: Note | None = None, *, private: bool = False, timeout_scale: float = 1.0) -> Booting:
    """Start booting, and return at once unless an image has to be built first.

    The user's lab that is up serves, unless `private`. `note` is called with a line for each long step.
    """
    say = note if note is not None else _say_nothing
    up = None if private else client.connect_up()
    if up is not None:
        return Booting(up, None, say)
    require("boot")
    image = ensure_image(say)
    connection, process = client.start_private(image, timeout_scale)
    # each guest's own deadline is scaled too, and is the one that says what went wrong
    return Booting(connection, process, say, client.ANSWER_S * max(1.0, timeout_scale))


def obtain(note: Note | None = None, *, private: bool = False, timeout_scale: float = 1.0) -> Lab:
    """Return a lab whose hosts answer: the user's that is up, else a private one that dies with this process."""
    return begin(note, private=private, timeout_scale=timeout_scale).ready()


def hosts_of(state: dict[str, Any]) -> tuple[LabHost, LabHost]:
    """Return the two hosts that a supervisor's state describes."""
    directory = Path(state["directory"])
    first, second = (
        LabHost(
            name=f"host{guest['number']}",
            address="127.0.0.1",
            port=guest["port"],
            user="root",
            identity_file=str(directory / "id_ed25519"),
            known_hosts_file=str(directory / "known_hosts"),
            device="rxe0",
            fabric_address=f"10.99.0.{guest['number']}",
        )
        for guest in state["guests"]
    )
    return first, second


def _release(connection: client.Connection, process: subprocess.Popen[bytes] | None) -> None:
    connection.close()
    if process is not None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=client.DOWN_S)


def _say_nothing(_: str) -> None:
    pass
