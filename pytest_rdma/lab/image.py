"""Building the lab's image, once, into the user's cache."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pytest_rdma.errors import RdmaEnvironmentError
from pytest_rdma.lab import recipe, sources
from pytest_rdma.lab.files import lock_within, try_lock
from pytest_rdma.lab.requirements import require

Note = Callable[[str], None]
BUILD_TIMEOUT_S = 1800.0
KEPT_S = 7 * 24 * 3600.0
_FETCH_KERNEL = (
    'cd "$1/lab" && export APT_CONFIG="$MMDEBSTRAP_APT_CONFIG" && '
    f"apt-get -q download $(apt-cache depends --recurse --no-recommends --no-suggests --no-conflicts --no-breaks "
    f"--no-replaces --no-enhances {recipe.KERNEL} | grep -E '^linux-(image|binary|modules)-[0-9]' | sort -u)"
)


@dataclass(frozen=True)
class Image:
    """A built image: what QEMU needs to boot a guest."""

    directory: Path

    @property
    def kernel(self) -> Path:
        return self.directory / "vmlinux"

    @property
    def initramfs(self) -> Path:
        return self.directory / "initramfs.cpio"

    @property
    def root(self) -> Path:
        return self.directory / "root.squashfs"


def cache_directory() -> Path:
    """Return the directory of the cache, made if it is not there."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    directory = Path(base) / "pytest-rdma"
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    return directory


def built_image() -> Image | None:
    """Return the image of today's recipe if it has been built."""
    directory = cache_directory() / f"image-{recipe.digest()}"
    return Image(directory) if directory.is_dir() else None


def ensure_image(note: Note, mirror: str | None = None) -> Image:
    """Return the image, building it if there is none; a second builder waits for the first."""
    image = built_image()
    if image is not None:
        return image
    require("build")
    with _build_lock(note):
        return built_image() or _build(note, mirror)


@contextmanager
def _build_lock(note: Note) -> Iterator[None]:
    with open(cache_directory() / "build.lock", "a+") as lock:
        if not try_lock(lock):
            note("lab: another process is building the image; waiting for it")
            lock_within(lock, BUILD_TIMEOUT_S, "the other build of the image")
        yield


def _build(note: Note, mirror: str | None) -> Image:
    started = time.monotonic()
    note(f"lab: building the image once (Debian {recipe.SUITE}, {len(recipe.PACKAGES)} packages; about a minute)")
    cache = cache_directory()
    for left_over in cache.glob("building-*"):
        shutil.rmtree(left_over, ignore_errors=True)
    directory = Path(tempfile.mkdtemp(prefix="building-", dir=cache))
    try:
        _make_root(directory, sources.source_lines(recipe.SUITE, mirror))
        _unpack_kernel(directory / "vmlinuz", directory / "vmlinux")
        directory.chmod(0o755)
        final = cache / f"image-{recipe.digest()}"
        directory.rename(final)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    for old in cache.glob("image-*"):
        # Another checkout may have another recipe: what it built lately stays.
        if old != final and time.time() - old.stat().st_mtime > KEPT_S:
            shutil.rmtree(old, ignore_errors=True)
    note(f"lab: image built in {time.monotonic() - started:.0f} s: {final}")
    return Image(final)


def _mmdebstrap(directory: Path, source_lines: tuple[str, ...]) -> list[str]:
    """Return the command that writes the root as a tar to its standard output, kernel and initramfs to `directory`."""
    hooks = ['mkdir -p "$1/lab"', _FETCH_KERNEL]
    hooks += [f"upload {recipe.file(name)} /lab/{name}" for name in recipe.FILES]
    hooks += [
        'cp "$1/lab/inittab" "$1/etc/inittab"',
        'chroot "$1" sh /lab/customize.sh',
        f"download /lab/vmlinuz {directory}/vmlinuz",
        f"download /lab/initramfs.cpio {directory}/initramfs.cpio",
        'cd "$1/lab" && find . -mindepth 1 -maxdepth 1 ! -name bin ! -name guest-start -exec rm -rf {} +',
    ]
    command = [
        "setpriv",
        "--pdeathsig",
        "TERM",
        "mmdebstrap",
        "--variant=essential",
        "--quiet",
        f"--include={','.join(recipe.PACKAGES)}",
    ]
    command += [f"--aptopt={option}" for option in sources.apt_options()]
    command += [f"--dpkgopt={option}" for option in recipe.DPKG_OPTIONS]
    command += [f"--customize-hook={hook}" for hook in hooks]
    return [*command, recipe.SUITE, "-", *source_lines]


def _make_root(directory: Path, source_lines: tuple[str, ...]) -> None:
    log = directory / "build.log"
    squash = [
        "mksquashfs",
        "-",
        str(directory / "root.squashfs"),
        "-tar",
        "-quiet",
        "-no-progress",
        *recipe.COMPRESSION,
    ]
    with open(log, "wb") as output:
        bootstrap = subprocess.Popen(
            _mmdebstrap(directory, source_lines), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=output
        )
        assert bootstrap.stdout is not None
        try:
            squashed = subprocess.run(
                squash, stdin=bootstrap.stdout, stdout=output, stderr=output, timeout=BUILD_TIMEOUT_S
            )
            bootstrap.stdout.close()  # or, where mksquashfs ended early, nobody would tell mmdebstrap
            status = bootstrap.wait(timeout=60)
        except subprocess.TimeoutExpired:
            raise RdmaEnvironmentError(f"building the lab image did not end within {BUILD_TIMEOUT_S:g} s") from None
        finally:
            bootstrap.stdout.close()
            if bootstrap.poll() is None:
                bootstrap.terminate()
                bootstrap.wait(timeout=60)
    if status or squashed.returncode:
        raise RdmaEnvironmentError(
            _failure(log, "mmdebstrap" if status else "mksquashfs", status or squashed.returncode)
        )


def _failure(log: Path, tool: str, status: int) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith(("dpkg: error", "E:", "Err:", "FATAL"))] or lines[-3:]
    said = " | ".join(errors[:4])
    advice = "look at the network, or name another mirror: pytest-rdma lab build --mirror URL"
    return f"cannot build the lab image: {tool} ended with {status}: {said}; {advice}"


def _unpack_kernel(bzimage: Path, vmlinux: Path) -> None:
    """Unpack the ELF kernel from a bzImage, which would cost each boot of a guest under emulation its time.

    The header's fields are those of the kernel's Documentation/arch/x86/boot.rst.
    """
    data = bzimage.read_bytes()
    setup_sectors = data[0x1F1] or 4
    offset, length = struct.unpack_from("<II", data, 0x248)
    start = (setup_sectors + 1) * 512 + offset
    # The last four bytes are the unpacked size, appended to the compressed stream.
    payload = data[start : start + length - 4]
    if payload[:4] == b"\x28\xb5\x2f\xfd":
        tool = ["zstd", "-q", "-d", "-c"]
    elif payload[:6] == b"\xfd7zXZ\0":
        tool = ["xz", "-d", "-c", "--single-stream"]
    else:
        raise RdmaEnvironmentError(f"cannot unpack the lab's kernel: unknown compression {payload[:6].hex()}")
    with open(vmlinux, "wb") as output:
        subprocess.run(tool, input=payload, stdout=output, check=True, timeout=120)
    bzimage.unlink()
