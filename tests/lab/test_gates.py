"""A test that leaves something on a host or harms it fails, by name; the next one is green. In the lab, for real."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.lab

HOSTS = ("--rdma-host=host1", "--peer=host2")
GATED = Path(__file__).parent / "gated_tests.py"
NOT_CLOSED = ", made in this test and not closed"
UNKNOWN = ", which our handles do not know"
ERRORS = {
    "test_context": rf"left behind on host1: context \d+ on rxe0{UNKNOWN}",
    "test_qp": rf"left behind on host1: QP 0x[0-9a-f]+{NOT_CLOSED}",
    "test_mr": rf"left behind on host1: buffer \d+ \(8192 bytes\){NOT_CLOSED}",
    "test_cq": rf"left behind on host2: cq \d+{NOT_CLOSED}",
    "test_pd": rf"left behind on host2: pd \d+{NOT_CLOSED}",
    "test_objects_without_handles": rf"left behind on host2: context \d+ on rxe0{UNKNOWN}(.|\n)*"
    rf"left behind on host2: PD \d+ on rxe0{UNKNOWN}",
    "test_descriptor": r"left behind on host2: descriptor \d+ \(/etc/hostname\)",
    "test_locked_memory": r"left behind on host1: \d+ KiB of pinned memory more than before",
    "test_cm_id": rf"left behind on host1: rdma_cm listener 10\.99\.0\.1 port \d+{NOT_CLOSED}",
    "test_program": rf"left behind on host1: program sleep 600 \(pid \d+\){NOT_CLOSED}",
    "test_kernel_log": r"the kernel log of host2 says: BUG: unable to handle page fault",
    "test_kernel_log_that_goes_on": r"the kernel log of host2 says: kernel BUG at mm/slub\.c:435!",
    "test_spawned_agent": r"left behind on host2 \(spawned\): agent \d+, spawned in this test and not closed",
    "test_pd_of_a_spawned_agent": rf"left behind on host2 \(spawned\): pd \d+{NOT_CLOSED}",
    "test_rnr_naks": r"rcvd_rnr_err \(rnr_naks\) of host1 rxe0/1 grew by \d+, and 0 is allowed",
    "test_unknown_counter": r"host1 rxe0/1 counts no 'rnr_nacks'; it counts retransmissions, .*rcvd_rnr_err",
}
FAILS_TWICE = "test_fails_and_leaves_a_pd"
LOST = "test_agent_that_is_lost_in_the_look"


@pytest.fixture(scope="module")
def environment(ssh_config: Path) -> dict[str, str]:
    return {**os.environ, "HOME": str(ssh_config.parents[1]), "PYTHONPATH": ""}


@pytest.fixture(scope="module")
def cases(
    tmp_path_factory: pytest.TempPathFactory, environment: dict[str, str]
) -> dict[str, list[ElementTree.Element]]:
    """What the JUnit file says of each test of `gated_tests`: one run of them all."""
    folder = tmp_path_factory.mktemp("gated")
    (folder / "test_gated.py").write_text(GATED.read_text())
    done = run(folder, environment, "--junitxml=out.xml")
    assert done.returncode == 1, done.stdout
    found: dict[str, list[ElementTree.Element]] = {}
    for case in ElementTree.parse(folder / "out.xml").iter("testcase"):
        found.setdefault(case.get("name", ""), []).append(case)
    return found


def run(folder: Path, environment: dict[str, str], *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pytest", *HOSTS, *options],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=400,
    )


def failures(elements: list[ElementTree.Element], tag: str) -> str:
    return "\n".join(one.text or "" for element in elements for one in element.iter(tag))


@pytest.mark.parametrize("name", ERRORS)
def test_what_is_left_or_harmed_is_named(cases: dict[str, list[ElementTree.Element]], name: str) -> None:
    said = failures(cases[name], "error")
    assert re.search(ERRORS[name], said), said
    assert not failures(cases[name], "failure")


def test_the_tests_own_failure_stays_and_the_leak_is_told_beside_it(
    cases: dict[str, list[ElementTree.Element]],
) -> None:
    assert "the test's own failure" in failures(cases[FAILS_TWICE], "failure")
    assert re.search(rf"left behind on host2: pd \d+{NOT_CLOSED}", failures(cases[FAILS_TWICE], "error"))


def test_all_others_are_green(cases: dict[str, list[ElementTree.Element]]) -> None:
    others = {name: found for name, found in cases.items() if name not in (*ERRORS, FAILS_TWICE)}
    said = {name: failures(found, "error") + failures(found, "failure") for name, found in others.items()}
    assert len(others) >= 50
    assert {name: text for name, text in said.items() if text} == {}


def test_what_could_not_be_looked_at_is_noted_and_no_failure(cases: dict[str, list[ElementTree.Element]]) -> None:
    (noted,) = [one.get("value", "") for case in cases[LOST] for one in case.iter("property") if is_note(one)]
    assert noted.startswith("host2: HostLostError: host2 was lost during gates.end"), noted
    assert not any(
        is_note(one) for name in cases for case in cases[name] for one in case.iter("property") if name != LOST
    )


def is_note(element: ElementTree.Element) -> bool:
    return element.get("name") == "rdma_unmeasured"


def test_under_strict_it_is_a_failure(tmp_path: Path, environment: dict[str, str]) -> None:
    (tmp_path / "test_gated.py").write_text(GATED.read_text())
    done = run(tmp_path, environment, "-k", LOST, "--rdma-strict", "-p", "no:cacheprovider")
    assert re.search(r"rdma: not measured on host2: HostLostError: .* \(--rdma-strict fails what", done.stdout), (
        done.stdout
    )
    assert "1 test not measured on host2: HostLostError: host2 was lost during gates.end" in done.stdout
    assert "Traceback" not in done.stdout
    assert re.search("1 passed, .*1 error", done.stdout)


def test_an_option_limits_all_tests_and_refuses_unknown_names(tmp_path: Path, environment: dict[str, str]) -> None:
    (tmp_path / "test_one.py").write_text(
        "def test_one(rdma_pair): rdma_pair.local.wait(rdma_pair.local.write(length=8))"
    )
    done = run(tmp_path, environment, "--rdma-counters=sent_pkts=0,rnr_naks=0", "-p", "no:cacheprovider")
    assert re.search(r"rdma: sent_pkts of host1 rxe0/1 grew by \d+, and 0 is allowed", done.stdout), done.stdout
    done = run(tmp_path, environment, "--rdma-counters=rnr_nacks=0")
    assert done.returncode == 4
    assert re.search(r"ERROR: --rdma-counters: host1 rxe0/1 counts no 'rnr_nacks'; it counts retrans", done.stdout)


def test_workers_of_xdist_judge_no_counters(tmp_path: Path, environment: dict[str, str]) -> None:
    """Verify: the marker skips its test, and the option ends the run in one line; without either all is as ever."""
    pytest.importorskip("xdist")
    (tmp_path / "test_two.py").write_text(
        "import pytest\n"
        "@pytest.mark.rdma_counters(rnr_naks=0)\n"
        "def test_limited(rdma_pair): raise AssertionError('ran')\n"
        "def test_plain(rdma_pair): rdma_pair.local.wait(rdma_pair.local.write(length=8))\n"
    )
    reason = "counters are the device's, and pytest-xdist runs tests side by side: run with -n0"
    done = run(tmp_path, environment, "-n2", "-rs", "-p", "no:cacheprovider")
    assert done.returncode == 0, done.stdout
    assert re.search(rf"^SKIPPED \[1\] \S+: {reason}$", done.stdout, re.MULTILINE), done.stdout
    assert "1 passed, 1 skipped" in done.stdout
    done = run(tmp_path, environment, "-n2", "--rdma-counters=rnr_naks=0", "-p", "no:cacheprovider")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR, done.stdout
    assert [line for line in done.stdout.splitlines() if "counters" in line] == [f"ERROR: --rdma-counters: {reason}"]
    assert "Traceback" not in done.stdout and "INTERNALERROR" not in done.stdout


IN_PROCESS = """
import pytest
from pyverbs import cm_enums
from pyverbs.cmid import CMID, AddrInfo
from pyverbs.device import Context
from pyverbs.pd import PD

