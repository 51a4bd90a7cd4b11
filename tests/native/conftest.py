"""Builds the stub provider: with the helper as a program under the sanitizers, and as a library for Python."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from loopback_provider import declare

from pytest_rdma import native
from pytest_rdma.native import structs, toolchain

HERE = Path(__file__).parent
HELPER = Path(toolchain.__file__).parent
PROGRAM_FILES = (
    "main.c",
    "stub.c",
    "posting.c",
    "polling.c",
    "waiting.c",
    "patterns.c",
    "streaming.c",
    "loopback.c",
    "looping.c",
)
SANITIZE = ("-g", "-O1", "-fno-omit-frame-pointer", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")


def compile_here(destination: Path, files: list[Path], *extra: str) -> None:
    """Compile with the helper's own flags and the extra ones."""
    command = toolchain.compiler()
    if shutil.which(command[0]) is None or not Path("/usr/include/infiniband/verbs.h").exists():
        pytest.skip(f"no C compiler {command[0]!r} or no <infiniband/verbs.h>")
    argv = [
        *command,
        *toolchain.FLAGS,
        "-Werror",
        *extra,
        f"-I{HELPER}",
        f"-I{HERE}",
        *map(str, files),
        "-o",
        str(destination),
    ]
    done = subprocess.run([*argv, "-pthread"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The C tests and the helper, built with the address and undefined-behaviour sanitizers."""
    destination = tmp_path_factory.mktemp("native") / "native-tests"
    files = [HELPER / name for name in toolchain.C_FILES] + [HERE / name for name in PROGRAM_FILES]
    compile_here(destination, files, *SANITIZE)
    return destination


@pytest.fixture(scope="session")
def stub_library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The stub provider alone, for tests of the Python face."""
    destination = tmp_path_factory.mktemp("native") / "stub.so"
    compile_here(destination, [HERE / "stub.c", HERE / "layout.c"], "-shared")
    library = ctypes.CDLL(str(destination))
    for name in ("stub_new", "stub_qp", "stub_cq", "stub_channel", "stub_context"):
        getattr(library, name).restype = ctypes.c_void_p
    return library


class Stub:
    """A provider of memory, driven from Python."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library
        self.address = ctypes.c_void_p(library.stub_new())
        self.qp: int = library.stub_qp(self.address)
        self.cq: int = library.stub_cq(self.address)
        self.channel: int = library.stub_channel(self.address)
        self.context: int = library.stub_context(self.address)
        self.verbs = structs.VerbsStruct()
        library.stub_verbs(ctypes.byref(self.verbs))

    def complete(self, wr_id: int, status: int = 0, wc_flags: int = 0, imm: int = 0) -> None:
        """Queue a completion; `imm` in host order."""
        self.library.stub_complete_as(self.address, ctypes.c_uint64(wr_id), status, wc_flags, ctypes.c_uint32(imm))

    def set(self, name: str, value: int) -> None:
        """Set how the provider behaves: `refuse_at`, `refuse_rc`, `poll_rc`, `fail_poll_after`, `at_most_a_poll`."""
        self.library.stub_set(self.address, name.encode(), value)


@pytest.fixture
def stub(stub_library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stub]:
    """A fresh provider, its event functions given to the loaded helper in place of libibverbs' own."""
    stub = Stub(stub_library)
    monkeypatch.setattr(native.load(), "_verbs", stub.verbs)
    yield stub
    stub_library.stub_free(stub.address)


@pytest.fixture(scope="session")
def loopback_library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The provider that moves data between two QPs, for tests of the loops."""
    destination = tmp_path_factory.mktemp("native") / "loopback.so"
    compile_here(destination, [HERE / "loopback.c"], "-shared")
    return declare(ctypes.CDLL(str(destination)))
