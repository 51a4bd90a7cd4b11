"""Without RDMA, and without being asked for it: tests skip with one reason, or fail with it under --rdma-strict."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.usefixtures("without_libraries")

RDMA_TESTS = """
import pytest

def test_pair(rdma_pair):
    raise AssertionError("ran")

def test_host(rdma_peer):
    raise AssertionError("ran")

def test_factory(rdma_mr):
    raise AssertionError("ran")

@pytest.mark.rdma_requires("atomics")
def test_marked():
    raise AssertionError("ran")

def test_dynamic(request):
    request.getfixturevalue("rdma_pair")

class TestInClass:
    @pytest.mark.parametrize("size", [1, 2])
    def test_parametrized(self, size, rdma_pairs):
        raise AssertionError("ran")

def test_plain():
    pass
"""


def test_all_skip_with_one_reason_that_says_what_is_lacking_and_what_to_do(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(RDMA_TESTS)
    result = pytester.runpytest("-rs")
    result.assert_outcomes(passed=1, skipped=7)
    (line,) = [line for line in result.outlines if line.startswith("SKIPPED")]
    assert line.startswith("SKIPPED [7] ")
    assert ": local host has no RDMA" in line
    assert "LacksDevice" not in line
    for way_out in ("--rdma-device", "--rdma-host", "--rdma-lab"):
        assert way_out in line


def test_the_reason_is_told_unasked(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(RDMA_TESTS)
    pytester.runpytest().stdout.fnmatch_lines(["*- rdma skipped -*", "7 tests: local host has no RDMA*--rdma-lab*"])


def test_strict_fails_them_with_the_reason_and_no_traceback(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(RDMA_TESTS)
    result = pytester.runpytest("--rdma-strict")
    result.assert_outcomes(passed=1, errors=6, failed=1)
    result.stdout.fnmatch_lines(["*local host has no RDMA*--rdma-lab*"])
    result.stdout.no_fnmatch_line("*plugin.py:*")
    result.stdout.no_fnmatch_line("*another exception occurred*")


def test_strict_by_ini_file_counts(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nrdma_strict = true")
    pytester.makepyfile("def test_pair(rdma_pair): pass")
    pytester.runpytest().assert_outcomes(errors=1)


def test_options_that_only_tune_do_not_ask_for_a_device(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(RDMA_TESTS)
    pytester.runpytest("--rdma-mtu", "1024").assert_outcomes(passed=1, skipped=7)


def test_a_mark_to_skip_comes_first(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.skip(reason="for a reason of its own")
        def test_pair(rdma_pair): pass
        """
    )
    pytester.runpytest("-rs", "--rdma-strict").stdout.fnmatch_lines(["SKIPPED*for a reason of its own"])


def test_the_skip_is_decided_before_any_other_fixture(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.fixture(scope="session", autouse=True)
        def costly():
            raise AssertionError("set up")

        def test_pair(costly, rdma_pair): pass
        """
    )
    pytester.runpytest().assert_outcomes(skipped=1)


def test_a_device_asked_for_ends_the_run_with_one_line(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(RDMA_TESTS)
    for arguments in (["--rdma-device", "rxe0"], ["--rdma-device", "rxe0", "-q"]):
        result = pytester.runpytest(*arguments)
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        (line,) = [line for line in result.errlines if line.startswith("ERROR: ")]
        assert line.startswith("ERROR: rdma: local host has no RDMA")
        assert "Traceback" not in result.stdout.str() + result.stderr.str()


@pytest.mark.parametrize("page", ["--collect-only", "--fixtures", "--setup-plan"])
@pytest.mark.parametrize("option", ["--rdma-lab", "--rdma-device=rxe0", "--peer=host2"])
def test_what_runs_no_test_boots_and_connects_nothing(pytester: pytest.Pytester, page: str, option: str) -> None:
    pytester.makepyfile("def test_pair(rdma_pair): pass")
    result = pytester.runpytest(page, option)
    assert result.ret == 0
    result.stdout.no_fnmatch_line("*rdma:*")
