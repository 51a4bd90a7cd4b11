"""A diagnosis is right on other transports, link layers, queues and drivers than those of the lab, too."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from evidence_builders import (
    ADDR,
    GID,
    KEY,
    LENGTH,
    completion,
    device,
    evidence,
    failed,
    failure,
    host,
    ledger,
    names,
    port,
    qp,
    receive,
    record,
    region,
    send,
    waiting,
)

from pytest_rdma.deadline import Deadline
from pytest_rdma.diagnosis import Cause, diagnose
from pytest_rdma.evidence import Evidence
from pytest_rdma.host import LocalHost
from pytest_rdma.ledger import Ledger
from pytest_rdma.model import Access, AsyncEvent, EndpointCaps, GidRow, Opcode, QPState, RecvWR, SendWR, Sge, WCOpcode
from pytest_rdma.status import WCStatus
from pytest_rdma.verbs_device import _provider
from pytest_rdma.verbs_evidence import op_collect

S = WCStatus
SEND = Opcode.SEND


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
    assert (cause.name, cause.certain) == ("message-lost", False)
    assert "QP 0x12 on host2 has sent 3 over UD, and 2 arrived" in cause.headline
    assert "40 bytes more" in cause.next_step
    assert names(diagnose(datagrams(2, 2))) == ["peer-sent-nothing"]


def test_a_write_over_uc_that_takes_no_receive_is_not_lost() -> None:
    found = datagrams(3, 2)
    done = (completion(0, WCOpcode.RDMA_WRITE), completion(0, WCOpcode.SEND))
    wrote = replace(found.peer.qps[0], recent=done, caps=EndpointCaps(transport="UC"))
    mine = replace(found.local.qps[0], caps=EndpointCaps(transport="UC"))
    assert names(diagnose(waiting(mine, replace(wrote, recent=done[1:])))) == ["message-lost"]
    assert diagnose(waiting(mine, wrote)) == []


# -- link layers


def infiniband(dlid: int = 7, **far: Any) -> Evidence:
    """An unanswered Send between two InfiniBand ports, which reach each other by LID; their GIDs have no netdev."""
    ends = []
    for name, lid, gid in (("host1", 3, "fe80::1"), ("host2", 7, "fe80::2")):
        rows = (GidRow(0, gid, "IB", None),)
        there = {"link_layer": "InfiniBand", "lid": lid, "gids": rows}
        info = device(port(name, **{**there, **(far if name == "host2" else {})}), "mlx5_core")
        told = replace(record(name), gid="::", gid_index=0, link_layer="InfiniBand", lid=lid)
        first = failure(S.RETRY_EXC_ERR, send(SEND)) if name == "host1" else None
        one = qp(name, own=told, peer=None, failure=first, attributes={"dlid": dlid} if name == "host1" else {})
        ends.append(host(name, one, device=info))
    return evidence(*ends)


def test_an_infiniband_fabric_routes_by_lid() -> None:
    (cause,) = diagnose(infiniband())
    assert cause.name == "no-answer"
    assert "4791" not in cause.next_step
    assert "ibping" in cause.next_step


def test_a_lid_that_is_not_the_peers_is_told() -> None:
    (cause,) = diagnose(infiniband(dlid=9))
    assert (cause.name, cause.certain) == ("wrong-destination-lid", False)
    assert "QP 0x11 on host1 sends to LID 9, and rxe0/1 on host2 has LID 7" in cause.headline
    assert names(diagnose(infiniband(dlid=0))) == ["no-answer"]
    found = infiniband(dlid=9)  # one of several that the port may answer to
    reset = replace(found.peer, qps=(replace(found.peer.qps[0], state=QPState.RESET),))
    assert names(diagnose(replace(found, peer=reset))) == ["peer-qp-reset"]


def test_the_event_of_another_port_is_none_of_this_one() -> None:
    def of(element: str) -> list[str]:
        local = qp("host1", failure=failure(S.RETRY_EXC_ERR, send(SEND)))
        return names(diagnose(evidence(host("host1", local, async_events=(AsyncEvent("PORT_ERR", element),)))))

    assert of("port 1") == ["port-down"]
    assert of("port 2") == ["no-answer"]


def test_rows_that_carried_messages_are_not_without_a_way() -> None:
    far = host("host2", device=device(port("host2", gids=(GidRow(1, GID["host2"], "RoCE v2", "eth1", 31),))))
    never = failed(S.RETRY_EXC_ERR, send(SEND), far)
    assert names(diagnose(never)) == ["gid-unroutable"]
    carried = failed(S.RETRY_EXC_ERR, send(SEND), far, sends=ledger(posted=2, completed=1, most_bytes_completed=64))
    assert names(diagnose(carried)) == ["no-answer"]


# -- shared receive queues


def test_a_failed_receive_of_a_shared_queue_is_no_request_of_its_qp() -> None:
    """Receives of an SRQ are in no ledger."""
    taken = failure(S.LOC_LEN_ERR, None, ago_s=0.6)
    far = host("host2", qp("host2", failure=taken, shared_recvs=True, state=QPState.ERR))
    (cause,) = diagnose(failed(S.REM_INV_REQ_ERR, send(SEND, 65), far))
    assert cause.name == "receive-too-short"
    assert cause.headline == "a receive of QP 0x12 on host2 is shorter than the message that came for it"


def test_who_waits_for_a_shared_receive_does_not_wait_for_an_unsignaled_send() -> None:
    sends = ledger(send(SEND, signaled=False))
    far = qp("host2", recvs=ledger(posted=1, completed=1))
    assert diagnose(waiting(qp("host1", sends=sends, shared_recvs=True, awaits="1 completion"), far)) == []
    assert "unsignaled-awaited" in names(diagnose(waiting(qp("host1", sends=sends, awaits="1 completion"), far)))


def test_a_full_shared_queue_is_not_that_of_a_qp() -> None:
    text = "cannot post receive 0x41 to the SRQ of 64 on host1 rxe0: ENOMEM (12): Cannot allocate memory"
    (cause,) = diagnose(evidence(error_type="PostError", error=text))
    assert (cause.name, cause.certain) == ("receive-queue-full", False)
    assert cause.headline == "the shared receive queue of 64 on host1 is full"


@pytest.mark.parametrize("words", ["4 SGEs of 2, SEND, 64 bytes", "1 SGEs of 1, SEND, 600 bytes inline of 400"])
def test_what_a_driver_has_no_room_for_is_not_always_a_queue(words: str) -> None:
    """mlx5 says ENOMEM to a request of too many SGEs, or with too much inline."""
    text = f"cannot post send wr_id 0x1 on host1 mlx5_0/1: ENOMEM (12): x; QP 0x11 is RTS, 0 of 128 in flight, {words}"
    assert diagnose(evidence(error_type="PostError", error=text)) == []


def test_a_message_that_took_its_receive_does_not_lack_one() -> None:
    """An unsignaled Send stays in the ledger until a later request completes."""
    sends = ledger(send(SEND, signaled=False), send(wr_id=2))
    waits = qp("host1", sends=sends, awaited_wr_ids=(2,))
    assert names(diagnose(waiting(waits, qp("host2", recvs=ledger(posted=1, completed=0))))) == ["no-receive-posted"]
    assert diagnose(waiting(waits, qp("host2", recvs=ledger(posted=1, completed=1)))) == []


# -- what a driver does not tell


UNTOLD = {"timeout": 0, "min_rnr_timer": 0, "dest_qp_num": 0, "path_mtu": 128, "sq_psn": 0, "rq_psn": 0,
          "qp_access_flags": 0, "max_rd_atomic": 0, "retry_cnt": 0}  # fmt: skip
"""As irdma, erdma and others leave it: a zero in ibv_query_qp(3) for what they do not keep; 128 is MTU code 0."""


def other(provider: str, found: Evidence) -> Evidence:
    ends = (replace(one, device=device(port(one.name), provider)) for one in (found.local, found.peer))
    local, far = ends
    return replace(found, local=local, peer=far)


def test_a_zero_that_contradicts_how_a_pair_was_connected_is_not_believed() -> None:
    far = host("host2", qp("host2", attributes=UNTOLD, recvs=ledger(receive())))
    (cause,) = diagnose(other("irdma", failed(S.RETRY_EXC_ERR, send(SEND), far, attributes=UNTOLD)))
    assert cause.name == "no-answer"
    assert "4.096 us x 2^14 x (6+1)" in cause.headline
    waits = qp("host1", attributes=UNTOLD, sends=ledger(send(Opcode.RDMA_READ, ago_s=9.0)), awaited_wr_ids=(1,))
    assert diagnose(other("irdma", waiting(waits, qp("host2", attributes=UNTOLD)))) == []
    unready = failed(S.RNR_RETRY_EXC_ERR, send(SEND), host("host2", qp("host2", attributes=UNTOLD)), attributes=UNTOLD)
    assert "rnr_retry 6 x 0.64 ms" in diagnose(other("irdma", unready))[0].headline
    serves = host("host2", qp("host2", attributes={"max_dest_rd_atomic": 0}))
    refused = failed(S.REM_INV_REQ_ERR, send(Opcode.RDMA_READ), serves)
    assert names(diagnose(refused)) == ["rd-atomic-zero"]
    assert names(diagnose(other("irdma", refused))) == ["status"]


def test_one_driver_that_tells_no_packet_numbers_does_not_disagree_with_another() -> None:
    far = host("host2", qp("host2", attributes={"rq_psn": 0, "sq_psn": 0}))
    assert names(diagnose(failed(S.RETRY_EXC_ERR, send(SEND), far, attributes={"sq_psn": 0x701000}))) == ["no-answer"]


def test_access_that_a_driver_may_not_tell_is_only_likely_to_lack() -> None:
    far = host("host2", qp("host2", attributes={"qp_access_flags": 0}))
    refused = failed(S.REM_INV_REQ_ERR, send(Opcode.RDMA_WRITE), far)
    (cause,) = diagnose(refused)  # rxe tells them: somebody took them from the QP
    assert (cause.name, cause.certain) == ("qp-access-missing", True)
    (cause,) = diagnose(other("irdma", refused))
    assert (cause.name, cause.certain) == ("qp-access-missing", False)


def test_a_read_that_was_answered_was_issued() -> None:
    found = failed(
        S.REM_ACCESS_ERR, send(Opcode.RDMA_READ, rkey=0x777), attributes={"max_rd_atomic": 0}, connected=None
    )
    assert names(diagnose(found)) == ["rkey-unknown"]


# -- more than one failure


def test_a_refusal_comes_before_the_silence_that_it_causes() -> None:
    """Whoever polls late learns late: a request that is refused moves its QP to ERR, which then answers nobody."""
    silence = failure(S.RETRY_EXC_ERR, send(SEND), ago_s=2.0)
    refusal = failure(S.REM_ACCESS_ERR, send(rkey=0), ago_s=0.0)
    local = host("host1", qp("host1", failure=silence, state=QPState.ERR))
    (cause,) = diagnose(evidence(local, host("host2", qp("host2", failure=refusal, state=QPState.ERR))))
    assert cause.name == "rkey-zero"
    assert "QP 0x12 on host2 failed with REM_ACCESS_ERR" in cause.headline


def test_a_flush_of_one_pair_is_not_told_before_the_status_of_another() -> None:
    flushed = qp("host1", flushed=4, state=QPState.ERR, first_flush=failure(S.WR_FLUSH_ERR, send(SEND)))
    refused = qp("host1", qp_num=0x21, failure=failure(S.REM_ACCESS_ERR, send(rkey=0)), state=QPState.ERR)
    assert names(diagnose(evidence(host("host1", flushed, refused)))) == ["rkey-zero", "qp-in-error"]


def test_the_flush_of_a_send_tells_more_than_that_of_a_receive() -> None:
    """rxe flushes both queues of a QP whose send failed by its own memory; a receive that is flushed met nothing."""
    book = Ledger()
    bad = SendWR(SEND, (Sge(ADDR["host1"], 64, 0x99),), 7)
    book.recvs.post([RecvWR((Sge(ADDR["host1"], 64, KEY["host1"]),), 3)], True)
    book.sends.post([bad], True)
    book.complete(replace(completion(S.WR_FLUSH_ERR), wr_id=3), 1)
    book.complete(replace(completion(S.WR_FLUSH_ERR), wr_id=7), 2)
    assert book.first_flush is not None
    assert book.first_flush.of is not None
    assert book.first_flush.of.request is bad
    assert book.flushed == 2


def test_a_receive_that_was_flushed_is_not_to_blame_for_its_memory() -> None:
    first = failure(S.WR_FLUSH_ERR, receive(lkey=0x99))
    (cause,) = diagnose(evidence(host("host1", qp("host1", flushed=1, first_flush=first, state=QPState.ERR))))
    assert cause.name == "qp-in-error"


def test_a_flush_proves_nothing_where_bad_memory_has_a_status() -> None:
    first = failure(S.WR_FLUSH_ERR, send(SEND, sges=(Sge(ADDR["host1"] - 1, 64, KEY["host1"]),)))
    found = evidence(host("host1", qp("host1", flushed=1, first_flush=first, state=QPState.ERR)))
    assert [(one.name, one.certain) for one in diagnose(found)] == [("own-address-out-of-range", True)]
    (cause,) = diagnose(other("mlx5_core", found))
    assert (cause.name, cause.certain) == ("own-address-out-of-range", False)


# -- memory


@pytest.mark.parametrize("second", [Sge(ADDR["host1"] + 64, 8, 0x99), Sge(ADDR["host1"] + LENGTH, 8, KEY["host1"])])
def test_the_second_piece_may_be_the_bad_one_unless_the_request_is_inline(second: Sge) -> None:
    pieces = (Sge(ADDR["host1"], 8, KEY["host1"]), Sge(0, 0, 0), second)
    local = host("host1", qp("host1", failure=failure(S.LOC_PROT_ERR, send(SEND, sges=pieces))))
    assert names(diagnose(evidence(local)))[0] in ("own-lkey-unknown", "own-address-out-of-range")
    inline = host("host1", qp("host1", failure=failure(S.LOC_PROT_ERR, send(SEND, sges=pieces, inline=True))))
    assert names(diagnose(evidence(inline))) == ["status"]


def test_a_key_of_zero_may_be_a_good_one() -> None:
    far = host("host2", regions=(region("host2", rkey=0, access=Access.LOCAL_WRITE),))
    assert names(diagnose(failed(S.REM_ACCESS_ERR, send(rkey=0), far))) == ["mr-access-missing"]
    assert names(diagnose(failed(S.REM_ACCESS_ERR, send(rkey=0)))) == ["rkey-zero"]


def test_an_address_within_4_gib_has_lost_nothing() -> None:
    """As of a region that is addressed from zero on, or of a process without address randomization."""
    low = host("host2", regions=(region("host2", addr=0x10000, length=4096),))
    (cause,) = diagnose(failed(S.REM_ACCESS_ERR, send(length=64, remote_addr=0x10FF0), low))
    assert cause.name == "address-out-of-range"
    assert "end 48 bytes beyond" in cause.headline


def test_a_write_takes_no_receive_that_could_lack() -> None:
    """A responder says RNR NAK while it fetches a page (on-demand paging), too."""
    (cause,) = diagnose(failed(S.RNR_RETRY_EXC_ERR, send(Opcode.RDMA_WRITE)))
    assert (cause.name, cause.certain) == ("peer-not-ready", True)
    assert "RDMA_WRITE takes no receive" in cause.headline
    assert "rnr_retry 6 x 0.64 ms" in cause.headline


# -- counters by other names


def counted(local: dict[str, int], far: dict[str, int], **changes: Any) -> list[Cause]:
    first = failure(S.RETRY_EXC_ERR, send(**changes))
    return diagnose(evidence(host("host1", qp("host1", failure=first), counters=local), host("host2", counters=far)))


@pytest.mark.parametrize("repeated", ["duplicate_request", "dup_req"])
def test_a_request_that_came_twice_was_answered_late_or_in_vain(repeated: str) -> None:
    """mlx5 and bnxt_re count no packets of their own that could be compared."""
    (cause,) = counted({"local_ack_timeout_err": 6}, {repeated: 6})
    assert (cause.name, cause.certain) == ("timeout-too-small", False)
    assert "host2 got 6 packets again, and no answer came in time" in cause.headline


@pytest.mark.parametrize(
    ("local", "far"),
    [
        ({"packet_seq_err": 3}, {}),
        ({"seq_err_naks_rcvd": 3}, {}),
        ({"implied_nak_seq_err": 3}, {}),
        ({"missing_resp": 3}, {}),
        ({}, {"out_of_sequence": 3}),
        ({}, {"oos_drop_count": 3}),
    ],
)
def test_holes_are_told_by_the_counters_of_each_driver(local: dict[str, int], far: dict[str, int]) -> None:
    assert names(counted(local, {**far, "dup_req": 1})) == ["packets-lost"]


@pytest.mark.parametrize(
    ("local", "far"), [({"rnr_naks_rcvd": 4}, {}), ({}, {"out_of_buffer": 4}), ({}, {"rx_out_of_buffer": 4})]
)
def test_a_peer_that_was_not_ready_is_told_by_the_counters_of_each_driver(
    local: dict[str, int], far: dict[str, int]
) -> None:
    assert names(counted(local, far, opcode=SEND)) == ["no-receive-posted"]


# -- what a ping tells of GID rows


def test_rows_that_ping_have_a_way_and_link_local_ones_may_have_none() -> None:
    far = host("host2", device=device(port("host2", gids=(GidRow(1, GID["host2"], "RoCE v2", "eth1", 31),))))
    apart = failed(S.RETRY_EXC_ERR, send(SEND), far)
    assert names(diagnose(apart)) == ["gid-unroutable"]
    assert names(diagnose(replace(apart, local=replace(apart.local, ping_s=0.001)))) == ["no-answer"]

    ends = []
    for name, gid in (("host1", "fe80::1"), ("host2", "fe80::2")):
        first = failure(S.RETRY_EXC_ERR, send(SEND)) if name == "host1" else None
        one = qp(name, failure=first, own=replace(record(name), gid=gid), peer=None)
        rows = (GidRow(1, gid, "RoCE v2", "eth1", 64),)
        ends.append(host(name, one, device=device(port(name, gids=rows))))
    assert names(diagnose(evidence(*ends))) == ["no-answer"]
    cause = diagnose(evidence(replace(ends[0], ping_error="no answer within 1 s"), ends[1]))[0]
    assert (cause.name, cause.certain) == ("gid-unroutable", False)
    assert "link-local, which does not leave the link; a ping gets no answer within 1 s" in cause.headline
    broken = replace(ends[1], qps=(replace(ends[1].qps[0], state=QPState.ERR),))
    found = diagnose(evidence(replace(ends[0], ping_error="no answer within 1 s"), broken))
    assert [(one.name, one.certain) for one in found] == [("peer-qp-in-error", True)]


# -- a device that is gone


def test_a_device_that_the_kernel_has_no_more_is_gone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("pytest_rdma.verbs_device.SYSFS", tmp_path)
    here = LocalHost("host1")
    here._info = host("host1").info
    found = op_collect(here, Deadline(1.0), "mlx5_0", 1, None, 1.0)
    assert found.device is not None
    assert (found.device.error, "device" in found.unread) == ("is gone", False)
    (cause,) = diagnose(evidence(found))
    assert (cause.name, cause.headline) == ("device-gone", "mlx5_0 on host1 is gone")


# -- both ends on one host


def looped(device_there: str) -> Evidence:
    """The own key instead of the peer's, where both ends are on one host."""
    found = failed(S.REM_ACCESS_ERR, send(rkey=KEY["host1"]), host("host2", qp("host2", device=device_there)))
    return replace(found, peer=replace(found.peer, info=found.local.info, device=found.local.device))


