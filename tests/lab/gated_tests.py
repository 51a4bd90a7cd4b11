"""Tests that leave things behind or harm a host, each followed by one that must be green; `test_gates` runs them."""

from __future__ import annotations

import os
import secrets
import signal
from typing import TYPE_CHECKING

import pytest

from pytest_rdma import Host, Pair, cm

if TYPE_CHECKING:  # functions of this module go to a host, which has not all of these
    from collections.abc import Callable, Iterator

    from pytest_rdma.endpoint import PD, Endpoint
    from pytest_rdma.session import DeviceContext

ADDRESS = "10.99.0.1"
PEER_ADDRESS = "10.99.0.2"
TOKEN = secrets.token_hex(8)


def keep_objects() -> None:
    import builtins

    from pyverbs.device import Context
    from pyverbs.pd import PD

    context = Context(name="rxe0")
    builtins.kept = [*getattr(builtins, "kept", ()), context, PD(context)]  # type: ignore[attr-defined]


def keep_context() -> None:
    import builtins

    from pyverbs.device import Context

    builtins.kept = [*getattr(builtins, "kept", ()), Context(name="rxe0")]  # type: ignore[attr-defined]


def listen_by_pyverbs(address: str) -> None:
    from pyverbs import cm_enums
    from pyverbs.cmid import CMID, AddrInfo

    passive = AddrInfo(src=address, src_service="7471", port_space=cm_enums.RDMA_PS_TCP, flags=cm_enums.RAI_PASSIVE)
    listener = CMID(creator=passive)
    listener.listen()
    listener.close()


def stop_this_process() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def wait_until_stopped(pid: int) -> None:
    import time
    from pathlib import Path

    until = time.monotonic() + 5
    while Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "T":
        assert time.monotonic() < until
        time.sleep(0.01)


def keep_descriptor() -> int:
    import os

    return os.open("/etc/hostname", os.O_RDONLY)


def keep_locked_memory() -> None:
    import builtins
    import ctypes

    memory = ctypes.create_string_buffer(1 << 16)
    assert ctypes.CDLL(None).mlock(memory, len(memory)) == 0
    builtins.locked = memory  # type: ignore[attr-defined]


def test_rdma_cm_by_pyverbs(rdma_peer: Host) -> None:
    rdma_peer.call(listen_by_pyverbs, PEER_ADDRESS)


def test_rdma_cm_by_pyverbs_again(rdma_peer: Host) -> None:
    rdma_peer.call(listen_by_pyverbs, PEER_ADDRESS)


def test_context(rdma_local: Host) -> None:
    rdma_local.call(keep_context)


def test_qp(rdma_context: DeviceContext) -> None:
    rdma_context.endpoint()


def test_after_qp(rdma_pair: Pair) -> None:
    pass


def test_mr(rdma_local: Host, rdma_pd: PD) -> None:
    rdma_local.mr(rdma_pd, 8192)


def test_after_mr(rdma_pair: Pair) -> None:
    pass


def test_mr_that_goes_with_the_pair(rdma_pair: Pair) -> None:
    rdma_pair.peer.host.mr(rdma_pair.peer.pd, 8192)


def test_cq(rdma_peer: Host) -> None:
    rdma_peer.cq("rxe0", events=True)


def test_after_cq(rdma_pair: Pair) -> None:
    pass


def test_pd(rdma_peer: Host) -> None:
    rdma_peer.pd("rxe0")


def test_after_pd(rdma_pair: Pair) -> None:
    pass


def test_objects_without_handles(rdma_peer: Host) -> None:
    rdma_peer.call(keep_objects)


def test_after_objects_without_handles(rdma_pair: Pair) -> None:
    pass


def test_descriptor(rdma_peer: Host) -> None:
    rdma_peer.call(keep_descriptor)


def test_after_descriptor(rdma_pair: Pair) -> None:
    pass


def test_locked_memory(rdma_local: Host) -> None:
    rdma_local.call(keep_locked_memory)


def test_after_locked_memory(rdma_pair: Pair) -> None:
    pass


def test_cm_id(rdma_local: Host) -> None:
    cm.listen(rdma_local, ADDRESS)


def test_after_cm_id(rdma_cm_pair: cm.CMPair) -> None:
    pass


def test_program(rdma_local: Host) -> None:
    rdma_local.start(["sleep", "600"])


