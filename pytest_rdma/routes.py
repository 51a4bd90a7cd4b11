"""Ways to a host that can carry several streams: a command of this machine, a child process, an SSH connection."""

from __future__ import annotations

import contextlib
import shlex
import sys
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, Union

from pytest_rdma import bootstrap
from pytest_rdma.deadline import Deadline
from pytest_rdma.errors import HostLostError, HostUnreachableError, RdmaUsageError
from pytest_rdma.streams import ProcessStream, Stream

if TYPE_CHECKING:
    from pytest_rdma.ssh import SshTarget
    from pytest_rdma.ssh_connection import SshConnection

SHELL_COMMAND = "exec /bin/sh"


@dataclass(frozen=True)
class ExecTarget:
    """A command of this machine that runs on the host what follows it: `ssh -J gate host2`, `podman exec -i b`."""

    command: str

    @property
    def name(self) -> str:
        return self.command

    def argv(self) -> list[str]:
        try:
            words = shlex.split(self.command)
        except ValueError as error:
            raise RdmaUsageError(f"the command {self.command!r} cannot be split into words: {error}") from None
        if not words:
            raise RdmaUsageError("the command that is to reach the host is empty")
        return [*words, "/bin/sh"]


class Route(Protocol):
    """A way to a host that can carry several streams: `open` one to a Python, or `shell` one to a script."""

    def open(self, marker: tuple[str, str], python: str | None, deadline: Deadline) -> Stream: ...

    def shell(self, script: bytes, deadline: Deadline) -> Stream: ...

    def close(self) -> None: ...


class ExecRoute:
    """Each stream is a process of its own."""

    def __init__(self, target: ExecTarget) -> None:
        self._target = target

    def open(self, marker: tuple[str, str], python: str | None, deadline: Deadline) -> Stream:
        return self.shell(bootstrap.shell_script(marker, python), deadline)

    def shell(self, script: bytes, deadline: Deadline) -> Stream:
        return start_shell(ProcessStream(self._target.argv(), self._target.command), script, deadline)

    def close(self) -> None:
        pass


class ChildRoute:
    """Each stream is a child process of this one, by the same interpreter."""

    def open(self, marker: tuple[str, str], python: str | None, deadline: Deadline) -> Stream:
        python = python or sys.executable
        return ProcessStream(bootstrap.python_argv(marker, python), python)

    def shell(self, script: bytes, deadline: Deadline) -> Stream:
        return start_shell(ProcessStream(["/bin/sh"], "/bin/sh"), script, deadline)

    def close(self) -> None:
        pass


class SshRoute:
    """Each stream is a channel of one SSH connection, which is made anew when it has ended."""

    def __init__(self, target: SshTarget) -> None:
        self._target = target
        self._lock = threading.Lock()
        self._connections: list[SshConnection] = []

    def open(self, marker: tuple[str, str], python: str | None, deadline: Deadline) -> Stream:
        return self.shell(bootstrap.shell_script(marker, python), deadline)

    def shell(self, script: bytes, deadline: Deadline) -> Stream:
        with self._lock:
            stream = self._open_channel(deadline)
        return start_shell(stream, script, deadline)

    def _open_channel(self, deadline: Deadline) -> Stream:
        """Open a channel on a connection there is; a new one where that has ended or takes no more."""
        from pytest_rdma.ssh import connect

        for connection in self._connections:
            if connection.usable:
                with contextlib.suppress(HostUnreachableError):  # half the time: it may be dead and not know it
                    return connection.open(SHELL_COMMAND, Deadline(deadline.remaining_s / 2))
        self._connections.append(connect(self._target, deadline))
        return self._connections[-1].open(SHELL_COMMAND, deadline)

    def close(self) -> None:
        while self._connections:
            self._connections.pop().close()


def start_shell(stream: Stream, script: bytes, deadline: Deadline) -> Stream:
    """Hand the script to the shell; one that has ended already is found out by reading, which knows why."""
    with contextlib.suppress(HostLostError):
        stream.write(script, deadline)
    return stream


Target = Union[ExecTarget, "SshTarget"]


def route_to(target: Target | None) -> Route:
    if target is None:
        return ChildRoute()
    return ExecRoute(target) if isinstance(target, ExecTarget) else SshRoute(target)
