"""Each cause is told from its evidence, by its name, in words that an RDMA expert can act on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from evidence_builders import (
    ADDR,
    GID,
    KEY,
    LENGTH,
    PSN,
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

from pytest_rdma.diagnosis import diagnose
from pytest_rdma.evidence import Evidence
from pytest_rdma.model import Access, AsyncEvent, GidRow, Opcode, QPState, Sge, WCOpcode
from pytest_rdma.status import WCStatus
from pytest_rdma.verbs_device import unopened

S = WCStatus
SWAPPED = int.from_bytes(KEY["host2"].to_bytes(4, "little"), "big")
SEND = Opcode.SEND


def host2(*regions: Any, **changes: Any) -> Any:
    return host("host2", **({"regions": regions} if regions else {}), **changes)


def peer(**changes: Any) -> Any:
    return host("host2", qp("host2", **changes))


def write(**changes: Any) -> Any:
    return send(Opcode.RDMA_WRITE, **changes)


MEMORY = {
    "rkey-zero": (failed(S.REM_ACCESS_ERR, write(rkey=0)), "rkey 0"),
    "rkey-unknown": (failed(S.REM_ACCESS_ERR, write(rkey=0x777)), "rkey 0x777 is of no region of host2; the region at"),
    "rkey-byte-swapped": (failed(S.REM_ACCESS_ERR, write(rkey=SWAPPED)), "is 0x00002a0b of host2"),
    "rkey-stale": (failed(S.REM_ACCESS_ERR, far=host2(region("host2", closed=True))), "has deregistered"),
    "rkey-of-another-pd": (failed(S.REM_ACCESS_ERR, far=host2(region("host2", pd=7))), "is of PD 7 on host2"),
    "address-truncated": (
        failed(S.REM_ACCESS_ERR, write(remote_addr=ADDR["host2"] & 0xFFFFFFFF)),
        f"remote address 0x10000 is {ADDR['host2']:#x} with its upper 32 bits lost",
    ),
    "address-byte-swapped": (
        failed(S.REM_ACCESS_ERR, write(remote_addr=int.from_bytes(ADDR["host2"].to_bytes(8, "little"), "big"))),
        "with its bytes swapped",
    ),
    "address-out-of-range": (
        failed(S.REM_ACCESS_ERR, write(remote_addr=ADDR["host2"] + LENGTH - 63)),
        "end 1 byte beyond the region of 65536 bytes",
    ),
    "mr-access-missing": (
        failed(S.REM_ACCESS_ERR, far=host2(region("host2", access=Access.LOCAL_WRITE))),
        "on host2 lacks REMOTE_WRITE; it has LOCAL_WRITE",
    ),
    "qp-access-missing": (
        failed(S.REM_INV_REQ_ERR, far=peer(attributes={"qp_access_flags": 1})),
        "QP 0x12 on host2 lacks REMOTE_WRITE in its qp_access_flags",
    ),
    "atomic-misaligned": (
        failed(S.REM_INV_REQ_ERR, send(Opcode.ATOMIC_FETCH_AND_ADD, 8, remote_addr=ADDR["host2"] + 4)),
        "is no multiple of 8",
    ),
}


def own(status: WCStatus = S.LOC_PROT_ERR, request: Any = None, *regions: Any) -> Evidence:
    """host1's request fails by its own memory."""
    first = failure(status, request or send(SEND))
    local = host("host1", qp("host1", failure=first), **({"regions": regions} if regions else {}))
    return evidence(local)


def flush_only(request: Any, *regions: Any) -> Evidence:
    first = failure(S.WR_FLUSH_ERR, request)
    local = qp("host1", first_flush=first, flushed=3, state=QPState.ERR)
    return evidence(host("host1", local, **({"regions": regions} if regions else {})))


OWN = {
    "own-lkey-unknown": (own(S.LOC_PROT_ERR, send(sges=(Sge(ADDR["host1"], 64, 0x99),))), "names lkey 0x99"),
    "own-mr-closed": (own(S.LOC_PROT_ERR, None, region("host1", closed=True)), "was deregistered"),
    "own-mr-of-another-pd": (flush_only(send(SEND), region("host1", pd=3)), "in PD 3, and the QP is in PD 1"),
    "own-address-out-of-range": (
        flush_only(send(sges=(Sge(ADDR["host1"] - 1, 64, KEY["host1"]),))),
        "begin 1 byte before its region",
    ),
    "own-mr-without-local-write": (
        own(S.LOC_PROT_ERR, send(Opcode.RDMA_READ), region("host1", access=Access.REMOTE_READ)),
        "RDMA_READ writes there",
    ),
}


