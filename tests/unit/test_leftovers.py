"""What is left of a test: told by handle where a handle knows it, by number where only the kernel does."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_rdma.leftovers import Process, Snapshot, find_leaks, open_descriptors, own_objects
from pytest_rdma.rdma_netlink import KernelObject

NOBODY = 0
BEFORE = Snapshot()


def entry(kind: str, label: str, **facts: Any) -> Any:
    return SimpleNamespace(front=SimpleNamespace(kind=kind, label=label), **facts)


def kernel(kind: str, number: int, parent: int | None = None, pid: int = NOBODY, key: int = 0) -> KernelObject:
    return KernelObject("rxe0", kind, number, pid, parent, key, 4096 if kind == "MR" else 0)


def snapshot(entries: dict[int, Any], *objects: KernelObject, **rest: Any) -> Snapshot:
    return Snapshot(
        {(1, handle): one for handle, one in entries.items()},
        objects={(one.device, one.kind, one.number): one for one in objects},
        **rest,
    )


def leaks(now: Snapshot, before: Snapshot = BEFORE, kept: tuple[tuple[int, int], ...] = ()) -> list[str]:
    return find_leaks(before, now, kept, ours=True)


def test_an_object_with_a_handle_is_told_once_with_what_it_owns() -> None:
    pd, cq, mr = entry("pd", "PD 1"), entry("cq", "CQ 2"), entry("mr", "buffer 3", lkey=77)
    qp = entry("qp", "QP 0x11", qp_num=0x11, owned=[pd, cq, mr])
    objects = (kernel("PD", 5, 0), kernel("CQ", 6, 0), kernel("MR", 7, 5, key=77), kernel("QP", 0x11, 5))
    assert leaks(snapshot({1: pd, 2: cq, 3: mr, 4: qp}, *objects)) == ["QP 0x11, made in this test and not closed"]


def test_an_object_that_no_handle_knows_is_told_by_its_number() -> None:
    pd = entry("pd", "PD 1")
    assert leaks(snapshot({1: pd}, kernel("PD", 5, 0), kernel("PD", 8, 0)), kept=((1, 1),)) == [
        "PD 8 on rxe0, which our handles do not know"
    ]
    assert leaks(snapshot({}, kernel("QP", 0x20, 5))) == ["QP 0x20 on rxe0, which our handles do not know"]


def test_what_is_kept_or_was_there_is_no_leak() -> None:
    pd = entry("pd", "PD 1")
    now = snapshot({1: pd, 2: entry("scratch", "scratch 2")}, kernel("PD", 5, 0))
    assert leaks(now, kept=((1, 1),)) == []
    assert leaks(now, before=now) == []


def test_contexts_that_a_host_or_librdmacm_opens_and_keeps_are_no_leak() -> None:
    one, two, three = (kernel("context", number) for number in (1, 2, 3))
    before = snapshot({}, one, contexts=Counter({"rxe0": 1}))
    assert leaks(snapshot({}, one, two, contexts=Counter({"rxe0": 1}), uses_rdma_cm=True), before) == []
    assert leaks(snapshot({}, one, two, contexts=Counter({"rxe0": 2})), before) == []
    assert len(leaks(snapshot({}, one, two, three, contexts=Counter({"rxe0": 1}), uses_rdma_cm=True), before)) == 1


def test_what_came_with_a_wider_fixture_is_not_the_tests() -> None:
    pd, mr = entry("pd", "PD 1"), entry("mr", "buffer 2", lkey=7)
    aside = snapshot({1: pd}, kernel("PD", 5, 0), pinned_kb=4)
    after = snapshot({1: pd, 2: mr}, kernel("PD", 5, 0), kernel("MR", 6, 5, key=7), pinned_kb=8)
    known = BEFORE.with_new(aside, after)
    assert leaks(after, before=known) == ["PD 1, made in this test and not closed"]


def test_pinned_memory_counts_where_nothing_else_explains_it() -> None:
    assert leaks(Snapshot(pinned_kb=8)) == ["8 KiB of pinned memory more than before"]
    assert leaks(snapshot({}, kernel("MR", 6, 5), pinned_kb=8)) == [
        "MR 6 of 4096 bytes on rxe0, which our handles do not know"
    ]


def test_a_descriptor_is_told_by_number_and_target() -> None:
    before = Snapshot(descriptors=frozenset(open_descriptors()))
    made = os.open("/dev/null", os.O_RDONLY)
    try:
        now = Snapshot(descriptors=frozenset(open_descriptors()))
        assert find_leaks(before, now, (), ours=True) == [f"descriptor {made} (/dev/null)"]
        assert find_leaks(before, now, (), ours=False) == []
    finally:
        os.close(made)
    assert find_leaks(before, Snapshot(descriptors=frozenset(open_descriptors())), (), ours=True) == []


def test_the_descriptors_of_our_scratch_directory_and_of_librdmacm_are_no_leak(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = Snapshot(descriptors=frozenset(open_descriptors()))
    made = os.open(tmp_path, os.O_RDONLY)
    (tmp_path / "uverbs1").touch()
    monkeypatch.setattr("pytest_rdma.leftovers.VERBS_FILE", str(tmp_path / "uverbs"))
    opened = [os.open(tmp_path / "uverbs1", os.O_RDONLY) for _ in range(2)]
    try:
        there = frozenset(open_descriptors())
        scratch = entry("scratch", "scratch 2", path=tmp_path)
        assert leaks(snapshot({1: scratch}, descriptors=there, uses_rdma_cm=True), before) == [
            f"descriptor {opened[1]} ({tmp_path}/uverbs1)"
        ]
        assert len(leaks(snapshot({}, descriptors=there), before)) == 3
    finally:
        for one in (made, *opened):
            os.close(one)


def test_contexts_of_our_hosts_explain_descriptors_where_netlink_tells_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = Snapshot(descriptors=frozenset(open_descriptors()))
    (tmp_path / "uverbs1").touch()
    monkeypatch.setattr("pytest_rdma.leftovers.VERBS_FILE", str(tmp_path / "uverbs"))
    opened = os.open(tmp_path / "uverbs1", os.O_RDONLY)
    try:
        there = frozenset(open_descriptors())
        assert leaks(Snapshot(descriptors=there, contexts=Counter({"rxe0": 1})), before) == []
        assert len(leaks(Snapshot(descriptors=there), before)) == 1
    finally:
        os.close(opened)


def test_a_device_that_no_context_of_pyverbs_stands_for_was_opened_by_librdmacm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "uverbs1").touch()
    monkeypatch.setattr("pytest_rdma.leftovers.VERBS_FILE", str(tmp_path / "uverbs"))
    monkeypatch.setattr(Process, "rdma_cm_noticed", False)
    process = Process(None, "rxe0")
    try:
        assert not process.notices_rdma_cm()
        opened = os.open(tmp_path / "uverbs1", os.O_RDONLY)
        try:
            assert process.notices_rdma_cm()
            assert process.snapshot().uses_rdma_cm
            assert not process.notices_rdma_cm()
        finally:
            os.close(opened)
    finally:
        process.close()


def test_the_first_context_of_librdmacm_on_a_device_is_excused_though_the_kernel_tells_no_maker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "uverbs0").touch()
    monkeypatch.setattr("pytest_rdma.leftovers.VERBS_FILE", str(tmp_path / "uverbs"))
    monkeypatch.setattr("pytest_rdma.leftovers._device_of", lambda file: "rxe0")
    opened: list[int] = []

    def opened_once_more() -> Snapshot:
        opened.append(os.open(tmp_path / "uverbs0", os.O_RDONLY))
        there = frozenset(open_descriptors())
        return Snapshot(contexts=Counter({"rxe0": 1}), descriptors=there, uses_rdma_cm=len(opened) > 1)

    try:
        ours, librdmacms, leaked = (opened_once_more() for _ in range(3))
        assert leaks(librdmacms, ours) == []
        assert leaks(leaked, librdmacms) == [f"descriptor {opened[2]} ({tmp_path}/uverbs0)"]
    finally:
        for one in opened:
            os.close(one)


def test_objects_are_ours_by_the_thread_that_made_them_or_by_their_context() -> None:
    mine, other = os.getpid(), 1
    context, pd, qp = kernel("context", 1), kernel("PD", 2, 1), kernel("QP", 3, 2, pid=mine)
    foreign = [kernel("context", 4, pid=other), kernel("PD", 5, 4), kernel("MR", 6, 5, pid=other)]
    assert own_objects([context, pd, qp, *foreign, kernel("PD", 0)]) == [context, pd, qp]
