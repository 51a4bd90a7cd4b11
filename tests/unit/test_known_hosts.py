"""Which host keys are accepted: those that are known under the right name, and no other."""

from __future__ import annotations

import base64
import subprocess
from pathlib import Path

import pytest

from pytest_rdma.errors import HostKeyError
from pytest_rdma.known_hosts import KnownHosts, fingerprint, parse_line

KEY = b"\x00\x00\x00\x0bssh-ed25519\x00\x00\x00\x20" + b"k" * 32
OTHER = b"\x00\x00\x00\x0bssh-ed25519\x00\x00\x00\x20" + b"o" * 32
TYPE = "ssh-ed25519"


def known(tmp_path: Path, *lines: str) -> KnownHosts:
    file = tmp_path / "known_hosts"
    file.write_text("".join(f"{line}\n" for line in lines))
    return KnownHosts([str(file), str(tmp_path / "missing")])


def entry(names: str, key: bytes = KEY, kind: str = TYPE) -> str:
    return f"{names} {kind} {base64.b64encode(key).decode()} a comment"


@pytest.mark.parametrize(
    ("names", "host", "port"),
    [
        ("host2", "host2", 22),
        ("host2", "HOST2", 22),
        ("gate,host2,10.0.0.2", "10.0.0.2", 22),
        ("[host2]:2222", "host2", 2222),
        ("host2", "host2", 2222),
        ("*.example.com,!bad.example.com", "good.example.com", 22),
        ("[host?]:2222", "host2", 2222),
        ("[::1]:2222", "::1", 2222),
    ],
)
def test_a_known_key_is_accepted_under_its_names(tmp_path: Path, names: str, host: str, port: int) -> None:
    known(tmp_path, "# ours", "", "garbage", entry(names)).check(host, port, TYPE, KEY)


@pytest.mark.parametrize(
    ("names", "host", "port"),
    [
        ("host2", "host3", 22),
        ("[host2]:2222", "host2", 22),
        ("[host2]:2222", "host2", 2223),
        ("*.example.com,!bad.example.com", "bad.example.com", 22),
        ("host2x", "host2", 22),
    ],
)
def test_a_key_of_another_name_or_port_is_not_known(tmp_path: Path, names: str, host: str, port: int) -> None:
    with pytest.raises(HostKeyError, match="is not known"):
        known(tmp_path, entry(names)).check(host, port, TYPE, KEY)


def test_hashed_names_are_found(tmp_path: Path) -> None:
    file = tmp_path / "known_hosts"
    file.write_text(entry("[host2]:2222") + "\n")
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", file], check=True, capture_output=True)
    assert "host2" not in file.read_text()
    hosts = KnownHosts([str(file)])
    hosts.check("host2", 2222, TYPE, KEY)
    assert hosts.key_types("host2", 2222) == [TYPE]
    with pytest.raises(HostKeyError):
        hosts.check("host3", 2222, TYPE, KEY)


def test_an_unknown_key_is_shown_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(HostKeyError) as unknown:
        known(tmp_path).check("host2", 2222, TYPE, KEY)
    text = str(unknown.value)
    assert f"host2 port 2222 is not known: {TYPE} {fingerprint(KEY)}" in text
    assert "ssh-keyscan -p 2222 host2" in text
    assert "\n" not in text


def test_a_changed_key_is_shown_beside_the_expected_one(tmp_path: Path) -> None:
    with pytest.raises(HostKeyError) as changed:
        known(tmp_path, entry("[host2]:2222", OTHER)).check("host2", 2222, TYPE, KEY)
    text = str(changed.value)
    assert "host2 port 2222 has changed" in text
    assert f"expected {TYPE} {fingerprint(OTHER)} ({tmp_path}/known_hosts:1), got {TYPE} {fingerprint(KEY)}" in text
    assert f"ssh-keygen -f {tmp_path}/known_hosts -R '[host2]:2222'" in text


def test_a_plain_name_does_not_make_the_key_of_another_port_a_changed_one(tmp_path: Path) -> None:
    with pytest.raises(HostKeyError, match="is not known"):
        known(tmp_path, entry("host2", OTHER)).check("host2", 2222, TYPE, KEY)


def test_a_key_of_another_type_is_unknown_and_the_known_types_are_told(tmp_path: Path) -> None:
    with pytest.raises(HostKeyError, match=r"is not known.*only keys of type ssh-rsa"):
        known(tmp_path, entry("host2", OTHER, "ssh-rsa")).check("host2", 22, TYPE, KEY)


@pytest.mark.parametrize("names", ["host2", "*"])
def test_a_revoked_key_is_refused_though_it_is_known(tmp_path: Path, names: str) -> None:
    with pytest.raises(HostKeyError, match=r"revoked in .*known_hosts:2"):
        known(tmp_path, entry("host2"), f"@revoked {entry(names)}").check("host2", 22, TYPE, KEY)


def test_a_certificate_authority_is_named_as_unsupported(tmp_path: Path) -> None:
    with pytest.raises(HostKeyError, match=r"@cert-authority in .*known_hosts:1.*not supported"):
        known(tmp_path, f"@cert-authority {entry('*')}").check("host2", 22, TYPE, KEY)


def test_an_alias_stands_for_name_and_port(tmp_path: Path) -> None:
    known(tmp_path, entry("two")).check("10.0.0.2", 2222, TYPE, KEY, alias="two")
    with pytest.raises(HostKeyError, match="HostKeyAlias two"):
        known(tmp_path, entry("[10.0.0.2]:2222")).check("10.0.0.2", 2222, TYPE, KEY, alias="two")


def test_a_fingerprint_is_what_ssh_keygen_prints(tmp_path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "key"], check=True)
    line = (tmp_path / "key.pub").read_text()
    printed = subprocess.run(["ssh-keygen", "-lf", tmp_path / "key.pub"], check=True, capture_output=True, text=True)
    found = parse_line(f"host2 {line}", "file", 1)
    assert found is not None
    assert fingerprint(found.key) == printed.stdout.split()[1]