def rnr(**recvs: Any) -> Evidence:
    return failed(S.RNR_RETRY_EXC_ERR, send(SEND), peer(recvs=ledger(**recvs)))


def too_short() -> Evidence:
    taken = failure(S.LOC_QP_OP_ERR, receive(64))
    return failed(S.REM_OP_ERR, send(SEND, 65), peer(failure=taken, state=QPState.ERR))


def unsignaled() -> Evidence:
    return waiting(qp("host1", sends=ledger(write(signaled=False))))


def overrun() -> Evidence:
    event = AsyncEvent("CQ_ERR", "CQ 5")
    local = host("host1", qp("host1", sends=ledger(send(SEND))), async_events=(event,) * 3)
    return evidence(local, error_type="DeadlineError")


def full(**changes: Any) -> Evidence:
    queue = ledger(*[write(**changes)] * 8, posted=128, outstanding_count=128)
    return evidence(
        host("host1", qp("host1", sends=queue)), error_type="PostError", error="cannot post send: ENOMEM (12)"
    )


def not_registered(uid: int, soft: int) -> Evidence:
    local = host("host1")
    info = replace(local.info, uid=uid, memlock_soft=soft)
    text = "cannot register 1048576 bytes with LOCAL_WRITE on host1 rxe0: ENOMEM (12): Cannot allocate memory"
    return evidence(replace(local, info=info), error_type="VerbsError", error=text)


QUEUES = {
    "no-receive-posted": (rnr(posted=2, completed=2), "2 posted, 2 completed, none outstanding; rnr_retry 6 x 0.64 ms"),
    "receive-too-short": (too_short(), "QP 0x12 on host2 holds 64 bytes, 1 too few"),
    "unsignaled-awaited": (unsignaled(), "none of the 1 send in flight is signaled"),
    "own-qp-not-in-rts": (waiting(qp("host1", state=QPState.INIT, sends=ledger(send(SEND)))), "sends go out only in"),
    "no-completion-possible": (
        waiting(qp("host1"), qp("host2", recent=(completion(0, WCOpcode.RDMA_WRITE),))),
        "RDMA_WRITE, which takes no receive",
    ),
    "peer-sent-nothing": (waiting(qp("host1", recvs=ledger(receive()))), "QP 0x12 on host2 has posted no send"),
    "rd-atomic-zero": (
        failed(S.REM_INV_REQ_ERR, send(Opcode.RDMA_READ), peer(attributes={"max_dest_rd_atomic": 0})),
        "has max_dest_rd_atomic 0",
    ),
    "rd-atomic-exceeded": (
        failed(S.REM_INV_REQ_ERR, send(Opcode.RDMA_READ), peer(attributes={"max_dest_rd_atomic": 4})),
        "has max_rd_atomic 16, and QP 0x12 on host2 serves 4",
    ),
    "cq-overrun": (overrun(), "CQ 5 on host1 overran (3 CQ_ERR events)"),
    "send-queue-full": (full(signaled=False), "128 of 128 outstanding, and none is signaled"),
    "memlock": (not_registered(1000, 65536), "RLIMIT_MEMLOCK of uid 1000 there is 65536 bytes"),
    "out-of-memory": (not_registered(0, 65536), "1048576 bytes"),
    "qp-in-error": (
        evidence(host("host1", qp("host1", flushed=4, state=QPState.ERR))),
        "flushed 4 requests, and none had failed",
    ),
    "data-not-awaited": (
        evidence(host("host1", qp("host1", sends=ledger(write()))), error_type="DataMismatchError"),
        "has 1 Write outstanding",
    ),
}


def unanswered(far: Any = None, **changes: Any) -> Evidence:
    return failed(S.RETRY_EXC_ERR, send(SEND), far, **changes)


def counters(local: dict[str, int], far: dict[str, int]) -> Evidence:
    local_qp = qp("host1", failure=failure(S.RETRY_EXC_ERR, send(SEND)), state=QPState.ERR)
    return evidence(host("host1", local_qp, counters=local), host("host2", counters=far))


def rows(*rows: GidRow) -> Any:
    return host("host2", device=device(port("host2", gids=rows)))


