"""What the user sees who gives an option that cannot be: one line, exit code 4, no traceback."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def one_test(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_one(): pass")


def usage_error(result: pytest.RunResult) -> str:
    """Return the one line that the run ended with."""
    text = result.stdout.str() + result.stderr.str()
    assert result.ret == pytest.ExitCode.USAGE_ERROR, text
    assert "Traceback" not in text
    (line,) = [line for line in text.splitlines() if line.startswith("ERROR: ")]
    return line.removeprefix("ERROR: ")


def show_config(pytester: pytest.Pytester, name: str) -> None:
    pytester.makepyfile(
        f"""
        def test_show(rdma_config):
            setting = rdma_config.{name}
            print("value", setting.value, setting.word)
        """
    )


def test_a_value_is_taken_from_ini_file_environment_or_option(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    show_config(pytester, "mtu")
    pytester.makeini("[pytest]\nrdma_mtu = 512")
    pytester.runpytest("-s").stdout.fnmatch_lines(["*value 512 ini"])
    monkeypatch.setenv("RDMA_MTU", "1024")
    pytester.runpytest("-s").stdout.fnmatch_lines(["*value 1024 RDMA_MTU"])
    pytester.runpytest("-s", "--rdma-mtu", "2048").stdout.fnmatch_lines(["*value 2048 option"])


def test_an_ini_key_of_pyproject_counts(pytester: pytest.Pytester) -> None:
    show_config(pytester, "sl")
    pytester.makepyprojecttoml('[tool.pytest.ini_options]\nrdma_sl = "3"')
    pytester.runpytest("-s").stdout.fnmatch_lines(["*value 3 ini"])


def test_a_conftest_may_override_the_configuration(pytester: pytest.Pytester) -> None:
    show_config(pytester, "mtu")
    pytester.makeconftest(
        """
        import pytest

        @pytest.fixture(scope="session")
        def rdma_config(rdma_config):
            return rdma_config.with_(mtu=256)
        """
    )
    pytester.runpytest("-s").stdout.fnmatch_lines(["*value 256 fixture"])


def test_a_wrong_option_is_named(pytester: pytest.Pytester) -> None:
    line = usage_error(pytester.runpytest("--rdma-mtu", "9000"))
    assert line == "--rdma-mtu: '9000' is not a path MTU; allowed are 256, 512, 1024, 2048 and 4096 bytes"


def test_a_wrong_variable_is_named(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RDMA_RETRY_COUNT", "8")
    assert usage_error(pytester.runpytest()) == "RDMA_RETRY_COUNT: '8' is not a whole number from 0 to 7"


def test_a_wrong_ini_key_is_named_with_its_file(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nrdma_device = mlx5_0/")
    assert usage_error(pytester.runpytest()).startswith("rdma_device in tox.ini: 'mlx5_0/' is not a device; ")


@pytest.mark.parametrize("peer", ["", "-oProxyCommand=x", "--help me"])
def test_a_peer_that_is_no_host_is_refused(pytester: pytest.Pytester, peer: str) -> None:
    assert usage_error(pytester.runpytest(f"--peer={peer}")).startswith(f"--peer: {peer!r} is not a host; ")


def test_both_ways_to_the_peer_are_refused(pytester: pytest.Pytester) -> None:
    line = usage_error(pytester.runpytest("--peer", "host2", "--peer-exec", "ssh host2"))
    assert line == "--peer and --peer-exec exclude each other: one reaches the peer over SSH, the other by a command"


def test_a_lab_beside_a_host_of_ones_own_is_refused(pytester: pytest.Pytester) -> None:
    line = usage_error(pytester.runpytest("--rdma-lab", "--rdma-host", "host1"))
    assert line == "--rdma-lab and --rdma-host exclude each other: the lab brings both of its hosts"
