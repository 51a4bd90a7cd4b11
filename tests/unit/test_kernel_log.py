"""Lines of the kernel log: which mean harm, and which of those an emulated processor is excused for."""

from __future__ import annotations

import pytest

from pytest_rdma.kernel_log import harmful, parse_record

HARMFUL = (
    "BUG: unable to handle page fault for address: ffffc90000a0f000",
    "BUG: KASAN: slab-use-after-free in rxe_poll_cq+0x1a/0x40 [rdma_rxe]",
    "Oops: 0002 [#1] PREEMPT SMP NOPTI",
    "Oops: general protection fault, probably for non-canonical address 0xdead: 0000 [#1]",
    "Internal error: Oops: 0000000096000004 [#1] SMP",
    "WARNING: CPU: 0 PID: 312 at drivers/infiniband/sw/rxe/rxe_pool.c:115 rxe_pool_cleanup+0x41/0x50",
    "WARNING: possible circular locking dependency detected",
    "refcount_t: underflow; use-after-free.",
    "kernel BUG at mm/slub.c:435!",
    "list_del corruption, ffff888 is LIST_POISON1",
    "INFO: task python3:312 blocked for more than 120 seconds.",
    "unregister_netdevice: waiting for eth1 to become free. Usage count = 3",
    "watchdog: Watchdog detected hard LOCKUP on cpu 0".lower(),
    "Kernel panic - not syncing: Fatal exception",
)
BY_EMULATION = (
    "watchdog: BUG: soft lockup - CPU#0 stuck for 26s! [kworker/0:1:8]",
    "rcu: INFO: rcu_preempt self-detected stall on CPU",
    "rcu: INFO: rcu_sched detected stalls on CPUs/tasks:",
    "BUG: workqueue lockup - pool cpus=0 node=0 flags=0x0 nice=0 stuck for 31s!",
)
HARMLESS = (
    "rdma_rxe: loaded",
    "rxe0: rxe_cq_post: queue full",
    "warning: `prog' uses wireless extensions",
    "eth1: debugging is on",
    "systemd-journald[1]: /dev/kmsg buffer overrun, some messages lost.",
)


@pytest.mark.parametrize("line", HARMFUL)
def test_harm_is_harm_on_any_processor(line: str) -> None:
    assert harmful((line,), emulated=False) == harmful((line,), emulated=True) == [line]


@pytest.mark.parametrize("line", BY_EMULATION)
def test_an_emulated_processor_is_excused_for_its_slow_clock(line: str) -> None:
    assert harmful((line,), emulated=False) == [line]
    assert harmful((line,), emulated=True) == []


@pytest.mark.parametrize("line", HARMLESS)
def test_other_lines_are_harmless(line: str) -> None:
    assert harmful((line,), emulated=False) == []


def test_a_record_is_its_text_without_prefix_and_dictionary() -> None:
    record = b"4,1234,98765432,-,caller=T1;rxe0: a; b\n SUBSYSTEM=infiniband\n DEVICE=+infiniband:rxe0\n"
    assert parse_record(record) == "rxe0: a; b"
