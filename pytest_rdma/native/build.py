"""Build the native helper for this machine, or, for a release, for every machine against an old C library.

`python -m pytest_rdma.native.build` puts `helper-<machine>.so` beside the sources. `--release` makes it for x86-64 and
aarch64 with the PyPI package `ziglang`, against glibc 2.17, so that it loads on whatever the peer runs; a helper built
by the compiler of a newer distribution may ask for its newer C library.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from pytest_rdma.native import toolchain

RELEASE_TARGETS = {"x86_64": "x86_64-linux-gnu.2.17", "aarch64": "aarch64-linux-gnu.2.17"}


def build_release(into: Path) -> list[Path]:
    """Build for every machine of RELEASE_TARGETS with `python -m ziglang cc`."""
    sources = toolchain.read_sources()
    built = []
    with tempfile.TemporaryDirectory(prefix="pytest-rdma-include-") as include:
        # The verbs headers alone: zig brings the C library's own, of the target and its version.
        (Path(include) / "infiniband").symlink_to("/usr/include/infiniband")
        for machine, target in RELEASE_TARGETS.items():
            command = [sys.executable, "-m", "ziglang", "cc", "-target", target]
            destination = into / f"helper-{machine}.so"
            toolchain.compile_sources(sources, destination, command, ["-Werror", "-isystem", include, "-s"])
            built.append(destination)
    return built


def build_here(into: Path) -> list[Path]:
    """Build for this machine with its own compiler."""
    destination = into / f"helper-{os.uname().machine}.so"
    toolchain.compile_sources(toolchain.read_sources(), destination)
    return [destination]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m pytest_rdma.native.build", description="build the native helper")
    parser.add_argument("--release", action="store_true", help="for x86-64 and aarch64, against glibc 2.17 (ziglang)")
    parser.add_argument("--into", type=Path, default=Path(__file__).parent, help="directory (default: the package)")
    options = parser.parse_args(arguments)
    try:
        built = (build_release if options.release else build_here)(options.into)
    except toolchain.BuildError as error:
        print(error, file=sys.stderr)
        return 1
    for path in built:
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
