"""Compile the native helper from the sources beside this file.

Needs only the standard library, as setup.py runs it before anything is installed and the agent runs it on a peer.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

C_FILES = (
    "clock.c",
    "flow.c",
    "histogram.c",
    "loop.c",
    "pattern.c",
    "pingpong.c",
    "poll.c",
    "post.c",
    "run.c",
    "stream.c",
    "view.c",
    "wait.c",
)
SOURCES = (*C_FILES, "clock.h", "loops.h", "post.h", "prdma.h", "run.h", "wait.h")
FLAGS = ("-std=c11", "-D_GNU_SOURCE", "-O2", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", "-Wshadow")
LINK = ("-shared", "-pthread")
COMPILE_S = 300.0  # seconds on hardware, a minute under emulation
INSTALL_HINT = (
    "install a C compiler and the verbs header: 'apt install gcc libc6-dev libibverbs-dev' on Debian and Ubuntu, "
    "'dnf install gcc rdma-core-devel' on Fedora and RHEL"
)


class BuildError(Exception):
    """The helper cannot be built here; the message says what to install."""


def read_sources() -> dict[str, bytes]:
    """Return the sources beside this module, which may lie in a zip."""
    here = Path(__file__).parent
    read = getattr(globals().get("__loader__"), "get_data", None)
    return {name: read(str(here / name)) if read else (here / name).read_bytes() for name in SOURCES}


def source_hash(sources: Mapping[str, bytes]) -> str:
    """Return the name of this state of the sources; the helper carries it and is refused where it differs."""
    digest = hashlib.sha256(repr(FLAGS).encode())
    for name in sorted(sources):
        digest.update(name.encode() + b"\0" + sources[name] + b"\0")
    return digest.hexdigest()[:20]


def compiler() -> list[str]:
    """Return the command of the C compiler: `$CC`, else `cc`."""
    return (os.environ.get("CC") or "cc").split()


def compile_sources(
    sources: Mapping[str, bytes],
    destination: Path,
    command: Sequence[str] | None = None,
    extra: Sequence[str] = (),
) -> None:
    """Compile to `destination`, which appears whole or not at all."""
    command = compiler() if command is None else command
    if shutil.which(command[0]) is None:
        raise BuildError(f"cannot build the native helper: no C compiler {command[0]!r}; {INSTALL_HINT}")
    with tempfile.TemporaryDirectory(prefix="pytest-rdma-") as scratch:
        for name, text in sources.items():
            (Path(scratch) / name).write_bytes(text)
        define = f'-DPRDMA_SOURCES="{source_hash(sources)}"'
        argv = [*command, *FLAGS, *extra, define, *C_FILES, "-o", "helper.so", *LINK]
        options: dict[str, Any] = {"cwd": scratch, "capture_output": True, "text": True, "errors": "replace"}
        try:
            done = subprocess.run(argv, stdin=subprocess.DEVNULL, timeout=COMPILE_S, check=False, **options)
        except subprocess.TimeoutExpired:
            raise BuildError(f"cannot build the native helper: {command[0]!r} did not end in {COMPILE_S:g} s") from None
        if done.returncode:
            raise BuildError(_explain(command[0], done.stderr))
        install(Path(scratch) / "helper.so", destination)


def _explain(command: str, stderr: str) -> str:
    lines = [line for line in stderr.splitlines() if "error" in line] or stderr.splitlines() or ["no message"]
    hint = f"; {INSTALL_HINT}" if "No such file" in lines[0] or "not found" in lines[0] else ""
    return f"cannot build the native helper with {command!r}: {lines[0].strip()}{hint}"


def install(built: Path, destination: Path) -> None:
    """Copy to `destination`, which appears whole or not at all."""
    destination.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=destination.parent, prefix=f".{destination.name}.")
    os.close(handle)
    shutil.copyfile(built, name)
    Path(name).chmod(0o644)
    Path(name).replace(destination)
