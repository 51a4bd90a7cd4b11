"""Choosing between KVM and software emulation, and remembering for this machine that KVM boots nothing."""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path

from pytest_rdma.lab.image import cache_directory

DESCRIPTION = {"kvm": "KVM", "tcg": "software emulation"}
# Deadlines written for hardware are multiplied by this.
TIMEOUT_SCALE = {"kvm": 1.0, "tcg": 4.0}


def candidates() -> tuple[str, ...]:
    """Return what to try, in order: KVM where it may work, and software emulation, which always does."""
    if _remembered() == "tcg" or not os.access("/dev/kvm", os.R_OK | os.W_OK):
        return ("tcg",)
    return ("kvm", "tcg")


def remember(kind: str) -> None:
    """Keep for this machine which of the two boots a guest."""
    if _remembered() == kind:
        return
    path = _memory()
    fresh = path.with_suffix(f".{os.getpid()}")
    fresh.write_text(json.dumps({"machine": _machine(), "accel": kind}) + "\n")
    fresh.replace(path)


def _remembered() -> str | None:
    try:
        memory = json.loads(_memory().read_text())
        return str(memory["accel"]) if memory["machine"] == _machine() else None
    except (OSError, ValueError, KeyError):
        return None


def _memory() -> Path:
    return cache_directory() / "accel.json"


def _machine() -> str:
    """Return what changes when this becomes another machine or boots another kernel."""
    try:
        identity = Path("/etc/machine-id").read_text().strip()
    except OSError:
        identity = ""
    return f"{identity} {platform.node()} {platform.release()}"
