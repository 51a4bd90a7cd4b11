"""What the fixtures, markers and reports do where there are devices: the controller outside, both hosts over SSH."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

pytestmark = pytest.mark.lab

HOSTS = ("--rdma-host=host1", "--peer=host2")
EXAMPLES = {
    "test_fixtures.py": """
        import json
        import pytest
        from pytest_rdma import Access, QPState

        def test_device(rdma_device, rdma_context):
            assert rdma_device.name == rdma_context.device.name == "rxe0"
            assert rdma_device.limits["max_qp_wr"] > 0

        def test_factories(rdma_mr, rdma_cq, rdma_qp, rdma_pd):
            buffer = rdma_mr(4096, access=Access.ALL)
            buffer.write(b"abc")
            assert buffer.read(0, 3) == b"abc"
            assert rdma_cq(depth=16).depth >= 16
            assert rdma_qp(pd=rdma_pd, send_depth=4).state == QPState.INIT

        @pytest.mark.rdma_caps(send_sges=2, buffer_bytes=8192)
        def test_pairs(rdma_pairs):
            one, two = rdma_pairs(), rdma_pairs(recv_depth=4, connect=False)
            assert one.local.caps.send_sges >= 2 and one.local.buffer.length == 8192
            assert (one.local.state, two.local.state) == (QPState.RTS, QPState.INIT)

        def queue_pairs(host):
            shown = host.run(["rdma", "-j", "resource", "show", "qp"])
            return [qp for qp in json.loads(shown.stdout or b"[]") if qp.get("type") == "RC"]

        def test_what_is_made(rdma_pairs, rdma_qp, rdma_local, rdma_peer):
            rdma_pairs(), rdma_qp()
            assert (len(queue_pairs(rdma_local)), len(queue_pairs(rdma_peer))) == (2, 1)

        def test_is_destroyed(rdma_local, rdma_peer):
            assert queue_pairs(rdma_local) == queue_pairs(rdma_peer) == []

        def test_options_reach_the_pair(rdma_pair):
            found = rdma_pair.attributes
            assert (found.mtu, found.retry_count, found.ack_timeout) == (1024, 3, 12)
            rdma_pair.local.wait(rdma_pair.local.write(length=100))

        def test_plain():
            pass
    """,
    "own/conftest.py": """
        import pytest

        @pytest.fixture(scope="session")
        def rdma_config(rdma_config):
            return rdma_config.with_(mtu=512)
    """,
    "own/test_own.py": """
        def test_own_configuration(rdma_pair):
            assert (rdma_pair.attributes.mtu, rdma_pair.attributes.retry_count) == (512, 3)
    """,
    "test_requires.py": """
        import pytest

        @pytest.mark.rdma_requires(max_sge=100000)
        def test_minimum(rdma_pair):
            raise AssertionError("ran")

        @pytest.mark.rdma_requires("infiniband")
        def test_link():
            raise AssertionError("ran")

        @pytest.mark.rdma_requires("atomics", "srq", max_qp_wr=16)
        def test_has(rdma_pair):
            pass
    """,
    "test_z_failures.py": """
        import os, signal
        import pytest
        from pytest_rdma.errors import StaleHandleError

        kept = []

        def complain():
            os.write(2, b"the provider complains\\n")

        def test_fails(rdma_pair, rdma_peer):
            rdma_peer.call(complain)
            rdma_pair.peer.poll(timeout_s=0.5)

        def raise_there():
            raise KeyError("of the test")

        def test_raises_there(rdma_peer):
            rdma_peer.call(raise_there)

        def die():
            os.kill(os.getpid(), signal.SIGKILL)

        def test_kills(rdma_pair, rdma_peer):
            kept.append(rdma_peer.pd("rxe0"))
            rdma_peer.call(die)

        def test_next(rdma_pair, rdma_local, rdma_peer):
            assert (rdma_local.generation, rdma_peer.generation) == (0, 1)
            rdma_pair.local.wait(rdma_pair.local.write(length=100))
            with pytest.raises(StaleHandleError, match="test_kills"):
                kept[0].check_usable()
    """,
}


@dataclass(frozen=True)
class Ran:
    """One run of all examples: what it printed, and what its JUnit file says of each test."""

    text: str
    cases: dict[str, ElementTree.Element]

    def outcome(self, name: str) -> str:
        found = [child.tag for child in self.cases[name] if child.tag in ("failure", "error", "skipped")]
        return found[0] if found else "passed"

    def properties(self, name: str) -> dict[str, str]:
        return {one.get("name", ""): one.get("value", "") for one in self.cases[name].iter("property")}


@pytest.fixture(scope="module")
def environment(ssh_config: Path) -> dict[str, str]:
    return {**os.environ, "HOME": str(ssh_config.parents[1]), "PYTHONPATH": ""}


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory, environment: dict[str, str]) -> Ran:
    folder = tmp_path_factory.mktemp("examples")
    for name, source in EXAMPLES.items():
        lines = source.splitlines()
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("\n".join(line.removeprefix(" " * 8) for line in lines))
    options = ["--rdma-mtu=1024", "--rdma-retry-count=3", "--rdma-ack-timeout=12", "--junitxml=out.xml", "-rs"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *HOSTS, *options],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=150,
    )
    assert done.returncode in (0, 1), done.stdout
    cases = ElementTree.parse(folder / "out.xml").iter("testcase")
    return Ran(done.stdout, {case.get("name", ""): case for case in cases})


@pytest.mark.parametrize(
    "name",
    [
        "test_device",
        "test_factories",
        "test_pairs",
        "test_what_is_made",
        "test_is_destroyed",
        "test_options_reach_the_pair",
        "test_own_configuration",
        "test_has",
    ],
)
def test_fixtures_on_two_hosts(ran: Ran, name: str) -> None:
    assert ran.outcome(name) == "passed", ran.text


def test_what_a_device_lacks_skips_and_says_where_it_was_read(ran: Ran) -> None:
    assert ran.outcome("test_minimum") == ran.outcome("test_link") == "skipped"
    pytest.LineMatcher(ran.text.splitlines()).fnmatch_lines_random(
        [
            "SKIPPED*needs max_sge of 100000: host1 rxe0 has max_sge * (ibv_query_device), at least 100000 is required",
            "SKIPPED*needs infiniband: host1 rxe0/1 has link_layer Ethernet *, InfiniBand is required",
        ]
    )


def test_junit_properties_tell_both_ends(ran: Ran) -> None:
    found = ran.properties("test_pairs")
    assert found["rdma_mtu"] == "1024"
    for role, host in (("local", "host1"), ("peer", "host2")):
        assert found[f"rdma_{role}_host"] == host
        assert found[f"rdma_{role}_device"] == "rxe0/1"
        assert found[f"rdma_{role}_gid"].endswith(f" RoCE v2 10.99.0.{host[-1]}")
        assert found[f"rdma_{role}_kernel"].startswith("6.")
        assert found[f"rdma_{role}_rdma_core"] == "56.1"
        assert f"rdma_{role}_firmware" in found
    assert ran.properties("test_plain") == {}


def test_a_failed_test_shows_both_hosts_and_the_traceback_over_there(ran: Ran) -> None:
    assert ran.outcome("test_fails") == "failure"
    pytest.LineMatcher(ran.text.splitlines()).fnmatch_lines(
        [
            "*_ test_fails _*",
            "*- rdma local host host1 -*",
            "host1: kernel 6.*",
            "rxe0/1: rxe InfiniBand, *ACTIVE*",
            "*- rdma peer host host2 -*",
            "host2: kernel 6.*",
            "stderr of the agent:",
            "  the provider complains",
            "*- rdma -*",
            "rdma: host1 rxe0/1 *; peer host2 rxe0/1 *",
        ]
    )
    ours, theirs = ran.text.split("_ test_raises_there _")
    assert "- traceback on host2 -" not in ours, "an error of ours in frames of ours says nothing of the test"
    assert re.search(r"- traceback on host2 -.*in raise_there\n", theirs, re.DOTALL)
    assert ran.properties("test_fails")["rdma_cause"] == "no-completion-possible"
    assert "rdma_cause" not in ran.properties("test_next")
    assert ran.text.count("stderr of the agent:") == 1, "later tests report only what is new"


def test_after_an_agent_was_killed_the_next_test_has_a_new_one(ran: Ran) -> None:
    assert ran.outcome("test_kills") == "failure"
    assert ran.outcome("test_next") == "passed", ran.text
    assert " error" not in ran.text.splitlines()[-1], "a teardown reported the lost host again"


def test_a_device_of_another_run_is_refused_by_name(tmp_path: Path, environment: dict[str, str]) -> None:
    (tmp_path / "test_hold.py").write_text(
        "import pathlib, time\n"
        "def test_hold(rdma_pair):\n"
        "    pathlib.Path('held').touch()\n"
        "    end = time.monotonic() + 60\n"
        "    while not pathlib.Path('release').exists() and time.monotonic() < end:\n"
        "        time.sleep(0.05)\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", *HOSTS]
    holder = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL)
    try:
        wait_for((tmp_path / "held").exists)
        second = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
    finally:
        (tmp_path / "release").touch()
        assert holder.wait(60) == 0
    assert second.returncode == pytest.ExitCode.USAGE_ERROR
    (line,) = [line for line in second.stderr.splitlines() if line.startswith("ERROR: rdma: ")]
    assert "rxe0" in line and "host1" in line


def test_ctrl_c_ends_the_agents(
    heeds_ctrl_c: None, tmp_path: Path, environment: dict[str, str], on_guest: Callable[..., str]
) -> None:
    (tmp_path / "test_hang.py").write_text(
        "import pathlib\n"
        "def test_hang(rdma_pair, rdma_local):\n"
        "    pathlib.Path('pid').write_text(str(rdma_local.info.pid))\n"
        "    rdma_pair.local.poll(timeout_s=100)\n"
    )
    command = [sys.executable, "-m", "pytest", *HOSTS]
    running = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True)
    pid_file = tmp_path / "pid"
    wait_for(lambda: pid_file.exists() and pid_file.read_text() != "")
    os.kill(running.pid, signal.SIGINT)
    text, _ = running.communicate(timeout=60)
    assert running.returncode == pytest.ExitCode.INTERRUPTED, text
    on_guest(f"test ! -e /proc/{pid_file.read_text()}")


def test_workers_of_xdist_share_the_hosts_and_the_lock(tmp_path: Path, environment: dict[str, str]) -> None:
    pytest.importorskip("xdist")
    (tmp_path / "test_writes.py").write_text(
        "import pytest\n"
        "@pytest.mark.parametrize('number', range(6))\n"
        "def test_write(rdma_pair, number):\n"
        "    rdma_pair.local.wait(rdma_pair.local.write(length=1000))\n"
    )
    command = [sys.executable, "-m", "pytest", "-n2", *HOSTS]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0 and "6 passed" in done.stdout, done.stdout + done.stderr
    assert "rdma: host1 rxe0/1 " in done.stdout


def wait_for(condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
    """Look again and again, for what another process does can only be seen."""
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.05)


def test_strict_fails_also_what_a_test_skips_itself(tmp_path: Path, environment: dict[str, str]) -> None:
    (tmp_path / "test_skip.py").write_text(
        "import pytest\n\ndef test_one(rdma_device):\n    pytest.skip('for want of a thing')\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *HOSTS, "--rdma-strict"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 1, done.stdout
    assert "for want of a thing (--rdma-strict fails what would be skipped)" in done.stdout
