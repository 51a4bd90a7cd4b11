"""What the lab's image is made of; its hash names the cached image."""

from __future__ import annotations

import hashlib
from pathlib import Path

SUITE = "trixie"
KERNEL = "linux-image-amd64"
PACKAGES = (
    "busybox-static",
    "ethtool",
    "gcc",
    "ibverbs-providers",
    "ibverbs-utils",
    "iproute2",
    "iputils-ping",
    "kmod",
    "libc6-dev",
    "libibverbs-dev",
    "librdmacm-dev",
    "nftables",
    "openssh-client",
    "openssh-server",
    "perftest",
    "procps",
    "python3",
    "python3-paramiko",
    "python3-pytest",
    "python3-pytest-benchmark",
    "python3-pyverbs",
    "rdmacm-utils",
    "strace",
    "xz-utils",
)
FILES = ("add-second-device", "customize.sh", "guest-start", "hosts", "initramfs-init", "inittab", "sshd_config")
COMPRESSION = ("-comp", "lz4")
# rdma-core's own tests lie among the documentation; benchmarks compare with them.
DPKG_OPTIONS = (
    "force-unsafe-io",
    *(f"path-exclude=/usr/share/{directory}/*" for directory in ("doc", "man", "locale", "info")),
    "path-include=/usr/share/doc/rdma-core",
    "path-include=/usr/share/doc/rdma-core/tests*",
)


def file(name: str) -> Path:
    """Return where a file of the recipe lies."""
    return Path(__file__).with_name(name)


def digest() -> str:
    """Return the hash of all that decides what is in the image, short enough for a directory name."""
    state = hashlib.sha256()
    for text in (SUITE, KERNEL, *PACKAGES, *COMPRESSION, *DPKG_OPTIONS):
        state.update(text.encode() + b"\0")
    for name in FILES:
        state.update(file(name).read_bytes() + b"\0")
    return state.hexdigest()[:16]