def test_the_own_key_is_known_to_the_device_that_both_ends_use() -> None:
    (cause,) = diagnose(looped("rxe0"))
    assert (cause.name, cause.certain) == ("rkey-of-another-pd", True)
    assert "rkey 0x1111 is of a region of host1's end, and QP 0x12 on host2 is in another PD" in cause.headline


def test_the_own_key_is_unknown_to_another_device_of_the_host() -> None:
    (cause,) = diagnose(looped("rxe1"))
    assert cause.name == "rkey-unknown"
    assert "host1 has a region of that key, so it may be the own key" in cause.headline


# -- whose sends are on their way


@pytest.mark.parametrize("awaits", ["1 completion", "wr_id 0x9", "a completion event"])
def test_who_waits_for_a_receive_waits_for_what_its_peer_has_sent(awaits: str) -> None:
    """The send is outstanding at the other end, where nobody has polled for it."""
    waits = qp("host1", recvs=ledger(replace(receive(), wr_id=9)), awaits=awaits)
    waits = replace(waits, awaited_wr_ids=(9,) if awaits.startswith("wr_id") else ())
    lost = qp("host2", sends=ledger(send(SEND)), attributes={"dest_qp_num": 0x99})
    (cause,) = diagnose(waiting(waits, lost))
    assert (cause.name, cause.certain) == ("wrong-destination-qpn", True)
    assert "QP 0x12 on host2 sends to QP 0x99" in cause.headline
    assert diagnose(waiting(waits, replace(lost, attributes={}))) == []


