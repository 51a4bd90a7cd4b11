"""The programs that the lab needs on the controller, and the packages that bring them.

`python -m pytest_rdma.lab.requirements` prints the packages that are missing, one a line.
"""

from __future__ import annotations

import platform
import shutil
import sys

from pytest_rdma.errors import RdmaEnvironmentError

# program: (package, when it is needed)
PROGRAMS = {
    "qemu-system-x86_64": ("qemu-system-x86", "boot"),
    "setpriv": ("util-linux", "boot"),
    "ssh": ("openssh-client", "boot"),
    "ssh-keygen": ("openssh-client", "boot"),
    "mmdebstrap": ("mmdebstrap", "build"),
    "mksquashfs": ("squashfs-tools", "build"),
    "zstd": ("zstd", "build"),
    "xz": ("xz-utils", "build"),
    "apt-get": ("apt", "build"),
}


def missing(*purposes: str) -> dict[str, str]:
    """Return the missing programs with their packages, of the purposes `boot` and `build` or, without any, of all."""
    wanted = purposes or ("boot", "build")
    return {
        program: package
        for program, (package, purpose) in PROGRAMS.items()
        if purpose in wanted and shutil.which(program) is None
    }


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


if __name__ == "__main__":
    sys.exit(main())
