"""Builds the native helper into the wheel where compiler and verbs header are there; the rest is pyproject.toml."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

from setuptools import setup
from setuptools.command.build_py import build_py


def _builder() -> Any:
    """Return the module that builds the helper, without importing the package, whose dependencies may be missing."""
    path = Path(__file__).parent / "pytest_rdma" / "native" / "toolchain.py"
    spec = importlib.util.spec_from_file_location("prdma_toolchain", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class BuildWithHelper(build_py):
    """Adds `helper-<machine>.so`. A controller does not need it, so that a lack is said and no error."""

    def run(self) -> None:
        """Build the Python files, then the helper."""
        super().run()
        # An editable installation uses the sources in place; the helper is then built on demand, into the cache.
        if self.editable_mode:
            return
        builder = _builder()
        destination = Path(self.build_lib) / "pytest_rdma" / "native" / f"helper-{os.uname().machine}.so"
        try:
            builder.compile_sources(builder.read_sources(), destination)
        except (builder.BuildError, OSError) as error:
            self.warn(f"installing without the native helper: {error}")


setup(cmdclass={"build_py": BuildWithHelper})
