"""Tests that a loss keeps from running: skips with the first cause, said once, and an exit code of their own."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

CONFTEST = """
    import pytest
    from pytest_rdma import running
    from pytest_rdma.errors import BlockedError

    @pytest.fixture
    def _rdma_ready(request):
        if "blocked" in request.node.name:
            running.block(request.node, BlockedError("host2 was lost in test_a: killed by SIGKILL"))
"""

TESTS = """
    import pytest

    @pytest.mark.rdma_requires("srq")
    def test_passes(): pass

    @pytest.mark.rdma_requires("srq")
    @pytest.mark.parametrize("number", range(3))
    def test_blocked(number): raise AssertionError("ran")
"""


@pytest.fixture(autouse=True)
def files(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(TESTS)


@pytest.mark.parametrize("options", [[], ["--rdma-strict"]])
def test_they_are_skips_that_end_the_run_with_6(pytester: pytest.Pytester, options: list[str]) -> None:
    result = pytester.runpytest("-rs", "--junitxml=out.xml", *options)
    result.assert_outcomes(passed=1, skipped=3)
    assert result.ret == 6
    cause = "host2 was lost in test_a: killed by SIGKILL"
    result.stdout.fnmatch_lines(["-* rdma blocked -*", f"3 tests blocked: {cause}", f"SKIPPED*blocked: {cause}"])
    skips = list(ElementTree.parse(Path(pytester.path, "out.xml")).iter("skipped"))
    assert [skip.get("message") for skip in skips] == [f"blocked: {cause}"] * 3


def test_without_them_the_code_is_pytests_own(pytester: pytest.Pytester) -> None:
    assert pytester.runpytest("-k", "passes").ret == 0


def test_a_run_that_broke_off_for_another_reason_says_that(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_z="import pytest\ndef test_stops(): pytest.exit('enough')")
    assert pytester.runpytest().ret == pytest.ExitCode.INTERRUPTED


def test_workers_of_xdist_tell_their_controller(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("xdist")
    monkeypatch.delenv("PYTEST_ADDOPTS")
    result = pytester.runpytest_subprocess("-n2", "-p", "no:cacheprovider", "-p", "no:benchmark")
    result.assert_outcomes(passed=1, skipped=3)
    assert result.ret == 6
    result.stdout.fnmatch_lines(["3 tests blocked: host2 was lost*"])