kept = []

@pytest.fixture(scope="module")
def own():
    context = Context(name="rxe0")
    pd = PD(context)
    yield pd
    pd.close(), context.close()

def test_own_objects_of_a_wider_fixture(rdma_pair, own):
    pass

def test_own_pd(rdma_pair):
    kept.append(Context(name="rxe0"))
    kept.append(PD(kept[-1]))

def test_after(rdma_pair, own):
    pass

def test_closes(rdma_pair):
    while kept:
        kept.pop().close()

def test_own_failure_holds_its_objects(rdma_pair):
    context = Context(name="rxe0")
    assert not context

def test_own_rdma_cm(rdma_pair):
    passive = AddrInfo(src="10.99.0.1", src_service="7471", port_space=cm_enums.RDMA_PS_TCP, flags=cm_enums.RAI_PASSIVE)
    listener = CMID(creator=passive)
    listener.listen()
    listener.close()

def test_last(rdma_pair):
    pass
"""
WITHOUT_THE_LOG = "setpriv --bounding-set=-syslog,-sys_admin --inh-caps=-syslog,-sys_admin"


def test_in_one_process_with_objects_of_the_users_own(on_guest: Callable[..., str], guest_pytest: object) -> None:
    on_guest("mkdir -p /root/tree/own && cat > /root/tree/own/test_own.py", data=IN_PROCESS.encode())
    command = "cd /root/tree && python3 -m pytest -p no:cacheprovider -rA own --rdma-device rxe0"
    text = on_guest(f"{command} -W ignore; true")
    assert re.search(r"^ERROR own/test_own\.py::test_own_pd - ", text, re.MULTILINE), text
    assert re.search(rf"left behind on local host: PD \d+ on rxe0{UNKNOWN}", text), text
    assert len(re.findall(r"^rdma: left behind", text, re.MULTILINE)) == 2, text
    assert "1 failed, 6 passed, 1 error" in text


def test_what_cannot_be_read_is_said_and_fails_under_strict(on_guest: Callable[..., str], guest_pytest: object) -> None:
    command = (
        f"cd /root/tree && {WITHOUT_THE_LOG} python3 -m pytest -p no:cacheprovider suites -k 64KiB --rdma-device rxe0"
    )
    text = on_guest(command)
    unread = r"rdma: kernel log of local host cannot be read: EPERM \(1\).*; it takes root, or CAP_SYSLOG"
    assert re.search(unread, text), text
    text = on_guest(f"{command} --rdma-strict -x", expect=1)
    assert re.search(rf"{unread}.*\(--rdma-strict fails what cannot be measured\)", text), text
