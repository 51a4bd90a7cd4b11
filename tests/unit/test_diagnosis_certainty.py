"""A diagnosis claims no more than the evidence shows: what else may be is not told, or told as likely."""

from __future__ import annotations

from dataclasses import replace

from evidence_builders import evidence, failure, host, ledger, qp, receive, send, waiting

from pytest_rdma.diagnosis import Cause, diagnose
from pytest_rdma.model import Opcode
from pytest_rdma.status import WCStatus


def names(found: list[Cause]) -> list[str]:
    return [cause.name for cause in found]


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
