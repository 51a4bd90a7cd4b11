"""known_hosts files: whether the key that a host shows is the one that is known for it. Nothing is ever added."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pytest_rdma.errors import HostKeyError

SSH_PORT = 22


@dataclass(frozen=True)
class Entry:
    """One line of a file; `marker` is `@revoked`, `@cert-authority` or empty."""

    marker: str
    names: str
    key_type: str
    key: bytes
    file: str
    line: int

    @property
    def where(self) -> str:
        return f"{self.file}:{self.line}"

    def matches(self, name: str) -> bool:
        if self.names.startswith("|1|"):
            return _hash_matches(self.names, name)
        patterns = self.names.split(",")
        refused = [pattern[1:] for pattern in patterns if pattern.startswith("!")]
        if any(matches_pattern(name, pattern) for pattern in refused):
            return False
        return any(matches_pattern(name, pattern) for pattern in patterns if not pattern.startswith("!"))


def matches_pattern(name: str, pattern: str) -> bool:
    """Compare as OpenSSH does: `*` and `?` are wildcards, all else stands for itself, case does not matter."""
    regex = "".join(".*" if c == "*" else "." if c == "?" else re.escape(c) for c in pattern)
    return re.fullmatch(regex, name, re.IGNORECASE) is not None


def _hash_matches(names: str, name: str) -> bool:
    try:
        _, _, salt, digest = names.split("|")
        expected = base64.b64decode(digest)
        found = hmac.new(base64.b64decode(salt), name.lower().encode(), hashlib.sha1).digest()
    except (ValueError, binascii.Error):
        return False
    return hmac.compare_digest(expected, found)


def parse_line(text: str, file: str, line: int) -> Entry | None:
    """Return the entry of a line; None for a comment and for what is no entry."""
    words = text.split()
    if not words or words[0].startswith("#"):
        return None
    marker = words.pop(0) if words[0].startswith("@") else ""
    if len(words) < 3:
        return None
    try:
        return Entry(marker, words[0], words[1], base64.b64decode(words[2]), file, line)
    except binascii.Error:
        return None


def fingerprint(key: bytes) -> str:
    """Return `SHA256:...` as ssh-keygen prints it."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(key).digest()).decode().rstrip("=")


class KnownHosts:
    """The entries of several files, in their order; files that are not there count as empty."""

    def __init__(self, files: Iterable[str]) -> None:
        self.files = tuple(files)
        self._entries: list[Entry] = []
        for file in self.files:
            try:
                lines = Path(file).read_text(errors="replace").splitlines()
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                raise HostKeyError(f"cannot read {file}: {error.strerror}") from None
            found = (parse_line(text, file, number) for number, text in enumerate(lines, 1))
            self._entries += [entry for entry in found if entry is not None]

    def key_types(self, host: str, port: int, alias: str = "") -> list[str]:
        """Return the types of the keys that are known for the host: it should be asked to show one of those."""
        names = [lookup_name(host, port, alias), alias or host]
        known = [entry for entry in self._entries if not entry.marker and any(entry.matches(name) for name in names)]
        return list(dict.fromkeys(entry.key_type for entry in known))

    def check(self, host: str, port: int, key_type: str, key: bytes, alias: str = "") -> None:
        """Return when the key is known for the host; HostKeyError says what is wrong and what to do."""
        name = lookup_name(host, port, alias)
        where = f"{host} port {port}" + (f" (HostKeyAlias {alias})" if alias else "")
        shown = f"{key_type} {fingerprint(key)}"
        entries = [entry for entry in self._entries if entry.matches(name)]
        # OpenSSH falls back to the name without the port, for the very same key only.
        plain = [entry for entry in self._entries if entry.matches(alias or host) and entry.key == key]
        for entry in entries + plain:
            if entry.marker == "@revoked" and entry.key == key:
                raise HostKeyError(f"the host key of {where}, {shown}, is marked as revoked in {entry.where}")
        known = [entry for entry in entries + plain if not entry.marker]
        if any(entry.key == key for entry in known):
            return
        other = [entry for entry in known if entry.key_type == key_type]
        if other:
            raise HostKeyError(self._changed(where, name, shown, other[0]))
        raise HostKeyError(self._unknown(where, host, port, shown, entries))

    def _changed(self, where: str, name: str, shown: str, entry: Entry) -> str:
        return (
            f"the host key of {where} has changed: expected {entry.key_type} {fingerprint(entry.key)} ({entry.where}), "
            f"got {shown}: the host was installed anew, or somebody else answers; once you are sure, "
            f"run: ssh-keygen -f {entry.file} -R '{name}' and add the new key"
        )

    def _unknown(self, where: str, host: str, port: int, shown: str, entries: list[Entry]) -> str:
        authority = [entry for entry in entries if entry.marker == "@cert-authority"]
        if authority:
            return (
                f"the host key of {where}, {shown}, is known only by the @cert-authority in {authority[0].where}, "
                f'which is not supported: add the key itself, or use --peer-exec "ssh {host}"'
            )
        types = ", ".join(dict.fromkeys(entry.key_type for entry in entries if not entry.marker))
        others = f" (known for it: only keys of type {types})" if types else ""
        option = f"-p {port} " if port != SSH_PORT else ""
        return (
            f"the host key of {where} is not known: {shown}{others} is in none of {', '.join(self.files)}; compare it "
            f"with the host's own, then connect once with `ssh {option}{host}`, "
            f"or add it: ssh-keyscan {option}{host} >> {(*self.files, '~/.ssh/known_hosts')[0]}"
        )


def lookup_name(host: str, port: int, alias: str = "") -> str:
    """Return the name under which a host's key stands in the files."""
    if alias:
        return alias.lower()
    return host.lower() if port == SSH_PORT else f"[{host.lower()}]:{port}"
