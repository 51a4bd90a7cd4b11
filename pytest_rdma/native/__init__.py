"""The native helper: where it comes from, and the functions that need it.

It is a plain shared object, the same for every Python, that travels to a peer with the agent. It is looked for as
`helper-<machine>.so` in the package, then in the user's cache, and else compiled from the sources beside this file.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
from pathlib import Path
from typing import Any

from pytest_rdma.errors import RdmaEnvironmentError
from pytest_rdma.native import pointers, toolchain
from pytest_rdma.native.helper import (
    CQView,
    FrameWriter,
    Native,
    NativeAsyncEvent,
    QPView,
    RecvList,
    SendList,
)
from pytest_rdma.native.pattern import pattern
from pytest_rdma.native.toolchain import SOURCES

__all__ = [
    "SOURCES",
    "CQView",
    "FrameWriter",
    "Native",
    "NativeAsyncEvent",
    "QPView",
    "RecvList",
    "SendList",
    "compile_here",
    "cq_pointer",
    "install",
    "library_bytes",
    "load",
    "load_bytes",
    "object_pointer",
    "pattern",
    "qp_pointer",
]

PACKAGE = Path(__file__).parent

_lock = threading.Lock()
_loading = threading.Lock()
_loaded: Native | None = None
_refused: RdmaEnvironmentError | None = None


def library_bytes(machine: str | None = None) -> bytes | None:
    """Return the helper for `machine` (this one's by default), built if need be; None where it cannot be had."""
    here = os.uname().machine
    machine = machine or here
    sources = toolchain.read_sources()
    mark = toolchain.source_hash(sources).encode()
    for path in (PACKAGE / f"helper-{machine}.so", _cache_path(machine)):
        with contextlib.suppress(OSError):
            data = path.read_bytes()
            # One that was built from other sources may lie there after an update.
            if mark in data:
                return data
    if machine != here:
        return None
    try:
        return compile_here()
    except RdmaEnvironmentError:
        return None


def compile_here() -> bytes:
    """Compile the helper for this machine and keep it in the cache; the error says what to install."""
    sources = toolchain.read_sources()
    cached = _cache_path(os.uname().machine)
    try:
        with tempfile.TemporaryDirectory(prefix="pytest-rdma-") as scratch:
            built = Path(scratch) / cached.name
            toolchain.compile_sources(sources, built)
            with contextlib.suppress(OSError):
                toolchain.install(built, cached)
            return built.read_bytes()
    except (toolchain.BuildError, OSError) as error:
        raise RdmaEnvironmentError(str(error)) from None


def _cache_path(machine: str) -> Path:
    base = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    return base / "pytest-rdma" / "native" / f"{toolchain.source_hash(toolchain.read_sources())}-{machine}.so"


def load_bytes(data: bytes) -> Native:
    """Load the helper from memory; where the kernel forbids to run such memory, from a file that is gone at once."""
    try:
        return _load_from_memory(data)
    except (OSError, AttributeError) as refused:  # or this Python was built with an old libc
        with tempfile.NamedTemporaryFile(prefix="pytest-rdma-", suffix=".so") as file:
            file.write(data)
            file.flush()
            try:
                return Native(file.name)
            except OSError as error:
                raise RdmaEnvironmentError(f"cannot load the native helper: {error} (from memory: {refused})") from None


def _load_from_memory(data: bytes) -> Native:
    """Load from a memfd that stays open: the loader knows a library by its path, and the number must not come again."""
    fd = os.memfd_create("pytest-rdma-helper", os.MFD_CLOEXEC)
    try:
        with open(fd, "wb", closefd=False) as file:
            file.write(data)
        return Native(f"/proc/self/fd/{fd}", keep_open=fd)
    except BaseException:
        os.close(fd)
        raise


def install(data: bytes | None) -> Native:
    """Make `data` the helper of this process; compile it here when there is none or it does not load."""
    global _loaded
    with _lock:
        _loaded = load_bytes(compile_here()) if data is None else _load_or_compile(data)
        return _loaded


def _load_or_compile(data: bytes) -> Native:
    try:
        return load_bytes(data)
    except RdmaEnvironmentError as refused:
        try:
            return load_bytes(compile_here())
        except RdmaEnvironmentError as error:
            raise RdmaEnvironmentError(f"{refused}; {error}") from None


def load() -> Native:
    """Return the helper of this process, loading it the first time; what kept it from that is said again at once."""
    global _refused
    if _loaded is not None:
        return _loaded
    with _loading:  # the two hosts of a process are opened at once
        if _loaded is not None:
            return _loaded
        if _refused is not None:
            raise _refused
        try:
            return install(library_bytes())
        except RdmaEnvironmentError as error:
            _refused = error
            raise


def qp_pointer(qp: Any, *, pd: Any = None, context: Any = None) -> int:
    """Return the address of the `struct ibv_qp` behind a pyverbs QP; see `pointers`."""
    return pointers.qp_pointer(load(), qp, pd, context)


def cq_pointer(cq: Any, *, context: Any = None) -> int:
    """Return the address of the `struct ibv_cq` behind a pyverbs CQ, also of one without a QP."""
    return pointers.cq_pointer(load(), cq, context)


def object_pointer(instance: Any, words: dict[int, int], numbers: dict[int, int] | None = None) -> int:
    """Return the address of the structure behind another pyverbs object; see `pointers`."""
    return pointers.object_pointer(load(), instance, words, numbers or {})
