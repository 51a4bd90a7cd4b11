"""A diagnosis is right on other transports, link layers, queues and drivers than those of the lab, too."""

from __future__ import annotations

import pytest
from evidence_builders import (
    ledger,
    qp,
    receive,
    send,
    waiting,
)

from pytest_rdma.diagnosis import Cause, diagnose
from pytest_rdma.evidence import Evidence
from pytest_rdma.model import EndpointCaps, Opcode
from pytest_rdma.status import WCStatus

S = WCStatus
SEND = Opcode.SEND


def names(found: list[Cause]) -> list[str]:
    return [cause.name for cause in found]


# -- transports


@pytest.mark.parametrize("transport", ["UD", "UC"])
def test_nothing_is_said_of_answers_that_a_transport_does_not_give(transport: str) -> None:
    """ibv_query_qp tells no number of a peer and no time-out of such a QP."""
    caps = EndpointCaps(transport=transport)
    untold = {"dest_qp_num": 0, "timeout": 0, "retry_cnt": 0}
    local = qp("host1", caps=caps, attributes=untold, sends=ledger(send(SEND)), awaited_wr_ids=(1,))
    assert diagnose(waiting(local, qp("host2", caps=caps))) == []


def datagrams(sent: int, came: int) -> Evidence:
    caps = EndpointCaps(transport="UD")
    local = qp("host1", caps=caps, recvs=ledger(receive(), posted=came + 1, completed=came))
    return waiting(local, qp("host2", caps=caps, sends=ledger(posted=sent, completed=sent)))


def test_a_datagram_that_was_sent_and_did_not_arrive_is_counted() -> None:
    (cause,) = diagnose(datagrams(3, 2))
    assert (cause.name, cause.certain) == ("datagram-lost", False)
    assert "QP 0x12 on host2 has sent 3 over UD, and 2 arrived" in cause.headline
    assert "40 bytes more" in cause.next_step
    assert names(diagnose(datagrams(2, 2))) == ["peer-sent-nothing"]
