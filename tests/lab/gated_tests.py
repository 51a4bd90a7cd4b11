"""Tests that leave things behind or harm a host, each followed by one that must be green; `test_gates` runs them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_rdma import Host, Pair, cm

if TYPE_CHECKING:  # functions of this module go to a host, which has not all of these
    from collections.abc import Callable

    from pytest_rdma.endpoint import PD, Endpoint
    from pytest_rdma.session import DeviceContext

ADDRESS = "10.99.0.1"


def keep_objects() -> None:
    import builtins

    from pyverbs.device import Context
    from pyverbs.pd import PD

    context = Context(name="rxe0")
    builtins.kept = [*getattr(builtins, "kept", ()), context, PD(context)]  # type: ignore[attr-defined]


def keep_descriptor() -> int:
    import os

    return os.open("/etc/hostname", os.O_RDONLY)


def keep_locked_memory() -> None:
    import builtins
    import ctypes

    memory = ctypes.create_string_buffer(1 << 16)
    assert ctypes.CDLL(None).mlock(memory, len(memory)) == 0
    builtins.locked = memory  # type: ignore[attr-defined]


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


def test_marks_the_log(rdma_local: Host) -> None:
    assert b"pytest-rdma: " in rdma_local.run(["sh", "-c", "dmesg | tail -20"]).stdout


@pytest.mark.rdma_counters(rnr_nacks=0)
def test_unknown_counter(rdma_pair: Pair) -> None:
    raise AssertionError("ran")
