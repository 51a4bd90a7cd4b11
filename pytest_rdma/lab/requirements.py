"""The programs and files that the lab needs on the controller, and the packages that bring them.

`python -m pytest_rdma.lab` prints the packages that are missing, one a line.
"""

from __future__ import annotations

import platform
import shutil
from pathlib import Path

from pytest_rdma.errors import RdmaEnvironmentError
from pytest_rdma.lab import recipe

# program, or file: (package, when it is needed)
NEEDED = {
    "qemu-system-x86_64": ("qemu-system-x86", "boot"),
    "setpriv": ("util-linux", "boot"),
    "ssh": ("openssh-client", "boot"),
    "ssh-keygen": ("openssh-client", "boot"),
    "mmdebstrap": ("mmdebstrap", "build"),
    "mksquashfs": ("squashfs-tools", "build"),
    "zstd": ("zstd", "build"),
    "xz": ("xz-utils", "build"),
    "apt-get": ("apt", "build"),
    # An old package lacks the key of the newer release.
    f"/usr/share/keyrings/debian-archive-{recipe.SUITE}-stable.gpg": ("debian-archive-keyring", "build"),
}


def missing(*purposes: str) -> dict[str, str]:
    """Return what is missing with its packages, of the purposes `boot` and `build` or, without any, of all."""
    wanted = purposes or ("boot", "build")
    return {
        program: package for program, (package, purpose) in NEEDED.items() if purpose in wanted and not _found(program)
    }


def _found(name: str) -> bool:
    return Path(name).exists() if name.startswith("/") else shutil.which(name) is not None


def require(*purposes: str) -> None:
    """Raise an RdmaEnvironmentError that names what is missing and how to get it."""
    if platform.machine() != "x86_64":
        raise RdmaEnvironmentError(f"the lab's guests are x86-64 machines; this one is {platform.machine()}")
    lacking = missing(*purposes)
    if lacking:
        packages = " ".join(sorted(set(lacking.values())))
        raise RdmaEnvironmentError(
            f"the lab needs {', '.join(lacking)}, not found here: run ./quickstart, or apt-get install {packages}"
        )


def main() -> int:
    """Print the missing packages."""
    for package in sorted(set(missing().values())):
        print(package)
    return 0
