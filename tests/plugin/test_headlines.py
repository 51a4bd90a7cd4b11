"""The headline of a failure stands first, wherever pytest, JUnit and pytest-xdist take a failure's message from."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest

CONFTEST = """
import pytest
from pytest_rdma.explaining import put_first

@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    report = outcome.get_result()
    if report.failed:
        put_first(report, "no receive was posted")
"""
TESTS = """
import pytest
def test_raises():
    raise TimeoutError("1 of 2 completions")
def test_chained():
    try:
        raise KeyError("inner")
    except KeyError:
        raise TimeoutError("1 of 2 completions")
def test_fails():
    pytest.fail("rdma: 1 of 2 completions", pytrace=False)
"""


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")


@pytest.mark.parametrize("options", [[], ["--tb=short"], ["--tb=line"], ["--tb=native"], ["--tb=no"]], ids=str)
def test_the_headline_comes_before_the_message(pytester: pytest.Pytester, options: list[str]) -> None:
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(TESTS)
    result = pytester.runpytest(*options, "--junit-xml=junit.xml")
    result.assert_outcomes(failed=3)
    summary = [line for line in result.outlines if line.startswith("FAILED")]
    assert len(summary) == 3
    assert all("- no receive was posted" in line for line in summary)
    found = ElementTree.parse(pytester.path / "junit.xml").iter("failure")
    assert all(one.attrib["message"].startswith("no receive was posted") for one in found)


def test_the_failure_itself_begins_with_the_headline(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(TESTS)
    result = pytester.runpytest("-k", "raises or fails")
    result.stdout.fnmatch_lines(
        [
            ">*raise TimeoutError*",
            "E       no receive was posted",
            "E       TimeoutError: 1 of 2 completions",
            "no receive was posted",
            "rdma: 1 of 2 completions",
        ]
    )


@pytest.mark.parametrize("options", [[], ["--tb=short"]], ids=str)
def test_the_traceback_of_an_error_of_ours_ends_in_the_test(pytester: pytest.Pytester, options: list[str]) -> None:
    pytester.makeconftest(
        """
        import pytest
        from pytest_rdma.explaining import ending_in_the_test

        @pytest.hookimpl(hookwrapper=True)
        def pytest_runtest_makereport(item, call):
            if call.excinfo is None:
                yield
            else:
                with ending_in_the_test(call.excinfo):
                    yield
        """
    )
    pytester.makepyfile(
        """
        from concurrent.futures import ThreadPoolExecutor
        from pytest_rdma.config import RdmaConfig

        class Odd:
            def __str__(self):
                raise KeyError("odd")

        def test_ours():
            RdmaConfig().with_(mtu=9000)

        def test_ours_in_a_pool():
            with ThreadPoolExecutor() as pool:
                pool.submit(RdmaConfig().with_, mtu=9000).result()

        def test_a_mistake_in_ours():
            RdmaConfig().with_(mtu=Odd())
        """
    )
    result = pytester.runpytest(*options)
    result.assert_outcomes(failed=3)
    shown = result.stdout.str()
    ours, mistake = shown.split("_ test_a_mistake_in_ours _")
    ours, pooled = ours.split("_ test_ours_in_a_pool _")
    for one in (ours, pooled):
        assert "RdmaUsageError: mtu in rdma_config" in one
        assert "config.py" not in one
    assert "pool.submit(" in pooled
    assert "thread.py" not in pooled
    assert "_base.py" not in pooled
    assert "config.py" in mistake, "an error of another kind may be ours to mend"


def test_headlines_cross_from_the_workers_of_xdist(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTEST_ADDOPTS")
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(TESTS)
    result = pytester.runpytest("-n1", "-p", "no:cacheprovider")
    result.assert_outcomes(failed=3)
    assert sum("- no receive was posted" in line for line in result.outlines) == 3


def test_a_folder_for_artifacts_that_cannot_be_ends_the_run(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_nothing():\n    pass\n")
    (pytester.path / "file").touch()
    result = pytester.runpytest("--rdma-artifacts=file/x")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--rdma-artifacts: 'file/x' is not a directory: *file is in the way*"])
