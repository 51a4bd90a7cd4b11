"""What the ledger of a QP knows of requests and completions, and of loops that count by themselves."""

from __future__ import annotations

from pytest_rdma.ledger import KEPT, Ledger, Outstanding, Progress
from pytest_rdma.model import Completion, Opcode, RecvWR, SendWR, Sge

RETRY_EXC_ERR, WR_FLUSH_ERR = 12, 5


def send(wr_id: int, *, signaled: bool = True, length: int = 8) -> SendWR:
    return SendWR(Opcode.SEND, (Sge(0x1000, length, 1),), wr_id=wr_id, signaled=signaled)


def done(wr_id: int, status: int = 0, opcode: int = 0) -> Completion:
    return Completion(wr_id, status, opcode, 0, None, 0, 0x11)


def test_counts_times_and_the_longest_success_are_kept() -> None:
    ledger = Ledger()
    ledger.sends.post([send(1), send(2, length=64), send(3, length=4096)], False)
    ledger.complete(done(2), 10)
    assert (ledger.sends.posted, ledger.sends.completed, len(ledger.sends)) == (3, 2, 1)
    assert ledger.sends.last_post_ns > 0
    assert ledger.sends.last_completion_ns == 10
    assert ledger.sends.most_bytes == 64
    assert (ledger.recvs.posted, ledger.recvs.last_post_ns) == (0, 0)


def test_what_completed_without_a_completion_of_its_own_is_remembered() -> None:
    ledger = Ledger()
    ledger.sends.post([send(1, signaled=False), send(2, signaled=False), send(3)], False)
    assert ledger.sends.can_complete
    ledger.complete(done(3), 10)
    assert list(ledger.sends.silent) == [1, 2]


def test_the_first_failure_is_no_flush_and_knows_its_request() -> None:
    ledger = Ledger()
    ledger.recvs.post([RecvWR((), 7)], True)
    ledger.sends.post([send(1), send(2)], False)
    ledger.complete(done(7, WR_FLUSH_ERR), 10)
    ledger.complete(done(1, RETRY_EXC_ERR), 11)
    ledger.complete(done(2, RETRY_EXC_ERR), 12)
    assert ledger.failed is not None
    assert ledger.failed.completion.wr_id == 1
    assert ledger.failed.of is not None
    assert ledger.failed.of.request == send(1)
    assert ledger.first_flush is not None
    assert ledger.first_flush.of is not None
    assert ledger.first_flush.of.request == RecvWR((), 7)
    assert ledger.flushed == 1
    assert [one.wr_id for one in ledger.recent] == [7, 1, 2]


def test_a_reset_forgets_all_and_only_the_last_completions_are_kept() -> None:
    ledger = Ledger()
    ledger.sends.post([send(wr_id) for wr_id in range(2 * KEPT)], False)
    for wr_id in range(2 * KEPT):
        ledger.complete(done(wr_id, WR_FLUSH_ERR), 10)
    assert len(ledger.recent) == KEPT
    sends = ledger.sends
    ledger.clear()
    assert ledger.sends is sends
    assert (sends.posted, ledger.flushed, ledger.first_flush, len(ledger.recent)) == (0, 0, None, 0)


def test_a_loop_adds_its_own_counts_however_often_it_is_looked_at() -> None:
    ledger = Ledger()
    ledger.sends.post([send(1)], False)
    ledger.complete(done(1), 10)
    ledger.recvs.post([RecvWR((), 2)] * 3, True)  # left by a run before: the next one counts them as its own
    at = [4, 1]
    flight = Outstanding(9, True, 5, send(9))

    def look() -> tuple[Progress, Progress]:
        return Progress(at[0], at[1], [flight] * (at[0] - at[1]), 20, 21, [send(9, length=512)]), Progress(3, 0, [])

    ledger.begin_loop(look)
    ledger.look_at_loop()
    assert (ledger.sends.posted, ledger.sends.completed, len(ledger.sends)) == (5, 2, 3)
    at[:] = [10, 10]
    ledger.end_loop()
    ledger.look_at_loop()
    assert (ledger.sends.posted, ledger.sends.completed, len(ledger.sends)) == (11, 11, 0)
    assert (ledger.sends.last_post_ns, ledger.sends.last_completion_ns) == (20, 21)
    assert (ledger.recvs.posted, ledger.recvs.completed) == (3, 0)
    assert ledger.sends.cycle == [send(9, length=512)]
