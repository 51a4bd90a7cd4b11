"""How an agent comes up at the other end of a byte stream, with nothing installed and no file written there.

1. The stream runs `/bin/sh`: one word, which plain exec, ssh and every login shell pass on unharmed. It gets a script
   on its standard input that becomes the first Python there which fits.
2. That Python prints a line that begins with a random marker; whatever came before it is noise of login shells.
3. It reads three frames: the package as a zip, the native helper for its machine, and settings; it imports the package
   from memory and becomes `agent.main`, whose first frame is HELLO.

No more is written than the far side has asked for, so a shell or a Python that reads ahead swallows nothing.
"""

from __future__ import annotations

import io
import json
import re
import secrets
import zipfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from pytest_rdma import __version__, native, wire
from pytest_rdma.deadline import Deadline
from pytest_rdma.errors import HostLostError, HostUnreachableError, RdmaUsageError, from_plain
from pytest_rdma.model import HostInfo
from pytest_rdma.streams import Stream, one_line, read_until

STAYS = (
    "artifacts",
    "benchmark",
    "bootstrap",
    "capabilities",
    "cli",
    "config",
    "counters",
    "deviations",
    "diagnosis",
    "diagnosis_hosts",
    "diagnosis_memory",
    "diagnosis_path",
    "diagnosis_ping",
    "diagnosis_queue",
    "diagnosis_view",
    "explaining",
    "fixtures",
    "gates",
    "gathering",
    "known_hosts",
    "losses",
    "options",
    "outcomes",
    "plugin",
    "reference",
    "remote",
    "report",
    "routes",
    "running",
    "sections",
    "session",
    "ssh",
    "ssh_config",
    "ssh_connection",
    "streams",
    "watchdog",
    "watched_host",
    "watcher",
)
"""The modules of the package that only a controller needs."""

CANDIDATES = ("python3", "/usr/bin/python3")

RUN_ARGUMENT = "import sys; exec(sys.argv[1])"

# Runs under any Python from 2.7 on; holds no single quote, for the script below quotes it with them.
STAGE0 = """
import os, sys
code = sys.argv[1]
marker = "".join(sys.argv[2:4])
others = sys.argv[4:]
sys.path[:] = [entry for entry in sys.path if entry not in ("", ".")]
def say(word, text):
    os.write(1, ("%s %s %s\\n" % (marker, word, text.replace("\\n", " "))).encode("utf-8"))
def read(size):
    pieces = []
    while size:
        pieces.append(os.read(0, min(size, 1 << 20)))
        if not pieces[-1]:
            os._exit(0)
        size -= len(pieces[-1])
    return b"".join(pieces)
def fits():
    if sys.version_info < (3, 9):
        return "is Python %d.%d.%d" % sys.version_info[:3]
    import logging
    quiet = logging.NullHandler()
    logging.root.addHandler(quiet)
    try:
        import pyverbs.device
    except ImportError:
        return "imports no pyverbs"
    finally:
        logging.root.removeHandler(quiet)
why = fits()
if why:
    say("unfit", sys.executable + " " + why)
    for other in others:
        if other != sys.executable and os.access(other, os.X_OK):
            os.execv(other, [other, "-c", "import sys; exec(sys.argv[1])", code] + sys.argv[2:4])
    if sys.version_info < (3, 9):
        os._exit(0)
say("ok", os.uname()[4] + " " + sys.executable)
frame = lambda: read(int.from_bytes(read(4), "big"))
memory = os.memfd_create("pytest-rdma")
with open(memory, "wb", closefd=False) as file:
    file.write(frame())
sys.path.insert(0, "/proc/self/fd/%d" % memory)
from pytest_rdma import agent
agent.main(frame(), frame())
"""

SCRIPT = """\
{{ for python in {candidates}; do command -v "$python" >/dev/null 2>&1 && \
exec "$python" -c '{run}' '{stage0}' {marker} {others}; done; printf "%s%s none\\n" {marker}; exit 127; }}
"""

_PLAIN_WORD = re.compile(r"~?[\w./+@:,=%-]+", re.ASCII)


@cache
def payload() -> bytes:
    """Return the modules that travel as a zip; the same bytes for the same sources."""
    package = Path(__file__).parent
    files = [path for path in package.glob("*.py") if path.stem not in STAYS]
    files += [path for path in (package / "native").iterdir() if path.suffix == ".py" or path.name in native.SOURCES]
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(files):
            name = str(path.relative_to(package.parent))
            archive.writestr(zipfile.ZipInfo(name), path.read_bytes(), zipfile.ZIP_DEFLATED)
    return packed.getvalue()


@cache
def helper(machine: str) -> bytes:
    """Return the native helper for `machine`, empty where there is none: the agent then compiles it."""
    return native.library_bytes(machine) or b""


def check_interpreter(python: str) -> None:
    """Refuse what a shell there would read as more than one plain word."""
    if not _PLAIN_WORD.fullmatch(python) or python.startswith("-"):
        raise RdmaUsageError(
            f"the interpreter {python!r} is not a plain path of letters, digits and ~ . / _ + @ : , = % -"
        )


