"""What ssh_config says of one host, as far as this package can follow it; what it cannot follow is refused by name.

Directives that change neither where nor how a connection is made (ServerAliveInterval, SendEnv, Ciphers, ...) are left
alone. Of `Include` and `Match` only those are refused that bring, for this host, a directive that is not left alone.
"""

from __future__ import annotations

import glob
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_rdma.errors import RdmaUsageError
from pytest_rdma.known_hosts import matches_pattern

USER_FILE = "~/.ssh/config"
SYSTEM_FILE = "/etc/ssh/ssh_config"
MAX_DEPTH = 16

FOLLOWED = frozenset(
    (
        "globalknownhostsfile",
        "hostkeyalias",
        "hostname",
        "identitiesonly",
        "identityfile",
        "port",
        "stricthostkeychecking",
        "user",
        "userknownhostsfile",
    )
)

REFUSED = {
    "addressfamily": ("any",),
    "bindaddress": (),
    "bindinterface": (),
    "canonicalizehostname": ("no",),
    "certificatefile": ("none",),
    "identityagent": ("ssh_auth_sock",),
    "knownhostscommand": ("none",),
    "pkcs11provider": ("none",),
    "proxycommand": ("none",),
    "proxyjump": ("none",),
    "pubkeyauthentication": ("yes", "unbound", "host-bound"),
    "remotecommand": ("none",),
    "revokedhostkeys": ("none",),
}
"""Directives that matter and are not followed, each with the values that ask for nothing."""


@dataclass(frozen=True)
class Directive:
    """One line; `keyword` in lower case, `words` its arguments."""

    keyword: str
    words: tuple[str, ...]
    text: str
    where: str


class SshConfig:
    """The directives that hold for `host`, the name as the user typed it: the first of a keyword wins."""

    def __init__(self, host: str, files: Sequence[str] = (USER_FILE, SYSTEM_FILE)) -> None:
        self.host = host
        self._found: dict[str, list[Directive]] = {}
        for file in files:
            path = Path(file).expanduser()
            self._read(path, "~/.ssh" if file == USER_FILE else str(path.parent), True, "", 0)

    def first(self, keyword: str) -> Directive | None:
        """Return the directive that counts."""
        found = self._found.get(keyword)
        return found[0] if found else None

    def value(self, keyword: str) -> str:
        """Return its first argument, empty when it is not set."""
        directive = self.first(keyword)
        return directive.words[0] if directive else ""

    def all(self, keyword: str) -> list[Directive]:
        """Return every one of a keyword that adds up: IdentityFile."""
        return self._found.get(keyword, [])

    def _read(self, path: Path, folder: str, applies: bool, via: str, depth: int) -> None:
        try:
            lines = path.read_text(errors="replace").splitlines()
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return
        except OSError as error:
            raise RdmaUsageError(f"cannot read {path}: {error.strerror}") from None
        active, through = applies, via
        for number, line in enumerate(lines, 1):
            directive = parse_line(line, f"{path}:{number}")
            if directive is None:
                continue
            if directive.keyword == "host":
                active, through = applies and self._host_matches(directive.words), via
            elif directive.keyword == "match":
                active = applies and self._may_match(directive.words)
                through = f"`{directive.text}` ({directive.where})"
            elif active and directive.keyword == "include":
                self._include(directive, folder, through, depth)
            elif active:
                self._take(directive, through)

    def _include(self, directive: Directive, folder: str, via: str, depth: int) -> None:
        if depth >= MAX_DEPTH:
            raise RdmaUsageError(f"{directive.where}: Include nests more than {MAX_DEPTH} deep")
        for pattern in directive.words:
            full = Path(folder, pattern) if not pattern.startswith("~") else Path(pattern)
            for file in sorted(glob.glob(str(full.expanduser()))):  # noqa: PTH207  (the pattern may be absolute)
                self._read(Path(file), folder, True, via or f"`{directive.text}` ({directive.where})", depth + 1)

    def _take(self, directive: Directive, via: str) -> None:
        keyword = directive.keyword
        if keyword not in FOLLOWED and keyword not in REFUSED:
            return
        if keyword in self._found and keyword != "identityfile":
            return
        self._found.setdefault(keyword, []).append(directive)
        if keyword in REFUSED and directive.words[0].lower() in REFUSED[keyword]:
            return
        if via:
            raise self._refusal(f"{via} brings `{directive.text}` ({directive.where})")
        if keyword in REFUSED:
            raise self._refusal(f"`{directive.text}` ({directive.where})")

    def _refusal(self, what: str) -> RdmaUsageError:
        return RdmaUsageError(
            f"{what} changes where or how {self.host} is reached, and is not supported here: "
            f'let ssh itself do it with --peer-exec "ssh {self.host}"'
        )

    def _host_matches(self, patterns: Sequence[str]) -> bool:
        if any(matches_pattern(self.host, pattern[1:]) for pattern in patterns if pattern.startswith("!")):
            return False
        return any(matches_pattern(self.host, pattern) for pattern in patterns if not pattern.startswith("!"))

    def _may_match(self, criteria: Sequence[str]) -> bool:
        """Return False only where a criterion on the host's name rules the block out; others are not evaluated."""
        names = {self.host, self.value("hostname") or self.host}
        for criterion, argument in zip(criteria, criteria[1:]):
            if criterion.lower() in ("host", "originalhost"):
                patterns = argument.split(",")
                if not any(matches_pattern(name, p.lstrip("!")) for name in names for p in patterns):
                    return any(p.startswith("!") for p in patterns)
        return True


def parse_line(line: str, where: str) -> Directive | None:
    """Return the directive of a line: `Keyword arguments` or `Keyword = arguments`; None for comments."""
    text = line.strip()
    if not text or text.startswith("#"):
        return None
    keyword = text.replace("=", " ", 1).split()[0] if "=" in text.split()[0] else text.split()[0]
    rest = text[len(keyword) :].strip().removeprefix("=").strip()
    try:
        words = tuple(shlex.split(rest, comments=True))
    except ValueError:
        words = tuple(rest.split())
    if not words:
        raise RdmaUsageError(f"{where}: {keyword} has no argument")
    return Directive(keyword.lower(), words, " ".join((keyword, *words)), where)
