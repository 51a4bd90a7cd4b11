"""What a message connection in Python costs beside a raw pipeline of the same sends, on the same pair, in turn.

    python benchmarks/message_cost.py [rounds]

Uses the lab that is up, or boots one. The connection has headers, credits and a copy of each message; the pipeline
posts the same number of bytes and no more.
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path

from pytest_rdma import EndpointCaps, Pair, Pipeline, run_pairs
from pytest_rdma.lab import obtain
from pytest_rdma.rail import choose_rail
from pytest_rdma.remote import RemoteHost
from pytest_rdma.session import lab_target

sys.path.insert(0, str(Path(__file__).parents[1] / "suites"))
import message_connection as messages

DEPTH, COUNT = 16, 400
FRAMES = (64, 1024, 16384)
SLOTS = DEPTH + messages.CONTROL_SLOTS


def by_connection(pair: Pair, frame_bytes: int) -> float:
    """Return the messages a second of one frame each."""
    for end in (pair.local, pair.peer):
        end.host.call(messages.open_connection, end, DEPTH, frame_bytes)
    sizes = [frame_bytes - messages.HEADER.size] * COUNT
    receiving = pair.peer.host.submit_call(messages.receive_timed, pair.peer, COUNT)
    pair.local.host.call(messages.send_messages, pair.local, 1, sizes)
    seconds: float = receiving.result()
    for end in (pair.local, pair.peer):
        end.host.call(messages.drop_connection, end)
    pair.reconnect()
    return (COUNT - 1) / seconds


def by_pipeline(pair: Pair, frame_bytes: int) -> float:
    done = run_pairs(pair, Pipeline(size_bytes=frame_bytes, iterations=COUNT, depth=DEPTH))
    return done.active.messages_per_second


def main(rounds: int = 5) -> None:
    with obtain(print) as lab:
        local, peer = (RemoteHost(lab_target(host), timeout_scale=lab.timeout_scale) for host in lab.hosts)
        for host in (local, peer):
            host.open()
        rail = choose_rail(local.devices(), peer.devices(), same_host=False, names=(local.name, peer.name))
        caps = EndpointCaps(send_depth=SLOTS, recv_depth=SLOTS, buffer_bytes=2 * SLOTS * max(FRAMES))
        pair = Pair.create(local, peer, rail, caps)
        pair.connect()
        print(f"messages a second, {COUNT} messages of one frame, depth {DEPTH}, medians of {rounds} rounds in turn")
        print(f"{'frame':>8} {'connection':>12} {'pipeline':>12} {'ratio':>8}")
        for frame_bytes in FRAMES:
            rounds_of_both = [(by_connection(pair, frame_bytes), by_pipeline(pair, frame_bytes)) for _ in range(rounds)]
            connection, pipeline = (statistics.median(rates) for rates in zip(*rounds_of_both))
            print(f"{frame_bytes:>8} {connection:>12.1f} {pipeline:>12.1f} {pipeline / connection:>7.1f}x")
        pair.close()
        for host in (local, peer):
            host.close()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
