"""What a test between two hosts costs the controller, beside one `ssh host2 true` from there: both in one run.

    python benchmarks/two_host_pair.py [rounds]

Uses the lab that is up, or boots one. The test: a pair made, connected, one echo, closed.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from pytest_rdma.host import Host
from pytest_rdma.lab import obtain
from pytest_rdma.lab.ssh_command import ssh_command
from pytest_rdma.pairing import Pair
from pytest_rdma.rail import Rail, choose_rail
from pytest_rdma.remote import RemoteHost
from pytest_rdma.session import lab_target

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "verbs"))
import calls

PAIRS_A_ROUND = 5


def timed(run: Callable[[], object]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def two_host_test(local: Host, peer: Host, rail: Rail) -> None:
    pair = Pair.create(local, peer, rail)
    pair.connect({"local": {"rnr_retry": 7}})  # the message may come before the echo's receive is posted
    echoing = peer.submit_call(calls.answer, pair.peer)
    assert local.call(calls.ask, pair.local, b"echo") == b"echo"
    echoing.result()
    pair.close()


def main(rounds: int = 15) -> None:
    with obtain(print) as lab:
        local, peer = (RemoteHost(lab_target(host), timeout_scale=lab.timeout_scale) for host in lab.hosts)
        for host in (local, peer):
            host.open()
        rail = choose_rail(local.devices(), peer.devices(), same_host=False, names=(local.name, peer.name))
        two_host_test(local, peer, rail)
        trips = peer.round_trips
        two_host_test(local, peer, rail)
        trips = peer.round_trips - trips
        login = [*ssh_command(lab.hosts[1]), "true"]
        pairs_s, logins_s = [], []
        for _ in range(rounds):
            pairs_s += [timed(lambda: two_host_test(local, peer, rail)) for _ in range(PAIRS_A_ROUND)]
            logins_s.append(timed(lambda: subprocess.run(login, check=True, stdin=subprocess.DEVNULL)))
        for host in (local, peer):
            host.close()
    pair_s, login_s = statistics.median(pairs_s), statistics.median(logins_s)
    print(
        f"two-host test (pair, connect, echo, close): median {pair_s * 1e3:.1f} ms of {len(pairs_s)}, {trips} requests"
    )
    print(f"ssh host2 true:                             median {login_s * 1e3:.1f} ms of {len(logins_s)}")
    print(f"ratio: 1/{login_s / pair_s:.1f} (aim: at most 1/20), accelerator {lab.accel}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
