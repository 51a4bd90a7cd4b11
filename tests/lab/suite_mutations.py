"""A plugin that spoils what the transport brought before the suites look at it; see test_mutations.py.

It patches the front objects on the controller. Each test runs once for each way of spoiling that `EXPECTED` names for
it, and once as it is; the first must fail and the last must pass.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from spoiling import Patch, keep_one_row_a_mutation, mutation_fixture

from pytest_rdma import Buffer, Completion, Endpoint, Opcode, SendWR, WCOpcode
from pytest_rdma.endpoint import check_success
from pytest_rdma.status import WCStatus

RECEIVED = 128
PATIENCE_S = 0.1
COMPLETES_AS = {
    Opcode.SEND: WCOpcode.SEND,
    Opcode.SEND_WITH_IMM: WCOpcode.SEND,
    Opcode.SEND_WITH_INV: WCOpcode.SEND,
    Opcode.RDMA_WRITE: WCOpcode.RDMA_WRITE,
    Opcode.RDMA_WRITE_WITH_IMM: WCOpcode.RDMA_WRITE,
    Opcode.RDMA_READ: WCOpcode.RDMA_READ,
    Opcode.ATOMIC_CMP_AND_SWP: WCOpcode.COMP_SWAP,
    Opcode.ATOMIC_FETCH_AND_ADD: WCOpcode.FETCH_ADD,
}

_BYTES = ("wrong_byte", "truncated", "lost", "spilled", "wrong_status")
_MESSAGE = (*_BYTES, "doubled")
EXPECTED: dict[str, dict[str, tuple[str, ...]]] = {
    "test_echo": {"test_echo_returns_every_byte": _BYTES},
    "test_send": {
        "test_send_delivers_every_byte_once": _MESSAGE,
        "test_messages_arrive_in_the_order_sent": ("reordered",),
    },
    "test_immediate": {
        "test_send_with_immediate": (*_MESSAGE, "wrong_imm"),
        "test_write_with_immediate": ("wrong_imm",),
        "test_each_message_has_its_own_immediate": ("reordered",),
    },
    "test_rdma_write": {"test_write_places_every_byte": _BYTES},
    "test_rdma_read": {"test_read_fetches_every_byte": _BYTES},
    "test_atomics": {
        "test_fetch_add": ("wrong_byte", "lost", "doubled", "wrong_status"),
        "test_many_at_once_take_effect_one_after_the_other": ("reordered",),
    },
    "test_inline": {"test_inline_send": _MESSAGE},
    "test_sges": {
        "test_send_is_gathered_and_scattered": ("wrong_byte", "truncated", "lost", "doubled", "wrong_status")
    },
    "test_zero_length": {
        "test_send_with_immediate_into_a_receive_without_memory": ("lost", "doubled", "wrong_imm", "wrong_status")
    },
    "test_ordering": {
        "test_completions_come_in_the_order_posted": ("reordered", "doubled", "wrong_imm", "wrong_status"),
        "test_the_last_of_many_writes_to_one_place_stays": ("wrong_byte", "lost", "reordered"),
        "test_a_message_tells_that_the_writes_before_it_have_landed": ("truncated",),
    },
    "test_large_messages": {"test_send": ("wrong_byte", "truncated", "lost", "wrong_status")},
    "test_completion_channel": {
        "test_a_burst_polled_in_small_batches_arrives_whole": (
            "wrong_byte",
            "lost",
            "doubled",
            "reordered",
            "truncated",
            "wrong_status",
        )
    },
    "test_memory_windows": {"test_send_with_invalidate": _MESSAGE},
    "test_srq": {
        "test_receives_are_taken_in_order_by_whoever_gets_a_message": _MESSAGE,
        "test_one_qp_may_take_all_receives": ("reordered",),
        "test_writes_with_immediate_take_receives_too": ("wrong_imm", "wrong_status"),
    },
    "test_other_transports": {
        "test_uc_echo": _MESSAGE,
        "test_uc_write_with_immediate": ("wrong_imm", "wrong_status"),
        "test_ud_echo": ("wrong_byte", "doubled", "wrong_status"),
    },
}


# -- the ways of spoiling


def spoil_completions(
    patch: pytest.MonkeyPatch, change: Callable[[Endpoint, list[Completion]], list[Completion]]
) -> None:
    """Let `change` have what `poll` and `wait` return."""
    for method in ("poll", "wait"):
        real = getattr(Endpoint, method)

        def spoiled(self: Endpoint, *args: Any, _real: Any = real, **options: Any) -> list[Completion]:
            return change(self, _real(self, *args, **options))

        patch.setattr(Endpoint, method, spoiled)


def spoil_memory(patch: pytest.MonkeyPatch, place: Callable[[int, int], int], *, reads: bool) -> None:
    """Flip a byte of what is verified, at `place(offset, length)`, in the memory itself, and the last that is read."""
    verify, read = Buffer.verify, Buffer.read

    def spoiled_verify(self: Buffer, seed: int, offset: int = 0, length: int | None = None, **options: Any) -> None:
        offset, size = self.range(offset, length)
        where = place(offset, size)
        if size and where < self.length:
            self.write(bytes([read(self, where, 1)[0] ^ 1]), where)
        verify(self, seed, offset, size, **options)

    def spoiled_read(self: Buffer, offset: int = 0, length: int | None = None) -> bytes:
        data = read(self, offset, length)
        return data[:-1] + bytes([data[-1] ^ 1])

    patch.setattr(Buffer, "verify", spoiled_verify)
    if reads:
        patch.setattr(Buffer, "read", spoiled_read)


def wrong_byte(patch: pytest.MonkeyPatch) -> None:
    spoil_memory(patch, lambda offset, length: offset, reads=True)


def spilled(patch: pytest.MonkeyPatch) -> None:
    """A byte behind the message was written too."""
    spoil_memory(patch, lambda offset, length: offset + length, reads=False)


def truncated(patch: pytest.MonkeyPatch) -> None:
    """The last byte did not come, and where a length is told, it is one less."""

    def shorten(end: Endpoint, completions: list[Completion]) -> list[Completion]:
        return [
            replace(one, byte_len=one.byte_len - 1) if one.opcode & RECEIVED and one.byte_len else one
            for one in completions
        ]

    spoil_memory(patch, lambda offset, length: offset + length - 1, reads=True)
    spoil_completions(patch, shorten)


def wrong_imm(patch: pytest.MonkeyPatch) -> None:
    def flip(end: Endpoint, completions: list[Completion]) -> list[Completion]:
        return [one if one.imm is None else replace(one, imm=one.imm ^ 1 << 31) for one in completions]

    spoil_completions(patch, flip)


def wrong_status(patch: pytest.MonkeyPatch) -> None:
    """Everything completes with an error, which `wait` raises as it does any."""

    def spoil(end: Endpoint, completions: list[Completion]) -> list[Completion]:
        return [replace(one, status=WCStatus.GENERAL_ERR) for one in completions]

    spoil_completions(patch, spoil)
    wait = Endpoint.wait

    def checked(self: Endpoint, *wr_ids: int, **options: Any) -> list[Completion]:
        completions = wait(self, *wr_ids, **options)
        check_success(completions, repr(self))
        return completions

    patch.setattr(Endpoint, "wait", checked)


def lost(patch: pytest.MonkeyPatch) -> None:
    """Nothing of a request gets across, yet its sender is told of success."""
    pretended: dict[tuple[Endpoint, int], WCOpcode] = {}
    post = Endpoint._post_sends

    def post_nothing(self: Endpoint, requests: list[SendWR], number: bool) -> list[int]:
        empty = [SendWR(Opcode.RDMA_WRITE, wr_id=one.wr_id, signaled=one.signaled) for one in requests]
        posted = post(self, empty, number)
        pretended.update({(self, wr_id): COMPLETES_AS[one.opcode] for wr_id, one in zip(posted, requests)})
        return posted

    def pretend(end: Endpoint, completions: list[Completion]) -> list[Completion]:
        return [replace(one, opcode=pretended.get((end, one.wr_id), one.opcode)) for one in completions]

    patch.setattr(Endpoint, "_post_sends", post_nothing)
    spoil_completions(patch, pretend)
    for method in ("poll", "wait", "wait_event"):
        real = getattr(Endpoint, method)

        def hurried(self: Endpoint, *args: Any, _real: Any = real, **options: Any) -> Any:
            return _real(self, *args, **{**options, "timeout_s": min(options.get("timeout_s", 5.0), PATIENCE_S)})

        patch.setattr(Endpoint, method, hurried)


def doubled(patch: pytest.MonkeyPatch) -> None:
    """What was received is received once more; additions take effect twice."""
    again: dict[Endpoint, list[Completion]] = defaultdict(list)
    poll, wait, post = Endpoint.poll, Endpoint.wait, Endpoint._post_sends

    def remember(end: Endpoint, completions: list[Completion]) -> list[Completion]:
        again[end] += [one for one in completions if one.opcode & RECEIVED]
        return completions

    def poll_again(self: Endpoint, count: int = 1, *args: Any, **options: Any) -> list[Completion]:
        if again[self]:
            return again.pop(self)[:count]
        return remember(self, poll(self, count, *args, **options))

    def post_twice(self: Endpoint, requests: list[SendWR], number: bool) -> list[int]:
        posted = post(self, requests, number)
        extra = [replace(one, signaled=False) for one in requests if one.opcode == Opcode.ATOMIC_FETCH_AND_ADD]
        if extra:
            post(self, extra, number)
        return posted

    patch.setattr(Endpoint, "poll", poll_again)
    patch.setattr(Endpoint, "wait", lambda self, *ids, **options: remember(self, wait(self, *ids, **options)))
    patch.setattr(Endpoint, "_post_sends", post_twice)


def reordered(patch: pytest.MonkeyPatch) -> None:
    """What was posted one after the other is done in the opposite order, and what is polled comes in that too."""
    held: dict[Endpoint, list[SendWR]] = defaultdict(list)
    numbers = iter(range(1 << 40, 1 << 41))
    post = Endpoint._post_sends

    def hold(self: Endpoint, requests: list[SendWR], number: bool) -> list[int]:
        numbered = [replace(one, wr_id=next(numbers)) for one in requests] if number else requests
        held[self] += numbered
        return [one.wr_id for one in numbered]

    def release() -> None:
        for end, requests in held.items():
            post(end, requests[::-1], False)
        held.clear()

    def released(method: str, finish: Callable[[Any], Any]) -> None:
        real = getattr(Endpoint, method)

        def after_release(self: Endpoint, *args: Any, **options: Any) -> Any:
            release()
            return finish(real(self, *args, **options))

        patch.setattr(Endpoint, method, after_release)

    patch.setattr(Endpoint, "_post_sends", hold)
    released("poll", lambda completions: completions[::-1])
    released("wait", lambda completions: completions)
    released("wait_event", lambda nothing: nothing)


SPOILERS: dict[str, Patch] = {
    one.__name__: one for one in (wrong_byte, spilled, truncated, wrong_imm, wrong_status, lost, doubled, reordered)
}
mutation = mutation_fixture(SPOILERS)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    keep_one_row_a_mutation(EXPECTED, config, items)
