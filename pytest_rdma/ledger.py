"""The ledger of a QP: what was posted, what came of it, and when, kept as requests are posted and completions reaped.

All times are of the host's monotonic clock, in nanoseconds; 0 is never. The QP's lock guards all.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, Callable, NamedTuple

from pytest_rdma.model import Completion, RecvWR, SendWR

WC_RECV = 128
WR_FLUSH_ERR = 5
KEPT = 8


class Outstanding(NamedTuple):
    """A request that was posted and has not completed; a receive counts as signaled. Loops give wr_ids of their own."""

    wr_id: int
    signaled: bool
    posted_ns: int
    request: SendWR | RecvWR


class Failed(NamedTuple):
    """A completion that was no success, and its request where that was known."""

    completion: Completion
    at_ns: int
    of: Outstanding | None


class Queue:
    """One queue of a QP: what is outstanding, oldest first, and counts since the QP was last reset.

    `silent` holds the wr_ids that last completed unsignaled, by the completion of a later request; `cycle` is what a
    loop posted over and over, and completed some of.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.outstanding: deque[Outstanding] = deque()
        self.silent: deque[int] = deque(maxlen=KEPT)
        self.posted = self.completed = self.most_bytes = 0
        self.cycle: Sequence[SendWR | RecvWR] = ()
        self.last_post_ns = self.last_completion_ns = 0

    def __len__(self) -> int:
        return len(self.outstanding)

    @property
    def can_complete(self) -> bool:
        """Whether any of what is outstanding gives a completion when it succeeds."""
        return any(one.signaled for one in list(self.outstanding))

    def holds(self, wr_id: int) -> bool:
        return any(one.wr_id == wr_id for one in self.outstanding)

    def post(self, requests: Sequence[SendWR | RecvWR], every: bool) -> None:
        """Note requests that the driver took; with `every` all of them are signaled."""
        now = time.monotonic_ns()
        self.outstanding.extend(
            Outstanding(request.wr_id, every or getattr(request, "signaled", True), now, request)
            for request in requests
        )
        self.posted += len(requests)
        self.last_post_ns = now

    def retire(self, one: Completion, now_ns: int) -> Outstanding | None:
        """Drop the request that completed and all before it; a completion of what was not counted drops nothing."""
        wanted = (
            index
            for index, posted in enumerate(self.outstanding)
            if posted.wr_id == one.wr_id and (posted.signaled or one.status)
        )
        position = next(wanted, None)
        if position is None:
            return None
        for _ in range(position):
            before = self.outstanding.popleft()
            if not before.signaled:
                self.silent.append(before.wr_id)
        self.completed += position + 1
        self.last_completion_ns = now_ns
        found = self.outstanding.popleft()
        if not one.status:
            self.most_bytes = max(self.most_bytes, sum(sge.length for sge in found.request.sges))
        return found


def _is_send(one: Outstanding | None) -> bool:
    return one is not None and isinstance(one.request, SendWR)


class Progress(NamedTuple):
    """How far a loop is with one of the queues of a QP: its own counts, and its requests that are in flight."""

    posted: int
    completed: int
    in_flight: Iterable[Outstanding]
    last_post_ns: int = 0
    last_completion_ns: int = 0
    cycle: Sequence[SendWR | RecvWR] = ()


class Loop:
    """A loop that posts and polls in C, beside the ledger: `look` asks how far it is with sends and receives."""

    def __init__(self, ledger: Ledger, look: Callable[[], tuple[Progress, Progress]]) -> None:
        sends, recvs = ledger.sends, ledger.recvs
        self.look = look
        # a run counts the receives that one before it has left as its own
        self.before = (sends.posted, sends.completed), (recvs.posted - len(recvs), recvs.completed)


class Ledger:
    """Both queues of a QP and what came of them.

    `failed` is the first completion that was neither a success nor a flush, `first_flush` the first flush: of a send,
    where there is one, as a receive that is flushed tells nothing.
    `awaited` is what a call that is still running waits for, or the last that ran out of time: wr_ids, a number of
    completions, or words.
    """

    def __init__(self) -> None:
        self.sends, self.recvs = Queue(), Queue()
        self.loop: Loop | None = None
        self._forget()

    def _forget(self) -> None:
        self.failed: Failed | None = None
        self.first_flush: Failed | None = None
        self.flushed = 0
        self.recent: deque[Completion] = deque(maxlen=KEPT)
        self.awaited: tuple[int, ...] | int | str = ""

    def clear(self) -> None:
        """Begin anew, as the QP does in RESET."""
        self.sends.clear()
        self.recvs.clear()
        self._forget()

    def complete(self, one: Completion, now_ns: int, request: SendWR | RecvWR | None = None) -> None:
        """Take a completed request, and the unsignaled ones before it, off what is outstanding.

        A loop, which counts by itself, tells the `request`.
        """
        if request is not None:
            of: Outstanding | None = Outstanding(one.wr_id, True, now_ns, request)
        else:
            received = one.opcode & WC_RECV if one.status == 0 else not self.sends.holds(one.wr_id)
            of = (self.recvs if received else self.sends).retire(one, now_ns)
        self.recent.append(one)
        if one.status == WR_FLUSH_ERR:
            self.flushed += 1
            if self.first_flush is None or (_is_send(of) and not _is_send(self.first_flush.of)):
                self.first_flush = Failed(one, now_ns, of)
        elif one.status and self.failed is None:
            self.failed = Failed(one, now_ns, of)

    def begin_loop(self, look: Callable[[], tuple[Progress, Progress]]) -> None:
        self.loop = Loop(self, look)

    def look_at_loop(self) -> None:
        """Take over how far a loop is, also one that is running; its counters are read as they stand."""
        if self.loop is None:
            return
        for queue, before, progress in zip((self.sends, self.recvs), self.loop.before, self.loop.look()):
            queue.posted, queue.completed = before[0] + progress.posted, before[1] + progress.completed
            queue.last_post_ns = progress.last_post_ns or queue.last_post_ns
            queue.last_completion_ns = progress.last_completion_ns or queue.last_completion_ns
            queue.outstanding = deque(progress.in_flight)
            queue.cycle = progress.cycle if progress.completed else queue.cycle

    def end_loop(self) -> None:
        self.look_at_loop()
        self.loop = None


def account(cq: Any, completions: Sequence[Completion]) -> None:
    """Enter completions that were reaped from a CQ in the ledgers of their QPs."""
    now = time.monotonic_ns()
    for one in completions:
        entry = cq.qps.get(one.qp_num)
        if entry is not None:
            with entry.lock:
                entry.ledger.complete(one, now)