LINK_LOCAL = GidRow(1, "fe80::2", "RoCE v2", "eth1", 64)
PATH = {
    "port-down": (
        unanswered(host("host2", device=device(port("host2", state="DOWN")))),
        "rxe0/1 on host2 is DOWN",
    ),
    "link-layers-differ": (
        unanswered(host("host2", device=device(port("host2", link_layer="InfiniBand")))),
        "rxe0/1 on host1 is Ethernet and rxe0/1 on host2 is InfiniBand",
    ),
    "gid-gone": (
        unanswered(rows(GidRow(2, GID["host2"], "RoCE v2", "eth1", 24))),
        "of rxe0/1 on host2 is empty",
    ),
    "gid-types-differ": (
        unanswered(rows(GidRow(1, GID["host2"], "IB/RoCE v1", "eth1", 24))),
        "their types differ, RoCE v2 and IB/RoCE v1",
    ),
    "gid-unroutable": (
        unanswered(rows(GidRow(1, GID["host2"], "RoCE v2", "eth1", 31))),
        "GID row 1 10.99.0.1 (RoCE v2, netdev eth1) on host1 and row 1 10.99.0.2",
    ),
    "wrong-destination-gid": (
        unanswered(peer=replace(record("host2"), gid="::ffff:10.99.0.7")),
        "was told GID 10.99.0.7, and QP 0x12 on host2 has 10.99.0.2",
    ),
    "wrong-destination-qpn": (
        unanswered(attributes={"dest_qp_num": 0xFFFFF0}),
        "QP 0x11 on host1 sends to QP 0xfffff0, and the peer's end is QP 0x12 on host2",
    ),
    "peer-qp-gone": (unanswered(peer(closed=True, state=None)), "QP 0x12 on host2 was destroyed"),
    "peer-qp-in-error": (unanswered(peer(state=QPState.ERR, flushed=2)), "is in ERR and has flushed 2 requests"),
    "peer-qp-reset": (unanswered(peer(state=QPState.RESET)), "QP 0x12 on host2 was reset"),
    "peer-qp-not-in-rtr": (unanswered(peer(state=QPState.INIT)), "QP 0x12 on host2 is in INIT"),
    "wrong-psn": (
        unanswered(peer(peer=replace(record("host1"), psn=0xFFF))),
        f"begins with PSN {PSN['host1']:#08x}, and QP 0x12 on host2 was told 0x000fff",
    ),
    "peer-reset": (
        unanswered(peer(own=replace(record("host2"), psn=5), attributes={"sq_psn": 5})),
        "tells 0x000005 now",
    ),
    "mtu-beyond-path": (
        unanswered(host("host2", device=device(port("host2", active_mtu=512)))),
        "path MTU 1024, and rxe0/1 on host2 has active MTU 512",
    ),
    "mtu-differs": (unanswered(peer(attributes={"path_mtu": 512})), "has path MTU 1024, and QP 0x12 on host2 has 512"),
    "packets-dropped": (
        counters({"sent_pkts": 7}, {}),
        "host1 sent 7 packets and host2 received none of them; retried for 4.096 us x 2^14 x (6+1) = 0.47 s",
    ),
    "timeout-too-small": (
        counters({"sent_pkts": 7, "rcvd_pkts": 7}, {"rcvd_pkts": 7, "sent_pkts": 7, "duplicate_request": 6}),
        "host2 got 6 packets again and answered, and the answer is waited for 4.096 us x 2^14",
    ),
    "packets-lost": (
        counters({"sent_pkts": 9, "rcvd_seq_err": 3}, {"rcvd_pkts": 4, "out_of_seq_request": 3}),
        "3 out of sequence, 3 sequence errors",
    ),
    "no-answer": (unanswered(), "nobody acknowledged it within 4.096 us x 2^14 x (6+1) = 0.47 s"),
}
HOSTS = {
    "disk-full": (evidence(error_type="RemoteError", error="ENOSPC (28)"), "no space is left on host1"),
    "process-gone": (unanswered(host("host2", lost="killed by signal 9", device=None)), "on host2 that holds its QPs"),
    "device-gone": (unanswered(host("host2", device=unopened("rxe0", "is gone"))), "rxe0 on host2 is gone"),
    "device-fatal": (unanswered(host2(async_events=(AsyncEvent("DEVICE_FATAL", "device"),))), "DEVICE_FATAL"),
    "status": (failed(S.REM_OP_ERR), "REM_OP_ERR (11): the peer failed"),
}
CASES: dict[str, tuple[Evidence, str]] = {**MEMORY, **OWN, **QUEUES, **PATH, **HOSTS}