def shell_script(marker: Sequence[str], python: str | None) -> bytes:
    """Return what `/bin/sh` reads: it becomes the first interpreter that is there."""
    if python is not None:
        check_interpreter(python)
    candidates = (python,) if python else CANDIDATES
    others = "" if python else CANDIDATES[-1]
    words = {"run": RUN_ARGUMENT, "stage0": STAGE0, "marker": " ".join(marker), "others": others}
    return SCRIPT.format(candidates=" ".join(candidates), **words).encode()


def python_argv(marker: Sequence[str], python: str) -> list[str]:
    """Return the command line that needs no shell, for a process of this machine."""
    return [python, "-c", RUN_ARGUMENT, STAGE0, *marker]


def new_marker() -> tuple[str, str]:
    """Return a marker in two halves: joined it comes from a Python that ran, not from an echo of the script."""
    return f"RDMA-{secrets.token_hex(6)}", secrets.token_hex(6)


class Bootstrap:
    """Brings up the agent on a stream. Afterwards `info` says who answered; frames go on where `rest` ends."""

    def __init__(
        self, stream: Stream, name: str, marker: Sequence[str], python: str | None, deadline: Deadline
    ) -> None:
        self._stream = stream
        self._candidates = (python,) if python else CANDIDATES
        self._name = name
        self._marker = "".join(marker).encode()
        self._deadline = deadline
        self._buffer = bytearray()
        self._unfit: list[str] = []
        self.info: HostInfo
        self.rest = b""

    def run(self, settings: dict[str, Any]) -> None:
        """Wait for the marker, ship the package, and wait for HELLO; HostUnreachableError says where it failed."""
        machine, executable = self._await_interpreter()
        shipped = (payload(), helper(machine), json.dumps({"name": self._name, **settings}).encode())
        try:
            self._stream.write(b"".join(wire.frame(part) for part in shipped), self._deadline)
        except HostLostError as error:
            raise self._failure(f"{executable} took no package: {error}") from None
        self._await_hello(executable)

    def _await_interpreter(self) -> tuple[str, str]:
        while True:
            word, text = self._next_line()
            if word == "ok":
                machine, _, executable = text.partition(" ")
                return machine, executable
            if word == "unfit":
                self._unfit.append(text)
                continue
            raise HostUnreachableError(
                f"{self._name} has no Python to run the agent: {' and '.join(self._candidates)} not found there; "
                "install python3 and python3-pyverbs, or name an interpreter with --peer-python"
            )

    def _next_line(self) -> tuple[str, str]:
        start = read_until(self._stream, self._buffer, self._marker, self._deadline)
        if start < 0 or self._deadline.passed:  # it may have said much, and go on
            raise self._ended("before an agent came up")
        junk = bytes(self._buffer[:start])
        del self._buffer[:start]
        end = read_until(self._stream, self._buffer, b"\n", self._deadline)
        if end < 0:
            self._buffer[:0] = junk
            raise self._ended("before an agent came up")
        line = self._buffer[len(self._marker) : end].decode(errors="replace").strip()
        del self._buffer[: end + 1]
        word, _, text = line.partition(" ")
        return word, text

    def _await_hello(self, executable: str) -> None:
        reader = wire.FrameReader(self._name)
        data: bytes | None = bytes(self._buffer)
        self._buffer.clear()
        while True:
            frames = reader.feed(data or b"")
            if frames:
                break
            data = self._stream.read(min(0.5, self._deadline.remaining_s))
            if data == b"" or self._deadline.passed:
                raise self._ended(f"after {executable} got the package")
        self.rest = b"".join(wire.frame(frame) for frame in frames[1:]) + reader.rest
        self._greet(json.loads(frames[0]), executable)

    def _greet(self, hello: dict[str, Any], executable: str) -> None:
        if hello.get("protocol") != wire.PROTOCOL or hello.get("version") != __version__:
            raise HostUnreachableError(
                f"the agent on {self._name} is pytest-rdma {hello.get('version')}, protocol {hello.get('protocol')}; "
                f"this is {__version__}, protocol {wire.PROTOCOL}: they must be the same"
            )
        if hello["t"] == "refused":
            error = from_plain(hello["error"], self._name)
            tried = f" (also tried: {'; '.join(self._unfit[:-1])})" if len(self._unfit) > 1 else ""
            raise HostUnreachableError(f"{self._name}: {executable}: {error}{tried}")
        self.info = HostInfo(**hello["info"])

    def _ended(self, when: str) -> HostUnreachableError:
        if self._unfit and "is Python" in self._unfit[-1]:
            return HostUnreachableError(
                f"{self._name} has no Python that fits: {'; '.join(self._unfit)}; the agent needs 3.9 or newer with "
                "pyverbs: name one with --peer-python"
            )
        if self._deadline.passed:
            return self._failure(f"time was up after {self._deadline.timeout_s:g} s, {when}")
        return self._failure(f"it ended with {self._stream.exit_text(2.0)} {when}")

    def _failure(self, what: str) -> HostUnreachableError:
        parts = [f"no agent on {self._name}: `{self._stream.description}`: {what}"]
        junk = one_line(self._buffer.decode(errors="replace"))
        if junk:
            parts.append(f"its output: {junk[:400]}")
        errors = self._stream.stderr.last_lines()
        if errors:
            parts.append(f"its stderr: {errors}")
        return HostUnreachableError("; ".join(parts))
