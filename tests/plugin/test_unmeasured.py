"""Tests after which a host could not be looked at: they pass, and the summary says it, also under pytest-xdist."""

from __future__ import annotations

import pytest

CONFTEST = """
    import pytest
    from pytest_rdma import gates

    @pytest.fixture
    def _rdma_ready(request):
        yield
        if "unmeasured" in request.node.name:
            request.node.user_properties.append((gates.PROPERTY, "host2: OSError: EMFILE"))
"""

TESTS = """
    import pytest

    @pytest.mark.rdma_requires("srq")
    def test_passes(): pass

    @pytest.mark.rdma_requires("srq")
    @pytest.mark.parametrize("number", range(3))
    def test_unmeasured(number): pass
"""


@pytest.fixture(autouse=True)
def files(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(TESTS)


def test_they_pass_and_are_counted_in_the_summary(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest()
    result.assert_outcomes(passed=4)
    assert result.ret == 0
    result.stdout.fnmatch_lines(["-* rdma gates -*", "3 tests not measured on host2: OSError: EMFILE"])


def test_workers_of_xdist_tell_their_controller(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("xdist")
    monkeypatch.delenv("PYTEST_ADDOPTS")
    result = pytester.runpytest_subprocess("-n2", "-p", "no:cacheprovider", "-p", "no:benchmark")
    result.assert_outcomes(passed=4)
    result.stdout.fnmatch_lines(["3 tests not measured on host2: OSError: EMFILE"])
