"""Run the two ends of programs/write_once.c on the two hosts, each with a deadline of its own and one of ours."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import Any

from toolchain import compiled

from pytest_rdma import Endpoint, Pair
from pytest_rdma.cm import fabric_address

PROGRAM = "write_once"
START_S = 20.0
MESSAGE = "written by the client"


@dataclass
class Ended:
    """How one end ended; `code` is negative for a signal."""

    code: int
    said: str
    complained: str


class WritePrograms:
    """The program on both hosts of a pair; the server is the peer."""

    def __init__(self, pair: Pair, timeout_s: int) -> None:
        self.pair = pair
        self.timeout_s = timeout_s
        self.address = fabric_address(pair.peer)
        self.paths = {end.host.name: compiled(end.host, PROGRAM, "-libverbs") for end in pair.ends}
        self.running: list[Any] = []

    def command(self, end: Endpoint, defects: tuple[str, ...], *words: str, options: tuple[str, ...] = ()) -> list[str]:
        place = ["--device", end.device, "--gid", str(end.record.gid_index), "--timeout", str(self.timeout_s)]
        chosen = [word for defect in defects for word in ("--defect", defect)]
        return [self.paths[end.host.name], *place, *chosen, *options, *words]

    def run_alone(self, *words: str, options: tuple[str, ...] = (), defects: tuple[str, ...] = ()) -> Ended:
        """Run one program on the local host to its end."""
        argv = self.command(self.pair.local, defects, *words, options=options)
        return ended(self.pair.local.host.run(argv, timeout_s=self.timeout_s + START_S))

    def start_server(self, *defects: str, options: tuple[str, ...] = ()) -> tuple[Any, str]:
        """Start the server on the peer; return it and the port that it listens on."""
        argv = self.command(self.pair.peer, defects, "server", self.address, MESSAGE, options=options)
        server = self.pair.peer.host.start(argv)
        self.running.append(server)
        return server, read_match(server, r"^port (\d+)$")

    def start_client(self, port: str, *defects: str, options: tuple[str, ...] = (), message: str = MESSAGE) -> Any:
        argv = self.command(self.pair.local, defects, "client", self.address, port, message, options=options)
        client = self.pair.local.host.start(argv)
        self.running.append(client)
        return client

    def run_both(
        self, server: tuple[str, ...] = (), client: tuple[str, ...] = (), **options: Any
    ) -> tuple[Ended, Ended]:
        """Run both ends, with defects, to their end; return how server and client ended."""
        serving, port = self.start_server(*server)
        dialling = self.start_client(port, *client, **options)
        done = [ended(program.wait(timeout_s=self.timeout_s + START_S)) for program in (serving, dialling)]
        return done[0], done[1]

    def close(self) -> None:
        for program in self.running:
            program.close()


def ended(finished: Any) -> Ended:
    return Ended(finished.returncode, finished.stdout.decode(), finished.stderr.decode())


def read_match(program: Any, pattern: str) -> str:
    """Read a program's output until the pattern is there; return its first group."""
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        over = program.poll() is not None
        found = re.search(pattern, program.read()[0].decode(), re.MULTILINE)
        if found:
            return found.group(1)
        if over:
            raise AssertionError(f"the program has ended: {program.wait().stderr.decode()}")
    raise AssertionError(f"{program!r} did not say {pattern} within {START_S:g} s")
