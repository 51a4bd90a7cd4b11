"""What must come of a faulty operation at each end, and a probe that posts it and notes what came."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from pytest_rdma.endpoint import Endpoint
from pytest_rdma.errors import DeadlineError, PostError, errno_text
from pytest_rdma.model import Completion, QPState, RecvWR, SendWR
from pytest_rdma.status import WCStatus, name_of

FIRST_RECV = 1 << 32
WAIT_S = 5.0
EVENT_WAIT_S = 1.0


@dataclass(frozen=True)
class EndOutcome:
    """What one end must show; by default nothing at all happens there.

    `sends` and `recvs` are the statuses of its requests from the first one on, in the order posted; requests beyond
    them do not complete. `state` is the QP's afterwards, None when the QP is no more. `events` are the asynchronous
    events of its QP and CQ by their names without prefix. `post_errno` is that of the first post that was refused,
    `refused` the statuses of requests that completed although their post was refused. `invalidated` are the keys that
    its receives say were invalidated.
    """

    sends: tuple[WCStatus, ...] = ()
    recvs: tuple[WCStatus, ...] = ()
    state: QPState | None = QPState.RTS
    events: tuple[str, ...] = ()
    post_errno: int = 0
    refused: tuple[WCStatus, ...] = ()
    invalidated: tuple[int, ...] = ()

    def with_(self, **changes: Any) -> EndOutcome:
        return replace(self, **changes)

    def differences(self, other: EndOutcome) -> dict[str, Any]:
        """Return the fields of `other` that are not as here."""
        return {
            one.name: getattr(other, one.name)
            for one in fields(self)
            if getattr(self, one.name) != getattr(other, one.name)
        }

    @property
    def text(self) -> str:
        """The outcome in words."""
        parts = [
            f"{what} {', '.join(name_of(status) for status in statuses)}"
            for what, statuses in (("sends", self.sends), ("receives", self.recvs), ("refused ones", self.refused))
            if statuses
        ]
        if self.post_errno:
            parts.insert(0, f"post refused with {errno_text(self.post_errno)}")
        parts.append(f"QP {self.state.name}" if self.state is not None else "QP gone")
        if self.events:
            parts.append(f"events {', '.join(self.events)}")
        if self.invalidated:
            parts.append(f"invalidated keys {', '.join(map(hex, self.invalidated))}")
        return "; ".join(parts)


class Probe:
    """Posts to one endpoint unchecked, numbers the requests by queue, and tells afterwards what came of them."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.post_errno = 0
        self.refused: set[int] = set()
        self.sends = 0
        self.recvs = 0
        self.completions: list[Completion] = []
        endpoint.async_events()  # what came before is not ours

    def send(self, *requests: SendWR) -> None:
        """Post in one list; a refusal is noted, not raised."""
        numbered = [replace(one, wr_id=self.sends + index + 1) for index, one in enumerate(requests)]
        self.sends += len(numbered)
        self._post(numbered)

    def recv(self, *requests: RecvWR) -> None:
        """Post in one list; a refusal is noted, not raised."""
        numbered = [replace(one, wr_id=FIRST_RECV + self.recvs + index) for index, one in enumerate(requests)]
        self.recvs += len(numbered)
        self._post(numbered)

    def _post(self, requests: Sequence[SendWR | RecvWR]) -> None:
        try:
            self.endpoint.post_raw(requests)
        except PostError as error:
            self.post_errno = self.post_errno or error.errno
            self.refused.update(one.wr_id for one in requests[error.bad_index :])

    def note(self, send: Sequence[Completion] = (), recv: Sequence[Completion] = ()) -> None:
        """Take completions of checked posts, which the test has polled itself, for those of the next requests."""
        for one in send:
            self.sends += 1
            self.completions.append(replace(one, wr_id=self.sends))
        for one in recv:
            self.completions.append(replace(one, wr_id=FIRST_RECV + self.recvs))
            self.recvs += 1

    def observe(self, expected: EndOutcome, timeout_s: float = WAIT_S) -> EndOutcome:
        """Return what came, once as much came as is expected or the time is up.

        AssertionError when the requests of one queue completed in another order than they were posted.
        """
        if self.endpoint.closed:
            return EndOutcome(state=None)
        self._reap(len(expected.sends) + len(expected.recvs) + len(expected.refused), timeout_s)
        events = self._events(len(expected.events), EVENT_WAIT_S)
        taken = [one for one in self.completions if one.wr_id not in self.refused]
        return EndOutcome(
            self._statuses([one for one in taken if one.wr_id < FIRST_RECV]),
            self._statuses([one for one in taken if one.wr_id >= FIRST_RECV]),
            self.endpoint.state,
            events,
            self.post_errno,
            self._statuses([one for one in self.completions if one.wr_id in self.refused]),
            tuple(one.invalidated_rkey for one in taken if one.invalidated_rkey is not None),
        )

    def _reap(self, count: int, timeout_s: float) -> None:
        missing = count - len(self.completions)
        if missing > 0:
            with contextlib.suppress(DeadlineError):  # what came so far is kept and taken below
                self.completions += self.endpoint.poll(missing, timeout_s)
        self.completions += self.endpoint.poll(self.sends + self.recvs + 1, 0.0, exactly=False)

    def _events(self, count: int, timeout_s: float) -> tuple[str, ...]:
        found = self._own_events(0.0)
        while len(found) < count:
            more = self._own_events(timeout_s)
            if not more:
                break
            found += more
        return tuple(sorted(found))

    def _own_events(self, timeout_s: float) -> list[str]:
        mine = self.endpoint.label
        events = self.endpoint.async_events(timeout_s)
        return [event.type for event in events if event.element == mine or event.element.startswith("CQ ")]

    def _statuses(self, came: Sequence[Completion]) -> tuple[WCStatus, ...]:
        wr_ids = [one.wr_id for one in came]
        if wr_ids != sorted(set(wr_ids)):
            shown = ", ".join(hex(wr_id) for wr_id in wr_ids)
            raise AssertionError(f"{self.endpoint!r}: requests were not completed once each, as posted: wr_id {shown}")
        return tuple(WCStatus(one.status) for one in came)
