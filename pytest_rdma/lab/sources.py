"""Where the image's packages come from: what this machine's own apt uses, adapted to the image's release."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

_APT = Path("/etc/apt")
_PASSED_ON = re.compile(r"^(Acquire::(?:https?::|Check-|Retries|ForceIPv)\S*) (\"[^\"]*\");$")
_SPECIAL_SUITE = re.compile(r"security|updates|backports|proposed|sloppy")


def source_lines(suite: str, mirror: str | None, directory: Path = _APT) -> tuple[str, ...]:
    """Return the apt source of `suite` for mmdebstrap: `mirror`, the machine's own, or none for its default."""
    if mirror is not None:
        return (mirror,)
    for uri, suites, components, options in _entries(directory):
        if "main" in components and any(_plain_debian(uri, name) for name in suites):
            return (f"deb {options}{uri} {suite} main",)
    return ()


def _plain_debian(uri: str, suite: str) -> bool:
    return uri.rstrip("/").endswith("debian") and not _SPECIAL_SUITE.search(suite)


def _entries(directory: Path) -> Iterator[tuple[str, list[str], list[str], str]]:
    """Yield URI, suites, components and bracketed options of each entry for binary packages."""
    for path in [directory / "sources.list", *sorted((directory / "sources.list.d").glob("*"))]:
        if not path.is_file():
            continue
        text = path.read_text(errors="replace")
        if path.suffix == ".sources":
            yield from _deb822(text)
        elif path.suffix == ".list":
            yield from _one_line(text)


def _deb822(text: str) -> Iterator[tuple[str, list[str], list[str], str]]:
    text = re.sub(r"(?m)^#.*\n", "", text)
    for stanza in re.split(r"\n\s*\n", text):
        fields = {
            name.lower(): value.strip() for name, value in re.findall(r"(?m)^([\w-]+):((?:.*)(?:\n[ \t].*)*)", stanza)
        }
        if "deb" not in fields.get("types", "").split() or fields.get("enabled", "yes").lower() == "no":
            continue
        options = _options(fields.get("signed-by", ""), fields.get("trusted", ""))
        for uri in fields.get("uris", "").split():
            yield uri, fields.get("suites", "").split(), fields.get("components", "").split(), options


def _one_line(text: str) -> Iterator[tuple[str, list[str], list[str], str]]:
    for line in text.splitlines():
        match = re.match(r"\s*deb\s+(?:\[([^]]*)\]\s*)?(\S+)\s+(\S+)\s+([^#]*)", line)
        if match:
            given = dict(part.partition("=")[::2] for part in (match[1] or "").split())
            options = _options(given.get("signed-by", ""), given.get("trusted", ""))
            yield match[2], [match[3]], match[4].split(), options


def _options(signed_by: str, trusted: str) -> str:
    parts = []
    if signed_by.startswith("/") and "\n" not in signed_by:
        parts.append(f"signed-by={signed_by}")
    if trusted.lower() == "yes":
        parts.append("trusted=yes")
    return f"[{' '.join(parts)}] " if parts else ""


def apt_options() -> tuple[str, ...]:
    """Return this machine's apt settings that decide how packages are fetched: proxies, retries, validity checks."""
    dump = subprocess.run(["apt-config", "dump"], capture_output=True, text=True, timeout=30).stdout
    found = (_PASSED_ON.match(line) for line in dump.splitlines())
    options = [f"{match[1]} {match[2]}" for match in found if match and match[2] != '""']
    return ('Acquire::Languages "none"', *options)
