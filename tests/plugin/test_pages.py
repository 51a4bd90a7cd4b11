"""The pages that pytest prints work on a machine that has no RDMA, no paramiko and no pyverbs."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.usefixtures("without_libraries")


def test_help_shows_every_option_with_its_default(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest("--help")
    assert result.ret == 0
    text = " ".join(result.stdout.str().split())
    assert "--rdma-mtu=BYTES" in text or "--rdma-mtu BYTES" in text
    assert "Path MTU: 256, 512, 1024, 2048 or 4096. Default: the smaller of both active MTUs." in text
    assert "rdma_peer_device (string): Same as --peer-device." in text


def test_help_works_although_a_variable_is_wrong(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RDMA_MTU", "9000")
    assert pytester.runpytest("--help").ret == 0


def test_markers_are_described(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest("--markers")
    result.stdout.fnmatch_lines(["@pytest.mark.rdma_caps(?*capabilities): *", "@pytest.mark.rdma_requires(?*names,*"])


def test_fixtures_are_described(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest("--fixtures")
    assert result.ret == 0
    result.stdout.fnmatch_lines_random(
        [
            "rdma_pair -- *",
            "*A connected RC pair:*",
            "rdma_local [[]session scope] -- *",
        ]
    )
    public = ("config", "local", "peer", "device", "context", "pd", "mr", "cq", "qp", "pair", "pairs")
    for name in public:
        result.stdout.fnmatch_lines_random([f"rdma_{name}*"])
    result.stdout.no_fnmatch_line("_rdma_*")


def test_plain_tests_run_and_nothing_heavy_is_imported(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import sys

        def test_modules():
            ours = sorted(name for name in sys.modules if name.startswith("pytest_rdma."))
            assert ours == ["pytest_rdma.fixtures", "pytest_rdma.options", "pytest_rdma.plugin"]
            assert not {"paramiko", "pyverbs"} & set(sys.modules)
        """
    )
    result = pytester.runpytest_subprocess()
    result.assert_outcomes(passed=1)
    result.stdout.no_fnmatch_line("*rdma:*")


def test_the_plugin_can_be_switched_off(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_one(): pass")
    pytester.runpytest("-p", "no:rdma").assert_outcomes(passed=1)
    result = pytester.runpytest("-p", "no:rdma", "--rdma-lab")
    assert result.ret == 4
    result.stderr.fnmatch_lines(["*unrecognized arguments: --rdma-lab*"])