def test_the_wait_of_one_end_is_not_that_of_the_other_though_their_numbers_are_one() -> None:
    """Two devices begin to count where they like."""
    waits = qp("host1", qp_num=0x12, sends=ledger(send(signaled=False)), awaits="1 completion")
    far = qp("host2", state=QPState.RTS, recvs=ledger(receive(), posted=1), attributes={"dest_qp_num": 0x12})
    found = replace(waiting(waits, far), local_qp=0x12, error_qp=0x12)
    for side, certain in (("local", True), ("peer", False)):
        turned = [one for one in diagnose(replace(found, failed_side=side)) if one.name == "unsignaled-awaited"]
        assert [one.certain for one in turned] == [certain]


def test_a_queue_pair_in_error_asks_nobody() -> None:
    waits = qp("host1", state=QPState.ERR, sends=ledger(send(SEND)), awaited_wr_ids=(1,))
    assert names(diagnose(waiting(waits))) == ["qp-in-error"]
    broken = replace(waits, state=QPState.SQE, caps=EndpointCaps(transport="UC"))
    (cause,) = diagnose(waiting(broken))
    assert cause.name == "qp-in-error"
    assert "QP 0x11 on host1 went to SQE" in cause.headline


def test_a_queue_pair_that_is_drained_sends_nothing() -> None:
    waits = qp("host1", state=QPState.SQD, sends=ledger(send(SEND)), awaited_wr_ids=(1,))
    cause = diagnose(waiting(waits))[0]
    assert (cause.name, cause.certain) == ("own-qp-not-in-rts", True)
    assert "QP 0x11 on host1 is SQD" in cause.headline


