"""The process that owns a lab's guests: it boots them, says when they are ready, and takes them down.

A connection is a stream of JSON lines. The client sends `state` or `down`; it gets `{"note": ...}` lines while the
guests boot, then `{"state": ...}` or `{"error": ...}`. An open connection is a use of the lab.

A private lab ends when its owner's connection ends, which the kernel closes whatever becomes of the owner. A lab that
is up ends on `down` or after its idle limit. The guests end with this process: it started them with PDEATHSIG.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import shutil
import signal
import socket
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pytest_rdma.errors import RdmaEnvironmentError
from pytest_rdma.lab import accel, files, usage
from pytest_rdma.lab.guest import KVM_BROKEN, PORT_TAKEN, Guest
from pytest_rdma.lab.image import Image

BOOT_S = {"kvm": 10.0, "tcg": 90.0}
PORT_TRIES = 5


@dataclass
class Task:
    """What the supervisor is told by the process that starts it, as JSON in its argument."""

    directory: str
    image: str
    lock_fd: int
    timeout_scale: float = 1.0
    owner_fd: int | None = None
    listener_fd: int | None = None
    idle_limit_s: float = 0.0


class Supervisor:
    """Event loop over the guests' consoles and the clients' connections; every wait has a deadline."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.directory = Path(task.directory)
        self.image = Image(Path(task.image))
        self.selector = selectors.DefaultSelector()
        self.clients: list[socket.socket] = []
        self.notes: list[str] = []
        self.guests: dict[int, Guest] = {}
        self.wire: tuple[socket.socket, ...] = ()
        self.started = time.monotonic()
        self.state: dict[str, Any] | None = None
        self.ending: str | None = None
        self.owner: socket.socket | None = None
        self.listener: socket.socket | None = None

    def run(self) -> None:
        """Boot, serve, take down."""
        self._open()
        try:
            self._boot()
            self._serve()
        except RdmaEnvironmentError as error:
            self._tell({"error": str(error)})
        finally:
            self._close()

    def _open(self) -> None:
        wake, waker = socket.socketpair()
        waker.setblocking(False)
        self._waker = waker
        signal.set_wakeup_fd(waker.fileno())
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: None)
        self.selector.register(wake, selectors.EVENT_READ, lambda: self._end("a signal"))
        if self.task.owner_fd is not None:
            self.owner = socket.socket(fileno=self.task.owner_fd)
            self._add_client(self.owner)
        if self.task.listener_fd is not None:
            self.listener = socket.socket(fileno=self.task.listener_fd)
            self.listener.setblocking(False)
            self.selector.register(self.listener, selectors.EVENT_READ, self._accept)

    def _close(self) -> None:
        """Leave nothing behind, and let clients see the end only when that is so."""
        self._kill_guests()
        shutil.rmtree(self.directory, ignore_errors=True)
        if self.listener is not None:
            self.listener.close()
        os.close(self.task.lock_fd)
        for client in self.clients:
            client.close()

    def _end(self, reason: str) -> None:
        self.ending = reason

    # Booting

    def _boot(self) -> None:
        files.make_keys(self.directory)
        for number in files.GUESTS:
            files.write_initramfs(self.image.initramfs, self.directory, number)
        kinds = accel.candidates()
        for kind in kinds:
            self._note(f"lab: booting two guests ({accel.DESCRIPTION[kind]})")
            try:
                self._boot_with(kind)
            except RdmaEnvironmentError:
                if kind == kinds[-1] or self.ending:
                    raise
                self._note("lab: KVM is present here but does not boot a guest")
            else:
                if len(kinds) > 1:
                    accel.remember(kind)
                self._set_ready(kind)
                return

    def _note(self, text: str) -> None:
        self.notes.append(text)
        self._tell({"note": text})

    def _boot_with(self, kind: str) -> None:
        deadline = time.monotonic() + BOOT_S[kind] * self.task.timeout_scale
        self.wire = socket.socketpair()
        try:
            for number in files.GUESTS:
                self._start(number, kind)
            tries = PORT_TRIES
            while not all(guest.ready for guest in self.guests.values()):
                if self.ending:
                    raise RdmaEnvironmentError(f"the lab was taken down while it booted: {self.ending}")
                if time.monotonic() >= deadline:
                    waiting = next(guest for guest in self.guests.values() if not guest.ready)
                    raise waiting.failure(f"is not up after {BOOT_S[kind] * self.task.timeout_scale:g} s")
                self._dispatch(deadline)
                tries -= self._check_booting(kind, tries)
        except BaseException:
            self._kill_guests()
            raise

    def _check_booting(self, kind: str, tries: int) -> int:
        """Raise when a guest has failed; start it again, and return 1, when only its port was taken meanwhile."""
        for number, guest in list(self.guests.items()):
            ended = guest.process.poll() is not None
            if ended and PORT_TAKEN in guest.console and tries > 0:
                self._forget(guest)
                self._start(number, kind)
                return 1
            if ended:
                raise guest.failure(f"ended with status {guest.process.returncode} while booting")
            if KVM_BROKEN in guest.console:
                raise guest.failure("cannot run under KVM")
        return 0

    def _start(self, number: int, kind: str) -> None:
        wire = self.wire[files.GUESTS.index(number)]
        guest = Guest(self.image, self.directory, number, kind, wire.fileno())
        self.guests[number] = guest
        self.selector.register(guest.fd, selectors.EVENT_READ, lambda: self._console(guest))

    def _console(self, guest: Guest) -> None:
        if not guest.read_console():
            self.selector.unregister(guest.fd)
            guest.process.wait()

    def _forget(self, guest: Guest) -> None:
        with contextlib.suppress(KeyError):
            self.selector.unregister(guest.fd)
        guest.kill()

    def _kill_guests(self) -> None:
        for guest in self.guests.values():
            self._forget(guest)
        self.guests.clear()
        for end in self.wire:
            end.close()

    def _set_ready(self, kind: str) -> None:
        known_hosts = self.directory / "known_hosts"
        names = {number: [f"[127.0.0.1]:{guest.port}"] for number, guest in self.guests.items()}
        known_hosts.write_text(files.known_hosts(self.directory, names))
        self.state = {
            "accel": kind,
            "boot_s": round(time.monotonic() - self.started, 2),
            "started_at": time.time(),
            "directory": str(self.directory),
            "image": str(self.image.directory),
            "idle_limit_s": self.task.idle_limit_s,
            "supervisor_pid": os.getpid(),
            "guests": [
                {"number": number, "port": guest.port, "pid": guest.process.pid}
                for number, guest in self.guests.items()
            ],
        }
        self._tell({"state": self.state})

    # Serving

    def _serve(self) -> None:
        used = time.monotonic()
        limit = self.task.idle_limit_s
        ports = [guest.port for guest in self.guests.values()]
        while not self.ending:
            if not limit:
                self._dispatch(time.monotonic() + 3600)
            else:
                self._dispatch(time.monotonic() + min(usage.SAMPLE_S, limit / 4))
                if self.clients or usage.connections(ports):
                    used = time.monotonic()
                if time.monotonic() - used > limit:
                    self._end(f"idle for {limit:g} s")
            for guest in self.guests.values():
                if guest.process.poll() is not None:
                    shutil.copy(
                        self.directory / f"{guest.name}.console", files.console_of_the_dead(self.directory.parent)
                    )
                    raise guest.failure(f"ended with status {guest.process.returncode}")

    def _dispatch(self, deadline: float) -> None:
        for key, _ in self.selector.select(max(0.0, deadline - time.monotonic())):
            key.data()

    # Clients

    def _accept(self) -> None:
        assert self.listener is not None
        with contextlib.suppress(BlockingIOError):
            client, _ = self.listener.accept()
            self._add_client(client)

    def _add_client(self, client: socket.socket) -> None:
        client.setblocking(True)
        client.settimeout(5.0)
        self.clients.append(client)
        self.selector.register(client, selectors.EVENT_READ, lambda: self._hear(client))

    def _hear(self, client: socket.socket) -> None:
        try:
            words = client.recv(4096).decode(errors="replace").split()
        except OSError:
            words = []
        if not words:
            self._drop(client)
        for word in words:
            if word == "down":
                self._end("taken down")
            elif word == "state" and self.state is not None:
                self._send(client, {"state": self.state})
            elif word == "state" and client is not self.owner:
                for text in self.notes:
                    self._send(client, {"note": text})

    def _drop(self, client: socket.socket) -> None:
        if client not in self.clients:  # it hung up while it was being answered
            return
        self.selector.unregister(client)
        self.clients.remove(client)
        client.close()
        if client is self.owner:
            self._end("its owner is gone")

    def _tell(self, message: dict[str, Any]) -> None:
        for client in list(self.clients):
            self._send(client, message)

    def _send(self, client: socket.socket, message: dict[str, Any]) -> None:
        try:
            client.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            self._drop(client)


def argument(task: Task) -> str:
    """Return the task as the supervisor's command-line argument."""
    return json.dumps(asdict(task))


def main() -> None:
    """Run the supervisor on the task in the first argument."""
    Supervisor(Task(**json.loads(sys.argv[1]))).run()


if __name__ == "__main__":
    main()
