"""The evidence of failed tests as files: a folder a test, for a nightly run that nobody watches."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from pytest_rdma import __version__
from pytest_rdma.diagnosis import Cause
from pytest_rdma.evidence import Evidence

VERSION = 1
NAME_LENGTH = 120
TRIES = 1000


def keep(
    root: str, test: str, when: str, evidence: Evidence, causes: Sequence[Cause], texts: Sequence[tuple[str, str]]
) -> Path:
    """Write all that is known of a failed test; returns the folder. OSError where that cannot be."""
    folder = _new_folder(Path(root), folder_name(test, when))
    whole = {
        "version": VERSION,
        "pytest_rdma": __version__,
        "test": test,
        "when": when,
        "causes": [asdict(cause) for cause in causes],
        "evidence": asdict(evidence),
    }
    (folder / "evidence.json").write_text(json.dumps(whole, indent=1, default=repr))
    files = dict(texts)
    for side in ("local", "peer"):
        mine = getattr(evidence, side)
        for what, text in (("kernel-log", "\n".join(mine.kernel_log)), ("stderr", mine.stderr)):
            if text:
                files[f"{side}-{what}"] = text
    for title, text in files.items():
        (folder / f"{title}.txt").write_text(f"{text}\n", encoding="utf-8", errors="backslashreplace")
    return folder


def folder_name(test: str, when: str) -> str:
    """Return a name for the test's folder that any file system takes and that no other test has."""
    readable = re.sub(r"[^A-Za-z0-9_.-]+", "_", test).strip("._")[-NAME_LENGTH:]
    part = "" if when == "call" else f"-{when}"
    return f"{readable}-{hashlib.sha256(test.encode()).hexdigest()[:8]}{part}"


def _new_folder(root: Path, name: str) -> Path:
    """Make a folder; a test that runs again has another."""
    root.mkdir(parents=True, exist_ok=True)
    for number in range(1, TRIES):
        folder = root / (name if number == 1 else f"{name}.{number}")
        try:
            folder.mkdir()
            return folder
        except FileExistsError:
            continue
    raise FileExistsError(f"{root / name}: {TRIES} runs of the test are kept there")
