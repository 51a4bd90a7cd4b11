"""Markers: unknown names are the user's mistake; the closest marker wins, name by name."""

from __future__ import annotations

import pytest


def refused(result: pytest.RunResult) -> str:
    assert result.ret == pytest.ExitCode.USAGE_ERROR, result.stdout.str()
    (line,) = [line for line in result.errlines if line.startswith("ERROR: ")]
    return line.removeprefix("ERROR: ")


@pytest.mark.parametrize(
    ("marker", "message"),
    [
        ("rdma_caps(send_dept=4)", "rdma_caps knows no 'send_dept'; names are send_depth, recv_depth, *"),
        ("rdma_caps(4)", "rdma_caps takes keywords only, not 4"),
        ("rdma_caps(send_depth=-1)", "send_depth=-1: it is a whole number from 0 to 2147483647"),
        ("rdma_caps(buffer_bytes=0)", "buffer_bytes=0: it is a whole number from 1 to 9223372036854775807"),
        ("rdma_caps(inline_bytes=1.5)", "inline_bytes=1.5: it is a whole number *"),
        ("rdma_caps(access='all')", "access='all': it is a whole number *"),
        ("rdma_caps(qp_access=1 << 40)", "qp_access=1099511627776: it is a whole number *"),
        ("rdma_requires('atomic')", "rdma_requires knows no 'atomic'; names are atomics, srq, *"),
        ("rdma_requires(max_sges=4)", "rdma_requires knows no minimum 'max_sges'; minimums are *"),
        ("rdma_counters(0)", "rdma_counters takes keywords only, not 0"),
        ("rdma_counters(rnr_naks=-1)", "rdma_counters(rnr_naks=-1): a limit is a whole number from 0 on"),
        ("rdma_requires(max_sge='4')", "rdma_requires(max_sge='4'): a minimum is a whole number"),
    ],
)
def test_an_unknown_name_is_refused_with_the_test_and_the_known_names(
    pytester: pytest.Pytester, marker: str, message: str
) -> None:
    pytester.makepyfile(f"import pytest\n@pytest.mark.{marker}\ndef test_pair(rdma_pair): pass")
    line = refused(pytester.runpytest_inprocess("-p", "no:cacheprovider"))
    pytest.LineMatcher([line]).fnmatch_lines([f"*.py::test_pair: {message}"])


def test_the_closest_marker_wins_name_by_name(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest
        from pytest_rdma.running import marked_caps

        pytestmark = pytest.mark.rdma_caps(send_depth=1, recv_depth=1, send_sges=3)

        @pytest.mark.rdma_caps(send_depth=2, recv_depth=2)
        class TestCaps:
            @pytest.mark.parametrize("depth", [pytest.param(4, marks=pytest.mark.rdma_caps(send_depth=4)), 2])
            def test_merged(self, request, depth):
                caps = marked_caps(request.node)
                assert (caps.send_depth, caps.recv_depth, caps.send_sges, caps.recv_sges) == (depth, 2, 3, 1)
        """
    )
    pytester.runpytest().assert_outcomes(passed=2)


def test_markers_are_checked_by_strict_markers(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("import pytest\n@pytest.mark.rdma_caps(send_depth=4)\ndef test_one(): pass")
    pytester.runpytest("--strict-markers").assert_outcomes(passed=1)


def test_an_unknown_name_ends_a_distributed_run_too(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("xdist")
    monkeypatch.delenv("PYTEST_ADDOPTS")
    pytester.makepyfile("import pytest\n@pytest.mark.rdma_caps(send_dept=4)\ndef test_one(): pass")
    result = pytester.runpytest_subprocess("-n1")
    assert result.ret != 0
    assert "rdma_caps knows no 'send_dept'" in result.stdout.str() + result.stderr.str()
