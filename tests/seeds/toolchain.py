"""Compile the programs of this directory once a run, on a host that has a compiler, and put them on others too."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from pytest_rdma import Host

PROGRAMS = Path(__file__).parent / "programs"
COMPILE_S = 60.0
FLAGS = ("-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1")
_built: dict[tuple[str, tuple[str, ...]], bytes] = {}


class Refused(Exception):
    """The compiler refused a program; the message is all that it said."""


def compiled(host: Host, name: str, *options: str) -> str:
    """Return the path, on the host, of the program `name`.c built with `options`; Refused when it does not build."""
    key = (name, options)
    if key not in _built:
        _built[key] = _compile(host, name, options)
    with tempfile.TemporaryDirectory() as scratch:
        binary = Path(scratch, name)
        binary.write_bytes(_built[key])
        return host.put(binary, executable=True)


def require_compiler(host: Host) -> None:
    """Skip where the host cannot build C programs of verbs."""
    found = host.run(["sh", "-c", "command -v gcc && test -f /usr/include/rdma/rdma_cma.h"])
    if found.returncode:
        pytest.skip(f"{host.name} has no gcc, or no headers of libibverbs-dev and librdmacm-dev")


def _compile(host: Host, name: str, options: tuple[str, ...]) -> bytes:
    require_compiler(host)
    source = host.put(PROGRAMS / f"{name}.c")
    target = source[: -len(".c")]
    flags = [option for option in options if not option.startswith("-l")]
    libraries = [option for option in options if option.startswith("-l")]
    built = host.run(["gcc", *FLAGS, *flags, "-o", target, source, *libraries], timeout_s=COMPILE_S)
    if built.returncode:
        raise Refused(built.stderr.decode())
    return host.run(["cat", target]).stdout  # type: ignore[no-any-return]
