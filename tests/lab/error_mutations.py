"""A plugin that spoils what came of a fault before the error suites look at it; see test_mutations.py.

It patches the front objects on the controller. Each test that `EXPECTED` names runs once for each of its mutations,
which it must not survive, and once as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from spoiling import Patch, keep_one_row_a_mutation, mutation_fixture

from pytest_rdma import AsyncEvent, Buffer, Completion, DeadlineError, Endpoint, Pair, QPState
from pytest_rdma.status import WCStatus

PATIENCE_S = 0.1
_COMPLETIONS = ("wrong_status", "lost", "doubled", "reordered")
_ALL = (*_COMPLETIONS, "touched", "wrong_state", "event", "does_not_come_back")
EXPECTED: dict[str, dict[str, tuple[str, ...]]] = {
    "test_error_own_memory": {
        "test_own_memory_that_is_not_ours": _ALL,
        "test_sink_without_local_write": ("touched",),
        "test_receive_into_bad_memory": ("wrong_status", "reordered", "wrong_state"),
        "test_message_longer_than_the_receive": ("wrong_status", "touched"),
    },
    "test_error_peer_memory": {"test_wrong_key_or_address": ("wrong_status", "touched", "event", "does_not_come_back")},
    "test_error_peer_qp": {"test_qp_without_the_access": ("wrong_status", "event")},
    "test_error_transport": {
        "test_no_receive_within_the_rnr_retries": ("wrong_status", "lost", "does_not_come_back"),
        "test_psn_behind_by_as_much_as_is_posted": ("touched",),
        "test_peer_qp_in_another_state": ("wrong_state",),
    },
    "test_qp_life": {
        "test_everything_is_flushed_in_err": _COMPLETIONS,
        "test_raw_send_before_rts": ("doubled", "wrong_state"),
        "test_checked_posts_in_err_are_flushed_too": ("wrong_status",),
    },
    "test_qp_states": {"test_legal_transition": ("wrong_state",), "test_missing_attribute_is_named": ("wrong_state",)},
    "test_limits": {"test_cq_overrun": ("lost", "event")},
}

# -- the ways of spoiling


def spoil_polled(patch: pytest.MonkeyPatch, change: Callable[[list[Completion]], list[Completion]]) -> None:
    poll = Endpoint.poll

    def spoiled(self: Endpoint, *args: Any, **options: Any) -> list[Completion]:
        return change(poll(self, *args, **options))

    patch.setattr(Endpoint, "poll", spoiled)


def wrong_status(patch: pytest.MonkeyPatch) -> None:
    spoil_polled(patch, lambda came: [replace(one, status=WCStatus.GENERAL_ERR) for one in came])


def doubled(patch: pytest.MonkeyPatch) -> None:
    spoil_polled(patch, lambda came: [*came, *came[-1:]])


def reordered(patch: pytest.MonkeyPatch) -> None:
    spoil_polled(patch, lambda came: came[::-1])


def lost(patch: pytest.MonkeyPatch) -> None:
    """The first completion of the test is gone, and who waits for it finds out in time."""
    poll = Endpoint.poll
    gone: list[Completion] = []

    def without_one(self: Endpoint, count: int = 1, timeout_s: float = 5.0, *, exactly: bool = True) -> Any:
        came = poll(self, count, timeout_s, exactly=exactly)
        if came and not gone:
            gone.append(came.pop(0))
            if exactly:
                came += poll(self, 1, PATIENCE_S, exactly=False)
                if len(came) < count:
                    raise DeadlineError(f"{len(came)} of {count} completions")
        return came

    patch.setattr(Endpoint, "poll", without_one)


def touched(patch: pytest.MonkeyPatch) -> None:
    """One byte arrived that must not have."""
    check = Buffer.check_untouched

    def spoiled(self: Buffer, byte: int, offset: int = 0, length: int | None = None) -> None:
        offset, size = self.range(offset, length)
        self.write(bytes([byte ^ 1]), offset + size - 1)
        check(self, byte, offset, size)

    patch.setattr(Buffer, "check_untouched", spoiled)


def wrong_state(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Endpoint, "state", property(lambda self: QPState.SQE))


def event(patch: pytest.MonkeyPatch) -> None:
    """An asynchronous event came that nothing accounts for."""
    events = Endpoint.async_events

    def one_more(self: Endpoint, timeout_s: float = 0.0) -> list[AsyncEvent]:
        return [*events(self, timeout_s), AsyncEvent("QP_LAST_WQE_REACHED", self.label)]

    patch.setattr(Endpoint, "async_events", one_more)


def does_not_come_back(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Pair, "reconnect", Pair.reset)


SPOILERS: dict[str, Patch] = {
    one.__name__: one
    for one in (wrong_status, doubled, reordered, lost, touched, wrong_state, event, does_not_come_back)
}
mutation = mutation_fixture(SPOILERS)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    keep_one_row_a_mutation(EXPECTED, config, items)
