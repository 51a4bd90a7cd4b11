"""What Ctrl-C interrupts in `test_ctrl_c.py`: tests that wait, and say when they do and when they did no longer."""

from __future__ import annotations

import json
import statistics
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


def users(endpoint: Endpoint) -> int:
    """Return how many native calls work on the QP."""
    count: int = endpoint.host.entry("qp", endpoint.handle).in_use._users
    return count


def nothing() -> None:
    pass


def round_trip_s(host: Host) -> float:
    def once() -> float:
        began = time.monotonic()
        host.call(nothing)
        return time.monotonic() - began

    return statistics.median(once() for _ in range(ROUND_TRIPS))


@contextmanager
def interrupted(pair: Pair, under_way: Callable[[], bool]) -> Iterator[None]:
    """Write `ready` once it is under way; when it ends, write when, and whether a loop still works on either QP."""
    hosts = [end.host for end in pair.ends]
    trip_s = max(round_trip_s(host) for host in hosts)

    def watch() -> None:
        end = time.monotonic() + LONG_S
        while not under_way() and time.monotonic() < end:
            pass
        Path("ready").touch()

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        yield
    finally:
        ended = time.monotonic()
        watching.join()
        facts: dict[str, Any] = {"ended": ended, "round_trip_s": trip_s, "pids": [host.info.pid for host in hosts]}
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
