"""What a host without a device, without pyverbs or with the wrong one says; addresses, and the device lock."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from pytest_rdma import device_lock, netlink, verbs_device
from pytest_rdma.errors import DeviceBusyError, NoDeviceError, RdmaUsageError
from pytest_rdma.host import LocalHost

ROOT = Path(__file__).parents[2]


@pytest.fixture
def host() -> Iterator[LocalHost]:
    made = LocalHost("host1")
    yield made
    made.close()


# -- devices


@pytest.fixture
def sysfs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(verbs_device, "SYSFS", tmp_path / "infiniband")
    monkeypatch.setattr(verbs_device, "UVERBS", tmp_path / "infiniband_verbs")
    return tmp_path


def test_a_kernel_without_rdma_is_told_from_one_without_a_device(host: LocalHost, sysfs: Path) -> None:
    with pytest.raises(NoDeviceError, match="host1 has no RDMA: no /sys/class/infiniband"):
        host.devices()
    (sysfs / "infiniband").mkdir()
    with pytest.raises(NoDeviceError, match="host1 has no RDMA device: /sys/class/infiniband is empty; `rdma link add"):
        host.devices()


def test_an_unknown_device_is_refused_with_those_there_are(host: LocalHost, sysfs: Path) -> None:
    for name in ("rxe0", "rxe1"):
        (sysfs / "infiniband" / name).mkdir(parents=True)
    with pytest.raises(RdmaUsageError, match="host1 has no device 'rxe9'; it has rxe0, rxe1"):
        host.device("rxe9")


def uverbs(sysfs: Path, device: str, node: str) -> None:
    (sysfs / "infiniband_verbs" / node).mkdir(parents=True)
    (sysfs / "infiniband_verbs" / node / "ibdev").write_text(f"{device}\n")


def test_a_device_that_does_not_open_is_explained_by_what_is_missing(sysfs: Path) -> None:
    assert "modprobe ib_uverbs" in verbs_device.explain_open_error("rxe0", 2, "Failed to open device rxe0")
    uverbs(sysfs, "rxe0", "uverbs77")
    text = verbs_device.explain_open_error("rxe0", 2, "Failed to open device rxe0")
    assert text == "/dev/infiniband/uverbs77 is not here; in a container, pass --device=/dev/infiniband"


def test_a_device_is_gone_for_who_has_not_got_it_open_once_its_device_file_is(host: LocalHost, sysfs: Path) -> None:
    """The kernel takes that away first, and the rest when nobody has the device open any more."""
    health = partial(host.invoke, "device.health", "rxe0", 1, None, None)
    collect = partial(host.invoke, "evidence.collect", "rxe0", 1, None, 0.0)
    for folder in ("infiniband", "infiniband/rxe0"):
        (sysfs / folder).mkdir(parents=True)
        assert health() == "rxe0 on host1 is gone"
        assert (collect().device.error, collect().unread.get("device")) == ("is gone", None)
    uverbs(sysfs, "rxe0", "uverbs77")
    assert health() is None


@pytest.mark.parametrize(
    ("number", "text", "words"),
    [
        (13, "", "no permission for /dev/null"),
        (1, "", r"EPERM \(1\).*the device cgroup denies /dev/null"),
        (6, "", r"ENXIO \(6\)"),
        (0, "Failed to find device rxe0", "libibverbs has no provider for it: install ibverbs-providers"),
    ],
)
def test_each_errno_of_an_open_has_its_own_remedy(
    monkeypatch: pytest.MonkeyPatch, number: int, text: str, words: str
) -> None:
    import re

    monkeypatch.setattr(verbs_device, "uverbs_node", lambda name: "/dev/null")
    assert re.search(words, verbs_device.explain_open_error("rxe0", number, text))


@pytest.mark.parametrize("size", [256, 512, 1024, 2048, 4096])
def test_mtu_codes_are_those_of_the_verbs(size: int) -> None:
    assert verbs_device.mtu_bytes(verbs_device.mtu_code(size)) == size
    with pytest.raises(RdmaUsageError, match="not 1500"):
        verbs_device.mtu_code(1500)


def test_a_gid_is_written_as_pyverbs_reads_it() -> None:
    assert verbs_device.eight_words("::ffff:10.99.0.1") == "0000:0000:0000:0000:0000:ffff:0a63:0001"


# -- addresses


def test_addresses_come_with_their_prefix_lengths() -> None:
    assert ("127.0.0.1", 8) in netlink.addresses()[socket.if_nametoindex("lo")]


def test_routes_are_networks_and_never_those_to_ourselves() -> None:
    import ipaddress

    for networks in netlink.routes().values():
        for network in networks:
            assert not ipaddress.ip_network(network).is_loopback


# -- pyverbs

ASK = """
import logging
from pytest_rdma.verbs_library import pyverbs
pyverbs()
assert not logging.getLogger().handlers, "importing pyverbs left a handler"
assert logging.getLogger().level == logging.WARNING
"""


def import_pyverbs(folder: Path, python: str = sys.executable) -> str:
    """Return what an interpreter says that looks for pyverbs in `folder` first, "" when it imports."""
    environment = {**os.environ, "PYTHONPATH": f"{folder}:{ROOT}"}
    done = subprocess.run([python, "-c", ASK], env=environment, capture_output=True, text=True, timeout=60, check=False)
    return done.stderr.strip().splitlines()[-1] if done.returncode else ""


def fake_pyverbs(folder: Path, code: str) -> Path:
    (folder / "pyverbs").mkdir()
    for name in ("__init__", "pd", "mr", "cq", "srq", "qp", "wr", "addr", "pyverbs_error"):
        (folder / "pyverbs" / f"{name}.py").touch()
    (folder / "pyverbs" / "device.py").write_text(code)
    return folder


def test_a_python_without_pyverbs_says_how_to_install_it(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    code = "import sys; sys.path[:] = [p for p in sys.path if 'dist-packages' not in p]\n" + ASK
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert "this Python has no pyverbs; install it: `apt-get install python3-pyverbs`" in done.stderr


def test_a_pyverbs_that_does_not_fit_rdma_core_is_shown_with_both_paths(tmp_path: Path) -> None:
    wrong = "libibverbs.so.1: version `IBVERBS_PRIVATE_34' not found"
    text = import_pyverbs(fake_pyverbs(tmp_path, f'raise ImportError("{wrong}")'))
    assert "pyverbs" in text and f"in {tmp_path}/pyverbs does not import against rdma-core" in text
    assert "IBVERBS_PRIVATE_34" in text


def test_the_logging_set_up_of_pyverbs_is_undone(tmp_path: Path) -> None:
    assert import_pyverbs(fake_pyverbs(tmp_path, "import logging\nlogging.basicConfig(level=logging.INFO)")) == ""


# -- the lock


@pytest.fixture
def device() -> Iterator[str]:
    name = f"test{os.getpid()}"
    yield name
    for folder in device_lock.FOLDERS:
        Path(folder, f"pytest-rdma-{name}.lock").unlink(missing_ok=True)


def test_a_device_is_locked_for_one_run_and_the_holder_named(host: LocalHost, device: str) -> None:
    other = LocalHost("host1")
    host.lock_device(device, "run of alice")
    with pytest.raises(DeviceBusyError, match=rf"{device} on host1 is in use by run run of alice \(pid {os.getpid()} "):
        other.lock_device(device, "run of bob")
    host.close()
    other.lock_device(device, "run of bob")
    other.close()


def test_both_ends_of_one_run_share_a_device(host: LocalHost, device: str) -> None:
    other = LocalHost("host1")
    for one in (host, other, host):
        one.lock_device(device, "run of alice")
    other.close()


def test_a_device_is_locked_until_the_last_of_a_run_has_ended(host: LocalHost, device: str) -> None:
    second, stranger = LocalHost("host1"), LocalHost("host1")
    for one in (host, second):
        one.lock_device(device, "run of alice")
    host.close()
    with pytest.raises(DeviceBusyError, match="run of alice"):
        stranger.lock_device(device, "run of bob")
    second.close()
    stranger.lock_device(device, "run of bob")
    stranger.close()


def test_another_user_can_write_into_the_lock_that_it_takes_next(host: LocalHost, device: str) -> None:
    before = os.umask(0o077)
    try:
        host.lock_device(device, "run of alice")
    finally:
        os.umask(before)
    (file,) = (found for folder in device_lock.FOLDERS for found in Path(folder).glob(f"pytest-rdma-{device}.lock"))
    assert file.stat().st_mode & 0o666 == 0o666


def test_a_lock_file_that_cannot_be_opened_is_named(host: LocalHost, device: str) -> None:
    folder = next(folder for folder in device_lock.FOLDERS if os.access(folder, os.W_OK))
    Path(folder, f"pytest-rdma-{device}.lock").symlink_to("/etc/hostname")
    with pytest.raises(
        DeviceBusyError, match=rf"whether {device} is in use cannot be told: .*{device}\.lock: .*remove that file"
    ):
        host.lock_device(device, "run of alice")


HOLD = """
import sys
from pytest_rdma.host import LocalHost
host = LocalHost("host1")
host.lock_device(sys.argv[1], "run of carol")
print("held", flush=True)
sys.stdin.read()
"""


def test_a_run_that_was_killed_holds_nothing(host: LocalHost, device: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, device], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(DeviceBusyError, match=rf"run of carol \(pid {holder.pid} there\)"):
            host.lock_device(device, "run of alice")
        holder.kill()
        holder.wait(10)
        host.lock_device(device, "run of alice")
