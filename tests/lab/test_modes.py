"""One test, three places: the same suites looped back, between two devices, and between two hosts by each way there.

A guest runs the distribution's pytest on this tree, with nothing installed. A smoke subset, for guests are slow.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.lab

SMOKE = "suites -k 64KiB --rdma-strict"
OUTSIDE = Path(__file__).parents[2]
END = r"RoCEv2 gid \d+ 10\.99\.0\.{}"


def assert_smoke_passed(text: str) -> None:
    assert re.search(r"^=+ [1-9][0-9]* passed, [0-9]+ deselected in", text, re.MULTILINE), text


def assert_header(text: str, line: str) -> None:
    assert re.search(f"^rdma: {line}$", text, re.MULTILINE), text


def test_looped_back_on_one_device(guest_pytest: Callable[..., str]) -> None:
    text = guest_pytest(f"{SMOKE} --rdma-device rxe0")
    assert_smoke_passed(text)
    assert_header(text, rf"rxe0/1 {END.format(1)} \(option\); peer rxe0/1 {END.format(1)} \(found\)")


def test_two_devices_of_one_host(guest_pytest: Callable[..., str], on_guest: Callable[..., str]) -> None:
    on_guest("add-second-device")
    text = guest_pytest(f"{SMOKE} --rdma-device rxe0 --peer-device rxe1")
    assert_smoke_passed(text)
    assert_header(text, rf"rxe0/1 {END.format(1)} \(option\); peer rxe1/1 {END.format(11)} \(option\)")


def test_two_hosts_over_ssh(guest_pytest: Callable[..., str]) -> None:
    text = guest_pytest(f"{SMOKE} --rdma-device rxe0 --peer host2 -v")
    assert_smoke_passed(text.replace("PASSED", ""))
    assert_header(text, rf"rxe0/1 {END.format(1)} \(option\); peer host2 rxe0/1 {END.format(2)} \(option\)")
    assert_header(
        text, r"host2: kernel 6\.\S+ x86_64, rdma-core 56\.1, pyverbs 56\.1, Python 3\.13\.\S+ /usr/bin/python3"
    )


def test_two_hosts_over_the_ssh_binary(guest_pytest: Callable[..., str]) -> None:
    text = guest_pytest(f"{SMOKE} --rdma-device rxe0 --peer-exec 'ssh host2'")
    assert_smoke_passed(text)
    assert_header(text, rf"rxe0/1 {END.format(1)} \(option\); peer host2 rxe0/1 {END.format(2)} \(option\)")


def test_a_plain_local_process_as_the_way_to_the_peer(guest_pytest: Callable[..., str]) -> None:
    text = guest_pytest(f"{SMOKE} --rdma-device rxe0 --peer-exec env")
    assert_smoke_passed(text)
    assert_header(text, rf"rxe0/1 {END.format(1)} \(option\); peer host1 rxe0/1 {END.format(1)} \(option\)")


def test_controller_outside(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, ssh_config: Path) -> None:
    monkeypatch.setenv("HOME", str(ssh_config.parents[1]))
    result = pytester.runpytest_subprocess(
        str(OUTSIDE / "suites"), f"--rootdir={OUTSIDE}", "-k64KiB", "--rdma-host=host1", "--peer=host2", "--rdma-strict"
    )
    assert_smoke_passed(result.stdout.str())
    assert_header(
        result.stdout.str(),
        rf"host1 rxe0/1 {END.format(1)} \(option\); peer host2 rxe0/1 {END.format(2)} \(option\)",
    )


def test_controller_outside_of_a_single_host(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, ssh_config: Path
) -> None:
    monkeypatch.setenv("HOME", str(ssh_config.parents[1]))
    result = pytester.runpytest_subprocess(
        str(OUTSIDE / "suites"), f"--rootdir={OUTSIDE}", "-k64KiB", "--rdma-host=host1", "--rdma-strict"
    )
    assert_smoke_passed(result.stdout.str())
    assert_header(
        result.stdout.str(), rf"host1 rxe0/1 {END.format(1)} \(option\); peer host1 rxe0/1 {END.format(1)} \(found\)"
    )


def test_lab_booted_by_the_run_or_used_as_it_is_up(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest_subprocess(
        str(OUTSIDE / "suites"), f"--rootdir={OUTSIDE}", "-k64KiB", "--rdma-lab", "--rdma-strict", "-v"
    )
    assert_smoke_passed(result.stdout.str())
    assert_header(
        result.stdout.str(),
        rf"host1 rxe0/1 {END.format(1)} \(option\); peer host2 rxe0/1 {END.format(2)} \(option\)",
    )
    assert_header(result.stdout.str(), r"lab (kvm|tcg), (booted in \d+\.\d s|was up)")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--rdma-device rxe7", "rxe0"),
        ("--rdma-device rxe0/2", "port"),
        ("--rdma-device rxe0 --rdma-gid-index 200", "200"),
        ("--rdma-device rxe0 --peer nohost", "does not resolve"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(guest_pytest: Callable[..., str], options: str, message: str) -> None:
    text = guest_pytest(f"-q suites {options}", expect=4)
    assert "Traceback" not in text
    (line,) = [line for line in text.splitlines() if line.startswith("ERROR: rdma: ")]
    assert message in line