@pytest.mark.parametrize("name", CASES)
def test_each_cause_comes_first_and_says_what_was_found(name: str) -> None:
    found, words = CASES[name]
    first = diagnose(found)[0]
    assert first.name == name
    assert words in first.headline
    assert first.next_step
    assert "\n" not in first.headline + first.next_step


def test_a_healthy_pair_has_no_cause() -> None:
    busy = qp("host1", sends=ledger(send(SEND)), recvs=ledger(receive()))
    assert diagnose(evidence(host("host1", busy), error_type="AssertionError")) == []
    assert diagnose(evidence(error_type="AssertionError", local_qp=None, peer_qp=None)) == []


def test_two_causes_of_one_refusal_are_both_listed() -> None:
    found = diagnose(failed(S.REM_ACCESS_ERR, far=host2(region("host2", access=Access.NONE, pd=5))))
    assert names(found) == ["rkey-of-another-pd", "mr-access-missing"]


@pytest.mark.parametrize(
    ("addr", "length", "words"),
    [
        (-1, 64, "begin 1 byte before"),
        (LENGTH, 64, "begin 0 bytes beyond the end of"),
        (LENGTH + 10, 64, "begin 10 bytes beyond the end of"),
        (-100, 64, "begin 100 bytes before"),
        (-2, LENGTH + 5, "begin 2 bytes before and end 3 bytes beyond"),
    ],
)
def test_how_far_an_address_is_out_of_range(addr: int, length: int, words: str) -> None:
    (cause,) = diagnose(failed(S.REM_ACCESS_ERR, write(length=length, remote_addr=ADDR["host2"] + addr)))
    assert words in cause.headline
    assert cause.certain


def test_an_offset_instead_of_an_address_is_noticed() -> None:
    far = region("host2", addr=0x7F2000000100)  # whose lower half does not look like the offset
    (cause,) = diagnose(failed(S.REM_ACCESS_ERR, write(remote_addr=16), host2(far)))
    assert "looks like an offset" in cause.headline


def test_an_lkey_taken_for_an_rkey_is_noticed() -> None:
    (cause,) = diagnose(failed(S.REM_ACCESS_ERR, write(rkey=0x55), host2(region("host2", lkey=0x55))))
    assert "is the lkey of the region there, whose rkey is 0x2a0b" in cause.headline


def test_endless_retries_stand_behind_what_is_not_answered() -> None:
    local = qp("host1", sends=ledger(write()), attributes={"retry_cnt": 7, "dest_qp_num": 0x99})
    assert names(diagnose(waiting(local))) == ["wrong-destination-qpn", "endless-retries"]


def test_retry_count_7_ends_on_hardware() -> None:
    local = qp("host1", sends=ledger(write()), attributes={"retry_cnt": 7, "timeout": 20})
    found = waiting(local)
    hardware = replace(found, local=replace(found.local, device=device(port("host1"), "mlx5")))
    assert names(diagnose(found)) == ["endless-retries"]
    (cause,) = diagnose(hardware)
    assert cause.name == "retries-outlast-wait"
    assert "4.096 us x 2^20 x (7+1) = 34.4 s" in cause.headline


def test_a_peer_that_is_not_ready_is_asked_without_end() -> None:
    local = qp("host1", sends=ledger(send(SEND)), attributes={"rnr_retry": 7})
    found = replace(waiting(local), peer=host("host2", qp("host2"), counters={"send_rnr_err": 40}))
    assert names(diagnose(found))[:2] == ["no-receive-posted", "endless-rnr-retries"]


def test_a_receive_that_came_late_is_said_to_be_late() -> None:
    found = failed(S.RNR_RETRY_EXC_ERR, send(SEND), peer(recvs=ledger(receive(), last_post_ago_s=0.2)))
    assert "in time: the last was posted 0.3 s after that" in diagnose(found)[0].headline


def test_a_peer_in_error_is_not_the_cause_when_it_failed_later() -> None:
    """Both ends were sending over a wire that broke."""
    later = failure(S.RETRY_EXC_ERR, send(SEND), ago_s=0.1)
    assert names(diagnose(unanswered(peer(state=QPState.ERR, failure=later)))) == ["no-answer"]


