"""Looking at a host where there is no RDMA: what cannot be read is said, what can be is still judged."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_rdma import gates
from pytest_rdma.errors import HostLostError
from pytest_rdma.host import LocalHost
from pytest_rdma.leftovers import Process
from pytest_rdma.verbs_gates import Watch, since_test_began

WATCH = Watch("rxe0", 1, ours=True, settle_s=0.05)


@pytest.fixture
def host() -> Iterator[LocalHost]:
    if Path("/sys/class/infiniband").exists():
        pytest.skip("this machine has RDMA")
    gc.collect()  # a descriptor of an earlier test that goes in this one gives its number to one that is leaked
    yield LocalHost("host1")


def begin(host: LocalHost) -> dict[str, str]:
    unread: dict[str, str] = host.invoke("gates.begin", asdict(WATCH), "")
    return unread


def end(host: LocalHost) -> dict[str, Any]:
    look: dict[str, Any] = host.invoke("gates.end", asdict(WATCH), "")
    return look


def test_objects_and_counters_are_said_to_be_unread_with_the_reason(host: LocalHost) -> None:
    unread = begin(host)
    assert set(unread) >= {"objects", "counters"}
    assert "RDMA netlink answers" in unread["objects"]
    assert all(unread.values())
    assert set(since_test_began(host)[2]) == set(unread)


def test_a_descriptor_is_a_leak_of_one_test_and_not_of_the_next(host: LocalHost) -> None:
    begin(host)
    made = os.open("/dev/null", os.O_RDONLY)
    try:
        assert end(host)["leaks"] == [f"descriptor {made} (/dev/null)"]
        assert end(host)["leaks"] == []
    finally:
        os.close(made)


def test_what_a_wider_fixture_makes_is_adopted(host: LocalHost) -> None:
    begin(host)
    host.invoke("gates.aside")
    made = os.open("/dev/null", os.O_RDONLY)
    try:
        host.invoke("gates.adopt")
        assert end(host)["leaks"] == []
    finally:
        os.close(made)


def test_nothing_is_judged_before_a_test_began(host: LocalHost) -> None:
    assert host.invoke("gates.end", asdict(WATCH), "") is None


def test_what_keeps_a_host_from_looking_is_an_answer_and_no_error(host: LocalHost) -> None:
    session: Any = SimpleNamespace(hosts=lambda: (host,))
    answer = gates._result(host, host.submit("gates.end", {"no": "watch"}, ""), session)
    assert answer is None  # nothing is watched
    begin(host)
    answer = gates._result(host, host.submit("gates.end", {"no": "watch"}, ""), session)
    assert isinstance(answer, gates.Unmeasured)
    assert answer.why.startswith("TypeError: ")


def test_what_cannot_be_known_of_one_host_hides_nothing_of_its_kernel_log_nor_of_its_namesake() -> None:
    own, other = LocalHost("host1"), LocalHost("host1")
    place: Any = SimpleNamespace(device=SimpleNamespace(name="rxe0"), port=SimpleNamespace(number=1))
    places: Any = [(own, place), (other, place)]
    look = {"leaks": ["a QP"], "harm": ["Oops"], "counted": {}}
    known = gates._trouble(places, [gates.Unmeasured("EMFILE"), None])
    assert known == {own: "EMFILE"}
    assert gates.judged(own, place, look, {}, trouble=known, own=True) == ["the kernel log of host1 says: Oops"]
    assert gates.judged(other, place, look, {}, trouble=known, own=False) == ["left behind on host1: a QP"]


def test_a_lost_host_is_not_measured_and_one_that_a_test_has_spawned_is_its_own_to_kill(host: LocalHost) -> None:
    session: Any = SimpleNamespace(hosts=lambda: (host,))
    lost = HostLostError("host1 was lost")
    assert gates._unmeasured(host, lost, session) == gates.Unmeasured("HostLostError: host1 was lost")
    assert gates._unmeasured(LocalHost("host1 (spawned)"), lost, session) is None


def test_what_librdmacm_kept_before_a_test_excuses_nothing_in_it(
    host: LocalHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "uverbs0").touch()
    monkeypatch.setattr("pytest_rdma.leftovers.VERBS_FILE", str(tmp_path / "uverbs"))
    monkeypatch.setattr("pytest_rdma.leftovers._device_of", lambda file: "rxe0")
    monkeypatch.setattr(Process, "rdma_cm_noticed", False)
    begin(host)
    librdmacms = os.open(tmp_path / "uverbs0", os.O_RDONLY)
    begin(host)
    leaked = os.open(tmp_path / "uverbs0", os.O_RDONLY)
    try:
        assert end(host)["leaks"] == [f"descriptor {leaked} ({tmp_path}/uverbs0)"]
    finally:
        os.close(librdmacms)
        os.close(leaked)
