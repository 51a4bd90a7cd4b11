"""What the tests of agents share."""

from __future__ import annotations

import time
from pathlib import Path

from pytest_rdma.verbs_library import MODULES


def script(path: Path, text: str) -> str:
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def gone(pid: int, seconds: float = 5.0) -> bool:
    """Wait for the end of a process that need not be a child of ours; a zombie has ended."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.02)
    return False


def stub_pyverbs(folder: Path) -> Path:
    (folder / "pyverbs").mkdir(parents=True)
    for name in ("__init__", *MODULES):
        (folder / "pyverbs" / f"{name}.py").touch()
    return folder