def test_the_earlier_failure_is_explained_whichever_end_complains() -> None:
    first = failure(S.REM_ACCESS_ERR, send(rkey=0), ago_s=3)
    later = failure(S.RETRY_EXC_ERR, send(SEND), ago_s=1)
    local = host("host1", qp("host1", failure=later, state=QPState.ERR))
    found = diagnose(evidence(local, peer(failure=first, state=QPState.ERR)))
    assert names(found) == ["rkey-zero"]
    assert "QP 0x12 on host2" in found[0].headline


def test_a_flush_that_both_ends_see_is_told_once() -> None:
    flushed = qp("host2", flushed=1, sends=ledger(outstanding_count=1))
    ends = host("host1", counters={"out_of_sequence": 3}), host("host2", flushed)
    assert names(diagnose(evidence(*ends, error_type="DeadlineError"))) == ["packets-lost", "qp-in-error"]


def test_a_flush_is_never_the_headline_when_a_status_is_known() -> None:
    """The end that failed saw flushes only; its peer's request was refused."""
    local = host("host1", qp("host1", flushed=5, state=QPState.ERR, first_flush=failure(S.WR_FLUSH_ERR, receive())))
    found = diagnose(evidence(local, peer(failure=failure(S.REM_ACCESS_ERR, send(rkey=0x99)), state=QPState.ERR)))
    assert names(found) == ["rkey-unknown"]


def test_small_messages_that_pass_where_large_fail_point_to_the_mtu() -> None:
    sends = ledger(posted=9, completed=8, most_bytes_completed=64)
    (cause,) = diagnose(failed(S.RETRY_EXC_ERR, send(SEND, 4096), sends=sends))
    assert cause.name == "mtu-beyond-path"
    assert not cause.certain
    assert "up to 64 bytes of payload passed: those of 1024 are lost" in cause.headline


def test_a_pair_beside_the_one_in_question_is_looked_at_when_that_is_healthy() -> None:
    broken = qp("host1", qp_num=0x21, failure=failure(S.REM_ACCESS_ERR, send(rkey=0)))
    found = diagnose(evidence(host("host1", qp("host1"), broken), error_type="AssertionError"))
    assert names(found) == ["rkey-zero"]
    assert "QP 0x21" in found[0].headline


def test_a_write_takes_no_receive_and_its_target_waits_in_vain() -> None:
    far = qp("host2", sends=ledger(posted=1, completed=1), recent=(completion(0, WCOpcode.RDMA_WRITE),))
    (cause,) = diagnose(waiting(qp("host1", recvs=ledger(receive())), far))
    assert cause.name == "no-completion-possible"
    assert "waits on a receive" in cause.headline


def test_a_link_local_row_is_told_from_a_routed_one() -> None:
    (cause,) = diagnose(unanswered(host("host2", qp("host2", own=replace(record("host2"), gid="fe80::2")),
                                        device=device(port("host2", gids=(LINK_LOCAL,)))),
                                   peer=replace(record("host2"), gid="fe80::2")))  # fmt: skip
    assert cause.name == "gid-types-differ"
    assert "one is IPv4, the other link-local" in cause.headline


def test_a_delay_is_told_from_a_filter_by_a_ping() -> None:
    """Neither lets packets arrive in time; what was sent may arrive long after the evidence was collected."""
    found = counters({"sent_pkts": 7}, {})
    slow = replace(found, local=replace(found.local, ping_s=0.8))
    filtered = replace(found, local=replace(found.local, ping_s=0.0004))
    dead = replace(found, local=replace(found.local, ping_error="no answer within 1 s"))
    (cause,) = diagnose(slow)
    assert cause.name == "timeout-too-small"
    assert (
        "a ping of host2 takes 0.8 s, and the answer is waited for 4.096 us x 2^14 x (6+1) = 0.47 s" in cause.headline
    )
    assert names(diagnose(filtered)) == names(diagnose(dead)) == ["packets-dropped"]
    assert "though a ping takes 0.0004 s" in diagnose(filtered)[0].headline
    assert "a ping gets no answer within 1 s" in diagnose(dead)[0].headline


def test_the_gid_of_a_refused_rtr_is_told_from_the_peers() -> None:
    text = (
        "cannot move QP 0x11 from INIT to RTR on host1 rxe0/1: ENETUNREACH (101); own gid 1; peer QP 0x12 gid 10.98.0.9"
    )
    local = host("host1", qp("host1", state=QPState.INIT, peer=None, connected=None))
    found = diagnose(evidence(local, error_type="VerbsError", error=text))
    assert found[0].name == "wrong-destination-gid"
    assert "was told GID 10.98.0.9, and QP 0x12 on host2 has 10.99.0.2" in found[0].headline