def test_a_misaligned_atomic_is_told_whichever_way_it_is_refused() -> None:
    bad = send(Opcode.ATOMIC_FETCH_AND_ADD, 8, remote_addr=ADDR["host2"] + 4)
    assert names(diagnose(failed(S.REM_ACCESS_ERR, bad))) == ["atomic-misaligned"]
    assert names(diagnose(failed(S.REM_INV_REQ_ERR, bad))) == ["atomic-misaligned"]


@pytest.mark.parametrize("status", [S.FATAL_ERR, S.GENERAL_ERR])
def test_a_status_that_nothing_explains_is_looked_up(status: WCStatus) -> None:
    (cause,) = diagnose(failed(status))
    assert cause.next_step == "look at vendor_err and the kernel log"


@pytest.mark.parametrize(("files", "name"), [((), "virtio-pci"), (("parent",), "rxe")])
def test_soft_roce_is_known_on_kernels_that_lend_it_the_device_of_its_netdev(
    tmp_path: Path, files: tuple[str, ...], name: str
) -> None:
    (tmp_path / "virtio-pci").mkdir()
    (tmp_path / "rxe0" / "device").mkdir(parents=True)
    (tmp_path / "rxe0" / "device" / "driver").symlink_to(tmp_path / "virtio-pci")
    for file in files:
        (tmp_path / "rxe0" / file).touch()
    assert _provider(tmp_path / "rxe0") == name
