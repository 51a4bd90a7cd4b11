"""A diagnosis claims no more than the evidence shows: what else may be is not told, or told as likely."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from evidence_builders import (
    ADDR,
    evidence,
    failed,
    failure,
    host,
    ledger,
    names,
    qp,
    receive,
    record,
    region,
    send,
    waiting,
)

from pytest_rdma.counters import NAMES
from pytest_rdma.deadline import Deadline
from pytest_rdma.diagnosis import diagnose
from pytest_rdma.errors import DeadlineError, HostLostError
from pytest_rdma.evidence import Evidence, QPEvidence, QueueLedger
from pytest_rdma.gathering import Place, evidence_of
from pytest_rdma.host import LocalHost
from pytest_rdma.model import Opcode, QPState, Sge
from pytest_rdma.status import WCStatus
from pytest_rdma.verbs_evidence import Reading, regions_of
from pytest_rdma.verbs_memory import PDEntry
from pytest_rdma.verbs_queue import QPEntry

S = WCStatus
SEND = Opcode.SEND


def test_who_waits_for_something_else_than_a_completion_is_told_nothing_about_completions() -> None:
    idle = host("host1", qp("host1")), host("host2")
    found = evidence(*idle, error_type="DeadlineError", error="`sleep 100` on host1 had not ended within 1 s")
    assert diagnose(found) == []
    (cause,) = diagnose(waiting(qp("host1", awaits="a completion event")))
    assert (cause.name, cause.certain) == ("no-completion-possible", False)


def test_a_request_that_is_signaled_and_not_shown_counts() -> None:
    shown = tuple(send(signaled=False) for _ in range(8))
    sends = ledger(*shown, outstanding_count=9, signaled_count=1)
    assert "unsignaled-awaited" not in names(diagnose(waiting(qp("host1", sends=sends))))
    sends = replace(sends, signaled_count=0)
    assert "unsignaled-awaited" in names(diagnose(waiting(qp("host1", sends=sends))))


def test_a_number_that_was_used_unsignaled_may_be_that_of_a_receive() -> None:
    waits = qp("host1", sends=ledger(silent=(1,)), recvs=ledger(replace(receive(), wr_id=1)), awaited_wr_ids=(1,))
    assert "unsignaled-awaited" not in names(diagnose(waiting(waits)))


def test_a_device_that_has_no_room_is_no_full_disk() -> None:
    assert diagnose(evidence(error_type="VerbsError", error="cannot make a CQ on host1 mlx5_0: ENOSPC (28)")) == []


def test_an_mtu_that_differs_is_proven_to_hurt_by_a_larger_message_only() -> None:
    def mtu_differs(length: int) -> bool:
        local = qp("host1", failure=failure(WCStatus.RETRY_EXC_ERR, send(Opcode.SEND, length)))
        far = qp("host2", attributes={"path_mtu": 512}, recvs=ledger(receive(length)))
        return next(
            one.certain
            for one in diagnose(evidence(host("host1", local), host("host2", far)))
            if one.name == "mtu-differs"
        )

    assert mtu_differs(1024)
    assert not mtu_differs(64)


def test_root_may_lack_the_capability_that_lifts_memlock() -> None:
    local = host("host1")
    info = replace(local.info, uid=0, memlock_soft=65536)
    text = "cannot register 1048576 bytes with LOCAL_WRITE on host1 rxe0: ENOMEM (12)"
    (cause,) = diagnose(evidence(replace(local, info=info), error_type="VerbsError", error=text))
    assert (cause.name, cause.certain) == ("out-of-memory", False)
    assert "unless root lacks CAP_IPC_LOCK there: it is 65536 bytes" in cause.headline


# -- a deadline that is about something else, while sends are in flight


def unrelated(sends: QueueLedger, far: QPEvidence | None = None, **local: Any) -> Evidence:
    """A program or an event was awaited in vain; the sends of host1 are outstanding, as nobody has polled for them."""
    ends = host("host1", qp("host1", sends=sends, **local)), host("host2", far or qp("host2"))
    return evidence(*ends, error_type="DeadlineError", error="`sleep 100` on host1 had not ended within 1 s")


RECEIVED = qp("host2", recvs=ledger(posted=1, completed=1))
RECENT = ledger(send(Opcode.SEND, ago_s=0.01))
ENDLESS = {"retry_cnt": 7}


@pytest.mark.parametrize("attributes", [{}, ENDLESS, {"timeout": 0}])
def test_a_deadline_of_something_else_says_nothing_of_retries(attributes: dict[str, int]) -> None:
    assert diagnose(unrelated(RECENT, RECEIVED, attributes=attributes)) == []


@pytest.mark.parametrize("awaited", [(1,), ()])
def test_a_send_that_is_awaited_speaks_for_retries(awaited: tuple[int, ...]) -> None:
    waits = qp("host2", recvs=ledger(receive()))
    found = unrelated(RECENT, waits, attributes=ENDLESS, awaits="1 completion", awaited_wr_ids=awaited)
    (cause,) = diagnose(replace(found, error_qp=0x11))
    assert (cause.name, cause.certain) == ("endless-retries", True)


@pytest.mark.parametrize("error_qp", [None, 0x12])
def test_a_wait_that_was_caught_is_not_certainly_that_of_a_later_deadline(error_qp: int | None) -> None:
    waits = qp("host2", recvs=ledger(receive()))
    found = unrelated(RECENT, waits, attributes=ENDLESS, awaits="1 completion")
    (cause,) = diagnose(replace(found, error_qp=error_qp))
    assert (cause.name, cause.certain) == ("endless-retries", False)


@pytest.mark.parametrize("counter", NAMES["retransmissions"])
def test_counted_retries_make_them_likely(counter: str) -> None:
    found = unrelated(RECENT, RECEIVED, attributes=ENDLESS)
    counted = replace(found, local=replace(found.local, counters={counter: 3}))
    assert [(cause.name, cause.certain) for cause in diagnose(counted)][-1] == ("endless-retries", False)


def test_who_waits_for_a_receive_or_an_event_is_told_nothing_of_retries() -> None:
    receives = ledger(replace(receive(), wr_id=9))
    numbered = unrelated(RECENT, RECEIVED, recvs=receives, awaits="wr_id 0x9", awaited_wr_ids=(9,))
    assert "retries-outlast-wait" not in names(diagnose(numbered))
    unsignaled = ledger(send(Opcode.SEND, signaled=False, ago_s=0.01))
    for_any = unrelated(unsignaled, RECEIVED, recvs=receives, awaits="1 completion")
    assert "retries-outlast-wait" not in names(diagnose(for_any))
    event = unrelated(RECENT, RECEIVED, awaits="a completion event")
    assert "retries-outlast-wait" not in names(diagnose(event))


def test_a_receive_that_was_never_posted_is_told_and_one_that_completed_is_not_missing() -> None:
    (cause,) = diagnose(unrelated(RECENT))
    assert (cause.name, cause.certain) == ("no-receive-posted", False)
    assert diagnose(unrelated(RECENT, RECEIVED)) == []


def test_a_state_of_the_peer_that_takes_nothing_is_told() -> None:
    reset = qp("host2", state=QPState.RESET)
    assert names(diagnose(unrelated(RECENT, reset)))[0] == "peer-qp-reset"


def test_a_large_send_that_nobody_has_polled_for_is_not_lost() -> None:
    sends = ledger(send(length=4096, ago_s=5.0), posted=2, completed=1, most_bytes_completed=64)
    assert diagnose(unrelated(sends)) == []
    waits = qp("host1", sends=sends, awaited_wr_ids=(1,))
    assert names(diagnose(waiting(waits))) == ["mtu-beyond-path"]


@pytest.mark.parametrize(("fields", "named"), [({}, None), ({"host": "host1", "device": "rxe0", "qp_num": 0x11}, 0x11)])
def test_the_evidence_tells_which_qp_the_error_names(fields: dict[str, Any], named: int | None) -> None:
    def answer(*args: Any, **options: Any) -> Any:
        raise HostLostError("gone")

    one, two = (SimpleNamespace(name=name, loss="gone", timeout_scale=1, invoke=answer) for name in ("host1", "host2"))
    places: Any = tuple(Place(cast(Any, host), "rxe0", 1, 1) for host in (one, two))
    assert evidence_of(places, [], DeadlineError("no completion", **fields), 1.0).error_qp == named


# -- a wait that was caught, and a later error that is about something else


@pytest.mark.parametrize(
    ("name", "local"),
    [
        ("unsignaled-awaited", qp("host1", sends=ledger(send(signaled=False)))),
        ("no-completion-possible", qp("host1")),
        ("peer-sent-nothing", qp("host1", recvs=ledger(receive()))),
    ],
)
def test_what_an_earlier_wait_was_for_is_not_certainly_why_a_later_error_came(name: str, local: QPEvidence) -> None:
    found = waiting(local, qp("host2", recvs=ledger(receive())))

    def first(**changes: Any) -> tuple[str, bool]:
        cause = diagnose(replace(found, **changes))[0]
        return cause.name, cause.certain

    assert first() == (name, True)
    assert first(error_qp=None) == first(error_qp=0x99) == first(error_qp=None, error_type="Failed") == (name, False)


@pytest.mark.parametrize(
    ("name", "here", "there"),
    [
        ("own-qp-not-in-rts", QPState.INIT, QPState.RTS),
        ("peer-qp-reset", QPState.RTS, QPState.RESET),
    ],
)
def test_what_is_certain_comes_before_what_an_earlier_wait_was_for(name: str, here: QPState, there: QPState) -> None:
    waits = qp("host1", state=here, sends=ledger(send(signaled=False)))
    found = waiting(waits, qp("host2", state=there))
    assert names(diagnose(found))[0] == "unsignaled-awaited"
    assert (name, True) in [(one.name, one.certain) for one in diagnose(found)]
    assert [(one.name, one.certain) for one in diagnose(replace(found, error_qp=None))] == [(name, True)]


def test_who_has_unsignaled_sends_waits_on_a_receive() -> None:
    """A ping whose send is unsignaled waits for the answer alone."""
    waits = qp("host1", sends=ledger(send(Opcode.SEND, signaled=False)), recvs=ledger(receive()), awaits="1 completion")
    (cause,) = diagnose(waiting(waits, qp("host2", recvs=ledger(posted=1, completed=1))))
    assert (cause.name, cause.certain) == ("peer-sent-nothing", True)
    signaled = replace(waits, sends=ledger(send(Opcode.SEND)))
    assert "peer-sent-nothing" not in names(diagnose(waiting(signaled, qp("host2", recvs=RECEIVED.recvs))))


# -- what was closed after the failure, as by a `finally:`


def test_memory_that_was_closed_after_the_failure_is_not_why_it_failed() -> None:
    def own(closed_ago_s: float) -> list[str]:
        gone = region("host1", closed=True, closed_ago_s=closed_ago_s)
        local = qp("host1", failure=failure(S.LOC_PROT_ERR, send(SEND), ago_s=0.5))
        return names(diagnose(evidence(host("host1", local, regions=(gone,)))))

    assert own(0.6) == ["own-mr-closed"]
    assert own(0.4) == ["status"]


def test_a_key_whose_region_was_closed_after_the_failure_is_only_likely_stale() -> None:
    """The clocks of two hosts may differ by as much as a refusal takes."""
    for closed_ago_s, certain in ((0.6, True), (0.4, False)):
        gone = host("host2", regions=(region("host2", closed=True, closed_ago_s=closed_ago_s),))
        (cause,) = diagnose(failed(S.REM_ACCESS_ERR, send(), gone))
        assert (cause.name, cause.certain) == ("rkey-stale", certain)


def test_a_pair_that_was_closed_after_the_failure_is_not_gone() -> None:
    def found(own_closed: bool, closed_ago_s: float) -> list[tuple[str, bool]]:
        far = host("host2", qp("host2", closed=True, state=None, closed_ago_s=closed_ago_s))
        return [
            (one.name, one.certain) for one in diagnose(failed(S.RETRY_EXC_ERR, send(SEND), far, closed=own_closed))
        ]

    assert found(False, 0.6) == found(True, 0.6) == [("peer-qp-gone", True)]
    assert found(False, 0.4) == [("peer-qp-gone", False)]
    assert found(True, 0.4) == [("no-answer", False)]


# -- memory that is not in our table


def test_regions_are_not_all_known_once_the_objects_of_verbs_were_handed_out() -> None:
    """A test, or C code of its own, may register what it likes in the PD that `endpoint.raw` gives."""
    here = LocalHost("host1")
    entry = QPEntry.__new__(QPEntry)
    entry.pd = PDEntry.__new__(PDEntry)
    entry.pd.raw = "PD"
    there: Any = SimpleNamespace(context="context", raw="CQ or MR", kind="qp")
    entry.device = entry.cq = entry.buffer = entry.front = there
    entry.raw_qp = "QP"
    here._objects[4] = entry
    reading = Reading(Deadline(1.0))
    regions_of(here, 0, reading)
    assert reading.unread == {}
    assert here.raw("qp", 4).pd == "PD"
    regions_of(here, 0, reading)
    assert list(reading.unread) == ["regions"]
    del here._objects[4]  # and the PD with it
    later = Reading(Deadline(1.0))
    regions_of(here, 0, later)
    assert later.unread == {}
    bad = failure(S.LOC_PROT_ERR, send(SEND, sges=(Sge(ADDR["host1"], 64, 0x99),)))
    local = host("host1", qp("host1", failure=bad), unread=reading.unread)
    (cause,) = diagnose(evidence(local))
    assert (cause.name, cause.certain) == ("own-lkey-unknown", False)


def test_a_qp_of_a_program_on_the_peer_is_none_of_ours() -> None:
    """What perftest has registered and made there is in another process."""
    there = replace(record("host2"), qp_num=0x99)
    refused = failed(S.REM_ACCESS_ERR, send(rkey=0x777), peer=there, attributes={"dest_qp_num": 0x99})
    (cause,) = diagnose(replace(refused, peer_qp=None))
    assert (cause.name, cause.certain) == ("rkey-unknown", False)
    silent = failed(S.RETRY_EXC_ERR, send(SEND), peer=there, attributes={"dest_qp_num": 0x99})
    (cause,) = diagnose(replace(silent, peer_qp=None))
    assert (cause.name, cause.certain) == ("peer-qp-gone", False)