def test_an_awaited_request_that_completed_unsignaled_is_named() -> None:
    (cause, *_) = diagnose(waiting(qp("host1", sends=ledger(silent=(4, 5)), awaited_wr_ids=(5,))))
    assert cause.name == "unsignaled-awaited"
    assert "wr_id 0x5 is unsignaled" in cause.headline


def test_a_region_that_a_test_closed_after_the_failure_is_not_taken_for_the_cause() -> None:
    """A test that fails closes what it made, before the evidence is collected."""
    own_closed = own(S.LOC_PROT_ERR, send(Opcode.RDMA_READ), region("host1", access=Access.NONE, closed=True))
    assert names(diagnose(own_closed)) == ["own-mr-without-local-write"]
    far_closed = failed(S.REM_ACCESS_ERR, far=host2(region("host2", access=Access.NONE, closed=True)))
    assert names(diagnose(far_closed)) == ["mr-access-missing"]


def test_retries_that_a_peer_used_up_by_not_being_ready_are_told_from_silence() -> None:
    found = counters({"sent_pkts": 6, "rcvd_pkts": 6, "rcvd_rnr_err": 6}, {"sent_pkts": 6, "rcvd_pkts": 6})
    assert names(diagnose(found)) == ["no-receive-posted"]


def test_a_full_queue_is_counted_as_it_was_when_the_post_was_refused() -> None:
    text = "refused on host1 rxe0/1: 31 sends are in flight on QP 0x62 and 1 more do not fit its 31: poll first"
    caps = replace(qp("host1").caps, send_depth=31)
    found = diagnose(evidence(host("host1", qp("host1", caps=caps)), error_type="RefusedError", error=text))
    assert found[0].headline == "the send queue of QP 0x11 on host1 is full: 31 of 31 outstanding"
    assert found[0].certain


def test_a_peer_that_was_not_ready_and_then_was_gone_is_gone() -> None:
    found = counters({"sent_pkts": 6, "rcvd_pkts": 1, "rcvd_rnr_err": 1}, {"sent_pkts": 1, "rcvd_pkts": 1})
    gone = replace(found, peer=replace(found.peer, qps=(qp("host2", qp_num=0x99),)))
    assert names(diagnose(gone)) == ["peer-qp-gone"]


def test_rdma_cm_takes_packet_numbers_of_its_own() -> None:
    """They are none of those in our records, and nothing is wrong with that."""
    far = peer(peer=replace(record("host1"), psn=0x777777), attributes={"sq_psn": 0x555555, "rq_psn": 0x777777})
    rows = (port("host2").gids[0], GidRow(2, "fd99::2", "RoCE v2", "eth1", 64))
    far = replace(far, device=device(port("host2", gids=rows)))
    told = replace(record("host2"), psn=0x555555, gid="fd99::2")
    local = {"peer": told, "attributes": {"sq_psn": 0x777778, "rq_psn": 0x555555}}
    assert names(diagnose(unanswered(far, **local))) == ["no-answer"]


def test_counters_that_could_not_be_read_are_not_taken_for_zeros() -> None:
    found = counters({"sent_pkts": 7}, {})
    assert names(diagnose(found)) == ["packets-dropped"]
    unread = replace(found, peer=replace(found.peer, unread={"counters": "not watched in this test"}))
    assert names(diagnose(unread)) == ["no-answer"]


def test_a_process_that_tells_nothing_is_likely_gone() -> None:
    silent = host("host2", counters={}, unread={"everything": "host2 is not open"})
    (cause,) = diagnose(unanswered(replace(silent, qps=())))
    assert cause.name == "process-gone"
    assert not cause.certain
    assert "host2 is not open" in cause.headline


def test_a_row_that_is_empty_when_a_pair_is_made_is_named() -> None:
    text = "rxe0/1 on host2 has no GID row 1; valid rows: 2 fd99::2 (RoCE v2, netdev fabric)"
    (cause,) = diagnose(evidence(error_type="RdmaUsageError", error=text))
    assert cause.name == "gid-gone"
    assert "GID row 1 of rxe0/1 on host2 is empty now" in cause.headline
