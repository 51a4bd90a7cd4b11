"""Where SSH leads: from what the user typed, by ssh_config, to a target that a connection can be made to."""

from __future__ import annotations

import getpass
import ipaddress
import os
import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_rdma.deadline import Deadline
from pytest_rdma.errors import RdmaUsageError
from pytest_rdma.known_hosts import SSH_PORT
from pytest_rdma.ssh_config import SYSTEM_FILE, USER_FILE, SshConfig

if TYPE_CHECKING:
    from pytest_rdma.ssh_connection import SshConnection

USER_KNOWN_HOSTS = ("~/.ssh/known_hosts", "~/.ssh/known_hosts2")
GLOBAL_KNOWN_HOSTS = ("/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2")


@dataclass(frozen=True)
class Address:
    """`[user@]host[:port]` taken apart; None for what was not said."""

    user: str | None
    host: str
    port: int | None


@dataclass(frozen=True)
class SshTarget:
    """All that is needed to log in. Without `identity_files` ssh's default keys are tried.

    `identities_only` leaves out the keys of ssh-agent that do not belong to those
    files. `notes` say what of ssh_config is not followed though nothing is refused for it.
    """

    name: str
    host: str
    port: int = SSH_PORT
    user: str = "root"
    identity_files: tuple[str, ...] = ()
    known_hosts_files: tuple[str, ...] = ()
    identities_only: bool = False
    host_key_alias: str = ""
    notes: tuple[str, ...] = ()

    @property
    def where(self) -> str:
        return f"{self.user}@{self.host} port {self.port}"


def parse_address(text: str) -> Address:
    """Take apart `host`, `user@host`, `host:port`, `[v6]:port`, bare IPv6; RdmaUsageError says what is odd."""
    if not text.strip():
        raise RdmaUsageError("the address of the host is empty")
    user, at, rest = text.rpartition("@")
    if at and not user:
        raise _odd(text, "the user before @ is empty")
    if user.startswith("-") or text.startswith("-"):
        raise _odd(text, "it starts with a dash")
    if "://" in text:
        raise _odd(text, "it is a URL; pass [user@]host[:port]")
    host, port = _host_and_port(text, rest)
    if not host:
        raise _odd(text, "the host is empty")
    if host.startswith("-") or re.search(r"[\s/@\[\]\"'`$;&|<>()\\]", host + user):
        raise _odd(text, f"{host!r} is not a host name")
    _check_scope(text, host)
    return Address(user or None, host, port)


def _host_and_port(text: str, rest: str) -> tuple[str, int | None]:
    bracketed = re.fullmatch(r"\[([^\[\]]*)\](?::(.*))?", rest)
    if bracketed:
        host = bracketed.group(1)
        if not _is_ipv6(host):
            raise _odd(text, f"{host!r} in brackets is not an IPv6 address")
        return host, None if bracketed.group(2) is None else _port(text, bracketed.group(2))
    if "[" in rest or "]" in rest:
        raise _odd(text, "its brackets do not fit: write [v6] or [v6]:port")
    if rest.count(":") >= 2:
        if not _is_ipv6(rest):
            raise _odd(text, f"{rest!r} is no IPv6 address; with a port write [v6]:port")
        return rest, None
    host, colon, port = rest.partition(":")
    return host, _port(text, port) if colon else None


def _port(text: str, port: str) -> int:
    if not re.fullmatch(r"[0-9]{1,5}", port) or not 1 <= int(port) <= 65535:
        raise _odd(text, f"the port {port!r} is not a number from 1 to 65535")
    return int(port)


def _is_ipv6(host: str) -> bool:
    try:
        ipaddress.IPv6Address(host.partition("%")[0])
    except ValueError:
        return False
    return True


def _check_scope(text: str, host: str) -> None:
    address, percent, scope = host.partition("%")
    if not _is_ipv6(host):
        if percent:
            raise _odd(text, f"{host!r} is not a host name")
        return
    if percent and not scope:
        raise _odd(text, "the interface after % is empty")
    if ipaddress.IPv6Address(address).is_link_local and not scope:
        raise _odd(text, f"{address} is link-local and needs an interface: {address}%eth0")


def _odd(text: str, why: str) -> RdmaUsageError:
    return RdmaUsageError(f"cannot use the address {text!r}: {why}")


def resolve(text: str, config_files: Sequence[str] = (USER_FILE, SYSTEM_FILE)) -> SshTarget:
    """Return where `text` leads by ssh_config; RdmaUsageError names a directive that matters and is not supported."""
    address = parse_address(text)
    config = SshConfig(address.host, config_files)
    host = config.value("hostname").replace("%h", address.host).replace("%%", "%") or address.host
    port = address.port or (_port(text, config.value("port")) if config.value("port") else SSH_PORT)
    user = address.user or config.value("user") or getpass.getuser()
    tokens = {
        "%": "%",
        "d": str(Path.home()),
        "h": host,
        "i": str(os.getuid()),
        "l": socket.gethostname(),
        "L": socket.gethostname().partition(".")[0],
        "n": address.host,
        "p": str(port),
        "r": user,
        "u": getpass.getuser(),
    }
    identities = [directive.words[0] for directive in config.all("identityfile")]
    return SshTarget(
        name=text,
        host=host,
        port=port,
        user=user,
        identity_files=tuple(_expand(file, tokens) for file in identities if file.lower() != "none"),
        known_hosts_files=_known_hosts_files(config, tokens),
        identities_only=config.value("identitiesonly").lower() in ("yes", "true"),
        host_key_alias=config.value("hostkeyalias"),
        notes=_notes(config),
    )


def _known_hosts_files(config: SshConfig, tokens: dict[str, str]) -> tuple[str, ...]:
    files: list[str] = []
    for keyword, default in (("userknownhostsfile", USER_KNOWN_HOSTS), ("globalknownhostsfile", GLOBAL_KNOWN_HOSTS)):
        directive = config.first(keyword)
        words = directive.words if directive else default
        files += [_expand(word, tokens) for word in words if word.lower() != "none"]
    return tuple(files)


def _notes(config: SshConfig) -> tuple[str, ...]:
    strict = config.first("stricthostkeychecking")
    if strict is None or strict.words[0].lower() in ("yes", "ask", "true"):
        return ()
    return (f"`{strict.text}` ({strict.where}) is not followed: the host key must be known",)


def _expand(file: str, tokens: dict[str, str]) -> str:
    """Replace ~, ${VARIABLE} and the %-tokens of ssh_config(5) that name where and who."""

    def token(match: re.Match[str]) -> str:
        if match.group(1) not in tokens:
            raise RdmaUsageError(f"ssh_config: {match.group(0)} in {file!r} is not supported")
        return tokens[match.group(1)]

    try:
        replaced = re.sub(r"%(.)", token, str(Path(file).expanduser()))
    except RuntimeError as error:
        raise RdmaUsageError(f"ssh_config: {file!r}: {error}") from None
    replaced = re.sub(r"\$\{(\w+)\}", lambda match: os.environ.get(match.group(1), match.group(0)), replaced)
    return str(Path(replaced).absolute())


def connect(target: SshTarget, deadline: Deadline) -> SshConnection:
    """Log in; HostUnreachableError or HostKeyError says at which step it failed."""
    from pytest_rdma.ssh_connection import connect as connect_now

    return connect_now(target, deadline)
