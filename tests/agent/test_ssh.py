"""Logging in: a real sshd, real keys, and one clear line for each way in which it can fail."""

from __future__ import annotations

import dataclasses
import gc
import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sshd import Sshd, free_port, make_key

from pytest_rdma import remote, ssh_connection
from pytest_rdma.errors import HostKeyError, HostLostError, HostUnreachableError, RdmaUsageError
from pytest_rdma.known_hosts import fingerprint, parse_line
from pytest_rdma.remote import RemoteHost
from pytest_rdma.ssh import SshTarget, resolve

Open = Callable[..., RemoteHost]


def refused(open_host: Open, target: SshTarget, error: type[Exception] = HostUnreachableError) -> str:
    started = time.monotonic()
    with pytest.raises(error) as failed:
        open_host(target)
    assert time.monotonic() - started < 10
    assert "\n" not in str(failed.value)
    return str(failed.value)


def known(tmp_path: Path, text: str) -> dict[str, tuple[str, ...]]:
    file = tmp_path / "known"
    file.write_text(text)
    return {"known_hosts_files": (str(file),)}


def shown_key(sshd: Sshd, kind: int = 0) -> str:
    entry = parse_line(f"x {Path(f'{sshd.host_keys[kind]}.pub').read_text()}", "file", 1)
    assert entry is not None
    return fingerprint(entry.key)


def test_an_unknown_host_key_is_refused_and_never_added(open_host: Open, sshd: Sshd, tmp_path: Path) -> None:
    text = refused(open_host, sshd.target(**known(tmp_path, "")), HostKeyError)
    assert f"host key of 127.0.0.1 port {sshd.port} is not known: ssh-ed25519 {shown_key(sshd)}" in text
    assert (tmp_path / "known").read_text() == ""


def test_a_changed_host_key_is_refused_with_both_fingerprints(open_host: Open, sshd: Sshd, tmp_path: Path) -> None:
    another = Path(f"{make_key(tmp_path / 'another')}.pub").read_text()
    text = refused(open_host, sshd.target(**known(tmp_path, f"[127.0.0.1]:{sshd.port} {another}")), HostKeyError)
    assert "has changed" in text
    assert f"got ssh-ed25519 {shown_key(sshd)}" in text
    assert f"-R '[127.0.0.1]:{sshd.port}'" in text


def test_a_revoked_host_key_is_refused(open_host: Open, sshd: Sshd, tmp_path: Path) -> None:
    line = sshd.known_hosts_line(sshd.port)
    text = refused(open_host, sshd.target(**known(tmp_path, line + f"@revoked {line}")), HostKeyError)
    assert "revoked" in text


@pytest.mark.parametrize("kind", ["ssh-ed25519", "ssh-rsa"])
def test_a_key_of_any_type_that_is_known_will_do(open_host: Open, sshd: Sshd, tmp_path: Path, kind: str) -> None:
    lines = [line for line in sshd.known_hosts_line(sshd.port).splitlines() if kind in line]
    assert len(lines) == 1
    open_host(sshd.target(**known(tmp_path, lines[0] + "\n")))


def test_hashed_names_and_aliases_are_found(open_host: Open, sshd: Sshd, tmp_path: Path) -> None:
    options = known(tmp_path, sshd.known_hosts_line(sshd.port).replace(f"[127.0.0.1]:{sshd.port}", "two"))
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", tmp_path / "known"], check=True, capture_output=True)
    open_host(sshd.target(host_key_alias="two", **options))


def test_two_servers_of_one_address_have_keys_of_their_own(
    open_host: Open, sshd: Sshd, other_sshd: Callable[..., Sshd], tmp_path: Path
) -> None:
    other = other_sshd()
    both = known(tmp_path, sshd.known_hosts.read_text() + other.known_hosts.read_text())
    assert open_host(sshd.target(**both)).info.pid != open_host(other.target(**both)).info.pid
    swapped = known(tmp_path, sshd.known_hosts_line(other.port) + other.known_hosts_line(sshd.port))
    for server in (sshd, other):
        assert f"port {server.port} has changed" in refused(open_host, server.target(**swapped), HostKeyError)


