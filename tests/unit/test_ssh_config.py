"""ssh_config: what is followed, what is refused by name, and what is let be."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_rdma.errors import RdmaUsageError
from pytest_rdma.ssh import SshTarget, resolve


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".ssh").mkdir()
    return tmp_path


def look_up(home: Path, text: str, config: str) -> SshTarget:
    (home / ".ssh" / "config").write_text(config)
    return resolve(text, ("~/.ssh/config",))


def test_without_a_config_the_name_is_the_host(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "alice")
    target = resolve("host2", ())
    assert (target.host, target.port, target.user, target.identity_files) == ("host2", 22, "alice", ())
    assert target.known_hosts_files == (
        str(home / ".ssh/known_hosts"),
        str(home / ".ssh/known_hosts2"),
        "/etc/ssh/ssh_known_hosts",
        "/etc/ssh/ssh_known_hosts2",
    )


def test_an_alias_leads_to_its_host_port_user_and_keys(home: Path) -> None:
    target = look_up(
        home,
        "rdma2",
        """
        # ours
        Host rdma? !rdma9
            HostName %h.example.com
            Port=2222
            User bob
            IdentityFile ~/.ssh/%r_at_%h
            IdentityFile "%d/other key"
            IdentitiesOnly yes
            HostKeyAlias two
        Host *
            User nobody
            Port 7
            ServerAliveInterval 5
            SendEnv LANG
        """,
    )
    assert (target.name, target.host, target.port, target.user) == ("rdma2", "rdma2.example.com", 2222, "bob")
    assert target.identity_files == (str(home / ".ssh/bob_at_rdma2.example.com"), str(home / "other key"))
    assert target.identities_only
    assert target.host_key_alias == "two"


def test_what_is_typed_wins_over_the_config(home: Path) -> None:
    target = look_up(home, "alice@host2:3", "User bob\nPort 2\n")
    assert (target.user, target.port) == ("alice", 3)


def test_known_hosts_files_are_those_of_the_config(home: Path) -> None:
    target = look_up(home, "host2", "UserKnownHostsFile ~/a /b\nGlobalKnownHostsFile none\n")
    assert target.known_hosts_files == (str(home / "a"), "/b")


@pytest.mark.parametrize(
    "line",
    [
        "ProxyJump gate",
        "ProxyCommand nc %h %p",
        "CertificateFile ~/.ssh/id-cert.pub",
        "BindAddress 10.0.0.1",
        "IdentityAgent ~/agent.sock",
        "AddressFamily inet6",
        "CanonicalizeHostname yes",
        "RemoteCommand bash",
        "PubkeyAuthentication no",
        "RevokedHostKeys /etc/ssh/revoked",
    ],
)
def test_a_directive_that_matters_and_is_not_supported_is_refused_by_name(home: Path, line: str) -> None:
    with pytest.raises(RdmaUsageError) as refused:
        look_up(home, "host2", f"Host host2\n  {line}\n")
    assert line.split()[0] in str(refused.value)
    assert f"{home}/.ssh/config:2" in str(refused.value)
    assert '--peer-exec "ssh host2"' in str(refused.value)


@pytest.mark.parametrize(
    "config",
    [
        "Host other\n  ProxyJump gate\n",
        "Host * !host2\n  ProxyJump gate\n",
        "ProxyJump none\nHost *\n  ProxyJump gate\n",
        "AddressFamily any\nProxyCommand none\n",
        "Match host other,third\n  ProxyJump gate\n",
        "Match user bob\n  ForwardAgent yes\n  Ciphers aes128-ctr\n",
        "Include no-such-file\nInclude harmless\n",
        "Host other\n  Include jump\n",
    ],
)
def test_what_does_not_touch_this_host_is_let_be(home: Path, config: str) -> None:
    (home / ".ssh/harmless").write_text("Host *\n  Compression yes\nHost other\n  Port 5\n")
    (home / ".ssh/jump").write_text("ProxyJump gate\n")
    assert look_up(home, "host2", config).port == 22


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ("Include port\n", "Include port"),
        ("Include ~/.ssh/po*\n", "Include ~/.ssh/po*"),
        ("Include deeper\n", "Include deeper"),
        ("Match all\n  Port 3\n", "Match all"),
        ("Match host host2\n  User bob\n", "Match host host2"),
        ("Match exec true\n  ProxyJump gate\n", "Match exec true"),
    ],
)
def test_include_and_match_are_refused_when_they_bring_what_matters(home: Path, config: str, named: str) -> None:
    (home / ".ssh/port").write_text("Host host2\n  Port 2222\n")
    (home / ".ssh/deeper").write_text("Include port\n")
    with pytest.raises(RdmaUsageError) as refused:
        look_up(home, "host2", config)
    assert named in str(refused.value)
    assert '--peer-exec "ssh host2"' in str(refused.value)


@pytest.mark.parametrize("value", ["no", "accept-new", "off"])
def test_host_key_checking_is_never_weakened_and_that_is_said(home: Path, value: str) -> None:
    target = look_up(home, "host2", f"StrictHostKeyChecking {value}\n")
    assert target.notes
    assert f"StrictHostKeyChecking {value}" in target.notes[0]
    assert "must be known" in target.notes[0]


@pytest.mark.parametrize(("config", "why"), [("Port abc\n", "port 'abc'"), ("Port\n", "Port has no argument")])
def test_a_broken_config_is_one_clear_line(home: Path, config: str, why: str) -> None:
    with pytest.raises(RdmaUsageError, match=why):
        look_up(home, "host2", config)


def test_includes_that_include_themselves_end(home: Path) -> None:
    with pytest.raises(RdmaUsageError, match="Include nests"):
        look_up(home, "host2", "Include config\n")


def test_the_systems_own_config_is_no_obstacle(home: Path) -> None:
    assert resolve("host2", ("~/.ssh/config", "/etc/ssh/ssh_config")).host == "host2"