def test_after_program(rdma_cm_pair: cm.CMPair) -> None:
    pass


def test_fails_and_leaves_a_pd(rdma_peer: Host) -> None:
    rdma_peer.pd("rxe0")
    raise AssertionError("the test's own failure")


def test_after_failure(rdma_pair: Pair) -> None:
    pass


def test_kernel_log(rdma_peer: Host) -> None:
    rdma_peer.run(["sh", "-c", "echo 'BUG: unable to handle page fault for address: 0' > /dev/kmsg"])


def test_kernel_log_that_goes_on(rdma_peer: Host) -> None:
    lines = "echo 'kernel BUG at mm/slub.c:435!'; for i in $(seq 500); do echo $i; done"
    rdma_peer.run(["sh", "-c", f'{{ {lines}; }} | while read -r line; do echo "$line" > /dev/kmsg; done'])


def test_soft_lockup_of_an_emulated_processor(rdma_peer: Host) -> None:
    rdma_peer.run(["sh", "-c", "echo 'watchdog: BUG: soft lockup - CPU#0 stuck for 26s!' > /dev/kmsg"])


@pytest.fixture(scope="module")
def lasting(rdma_peer: Host) -> Endpoint:
    return rdma_peer.endpoint("rxe0", 1, 1)


def test_wider_fixture(rdma_pair: Pair, lasting: Endpoint) -> None:
    pass


def test_wider_fixture_again(rdma_pair: Pair, lasting: Endpoint) -> None:
    pass


@pytest.mark.rdma_counters(rnr_naks=0)
def test_rnr_naks(rdma_local: Host, rdma_pairs: Callable[..., Pair]) -> None:
    pair = rdma_pairs(connect=False)
    pair.connect(overrides={"local": {"rnr_retry": 7}})
    sent = pair.local.send(length=8)
    while not nak_came(rdma_local):
        pass
    pair.peer.post_recv()
    pair.local.wait(sent)


def nak_came(host: Host) -> bool:
    counter = "/sys/class/infiniband/rxe0/ports/1/hw_counters/rcvd_rnr_err"
    before = getattr(nak_came, "before", None)
    now = host.run(["cat", counter]).stdout
    nak_came.before = before or now  # type: ignore[attr-defined]
    return before is not None and now != before


@pytest.mark.rdma_counters(rnr_naks=0, out_of_sequence=0)
def test_no_rnr_naks(rdma_pair: Pair) -> None:
    rdma_pair.local.wait(rdma_pair.local.write(length=8))


def test_before_short(rdma_local: Host) -> None:
    rdma_local.run(["sh", "-c", f"echo {TOKEN} > /dev/kmsg"])


@pytest.mark.parametrize("number", range(30))
def test_short(rdma_local: Host, number: int) -> None:
    pass


def test_after_short(rdma_local: Host) -> None:
    log = rdma_local.run(["dmesg"]).stdout.decode(errors="replace").partition(TOKEN)[2].splitlines()
    marks = [line.rpartition("::")[2] for line in log if "pytest-rdma: " in line]
    assert list(dict.fromkeys(marks)) == [*(f"test_short[{number}]" for number in range(30)), "test_after_short"]


def test_spawned_agent(rdma_peer: Host) -> None:
    rdma_peer.spawn()


@pytest.fixture(scope="module")
def spawned(rdma_peer: Host) -> Iterator[Host]:
    host = rdma_peer.spawn()
    yield host
    host.close()


def test_spawned_by_a_wider_fixture(spawned: Host) -> None:
    spawned.pd("rxe0").close()


def test_pd_of_a_spawned_agent(spawned: Host) -> None:
    spawned.pd("rxe0")


def test_after_pd_of_a_spawned_agent(spawned: Host) -> None:
    spawned.pd("rxe0").close()


def test_agent_that_is_lost_in_the_look(rdma_peer: Host) -> None:
    other = rdma_peer.spawn()
    rdma_peer.submit_call(stop_this_process)
    other.call(wait_until_stopped, rdma_peer.info.pid)
    other.close()


def test_after_loss(rdma_pair: Pair) -> None:
    pass


@pytest.mark.rdma_counters(rnr_nacks=0)
def test_unknown_counter(rdma_pair: Pair) -> None:
    raise AssertionError("ran")
