"""Programs that listen: each on a port that was free, and awaited until it does."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

from pytest_rdma.deadline import Deadline
from pytest_rdma.errors import RdmaEnvironmentError
from pytest_rdma.host import LocalHost, op
from pytest_rdma.programs import Program, Running

PORT = "PORT"
LOOK_S = 0.01
LISTENS = "0A"
"""TCP_LISTEN in /proc/net/tcp, see proc_pid_net(5)."""


@op("server.start")
def op_start(host: LocalHost, deadline: Deadline, argv: list[str], address: str) -> Program:
    """Start a program with a port of `address` in place of the word PORT; return it, with `port`, when it listens.

    The kernel tells nobody when a socket begins to listen, so its table is looked at until then.
    """
    port = _free_port(host, address)
    words = [str(port) if word == PORT else word for word in argv]
    running = Running(host, words, None, None)
    try:
        while not _listens(port):
            deadline.check(f"listening port of `{argv[0]}` on {host.name}")
            if running.ended.wait(LOOK_S):
                finished = running.finished()
                said = (finished.stderr or finished.stdout).decode(errors="replace").strip().rpartition("\n")[2]
                raise RdmaEnvironmentError(f"`{argv[0]}` on {host.name} ended before it listened: {said or 'no word'}")
    except BaseException:
        running.close()
        raise
    front: Any = host.add(running, Program, {"pid": running.pid, "argv": words, "port": port})
    return front  # type: ignore[no-any-return]


def _free_port(host: LocalHost, address: str) -> int:
    try:
        family, kind, _, _, place = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.bind(place)
            port: int = probe.getsockname()[1]
    except OSError as error:
        raise RdmaEnvironmentError(f"{host.name} has no port of {address} to listen on: {error.strerror}") from None
    return port


def _listens(port: int) -> bool:
    wanted = f":{port:04X}"
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except OSError:  # no IPv6
            continue
        words = (line.split() for line in lines)
        if any(row[1].endswith(wanted) and row[3] == LISTENS for row in words):
            return True
    return False
