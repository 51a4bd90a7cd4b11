"""A GID row that goes away during a run: what follows takes another, or is blocked if this one was asked for."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from pytest_rdma.lab import Lab

pytestmark = pytest.mark.lab

ROW = "/sys/class/infiniband/rxe0/ports/1/gids/1"
CHANGE = "timeout 10 sh -c 'ip address {} 10.99.0.2/24 dev fabric; {} grep -q ^0000:.*:ffff: {}; do sleep 0.02; done'"
LOST, BACK = CHANGE.format("del", "while", ROW), CHANGE.format("add", "until", ROW)
"""The kernel changes the table some time after the address."""

TESTS = f"""
    import pytest

    def test_row_goes(rdma_local, rdma_peer):
        assert not rdma_peer.run(["sh", "-c", {LOST!r}]).returncode, "the row stays"
        pytest.fail("for the session to look")

    def test_another(rdma_pair):
        assert rdma_pair.rail.peer.gid.index != 1
        assert rdma_pair.rail.local.device.name == rdma_pair.rail.peer.device.name == "rxe0"
        rdma_pair.local.wait(rdma_pair.local.write(length=100))
"""


@pytest.fixture
def outcomes(tmp_path: Path, lab: Lab, on_guest: Callable[..., str]) -> Iterator[Callable[..., list[str]]]:
    """Run both tests, and return what JUnit says of each: "" when it passed."""
    (tmp_path / "test_rows.py").write_text(textwrap.dedent(TESTS))

    def run(*options: str) -> list[str]:
        command = [
            sys.executable,
            "-m",
            "pytest",
            "--rdma-lab",
            "--junitxml=out.xml",
            "-p",
            "no:cacheprovider",
            *options,
        ]
        subprocess.run(command, cwd=tmp_path, env=os.environ, stdout=subprocess.DEVNULL, timeout=150)
        cases = ElementTree.parse(tmp_path / "out.xml").iter("testcase")
        return [" ".join(child.get("message", "") for child in case) for case in cases]

    yield run
    on_guest(BACK, host=lab.hosts[1])


def test_the_next_test_takes_another_row(outcomes: Callable[..., list[str]]) -> None:
    first, second = outcomes()
    assert "for the session to look" in first
    assert second == ""


def test_a_row_that_was_asked_for_blocks_what_follows(outcomes: Callable[..., list[str]]) -> None:
    first, second = outcomes("--peer-gid-index=1")
    assert "for the session to look" in first
    text = r"blocked: row 1 of the GID table of rxe0/1 on host2 \(--peer-gid-index\) is no longer ::ffff:10\.99\.0\.2"
    assert re.search(text, second), second
