"""The lab from boot to end: what its hosts can do, who may end it, and that nothing of it stays."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_rdma.lab import LabHost, hosts_of, image, obtain
from pytest_rdma.lab.client import connect_up
from pytest_rdma.lab.ssh_command import ssh_command

pytestmark = pytest.mark.lab

ROOT = Path(__file__).parents[2]
COMMAND_S = 120.0
GONE_S = 5.0
OWNER = """
import json, sys
from pytest_rdma.lab import obtain
lab = obtain(private=True)
print(json.dumps(lab.state), flush=True)
sys.stdin.read()
"""


def cli(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the `pytest-rdma` command."""
    command = [sys.executable, "-m", "pytest_rdma.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_S, cwd=ROOT)


def on(host: LabHost, command: str, user: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run a shell command on a host."""
    words = [*ssh_command(host, user), command]
    return subprocess.run(words, capture_output=True, text=True, timeout=COMMAND_S, stdin=subprocess.DEVNULL)


def output(host: LabHost, command: str, user: str | None = None) -> str:
    done = on(host, command, user)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def opened(state: dict[str, object]) -> list[int]:
    """Return pidfds of the lab's guests, which become readable when the guests are gone."""
    guests = state["guests"]
    assert isinstance(guests, list)
    return [os.pidfd_open(guest["pid"]) for guest in guests]


def gone(pidfds: list[int], timeout_s: float = GONE_S) -> bool:
    """Wait until all processes are gone; return whether they are in time."""
    deadline = time.monotonic() + timeout_s
    waiting = list(pidfds)
    while waiting and time.monotonic() < deadline:
        ended, _, _ = select.select(waiting, [], [], deadline - time.monotonic())
        waiting = [pidfd for pidfd in waiting if pidfd not in ended]
    for pidfd in pidfds:
        os.close(pidfd)
    return not waiting


@pytest.fixture(scope="module", autouse=True)
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Keep these labs apart from one that the user has up."""
    with pytest.MonkeyPatch.context() as patch:
        directory = tmp_path_factory.mktemp("rt")
        directory.chmod(0o700)
        patch.setenv("XDG_RUNTIME_DIR", str(directory))
        image.ensure_image(print)
        yield directory / f"pytest-rdma-{os.getuid()}"
        cli("lab", "down")


@pytest.fixture(scope="module")
def up(runtime: Path) -> dict[str, object]:
    """Take a lab up with the command, once for this module; the last test takes it down."""
    done = cli("lab", "up")
    assert done.returncode == 0, done.stderr
    assert "lab is up after" in done.stdout
    connection = connect_up()
    assert connection is not None
    state = connection.state(print)
    connection.close()
    return state


@pytest.fixture
def hosts(up: dict[str, object]) -> tuple[LabHost, LabHost]:
    return hosts_of(up)


def test_lab_up_twice_says_that_it_is_up(up: dict[str, object]) -> None:
    done = cli("lab", "up")
    assert done.returncode == 0
    assert done.stdout.startswith("lab is up already\n")


def test_status_shows_hosts_ports_and_processes(up: dict[str, object], hosts: tuple[LabHost, LabHost]) -> None:
    shown = cli("lab", "status").stdout
    for host in hosts:
        assert f"{host.name}: root@127.0.0.1 port {host.port}, fabric {host.fabric_address}, pid " in shown
    assert f"accel {up['accel']}" in shown
    assert f"image {up['image']}" in shown


def test_ssh_command_runs_on_the_host_asked_for(up: dict[str, object]) -> None:
    done = cli("lab", "ssh", "2", "hostname; exit 7")
    assert (done.stdout, done.returncode) == ("host2\n", 7)


def test_both_hosts_have_an_active_soft_roce_device_with_mtu_4096(hosts: tuple[LabHost, LabHost]) -> None:
    for host in hosts:
        shown = output(host, f"ibv_devinfo -d {host.device}")
        assert re.search(r"state:\s+PORT_ACTIVE", shown)
        assert re.search(r"active_mtu:\s+4096", shown)


def test_hosts_reach_each_other_over_the_fabric_with_whole_frames(hosts: tuple[LabHost, LabHost]) -> None:
    for address in ("10.99.0.2", "fd99::2"):
        assert "1 received" in output(hosts[0], f"ping -c 1 -W 5 -M do -s 8900 {address}")


def test_root_and_the_unprivileged_user_log_in_from_host_to_host_without_questions(
    hosts: tuple[LabHost, LabHost],
) -> None:
    for user in ("root", "rdma"):
        assert output(hosts[0], "ssh -o BatchMode=yes host2 'id -un; hostname'", user).split() == [user, "host2"]


def test_unprivileged_user_has_the_devices_and_the_default_memlock_limit(hosts: tuple[LabHost, LabHost]) -> None:
    assert output(hosts[0], "id -u; ulimit -l; ibv_devinfo -l | tail -n +2", "rdma").split() == ["1000", "8192", "rxe0"]


def test_guest_has_a_compiler_with_the_verbs_headers(hosts: tuple[LabHost, LabHost]) -> None:
    source = "#include <infiniband/verbs.h>\\nint main(void) { return ibv_get_device_list(0) == 0; }\\n"
    assert on(hosts[0], f"cd /tmp && printf '{source}' > a.c && cc -Wall a.c -libverbs -o a && ./a").returncode == 0


def test_guest_runs_pyverbs_pytest_paramiko_and_benchmark(hosts: tuple[LabHost, LabHost]) -> None:
    assert on(hosts[1], "python3 -c 'import pyverbs.qp, pytest, paramiko, pytest_benchmark'").returncode == 0


def test_second_device_talks_to_the_first_over_the_wire(hosts: tuple[LabHost, LabHost]) -> None:
    script = """
        add-second-device && add-second-device || exit 1
        rping -s -C 3 -a 10.99.0.11 > /dev/null 2>&1 &
        until ss -H -l -t > /dev/null && rping -c -C 3 -a 10.99.0.11 -I 10.99.0.1 > /dev/null 2>&1; do
            kill -0 $! || exit 2
        done
        wait $!
        cat /sys/class/infiniband/rxe?/ports/1/hw_counters/rcvd_pkts
    """
    received = [int(count) for count in output(hosts[0], script).split()]
    assert len(received) == 2
    assert all(count > 3 for count in received)


def test_pytest_uses_the_lab_that_is_up_and_leaves_it_up(up: dict[str, object]) -> None:
    with obtain() as lab:
        assert lab.state == up
        assert lab.boot_s == 0
    assert cli("lab", "status").returncode == 0


def test_two_labs_do_not_meet_and_one_dies_with_its_killed_owner(
    up: dict[str, object], hosts: tuple[LabHost, LabHost], runtime: Path
) -> None:
    owner = subprocess.Popen([sys.executable, "-c", OWNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT)
    assert owner.stdin is not None
    assert owner.stdout is not None
    with owner.stdin, owner.stdout:
        state = json.loads(owner.stdout.readline())
        other = hosts_of(state)
        output(other[1], "touch /other-lab")
        assert output(other[0], "ssh host2 ls /other-lab") == "/other-lab"
        assert on(hosts[0], "ssh host2 ls /other-lab").returncode != 0
        stranger = LabHost(**{**vars(other[0]), "port": hosts[0].port})
        assert "Host key verification failed" in on(stranger, "true").stderr

        guests = opened(state)
        supervisor = os.pidfd_open(state["supervisor_pid"])
        owner.send_signal(signal.SIGKILL)
        assert owner.wait(timeout=GONE_S) == -signal.SIGKILL
        assert gone([*guests, supervisor])
    assert not Path(state["directory"]).exists()
    assert cli("lab", "status").returncode == 0


def test_lab_down_waits_until_the_guests_are_gone(up: dict[str, object], runtime: Path) -> None:
    guests = opened(up)
    done = cli("lab", "down")
    assert (done.stdout, done.returncode) == ("lab is down\n", 0)
    assert gone(guests, timeout_s=0.5)
    assert sorted(path.name for path in runtime.iterdir()) == ["start.lock", "up.lock"]
    assert cli("lab", "status").returncode == 3
    assert cli("lab", "down").stdout == "no lab is up\n"


def test_unused_lab_ends_at_its_idle_limit_and_a_used_one_does_not(runtime: Path) -> None:
    assert cli("lab", "up", "--idle-limit", "1.5").returncode == 0
    connection = connect_up()
    assert connection is not None
    state = connection.state(print)
    guests = opened(state)
    ended, _, _ = select.select(guests, [], [], 3.0)
    assert not ended, "the lab ended though a client was connected"
    connection.close()
    assert gone(guests)
    assert cli("lab", "status").returncode == 3


def test_guest_that_dies_takes_the_lab_along_and_leaves_its_console(runtime: Path) -> None:
    assert cli("lab", "up").returncode == 0
    connection = connect_up()
    assert connection is not None
    state = connection.state(print)
    connection.close()
    guests = opened(state)
    on(hosts_of(state)[1], "echo 1 > /proc/sys/kernel/sysrq; echo c > /proc/sysrq-trigger")
    assert gone(guests, COMMAND_S)
    status = cli("lab", "status")
    assert status.returncode == 3
    console = Path(status.stdout.strip().rpartition(" ")[2])
    assert "sysrq triggered crash" in console.read_text(errors="replace")


def test_killed_supervisor_takes_its_guests_along_and_is_forgotten(runtime: Path) -> None:
    # Killed while it boots: the kernel, not the supervisor's own code, has to end the guests.
    booting = subprocess.Popen(
        [sys.executable, "-m", "pytest_rdma.cli", "lab", "up"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT
    )
    assert booting.stdout is not None
    assert b"lab: booting two guests" in booting.stdout.readline()
    guests, supervisor = processes_of(runtime / "up")
    os.kill(supervisor, signal.SIGKILL)
    assert gone(guests)
    _, error = booting.communicate(timeout=COMMAND_S)
    assert booting.returncode == 1
    assert b"pytest-rdma: the lab's supervisor ended while the lab booted" in error
    assert cli("lab", "status").returncode == 3
    assert not (runtime / "up").exists()


def processes_of(directory: Path) -> tuple[list[int], int]:
    """Return pidfds of the guests of a booting lab, once there are two, and their supervisor's pid."""
    deadline = time.monotonic() + COMMAND_S
    while time.monotonic() < deadline:
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
                if words[0] == b"qemu-system-x86_64" and any(str(directory).encode() in word for word in words):
                    parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
                    found.append((int(entry.name), parent))
            except OSError:
                continue
        if len(found) == 2:
            return [os.pidfd_open(pid) for pid, _ in found], found[0][1]
    raise AssertionError("no two guests were started")
