"""What Ctrl-C interrupts in `test_ctrl_c.py`: tests that wait, and say when they do and when they did no longer."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pytest_rdma import Endpoint, Host, Opcode, Pair, PingPong, Pipeline, RecvDrain, run_pairs
from pytest_rdma.cm import dial, fabric_address, listen

ROUND_TRIPS = 10
LONG_S = 100.0
BETWEEN_S = 0.05


def users(endpoint: Endpoint) -> int:
    """Return how many native calls work on the QP."""
    count: int = endpoint.host.entry("qp", endpoint.handle).in_use._users
    return count


def nothing() -> None:
    pass


def round_trip_s(host: Host) -> float:
    """Return how long a call takes at the most."""

    def once() -> float:
        began = time.monotonic()
        host.call(nothing)
        return time.monotonic() - began

    return max(once() for _ in range(ROUND_TRIPS))


@contextmanager
def interrupted(pair: Pair, under_way: Callable[[], bool]) -> Iterator[None]:
    """Write `ready` once it is under way; when it ends, write when, and whether a loop still works on either QP.

    A round trip is measured while it runs: loops that never rest leave the machine little for anything else.
    """
    hosts = [end.host for end in pair.ends]
    trips_s: list[float] = []
    for host in hosts:
        host.call(nothing)  # the first call takes our source there
    over = threading.Event()

    def watch() -> None:
        while not over.wait(BETWEEN_S) and not under_way():  # calls without a rest would keep the loops from their CPU
            pass
        if not over.is_set():
            trips_s.extend(round_trip_s(host) for host in hosts)
            Path("ready").touch()

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        yield
    finally:
        ended = time.monotonic()
        over.set()
        watching.join()
        pids = [host.info.pid for host in hosts]
        facts: dict[str, Any] = {"ended": ended, "round_trip_s": max(trips_s), "pids": pids}
        facts["users"] = [end.host.call(users, end) for end in pair.ends]
        Path("facts").write_text(json.dumps(facts))


def both_run(pair: Pair) -> Callable[[], bool]:
    return lambda: all(end.host.call(users, end) for end in pair.ends)


def local_runs(pair: Pair) -> Callable[[], bool]:
    return lambda: bool(pair.local.host.call(users, pair.local))


def asked(host: Host) -> Callable[[], bool]:
    """The main thread goes on to its call as soon as it can; after round trips of ours that call is waited for."""
    return lambda: round_trip_s(host) > 0


def test_sends_both_ways(rdma_pair: Pair) -> None:
    specs = [Pipeline(size_bytes=1024, duration_s=LONG_S), RecvDrain(1024)]
    with interrupted(rdma_pair, both_run(rdma_pair)):
        run_pairs(rdma_pair, specs, specs, timeout_s=2 * LONG_S)


def test_large_writes(rdma_pair: Pair) -> None:
    with interrupted(rdma_pair, local_runs(rdma_pair)):
        run_pairs(rdma_pair, Pipeline(Opcode.RDMA_WRITE, 65536, duration_s=LONG_S), timeout_s=2 * LONG_S)


def test_ping_pong_by_write(rdma_pair: Pair) -> None:
    with interrupted(rdma_pair, both_run(rdma_pair)):
        run_pairs(rdma_pair, PingPong(Opcode.RDMA_WRITE, 8, duration_s=LONG_S), timeout_s=2 * LONG_S)


def test_wait(rdma_pair: Pair) -> None:
    with interrupted(rdma_pair, asked(rdma_pair.local.host)):
        rdma_pair.local.wait(rdma_pair.local.post_recv(), timeout_s=LONG_S)


def test_poll(rdma_pair: Pair) -> None:
    with interrupted(rdma_pair, asked(rdma_pair.peer.host)):
        rdma_pair.peer.poll(timeout_s=LONG_S)


def test_program(rdma_pair: Pair, rdma_local: Host) -> None:
    with interrupted(rdma_pair, asked(rdma_local)):
        rdma_local.run(["sleep", "1234"], timeout_s=LONG_S)


def test_cm_connect(rdma_pairs: Callable[..., Pair]) -> None:
    """Somebody listens, and nobody accepts."""
    pair = rdma_pairs(connect=False)
    listener = listen(pair.peer.host, fabric_address(pair.peer))
    with interrupted(pair, asked(pair.local.host)):
        dial(pair.local, listener.address, listener.port, timeout_s=LONG_S)
