"""What a session is made of: each thing once, errors kept, hosts opened at once, progress shown by who waits."""

from __future__ import annotations

import threading

import pytest

from pytest_rdma.config import RdmaConfig, resolve
from pytest_rdma.errors import HostUnreachableError, RdmaUsageError
from pytest_rdma.session import Background, Once, RdmaSession, in_parallel


def test_what_failed_once_is_not_tried_again() -> None:
    tries: list[int] = []

    def make() -> None:
        tries.append(1)
        raise HostUnreachableError("no route")

    once = Once(make)
    for _ in range(3):
        with pytest.raises(HostUnreachableError, match="no route"):
            once()
    assert len(tries) == 1


def test_what_was_made_once_is_kept() -> None:
    once = Once(object)
    assert once.made is None
    assert once() is once() is once.made


def test_an_interrupt_is_not_remembered() -> None:
    answers = iter([KeyboardInterrupt(), None])

    def make() -> str:
        error = next(answers)
        if error is not None:
            raise error
        return "made"

    once = Once(make)
    with pytest.raises(KeyboardInterrupt):
        once()
    assert once() == "made"


def test_calls_in_parallel_really_overlap() -> None:
    meeting = threading.Barrier(2, timeout=10)
    assert sorted(in_parallel([meeting.wait, meeting.wait])) == [0, 1]


def test_all_are_waited_for_and_the_first_error_is_raised() -> None:
    finished = threading.Event()

    def fails() -> None:
        raise HostUnreachableError("first")

    with pytest.raises(HostUnreachableError, match="first"):
        in_parallel([fails, finished.set, fails])
    assert finished.is_set()


def test_progress_is_shown_by_the_thread_that_waits() -> None:
    shown: list[tuple[str, threading.Thread]] = []

    def boot(note: object) -> int:
        assert callable(note)
        note("booting")
        return 7

    assert Background(boot, "boot").result(lambda line: shown.append((line, threading.current_thread()))) == 7
    assert shown == [("booting", threading.current_thread())]


def test_a_session_that_opened_nothing_closes_in_peace() -> None:
    session = RdmaSession(RdmaConfig())
    session.close()
    session.close()


def test_one_run_has_one_pair_of_hosts_whichever_configuration_comes_first() -> None:
    session = RdmaSession(RdmaConfig())
    tuned = session.for_config(session.config.with_(mtu=1024))
    assert tuned.local is session.for_config(session.config).local
    session.close()


def test_another_configuration_shares_the_hosts_unless_it_names_others() -> None:
    session = RdmaSession(RdmaConfig())
    assert session.for_config(session.config) is session
    session.hosts()
    tuned = session.for_config(session.config.with_(mtu=1024))
    assert tuned.hosts is session.hosts and tuned.run_id == session.run_id
    assert session.for_config(tuned.config) is tuned
    with pytest.raises(RdmaUsageError, match="names other hosts"):
        session.for_config(session.config.with_(peer="host2"))
    session.close()


@pytest.mark.parametrize(("scale", "ack_timeout"), [("0.5", 14), ("1", 14), ("3", 16), ("4", 16), ("1000", 24)])
def test_the_ack_timeout_grows_with_the_timeout_scale(scale: str, ack_timeout: int) -> None:
    config = resolve({"rdma_timeout_scale": scale}, {}, lambda key: "", "")
    assert RdmaSession(config).attributes()["ack_timeout"] == ack_timeout


def test_an_ack_timeout_that_was_asked_for_stays() -> None:
    config = resolve({"rdma_timeout_scale": "4", "rdma_ack_timeout": "14"}, {}, lambda key: "", "")
    assert RdmaSession(config).attributes()["ack_timeout"] == 14
