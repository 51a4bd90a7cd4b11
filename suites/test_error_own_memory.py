"""Requests whose own memory is bad: the requester fails, before or after the wire, and touches nothing.

InfiniBand specification 1.4, volume 1: 10.6.3 (keys), 9.9.2 (requester side errors), 9.9.3 (responder side errors),
11.6.2 (completion return status).
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from trials import FAILED, FLUSH, MESSAGE_BYTES, NOTHING, UNTOUCHED, Trial, TrialFactory, failed

from pytest_rdma import Access, Opcode, RecvWR, Sge, WCStatus

OUTBOUND = {"send": Opcode.SEND, "write": Opcode.RDMA_WRITE, "write-imm": Opcode.RDMA_WRITE_WITH_IMM}
INBOUND = {
    "read": Opcode.RDMA_READ,
    "compare-swap": Opcode.ATOMIC_CMP_AND_SWP,
    "fetch-add": Opcode.ATOMIC_FETCH_AND_ADD,
}
ATOMICS = ("compare-swap", "fetch-add")
ALL = {**OUTBOUND, **INBOUND}

pytestmark = pytest.mark.rdma_caps(access=Access.ALL)


def bad_lkey(trial: Trial, sge: Sge) -> Sge:
    return replace(sge, lkey=sge.lkey ^ 0xFFFF00)


def beyond_the_end(trial: Trial, sge: Sge) -> Sge:
    return replace(sge, addr=trial.requester.buffer.addr + trial.requester.buffer.length - sge.length + 1)


def before_the_start(trial: Trial, sge: Sge) -> Sge:
    return replace(sge, addr=trial.requester.buffer.addr - 1)


def freed(trial: Trial, sge: Sge) -> Sge:
    region = trial.requester.host.mr(trial.requester.pd, 4096)
    region.close()
    return Sge(region.addr, sge.length, region.lkey)


def of_another_pd(trial: Trial, sge: Sge) -> Sge:
    return trial.bystander_beside(trial.requester).buffer.sge(0, sge.length)


FAULTS = {
    one.__name__.replace("_", "-"): one for one in (bad_lkey, beyond_the_end, before_the_start, freed, of_another_pd)
}


@pytest.mark.combined(fault=tuple(FAULTS), operation=tuple(ALL))
def test_own_memory_that_is_not_ours(trial: TrialFactory, fault: str, operation: str) -> None:
    """Verify: LOC_PROT_ERR and a flush here; the peer never hears of it."""
    made = trial()
    good = made.source(length=8 if operation in ATOMICS else MESSAGE_BYTES)
    made.break_with(made.one_sided(ALL[operation], sge=FAULTS[fault](made, good)))
    made.expect(f"own-memory.{fault}.{operation}", failed(WCStatus.LOC_PROT_ERR), NOTHING)


@pytest.mark.combined(operation=tuple(INBOUND))
def test_sink_without_local_write(trial: TrialFactory, operation: str) -> None:
    """A Read or atomic is answered, and its answer cannot be placed: LOC_PROT_ERR here, nothing at the peer."""
    made = trial()
    sink = made.memory_without_rights(made.requester)
    made.break_with(made.one_sided(INBOUND[operation], sge=sink.sge(0, 8)))
    made.expect(f"sink-without-local-write.{operation}", failed(WCStatus.LOC_PROT_ERR), NOTHING)


def receive_with_bad_lkey(trial: Trial) -> Sge:
    good = trial.responder.buffer.sge(0, MESSAGE_BYTES)
    return replace(good, lkey=good.lkey ^ 0xFFFF00)


def receive_beyond_the_end(trial: Trial) -> Sge:
    buffer = trial.responder.buffer
    return Sge(buffer.addr + buffer.length - MESSAGE_BYTES + 1, MESSAGE_BYTES, buffer.lkey)


def receive_freed(trial: Trial) -> Sge:
    region = trial.responder.host.mr(trial.responder.pd, 4096)
    region.close()
    return Sge(region.addr, MESSAGE_BYTES, region.lkey)


def receive_without_local_write(trial: Trial) -> Sge:
    return trial.memory_without_rights(trial.responder).sge(0, MESSAGE_BYTES)


RECEIVES = {
    "bad-lkey": receive_with_bad_lkey,
    "beyond-the-end": receive_beyond_the_end,
    "freed": receive_freed,
    "without-local-write": receive_without_local_write,
}


@pytest.mark.combined(fault=tuple(RECEIVES))
def test_receive_into_bad_memory(trial: TrialFactory, fault: str) -> None:
    """Verify: LOC_PROT_ERR at the receive that took the message and a flush after it; REM_OP_ERR at the sender."""
    made = trial()
    made.passive.recv(RecvWR((RECEIVES[fault](made),)), RecvWR((made.responder.buffer.sge(0, MESSAGE_BYTES),)))
    made.post_receives(made.active)
    made.active.send(made.message(), made.message())
    made.expect(
        f"receive.{fault}",
        failed(WCStatus.REM_OP_ERR),
        FAILED.with_(recvs=(WCStatus.LOC_PROT_ERR, FLUSH)),
    )


@pytest.mark.combined(message_bytes=(MESSAGE_BYTES + 1, 9000))
def test_message_longer_than_the_receive(trial: TrialFactory, message_bytes: int) -> None:
    """Verify: LOC_LEN_ERR at the receive, REM_INV_REQ_ERR at the sender, and nothing beyond the receive is written."""
    made = trial()
    sink = made.responder.buffer
    made.passive.recv(RecvWR((sink.sge(0, MESSAGE_BYTES),)), RecvWR((sink.sge(0, MESSAGE_BYTES),)))
    made.post_receives(made.active)
    made.active.send(made.message(made.source(length=message_bytes)), made.message())
    made.expect(
        "message-longer-than-receive",
        failed(WCStatus.REM_INV_REQ_ERR),
        FAILED.with_(recvs=(WCStatus.LOC_LEN_ERR, FLUSH)),
        untouched=False,
    )
    sink.check_untouched(UNTOUCHED, 1024)
