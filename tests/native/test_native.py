"""Each TEST of the C files, run under the sanitizers."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from pytest_rdma.native import toolchain

HELPER = Path(toolchain.__file__).parent
FILES = sorted(Path(__file__).parent.glob("*.c"))
CASES = [
    pytest.param(name, id=f"{path.stem}-{name}")
    for path in FILES
    for name in re.findall(r"^TEST\((\w+)\)$", path.read_text(), re.MULTILINE)
]


@pytest.mark.parametrize("name", CASES)
def test_c(program: Path, name: str) -> None:
    done = subprocess.run([program, name], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert not done.stderr


def test_another_compiler_has_nothing_to_say_either() -> None:
    if shutil.which("clang") is None:
        pytest.skip("no clang")
    files = [str(HELPER / name) for name in toolchain.C_FILES]
    argv = ["clang", *toolchain.FLAGS, "-Werror", "-fsyntax-only", f"-I{HELPER}", *files]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
