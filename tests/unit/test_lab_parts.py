"""The lab's parts that need no guest: recipe, sources, ports, keys, locks, memory of KVM, requirements."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pytest_rdma.errors import RdmaEnvironmentError
from pytest_rdma.lab import (
    LabHost,
    accel,
    client,
    files,
    guest,
    hosts_of,
    image,
    recipe,
    requirements,
    sources,
    supervisor,
    usage,
)
from pytest_rdma.lab.ssh_command import ssh_command


@pytest.fixture(autouse=True)
def private_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with tempfile.TemporaryDirectory() as runtime:  # short, for the paths of sockets
        monkeypatch.setenv("XDG_RUNTIME_DIR", runtime)
        yield


def test_changed_recipe_is_another_image(monkeypatch: pytest.MonkeyPatch) -> None:
    before = recipe.digest()
    assert recipe.digest() == before
    monkeypatch.setattr(recipe, "PACKAGES", (*recipe.PACKAGES, "tcpdump"))
    assert recipe.digest() != before


def test_changed_file_of_the_recipe_is_another_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in recipe.FILES:
        shutil.copy(recipe.file(name), tmp_path)
    monkeypatch.setattr(recipe, "file", lambda name: tmp_path / name)
    before = recipe.digest()
    (tmp_path / "sshd_config").write_text("Port 23\n")
    assert recipe.digest() != before


def test_only_an_image_of_todays_recipe_counts_as_built() -> None:
    (image.cache_directory() / "image-0123456789abcdef").mkdir()
    assert image.built_image() is None
    (image.cache_directory() / f"image-{recipe.digest()}").mkdir()
    built = image.built_image()
    assert built is not None
    assert built.directory.name == f"image-{recipe.digest()}"


@pytest.mark.skipif(shutil.which("mmdebstrap") is None, reason="mmdebstrap is not installed")
def test_failed_build_says_why_and_leaves_nothing() -> None:
    notes: list[str] = []
    with pytest.raises(RdmaEnvironmentError, match=r"cannot build the lab image: mmdebstrap ended with .*--mirror URL"):
        image.ensure_image(notes.append, mirror="nosuch://mirror.test/debian")
    assert notes[0].startswith("lab: building the image once")
    assert [path.name for path in image.cache_directory().iterdir()] == ["build.lock"]


@pytest.fixture
def in_another() -> Iterator[Callable[[Path], int]]:
    """Return a function that has another process hold the lock of a file, until the end, and returns its number."""
    code = (
        "import sys; from pytest_rdma.lab import files; file = open(sys.argv[1], 'a+'); "
        "print(files.try_lock(file), flush=True); sys.stdin.read()"
    )
    with contextlib.ExitStack() as stack:

        def hold(path: Path) -> int:
            argv = [sys.executable, "-c", code, str(path)]
            process = stack.enter_context(subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
            stack.callback(process.kill)
            assert process.stdout is not None
            assert process.stdout.readline() == b"True\n"
            return process.pid

        yield hold


def test_start_of_a_lab_that_never_ends_is_named_with_its_process(
    in_another: Callable[[Path], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "START_LOCK_S", 0.2)
    lock = client.runtime_directory() / "start.lock"
    holder = in_another(lock)
    said = f"another start of a lab did not end within 0.2 s: {lock} is locked by process {holder}$"
    with pytest.raises(RdmaEnvironmentError, match=said):
        client.connect_up()


def test_build_that_never_ends_is_named_with_its_process(
    in_another: Callable[[Path], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image, "BUILD_TIMEOUT_S", 0.2)
    monkeypatch.setattr(image, "require", lambda what: None)
    lock = image.cache_directory() / "build.lock"
    holder = in_another(lock)
    notes: list[str] = []
    said = f"the other build of the image did not end within 0.2 s: {lock} is locked by process {holder}$"
    with pytest.raises(RdmaEnvironmentError, match=said):
        image.ensure_image(notes.append)
    assert notes == ["lab: another process is building the image; waiting for it"]


def test_machines_own_deb822_source_is_adapted_to_the_release(tmp_path: Path) -> None:
    listed = tmp_path / "sources.list.d"
    listed.mkdir()
    (listed / "debian.sources").write_text(
        "Types: deb\n# a comment\nURIs: http://mirror.test/debian-security\nSuites: bookworm-security\n"
        "Components: main\n\n"
        "Types: deb deb-src\nURIs: http://mirror.test/debian\nSuites: bookworm bookworm-updates\nComponents: main\n"
        "Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg\n"
    )
    assert sources.source_lines("trixie", None, tmp_path) == (
        "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://mirror.test/debian trixie main",
    )


def test_machines_own_one_line_source_is_adapted_to_the_release(tmp_path: Path) -> None:
    (tmp_path / "sources.list").write_text(
        "deb-src http://mirror.test/debian bookworm main\n"
        "deb https://other.test/apt stable main\n"
        "deb [arch=amd64 trusted=yes] http://mirror.test/debian/ bookworm main contrib # mine\n"
    )
    adapted = "deb [trusted=yes] http://mirror.test/debian/ trixie main"
    assert sources.source_lines("trixie", None, tmp_path) == (adapted,)


def test_without_debian_sources_mmdebstrap_takes_its_own_default(tmp_path: Path) -> None:
    (tmp_path / "sources.list").write_text("deb http://other.test/ubuntu noble main\n")
    assert sources.source_lines("trixie", None, tmp_path) == ()


def test_given_mirror_wins(tmp_path: Path) -> None:
    (tmp_path / "sources.list").write_text("deb http://mirror.test/debian bookworm main\n")
    assert sources.source_lines("trixie", "http://mine.test/debian", tmp_path) == ("http://mine.test/debian",)


def test_missing_program_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        RdmaEnvironmentError, match=r"qemu-system-x86_64.*/quickstart, or apt-get install .*qemu-system"
    ):
        requirements.require("boot")
    assert set(requirements.missing("build").values()) == {"apt", "mmdebstrap", "squashfs-tools", "xz-utils", "zstd"}


def test_requirements_print_one_package_a_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert requirements.main() == 0
    assert "mmdebstrap\nopenssh-client\nqemu-system-x86\n" in capsys.readouterr().out


def test_port_is_free_on_the_loopback_address() -> None:
    port = guest.free_port()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))


def test_guests_share_one_wire_and_no_port(tmp_path: Path) -> None:
    lines = [" ".join(guest.command(image.Image(tmp_path), tmp_path, n, 2200 + n, "tcg", 70 + n)) for n in (1, 2)]
    assert "stream,id=fabric,server=off,addr.type=fd,addr.str=71" in lines[0]
    assert "stream,id=fabric,server=off,addr.type=fd,addr.str=72" in lines[1]
    assert "hostfwd=tcp:127.0.0.1:2201-" in lines[0]
    assert "restrict=on" in lines[0]


def test_hosts_share_no_address_without_randomization() -> None:
    assert [guest.kernel_arguments(number, "tcg").split()[-2:] for number in (1, 2)] == [
        ["sysctl.kernel.randomize_va_space=0", f"sysctl.vm.legacy_va_layout={layout}"] for layout in (0, 1)
    ]
    assert "sysctl" not in guest.kernel_arguments(1, "kvm")


def test_use_of_a_port_is_seen_while_and_after_a_connection() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        assert usage.connections([port]) == 0
        with socket.create_connection(("127.0.0.1", port)):
            accepted, _ = server.accept()
            assert usage.connections([port]) == 2
        accepted.close()
        assert usage.connections([port]) >= 1
        assert usage.connections([port + 1]) == 0


def test_each_guest_gets_the_labs_keys_and_its_own_identity(tmp_path: Path) -> None:
    files.make_keys(tmp_path)
    base = tmp_path / "base.cpio"
    base.write_bytes(b"base")
    for number in files.GUESTS:
        files.write_initramfs(base, tmp_path, number)
    first = (tmp_path / "host1.initramfs").read_bytes()
    assert first.startswith(b"base")
    assert b"NUMBER=1\n" in first
    assert b"NUMBER=2\n" not in first
    assert (tmp_path / "host1_key").read_bytes() in first
    assert (tmp_path / "host2_key").read_bytes() not in first


def test_known_hosts_name_both_ports(tmp_path: Path) -> None:
    files.make_keys(tmp_path)
    lines = files.known_hosts(tmp_path, {1: ["[127.0.0.1]:2201"], 2: ["[127.0.0.1]:2202"]}).splitlines()
    assert lines[0].startswith("[127.0.0.1]:2201 ssh-ed25519 ")
    assert lines[1].startswith("[127.0.0.1]:2202 ssh-ed25519 ")
    assert lines[0].split()[2] != lines[1].split()[2]


def test_ssh_ignores_the_users_configuration_and_checks_the_host_key() -> None:
    host = LabHost("host1", "127.0.0.1", 2201, "root", "/key", "/known", "rxe0", "10.99.0.1")
    words = ssh_command(host, user="rdma")
    assert words[:3] == ["ssh", "-F", "none"]
    assert "StrictHostKeyChecking=yes" in words
    assert words[-1] == "rdma@127.0.0.1"


def test_hosts_are_read_from_a_supervisors_state() -> None:
    guests = [{"number": 1, "port": 2201, "pid": 5}, {"number": 2, "port": 2202, "pid": 6}]
    first, second = hosts_of({"directory": "/run/lab", "guests": guests})
    assert (first.name, first.port, first.fabric_address) == ("host1", 2201, "10.99.0.1")
    assert (second.name, second.port, second.fabric_address) == ("host2", 2202, "10.99.0.2")
    assert second.identity_file == "/run/lab/id_ed25519"


def test_kvm_that_boots_nothing_is_remembered_for_this_machine_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda path, mode: True)
    assert accel.candidates() == ("kvm", "tcg")
    accel.remember("tcg")
    assert accel.candidates() == ("tcg",)
    monkeypatch.setattr("platform.release", lambda: "another kernel")
    assert accel.candidates() == ("kvm", "tcg")


def test_damaged_memory_of_kvm_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda path, mode: True)
    (image.cache_directory() / "accel.json").write_text("{")
    assert accel.candidates() == ("kvm", "tcg")


def test_without_kvm_there_is_only_emulation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda path, mode: False)
    assert accel.candidates() == ("tcg",)


def test_what_a_killed_supervisor_left_is_removed() -> None:
    runtime = client.runtime_directory()
    (runtime / "up").mkdir()
    (runtime / "up" / "control").write_text("")
    assert client.connect_up() is None
    assert not (runtime / "up").exists()


def test_directory_of_another_user_or_open_to_others_is_refused() -> None:
    client.runtime_directory().chmod(0o755)
    with pytest.raises(RdmaEnvironmentError, match="0700"):
        client.runtime_directory()


def test_directory_too_long_for_sockets_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(deep))
    with pytest.raises(RdmaEnvironmentError, match="too long"):
        client.runtime_directory()


def test_runtime_directory_that_is_not_there_is_replaced_by_the_temporary_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "gone"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert client.runtime_directory().parent == tmp_path


def test_machine_of_another_architecture_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    with pytest.raises(RdmaEnvironmentError, match="x86-64 machines; this one is aarch64"):
        requirements.require("boot")


def test_supervisor_that_dies_at_once_gives_its_last_word(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    (tmp_path / "supervisor.log").write_text("Traceback\nOSError: no space left\n\n")
    theirs.close()
    with pytest.raises(RdmaEnvironmentError, match="its last word is OSError: no space left"):
        client.Connection(ours, tmp_path).state(lambda line: None, timeout_s=5)
    ours.close()


def test_client_that_hangs_up_while_it_is_answered_does_not_cost_the_others_their_lab(tmp_path: Path) -> None:
    one = supervisor.Supervisor(supervisor.Task(str(tmp_path), str(tmp_path), lock_fd=-1))
    ours, theirs = socket.socketpair()
    one.notes = ["lab: booting two guests", "lab: KVM is present here but does not boot a guest"]
    one._add_client(theirs)
    ours.sendall(b"state\n")
    ours.close()
    one._dispatch(time.monotonic())
    assert one.clients == []
    one._note("lab: going on")
    one.selector.close()


def test_silent_supervisor_is_given_up_at_the_deadline(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, pytest.raises(RdmaEnvironmentError, match="does not answer"):
        client.Connection(ours, tmp_path).state(lambda line: None, timeout_s=0.05)


def test_progress_and_error_of_a_boot_reach_the_caller(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    notes: list[str] = []
    theirs.sendall(json.dumps({"note": "lab: booting"}).encode() + b"\n" + b'{"error": "no memory"}\n')
    with ours, theirs, pytest.raises(RdmaEnvironmentError, match="no memory"):
        client.Connection(ours, tmp_path).state(notes.append, timeout_s=5)
    assert notes == ["lab: booting"]
