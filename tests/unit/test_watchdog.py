"""What the watchdog says of what it saw: one line for the error, all of it for the report."""

from __future__ import annotations

import pytest

from pytest_rdma.watchdog import Suspect, seen

SUSPECT = Suspect(17, "RDMA-x", "host2", age_s=60.0)


def said(*lines: str) -> str:
    return seen(SUSPECT, ["uptime 3600.12", *lines]).headline


@pytest.mark.parametrize(
    ("lines", "headline"),
    [
        (
            ["task do_signal_stop 17 (python3) T 9 17 17", "carrier 0 9 (sshd) S 1 9", "ended SIGTERM"],
            "agent 17 on host2 was stopped (state T); SIGTERM ended it",
        ),
        (
            [
                "task futex_wait_queue 17 (python3) S 9 17",
                "task rxe_cleanup 21 (rdma op_0 (x)) D 9 17",
                "ended SIGKILL",
            ],
            "agent 17 on host2 is in uninterruptible sleep in rxe_cleanup; SIGKILL ended it",
        ),
        (
            ["task 0 17 (python3) D 9", "left 0 17 (python3) D 9", "stands"],
            "agent 17 on host2 is in uninterruptible sleep in the kernel; SIGKILL does not end it: "
            "thread 17 is in uninterruptible sleep in the kernel",
        ),
        (
            [
                "task pipe_read 17 (python3) S 9",
                "task hrtimer_nanosleep 18 (python3) S 9",
                "task futex_do_wait 19 (python3) S 9",
                "carrier do_signal_stop 9 (sshd) T 1 9",
                "ended SIGTERM",
            ],
            "agent 17 on host2 was alive (thread 18: state S in hrtimer_nanosleep); "
            "sshd 9, which carries it, was stopped (state T); SIGTERM ended it",
        ),
        (["gone"], "host2 answers on another channel, but its agent 17 is gone"),
    ],
    ids=["stopped", "in the kernel", "stands", "carrier stopped", "gone"],
)
def test_the_headline_says_what_held_it_up_and_what_became_of_it(lines: list[str], headline: str) -> None:
    assert said(*lines) == headline


def test_a_host_that_was_booted_anew_is_told_apart() -> None:
    assert seen(SUSPECT, ["uptime 12.5", "gone"]).headline == "host2 was booted anew 12 s ago"


def test_all_that_was_seen_is_for_the_report() -> None:
    stack = ("stack [<0>] rxe_wait+0x1/0x2", "stack [<0>] do_syscall_64+0x5d/0x90")
    found = seen(SUSPECT, ["uptime 3600", "task rxe_wait 17 (python3) D 9", *stack, "carrier 0 9 (sshd) S 1", "stands"])
    assert found.stands
    assert found.text.splitlines()[1:] == [
        "17 python3: state D in rxe_wait",
        "[<0>] rxe_wait+0x1/0x2",
        "[<0>] do_syscall_64+0x5d/0x90",
        "carried by 9 sshd: state S",
    ]
