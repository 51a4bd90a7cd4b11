"""What a poll of a CQ that many QPs may use leaves for a diagnosis: which of them it waited for."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_rdma import verbs_post
from pytest_rdma.deadline import Deadline
from pytest_rdma.errors import DeadlineError
from pytest_rdma.ledger import Ledger
from pytest_rdma.model import Completion, Opcode, QPState, SendWR


def user(cq: Any, qp_num: int, *sends: SendWR) -> Any:
    book = Ledger()
    book.sends.post(sends, False)
    label, about = f"QP {qp_num:#x}", {"host": "host1", "device": "rxe0", "qp_num": qp_num}
    made = SimpleNamespace(ledger=book, sends=book.sends, recvs=book.recvs, srq=None, cq=cq, label=label, about=about)
    made.qp_num, made.live_state = qp_num, lambda: QPState.RTS
    cq.qps[qp_num] = made
    return made


@pytest.fixture
def cq() -> Any:
    return SimpleNamespace(stash=[], lock=threading.Lock(), qps={}, keep=lambda completions, first=False: None)


def poll(monkeypatch: pytest.MonkeyPatch, cq: Any, *came: Completion, exactly: bool = True) -> list[Completion]:
    """Poll for one completion; no device is needed for what is asked here."""
    host: Any = SimpleNamespace(name="host1", entry=lambda kind, handle: cq)
    monkeypatch.setattr(verbs_post, "reap", lambda *args: time.sleep(0.01) or list(came))
    return verbs_post.op_cq_poll(host, Deadline(0.05), 4, 1, exactly)


SEND = SendWR(Opcode.SEND, (), wr_id=1)


def test_a_poll_in_vain_names_the_one_qp_that_it_may_have_waited_for(cq: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    waits, idle = user(cq, 0x11, SEND), user(cq, 0x12)
    with pytest.raises(DeadlineError) as caught:
        poll(monkeypatch, cq)
    assert (waits.ledger.awaited, idle.ledger.awaited) == (1, "")
    assert caught.value.fields == waits.about


def test_a_poll_in_vain_for_several_qps_names_none(cq: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    both = user(cq, 0x11, SEND), user(cq, 0x12, SEND)
    with pytest.raises(DeadlineError) as caught:
        poll(monkeypatch, cq)
    assert [one.ledger.awaited for one in both] == [1, 1]
    assert caught.value.fields == {}


def test_nothing_is_awaited_after_a_poll_that_got_all_or_took_what_came(
    cq: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = user(cq, 0x11, SEND)
    done = Completion(1, 0, 0, 0, None, 0, 0x11)
    assert poll(monkeypatch, cq, done) == [done]
    assert waits.ledger.awaited == ""
    assert poll(monkeypatch, cq, exactly=False) == []
    assert waits.ledger.awaited == ""