def test_an_ssh_config_leads_there(
    open_host: Open, sshd: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    shutil.copy(sshd.user_key, tmp_path / "key of 127.0.0.1")
    (tmp_path / "config").write_text(
        f'Host rdma2\n  HostName 127.0.0.1\n  Port {sshd.port}\n  IdentityFile "~/key of %h"\n  IdentitiesOnly yes\n'
        f"  UserKnownHostsFile {sshd.known_hosts}\n  StrictHostKeyChecking no\n"
    )
    target = resolve("rdma2", [str(tmp_path / "config")])
    host = open_host(target)
    assert host.run(["true"]).returncode == 0
    assert "StrictHostKeyChecking no" in host.notes[0]
    text = refused(open_host, dataclasses.replace(target, known_hosts_files=(str(tmp_path / "none"),)), HostKeyError)
    assert "is not known" in text
    assert "`StrictHostKeyChecking no`" in text


def test_refused_keys_are_named_with_the_user(open_host: Open, sshd: Sshd, tmp_path: Path) -> None:
    key = make_key(tmp_path / "stranger")
    text = refused(open_host, sshd.target(identity_files=(str(key), str(tmp_path / "missing"))))
    assert f"cannot log in to host2 as {sshd.target().user} (127.0.0.1 port {sshd.port}): it refused {key}" in text
    assert f"{tmp_path}/missing: no such file" in text
    assert "authorized_keys" in text


def test_a_key_with_a_passphrase_is_never_asked_for(open_host: Open, sshd: Sshd, tmp_path: Path) -> None:
    key = tmp_path / "locked"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "secret", "-f", key], check=True)
    text = refused(open_host, sshd.target(identity_files=(str(key),)))
    assert "there is no key to offer" in text
    assert f"{key}: it needs a passphrase: load it into ssh-agent" in text


def test_what_is_no_key_is_named(open_host: Open, sshd: Sshd, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no key\n")
    assert "not a key that paramiko reads" in refused(open_host, sshd.target(identity_files=(str(tmp_path / "text"),)))


@pytest.fixture
def ssh_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Path], None]]:
    socket_path = tmp_path / "agent"
    with subprocess.Popen(["ssh-agent", "-D", "-a", socket_path], stdout=subprocess.DEVNULL) as agent:
        deadline = time.monotonic() + 5
        while not socket_path.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        monkeypatch.setenv("SSH_AUTH_SOCK", str(socket_path))
        yield lambda key: subprocess.run(["ssh-add", "-q", key], check=True)  # type: ignore[func-returns-value]
        agent.terminate()


