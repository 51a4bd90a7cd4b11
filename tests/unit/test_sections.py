"""What a failed test shows of both hosts, as text and as files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from evidence_builders import evidence, failed, host, ledger, qp, region, send

from pytest_rdma import artifacts, report, sections
from pytest_rdma.diagnosis import diagnose
from pytest_rdma.errors import CompletionError, DeadlineError, RdmaError, RemoteError
from pytest_rdma.evidence import HostEvidence
from pytest_rdma.explaining import concerns_rdma
from pytest_rdma.model import AsyncEvent, QPState
from pytest_rdma.options import OPTIONS
from pytest_rdma.status import WCStatus


def text(mine: HostEvidence) -> str:
    return sections.host(evidence(mine), "local")


def test_the_causes_are_ranked_each_with_its_next_step() -> None:
    causes = diagnose(failed(WCStatus.REM_ACCESS_ERR, send(rkey=0)))
    lines = sections.diagnosis(causes).splitlines()
    assert lines[0].startswith(f"1. {causes[0].headline}")
    assert lines[1] == f"   {causes[0].next_step}"


def test_a_host_shows_device_port_gid_versions_and_limits() -> None:
    shown = text(host("host1", netdevs={"eth1": {"mtu": "1500", "operstate": "up", "carrier": "1"}}))
    assert "host1: kernel 6.12 x86_64, rdma-core 56.1, pyverbs 56.1, Python 3.13" in shown
    assert "rxe0/1: rxe InfiniBand, firmware none, ACTIVE, Ethernet, MTU 1024 of 4096" in shown
    assert "GID rows: 1 10.99.0.1 RoCE v2 eth1 (used)" in shown
    assert "netdev eth1: mtu 1500, up, carrier 1" in shown
    assert "RLIMIT_MEMLOCK unlimited hard unlimited" in shown
    assert "counters that changed: none" in shown


def test_the_qp_of_the_pair_comes_first_with_attributes_and_ledger() -> None:
    sends = ledger(posted=3, completed=2, outstanding_count=1, outstanding=(send(wr_id=7, signaled=False),))
    mine = qp("host1", sends=sends, flushed=2, awaits="wr_id 0x7")
    attributes = {**mine.attributes, "dlid": 0, "pkey_index": 0, "dgid": "::ffff:10.99.0.2", "sgid_index": 1}
    other = replace(qp("host1"), qp_num=0x99)
    lines = text(host("host1", other, replace(mine, attributes=attributes))).splitlines()
    first, second = (next(i for i, line in enumerate(lines) if line.startswith(f"QP {n}")) for n in ("0x11", "0x99"))
    assert first < second
    assert lines[first] == "QP 0x11: RC RTS, connected to QP 0x12 at 10.99.0.2"
    shown = "\n".join(lines[first:second])
    assert "timeout 14 (67.1 ms), retry_cnt 6" in shown
    assert "sends: 3 posted" in shown
    assert "1 of 128 outstanding" in shown
    assert "RDMA_WRITE 64 bytes unsignaled" in shown
    assert "awaits: wr_id 0x7" in shown
    assert lines[second + 1] == "  sends 0/0, receives 0/0"


def test_what_was_not_read_is_said_and_why() -> None:
    shown = text(
        host("host1", unread={"kernel log": "no permission"}, lost="killed by SIGKILL", device=None, stderr="boo")
    )
    assert "not read: kernel log: no permission" in shown
    assert "kernel log since" not in shown
    assert "lost: killed by SIGKILL" in shown
    assert "no device" in shown
    assert "stderr of the agent:\n  boo" in shown


def test_events_counters_kernel_log_and_regions_are_shown() -> None:
    mine = host(
        "host1",
        async_events=(AsyncEvent("CQ_ERR", "CQ 3"),),
        counters={"rcvd_rnr_err": 7},
        kernel_log=("rxe0: something",),
        regions=(region("host1", closed=True),),
    )
    shown = text(mine)
    assert "asynchronous events: CQ_ERR of CQ 3" in shown
    assert "counters that changed: rcvd_rnr_err +7" in shown
    assert "kernel log since the test began:\n  rxe0: something" in shown
    assert "rkey 0x1111" in shown
    assert ", closed" in shown


def test_a_check_of_the_tests_own_that_fails_has_no_cause_in_rdma() -> None:
    assert not concerns_rdma(AssertionError("1 == 2"), evidence())
    assert concerns_rdma(DeadlineError("no"), evidence())
    wrapped = AssertionError("no answer")
    wrapped.__cause__ = DeadlineError("no")
    assert concerns_rdma(wrapped, evidence())
    assert concerns_rdma(AssertionError("1 == 2"), evidence(host("host1", qp("host1", state=QPState.ERR))))


# -- files


def test_a_failed_test_is_kept_whole(tmp_path: Path) -> None:
    found = replace(evidence(), peer=host("host2", kernel_log=("a line",), stderr="words"))
    root, test = str(tmp_path / "new"), "a/test_b.py::test_c[x/y ü]"
    folder = artifacts.keep(root, test, "call", found, [], [("local-host", "t")])
    whole = json.loads((folder / "evidence.json").read_text())
    assert (whole["version"], whole["test"], whole["when"]) == (1, test, "call")
    assert whole["evidence"]["local"]["qps"][0]["qp_num"] == 0x11
    assert sorted(path.name for path in folder.iterdir()) == [
        "evidence.json", "local-host.txt", "peer-kernel-log.txt", "peer-stderr.txt",
    ]  # fmt: skip
    again = artifacts.keep(root, test, "call", found, [], [])
    assert again.name == f"{folder.name}.2"


def test_folders_have_safe_names_that_no_two_tests_share() -> None:
    names = {artifacts.folder_name(f"t.py::test[{text}]", "call") for text in ("a/b", "a b", "../x", "", "é" * 400)}
    assert len(names) == 5
    for name in names:
        assert "/" not in name and not name.startswith(".") and len(name) < 200 and name.isascii()
    assert artifacts.folder_name("t.py::t", "setup") != artifacts.folder_name("t.py::t", "call")


def test_a_folder_that_cannot_be_is_refused_before_the_run(tmp_path: Path) -> None:
    option = next(one for one in OPTIONS if one.name == "artifacts")
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"a directory: .*file is in the way"):
        option.parse(str(tmp_path / "file" / "below"))
    assert option.parse(str(tmp_path / "new" / "below")) == str(tmp_path / "new" / "below")


OURS = """Traceback (most recent call last):
  File "/proc/self/fd/5/pytest_rdma/agent.py", line 146, in _run
    value = self.host.run_op(request["op"], deadline, tuple(request["args"]))
  File "/proc/self/fd/5/pytest_rdma/endpoint.py", line 477, in check_success
pytest_rdma.errors.CompletionError: it failed
"""
THEIRS = OURS + '  File "/home/me/tests/helpers.py", line 3, in helper\n'


@pytest.mark.parametrize(
    ("error", "traceback", "whole", "shown"),
    [
        (CompletionError("x"), OURS, False, False),
        (CompletionError("x"), OURS, True, True),
        (CompletionError("x"), THEIRS, False, True),
        (RemoteError("x"), OURS, False, True),
    ],
)
def test_a_traceback_on_a_host_is_shown_where_it_says_more_than_the_error(
    monkeypatch: pytest.MonkeyPatch, error: RdmaError, traceback: str, whole: bool, shown: bool
) -> None:
    monkeypatch.setattr(report, "header", lambda session, verbose: ["rdma: both ends"])
    error.host, error.remote_traceback = "host2", traceback
    session = cast(Any, SimpleNamespace(rail=SimpleNamespace(made=object())))
    titles = [title for title, _ in report.sections(session, error, whole=whole)]
    assert titles == ["rdma", *(["traceback on host2"] if shown else [])]
