"""Requests for memory that the peer does not offer: a wrong key, a wrong address, an MR that does not allow it.

The responder checks key, range and access before it touches a byte, says NAK with Remote Access Error, and its QP is in
error too. InfiniBand specification 1.4, volume 1: 9.7.4.1.6 (R_Key), 9.9.3 (responder error behaviour, class C),
11.6.3.1 (affiliated asynchronous errors).
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from trials import FAILED, Trial, TrialFactory, failed

from pytest_rdma import Access, Opcode, SendWR, WCStatus

OPERATIONS = {
    "write": (Opcode.RDMA_WRITE, Access.REMOTE_WRITE),
    "write-imm": (Opcode.RDMA_WRITE_WITH_IMM, Access.REMOTE_WRITE),
    "read": (Opcode.RDMA_READ, Access.REMOTE_READ),
    "compare-swap": (Opcode.ATOMIC_CMP_AND_SWP, Access.REMOTE_ATOMIC),
    "fetch-add": (Opcode.ATOMIC_FETCH_AND_ADD, Access.REMOTE_ATOMIC),
}
REFUSED = failed(WCStatus.REM_ACCESS_ERR)
VIOLATED = FAILED.with_(events=("QP_ACCESS_ERR",))


@pytest.mark.combined(operation=tuple(OPERATIONS))
def test_mr_without_the_access(trial: TrialFactory, operation: str) -> None:
    """The peer's MR allows everything but this operation; its QP allows all."""
    opcode, needed = OPERATIONS[operation]
    made = trial(access=Access.ALL & ~needed, qp_access=Access.ALL)
    made.break_with(made.one_sided(opcode))
    made.expect(f"peer-mr-without-access.{operation}", REFUSED, VIOLATED)


def bad(trial: Trial, good: SendWR) -> SendWR:
    return replace(good, rkey=good.rkey ^ 0xFFFF00)


def byte_swapped(trial: Trial, good: SendWR) -> SendWR:
    return replace(good, rkey=int.from_bytes(good.rkey.to_bytes(4, "little"), "big"))


def zero(trial: Trial, good: SendWR) -> SendWR:
    return replace(good, rkey=0)


def stale(trial: Trial, good: SendWR) -> SendWR:
    region = trial.responder.host.mr(trial.responder.pd, 4096, Access.ALL)
    region.close()
    return replace(good, rkey=region.rkey, remote_addr=region.addr)


def off_by_one_bit(trial: Trial, good: SendWR) -> SendWR:
    return replace(good, rkey=good.rkey ^ 1)


def of_another_pd(trial: Trial, good: SendWR) -> SendWR:
    other = trial.bystander_beside(trial.responder).buffer
    return replace(good, rkey=other.rkey, remote_addr=other.addr)


def one_before_the_start(trial: Trial, good: SendWR) -> SendWR:
    return replace(good, remote_addr=trial.responder.buffer.addr - 1)


def one_beyond_the_end(trial: Trial, good: SendWR) -> SendWR:
    buffer = trial.responder.buffer
    return replace(good, remote_addr=buffer.addr + buffer.length - good.sges[0].length + 1)


def without_upper_32_bits(trial: Trial, good: SendWR) -> SendWR:
    return replace(good, remote_addr=good.remote_addr & 0xFFFFFFFF)


FAULTS = {
    one.__name__.replace("_", "-"): one
    for one in (
        bad,
        byte_swapped,
        zero,
        stale,
        off_by_one_bit,
        of_another_pd,
        one_before_the_start,
        one_beyond_the_end,
        without_upper_32_bits,
    )
}


@pytest.mark.combined(fault=tuple(FAULTS), operation=("write", "read"))
def test_wrong_key_or_address(trial: TrialFactory, fault: str, operation: str) -> None:
    """Verify: REM_ACCESS_ERR and a flush at the requester, the responder's QP in ERR, and not a byte changed."""
    made = trial()
    made.break_with(FAULTS[fault](made, made.one_sided(OPERATIONS[operation][0])))
    made.expect(f"peer-memory.{fault}.{operation}", REFUSED, VIOLATED)


@pytest.mark.combined(fault=("bad", "of-another-pd"), operation=("compare-swap", "fetch-add"))
@pytest.mark.rdma_requires("atomics")
@pytest.mark.rdma_caps(access=Access.ALL)
def test_atomic_with_wrong_key(trial: TrialFactory, fault: str, operation: str) -> None:
    """Verify: as for a Write, and the word at the peer is what it was."""
    made = trial()
    made.break_with(FAULTS[fault](made, made.one_sided(OPERATIONS[operation][0], compare_add=1)))
    made.expect(f"peer-memory.{fault}.{operation}", REFUSED, VIOLATED)