def test_keys_of_the_agent_are_used_unless_only_files_are_wanted(
    open_host: Open, sshd: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ssh_agent: Callable[[Path], None]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    ssh_agent(sshd.user_key)
    open_host(sshd.target(identity_files=(), identities_only=False))
    assert "there is no key to offer" in refused(open_host, sshd.target(identity_files=()))
    (tmp_path / "locked.pub").write_text(Path(f"{sshd.user_key}.pub").read_text())
    (tmp_path / "locked").write_text("locked away")
    open_host(sshd.target(identity_files=(str(tmp_path / "locked"),)))


def test_an_agent_that_never_answers_is_done_without(
    open_host: Open, sshd: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SSH_AUTH_SOCK", str(tmp_path / "agent"))
    monkeypatch.setattr(ssh_connection, "AGENT_S", 0.2)
    with socket.socket(socket.AF_UNIX) as stopped:
        stopped.bind(str(tmp_path / "agent"))
        stopped.listen()
        text = refused(open_host, sshd.target(identity_files=(), identities_only=False))
        assert "there is no key to offer; skipped ssh-agent: it did not answer within 0.2 s" in text
    for thread in threading.enumerate():
        if thread.name == "ssh-agent":
            thread.join(5)
    gc.collect()


def test_an_agent_that_answers_too_late_is_hung_up_on(
    open_host: Open, sshd: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SSH_AUTH_SOCK", str(tmp_path / "agent"))
    monkeypatch.setattr(ssh_connection, "AGENT_S", 0.2)
    with socket.socket(socket.AF_UNIX) as slow:
        slow.bind(str(tmp_path / "agent"))
        slow.listen()
        assert "ssh-agent: it did not answer" in refused(
            open_host, sshd.target(identity_files=(), identities_only=False)
        )
        connection, _ = slow.accept()
        with connection:
            connection.settimeout(5)
            assert connection.recv(5) == b"\0\0\0\1\x0b"  # SSH_AGENTC_REQUEST_IDENTITIES
            connection.sendall(b"\0\0\0\5\x0c\0\0\0\0")  # SSH_AGENT_IDENTITIES_ANSWER: none
            assert connection.recv(1) == b""
    gc.collect()


def test_too_many_keys_are_told_apart_from_wrong_ones(
    open_host: Open, other_sshd: Callable[..., Sshd], tmp_path: Path
) -> None:
    server = other_sshd(lines="MaxAuthTries 2\n")
    keys = tuple(str(make_key(tmp_path / f"key{number}")) for number in range(4))
    text = refused(open_host, server.target(identity_files=(*keys, str(server.user_key))))
    assert "too many" in text
    assert "IdentitiesOnly" in text


def test_a_host_that_takes_no_keys_says_what_it_takes(open_host: Open, other_sshd: Callable[..., Sshd]) -> None:
    server = other_sshd(lines="PubkeyAuthentication no\nPasswordAuthentication yes\n")
    assert "it accepts only: password" in refused(open_host, server.target())


def test_a_name_that_does_not_resolve(open_host: Open, sshd: Sshd) -> None:
    text = refused(open_host, sshd.target(host="no-such-host.invalid"))
    assert "the name 'no-such-host.invalid' does not resolve" in text


def test_an_interface_that_is_not_there(open_host: Open, sshd: Sshd) -> None:
    text = refused(open_host, sshd.target(host="fe80::1%nosuchif"))
    assert "is there an interface nosuchif?" in text


def test_nobody_listens(open_host: Open, sshd: Sshd) -> None:
    port = free_port()
    text = refused(open_host, dataclasses.replace(sshd.target(), port=port))
    assert f"cannot reach host2 (127.0.0.1 port {port}): connection refused: no SSH server listens there" in text


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(10)
        yield server


def test_a_server_that_says_nothing(
    open_host: Open, sshd: Sshd, listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "CONNECT_TIMEOUT_S", 0.5)
    text = refused(open_host, dataclasses.replace(sshd.target(), port=listener.getsockname()[1]))
    assert "accepted the connection, but SSH was not agreed on within 0.5 s" in text


def test_packets_that_are_dropped(open_host: Open, sshd: Sshd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "CONNECT_TIMEOUT_S", 0.5)
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        port = full.getsockname()[1]
        waiting = [socket.socket() for _ in range(3)]
        for sock in waiting:  # fill the backlog: what comes after it is dropped
            sock.setblocking(False)
            sock.connect_ex(("127.0.0.1", port))
        text = refused(open_host, dataclasses.replace(sshd.target(), port=port))
        for sock in waiting:
            sock.close()
    assert "timed out after 0.5 s: the host is down, or a firewall drops the packets" in text


def test_a_server_that_is_not_ssh(open_host: Open, sshd: Sshd, listener: socket.socket) -> None:
    def answer() -> None:
        connection, _ = listener.accept()
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        connection.close()

    thread = threading.Thread(target=answer)
    thread.start()
    text = refused(open_host, dataclasses.replace(sshd.target(), port=listener.getsockname()[1]))
    thread.join()
    assert "does not speak SSH with us" in text


def test_a_spawned_host_gets_a_connection_of_its_own_where_channels_are_few(
    open_host: Open, other_sshd: Callable[..., Sshd]
) -> None:
    host = open_host(other_sshd(lines="MaxSessions 1\n").target())
    spawned = host.spawn()
    assert spawned.run(["echo", "spawned"]).stdout == b"spawned\n"
    spawned.close()
    assert host.run(["true"]).returncode == 0


def test_a_connection_that_is_cut_is_noticed_and_made_anew(open_host: Open, other_sshd: Callable[..., Sshd]) -> None:
    host = open_host(other_sshd().target())
    sessions = host.run(["sh", "-c", f"cat /proc/{host.info.pid}/stat"]).stdout.rpartition(b")")[2].split()
    os.kill(int(sessions[1]), 9)  # the parent of the agent: sshd's process for this login
    with pytest.raises(HostLostError):
        host.run(["true"])
    host.ensure()
    assert host.run(["echo", "again"]).stdout == b"again\n"


def test_no_locale_of_ours_and_no_agent_is_forwarded(open_host: Open, sshd: Sshd, monkeypatch: Any) -> None:
    monkeypatch.setenv("LC_ALL", "xx_XX.UTF-8")
    assert b"xx_XX" not in (environment := open_host(sshd.target()).run(["env"]).stdout)
    assert b"SSH_AUTH_SOCK" not in environment
    assert b"SSH_TTY" not in environment


def test_an_address_with_a_directive_that_is_not_supported_never_connects(tmp_path: Path) -> None:
    (tmp_path / "config").write_text("Host host2\n  ProxyJump gate\n")
    with pytest.raises(RdmaUsageError, match=r'--peer-exec "ssh host2"'):
        resolve("host2", [str(tmp_path / "config")])
