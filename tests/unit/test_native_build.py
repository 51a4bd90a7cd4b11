"""Where the native helper comes from: package, cache, compiler, zip; and what is said where it cannot be had."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from pytest_rdma import native
from pytest_rdma.errors import RdmaEnvironmentError
from pytest_rdma.native import toolchain

MACHINE = os.uname().machine
ROOT = Path(native.__file__).parents[2]


@pytest.fixture(scope="session")
def built() -> bytes:
    """The helper of these sources."""
    data = native.library_bytes()
    if data is None:
        pytest.skip("no C compiler or no <infiniband/verbs.h>")
    return data


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache and an empty package directory."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(native, "PACKAGE", tmp_path / "package")
    (tmp_path / "package").mkdir()
    return tmp_path / "cache"


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")


def test_it_is_compiled_once_and_then_comes_from_the_cache(
    built: bytes, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = native.library_bytes()
    assert first is not None
    (cached,) = (cache / "pytest-rdma" / "native").iterdir()
    assert cached.read_bytes() == first
    assert cached.name.endswith(f"-{MACHINE}.so")
    monkeypatch.setenv("CC", "no-such-compiler")
    assert native.library_bytes() == first


@pytest.mark.usefixtures("no_compiler")
def test_a_packaged_helper_of_these_sources_is_used(built: bytes, cache: Path) -> None:
    (native.PACKAGE / f"helper-{MACHINE}.so").write_bytes(built)
    assert native.library_bytes() == built


@pytest.mark.usefixtures("no_compiler")
def test_a_packaged_helper_of_other_sources_is_not_used(built: bytes, cache: Path) -> None:
    mark = toolchain.source_hash(toolchain.read_sources()).encode()
    (native.PACKAGE / f"helper-{MACHINE}.so").write_bytes(built.replace(mark, b"0" * len(mark)))
    assert native.library_bytes() is None


@pytest.mark.usefixtures("cache")
def test_another_machine_s_helper_is_not_made_here() -> None:
    assert native.library_bytes("riscv128") is None


@pytest.mark.usefixtures("cache", "no_compiler")
def test_without_a_compiler_there_is_none_and_the_error_says_what_to_install() -> None:
    assert native.library_bytes() is None
    said = r"no C compiler 'no-such-compiler'; install .*libibverbs-dev.*rdma-core-devel"
    with pytest.raises(RdmaEnvironmentError, match=said):
        native.compile_here()


@pytest.mark.usefixtures("cache")
def test_without_the_verbs_header_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = tmp_path / "cc"
    message = "prdma.h:12:10: fatal error: infiniband/verbs.h: No such file or directory"
    compiler.write_text(f"#!/bin/sh\necho '{message}' >&2\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", str(compiler))
    with pytest.raises(RdmaEnvironmentError, match=r"verbs\.h: No such file or directory; install .*libibverbs-dev"):
        native.compile_here()


@pytest.mark.usefixtures("cache")
def test_a_compiler_that_does_not_end_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = tmp_path / "cc"
    compiler.write_text("#!/bin/sh\nexec sleep 60\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", str(compiler))
    monkeypatch.setattr(toolchain, "COMPILE_S", 0.2)
    with pytest.raises(RdmaEnvironmentError, match=r"cannot build the native helper: '.*cc' did not end in 0.2 s"):
        native.compile_here()


def test_a_cache_that_cannot_be_written_is_done_without(
    built: bytes, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nowhere")
    assert native.library_bytes() is not None


def test_it_loads_from_memory_more_than_once(built: bytes) -> None:
    first, second = native.load_bytes(built), native.load_bytes(built)
    assert first.abi.version == second.abi.version == 1
    assert first.peek(id(built), 8) == second.peek(id(built), 8)


def test_it_loads_from_a_file_where_memory_may_not_run(built: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(name: str, flags: int) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "memfd_create", forbidden)
    assert native.load_bytes(built).abi.version == 1


def test_what_is_no_library_is_refused() -> None:
    with pytest.raises(RdmaEnvironmentError, match="cannot load the native helper"):
        native.load_bytes(b"#!/bin/sh\n")


def test_a_helper_of_another_version_is_refused(built: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_rdma.native.helper.ABI_VERSION", 2)
    with pytest.raises(RdmaEnvironmentError, match="ABI version 1, not 2"):
        native.load_bytes(built)


def test_installing_one_that_does_not_load_compiles_it_here(built: bytes) -> None:
    before = native.load()
    try:
        assert native.install(b"\x7fELF for another machine").abi.version == 1
    finally:
        native._loaded = before


@pytest.mark.usefixtures("no_compiler")
def test_what_keeps_it_from_loading_is_found_out_once_and_said_again(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[None] = []
    monkeypatch.setattr(native, "_loaded", None)
    monkeypatch.setattr(native, "_refused", None)
    monkeypatch.setattr(native, "library_bytes", lambda: tried.append(None))
    for _ in range(2):
        with pytest.raises(RdmaEnvironmentError, match="cannot build the native helper"):
            native.load()
    assert len(tried) == 1


def test_a_python_without_memfd_create_loads_it_too(built: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    assert native.load_bytes(built).abi.version == 1


@pytest.mark.usefixtures("no_compiler")
def test_one_that_neither_loads_nor_compiles_says_both() -> None:
    with pytest.raises(
        RdmaEnvironmentError, match=r"cannot load the native helper: .*; cannot build the native helper"
    ):
        native.install(b"\x7fELF for another machine")


def test_the_sources_compile_out_of_a_zip(built: bytes, tmp_path: Path) -> None:
    archive = tmp_path / "package.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for name in ("__init__", "errors", "deadline", "model"):
            file.write(ROOT / "pytest_rdma" / f"{name}.py", f"pytest_rdma/{name}.py")
        for path in (ROOT / "pytest_rdma" / "native").glob("*.[pch]*"):
            if path.suffix in (".py", ".c", ".h"):
                file.write(path, f"pytest_rdma/native/{path.name}")
    code = "from pytest_rdma import native as n; print(n.__file__, n.load_bytes(n.compile_here()).abi.version)"
    environment = {**os.environ, "PYTHONPATH": str(archive), "XDG_CACHE_HOME": str(tmp_path)}
    argv = [sys.executable, "-S", "-c", code]
    done = subprocess.run(argv, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(archive / "pytest_rdma" / "native" / "__init__.py"), "1"]


def test_the_helper_needs_nothing_of_rdma_core(built: bytes, tmp_path: Path) -> None:
    library = tmp_path / "helper.so"
    library.write_bytes(built)
    done = subprocess.run(["objdump", "-p", library], capture_output=True, text=True, check=True)
    needed = {line.split()[1] for line in done.stdout.splitlines() if "NEEDED" in line}
    assert needed <= {"libc.so.6", "libpthread.so.0"}


@pytest.mark.parametrize("has_compiler", [True, False])
def test_the_package_builds_with_and_without_a_compiler(built: bytes, tmp_path: Path, has_compiler: bool) -> None:
    pytest.importorskip("setuptools")
    into = tmp_path / "lib"
    argv = [sys.executable, "setup.py", "-q", "egg_info", "-e", str(tmp_path), "build_py", "-d", str(into)]
    environment = {**os.environ, **({} if has_compiler else {"CC": "no-such-compiler"})}
    done = subprocess.run(argv, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    helper = into / "pytest_rdma" / "native" / f"helper-{MACHINE}.so"
    assert helper.exists() is has_compiler
    assert ("installing without the native helper: cannot build" in done.stderr) is not has_compiler
