"""The far side: reads requests from the controller, runs them on a LocalHost of its own, writes back what came of them.

The main thread only reads, so that a cancel is always heard; ops run in worker threads and are answered in the order
in which they end. Replies and the heartbeat of the native helper share one writer.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import json
import os
import signal
import sys
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from pytest_rdma import __version__, native, wire
from pytest_rdma.deadline import Deadline, StopFlag
from pytest_rdma.errors import RdmaError, to_plain
from pytest_rdma.host import LocalHost
from pytest_rdma.verbs_library import pyverbs

CHUNK_BYTES = 65536  # what a pipe holds; for more, os.read maps and unmaps a buffer each time
WORKERS = 64
WRITE_TIMEOUT_S = 60.0
CLEANUP_S = 5.0
PR_SET_PDEATHSIG = 1


def main(helper: bytes, settings: bytes) -> None:
    """Serve until the controller closes the stream; never returns."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    die_with_session()
    faulthandler.register(signal.SIGUSR1, file=sys.stderr)
    requests, replies = take_stream()
    wanted = json.loads(settings)
    try:
        pyverbs()
        writer = native.install(helper or None).writer(replies)
    except RdmaError as error:
        refuse(replies, error)
    host = LocalHost(wanted["name"], timeout_scale=wanted["timeout_scale"])
    agent = Agent(host, writer)
    try:
        agent.greet()
        writer.start_heartbeat(wanted["beat_ms"], wanted["orphan_s"])
        agent.serve(requests)
    except Exception:
        traceback.print_exc()  # `end` returns to nobody who would
    finally:
        agent.end()


def die_with_session() -> None:
    """Ask the kernel to end this process with the SSH session that is its parent.

    Only there: the signal comes when the *thread* ends that started us, and a controller may start us from one that
    does not live long.
    """
    parent = os.getppid()
    try:
        command = Path(f"/proc/{parent}/comm").read_text()
    except OSError:
        return
    if not command.startswith(("sshd", "dropbear")):
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit(0)


def take_stream() -> tuple[int, int]:
    """Move the stream away from descriptors 0 and 1, where C libraries and children would write into it."""
    requests, replies = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    return requests, replies


def refuse(replies: int, error: RdmaError) -> None:
    """Say why there will be no agent, and end."""
    refusal = {"t": "refused", "protocol": wire.PROTOCOL, "version": __version__, "error": to_plain(error)}
    with open(replies, "wb") as file:
        file.write(wire.frame(json.dumps(refusal, default=repr).encode()))
    sys.exit(0)


class Agent:
    """Requests in, replies out."""

    def __init__(self, host: LocalHost, writer: native.FrameWriter) -> None:
        self.host = host
        self._writer = writer
        self._workers = ThreadPoolExecutor(WORKERS, "rdma op")
        self._stops: dict[int, StopFlag] = {}

    def greet(self) -> None:
        info = {name: getattr(self.host.info, name) for name in type(self.host.info).__dataclass_fields__}
        hello = {"t": "hello", "protocol": wire.PROTOCOL, "version": __version__, "info": info}
        self._write(json.dumps(hello).encode())

    def serve(self, requests: int) -> None:
        """Read requests until the stream ends."""
        reader = wire.FrameReader("the controller")
        while True:
            data = os.read(requests, CHUNK_BYTES)
            if not data:
                return
            for frame in reader.feed(data):
                self._dispatch(frame)

    def end(self) -> None:
        """Stop what runs, destroy all objects, and end the process, at the latest after `CLEANUP_S`, scaled."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the end of the stream and of the session come together
        last = threading.Timer(CLEANUP_S * self.host.timeout_scale, os._exit, (1,))
        last.daemon = True
        last.start()
        for stop in list(self._stops.values()):
            stop.set()
        try:
            self.host.close()
        finally:
            sys.stderr.flush()
            os._exit(0)

    def _dispatch(self, frame: bytes) -> None:
        try:
            request = wire.decode(frame, self.host)
        except RdmaError as error:  # a handle that is closed, say: the answer to this request, no more
            self._write(self._error(json.loads(frame)["id"], error))
            return
        if request["t"] == "call":
            stop = self._stops[request["id"]] = StopFlag()
            self._workers.submit(self._run, request, Deadline(request["timeout_s"], stop))
        elif request["t"] == "cancel" and request["id"] in self._stops:
            self._stops[request["id"]].set()

    def _run(self, request: dict[str, Any], deadline: Deadline) -> None:
        number = request["id"]
        slot = self._writer.begin_call(number)
        try:
            value = self.host.run_op(request["op"], deadline, tuple(request["args"]))
            reply = wire.encode({"t": "result", "id": number, "value": value}, self.host)
        except BaseException as error:  # whatever it is, it is the answer
            reply = self._error(number, error)
        finally:
            self._writer.end_call(slot)
            self._stops.pop(number, None)
        self._write(reply)

    def _error(self, number: int, error: BaseException) -> bytes:
        plain = to_plain(error)
        try:
            return wire.encode({"t": "error", "id": number, "error": plain}, self.host)
        except RdmaError:  # a field that cannot cross must not hide the error that carries it
            plain["fields"] = {}
            return wire.encode({"t": "error", "id": number, "error": plain}, self.host)

    def _write(self, frame: bytes) -> None:
        with contextlib.suppress(BrokenPipeError):  # the reader of requests hears of the end of the stream
            self._writer.write(frame, time.monotonic_ns() + int(WRITE_TIMEOUT_S * 1e9))
