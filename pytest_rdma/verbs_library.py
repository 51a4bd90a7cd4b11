"""pyverbs, imported when first needed, and what to say when it cannot be."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import platform
import re
import resource
import sys
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pytest_rdma.errors import RdmaEnvironmentError, VerbsError, errno_text
from pytest_rdma.model import HostInfo

MODULES = ("device", "pd", "mr", "cq", "srq", "qp", "wr", "addr", "pyverbs_error")
HOW_TO_INSTALL = "install it: `apt-get install python3-pyverbs` or `dnf install python3-pyverbs`"


@cache
def pyverbs() -> Any:
    """Return pyverbs' modules as attributes of one object; RdmaEnvironmentError says why it does not import."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    try:
        modules = {name: importlib.import_module(f"pyverbs.{name}") for name in MODULES}
    except ImportError as error:
        raise RdmaEnvironmentError(explain_import_error(error)) from error
    finally:
        # importing pyverbs.base calls logging.basicConfig(level=INFO): undone here
        for handler in set(root.handlers) - set(handlers):
            root.removeHandler(handler)
        root.setLevel(level)
    return SimpleNamespace(**modules)


def explain_import_error(error: ImportError) -> str:
    spec = importlib.util.find_spec("pyverbs")
    if spec is None:
        return f"this Python has no pyverbs; {HOW_TO_INSTALL} (it serves the distribution's own /usr/bin/python3)"
    where = str(Path(spec.origin or "?").parent)
    version, rdma_core = library_versions()
    return (
        f"pyverbs {version} in {where} does not import against rdma-core {rdma_core} in {library_path() or '?'}: "
        f"{error}; take both from the distribution's packages"
    )


def library_path() -> str | None:
    """Return the real path of libibverbs: the one loaded in this process, else the one the loader would find."""
    try:
        maps = Path("/proc/self/maps").read_text()
    except OSError:
        maps = ""
    loaded = re.search(r"\s(/\S*libibverbs\.so\S*)$", maps, re.MULTILINE)
    if loaded:
        return loaded.group(1)
    machine = os.uname().machine
    for folder in (f"/usr/lib/{machine}-linux-gnu", f"/lib/{machine}-linux-gnu", "/usr/lib64", "/usr/lib", "/lib64"):
        path = Path(folder, "libibverbs.so.1")
        if path.exists():
            return str(path.resolve())
    return None


def library_versions() -> tuple[str, str]:
    """Return the versions of pyverbs and rdma-core without importing pyverbs; "none" where there is none.

    Both are built of one source; distributions ship pyverbs without a version of its own, which then is rdma-core's.
    """
    path = library_path()
    found = re.search(r"\.so\.1\.\d+\.(\d+(?:\.\d+)*)$", path or "")
    rdma_core = found.group(1) if found else ("unknown" if path else "none")
    spec = importlib.util.find_spec("pyverbs")
    if spec is None:
        return "none", rdma_core
    folder = Path(spec.origin or "?").parent.parent
    for info in folder.glob("pyverbs-*.dist-info"):
        return info.name[len("pyverbs-") : -len(".dist-info")], rdma_core
    return rdma_core, rdma_core


def error_number(error: Exception) -> int:
    """Return the positive errno of a pyverbs error, 0 where it holds none."""
    number = getattr(error, "error_code", None)
    return abs(number) if isinstance(number, int) and number != -1 else 0


def verbs_error(attempt: str, error: Exception, hint: str = "") -> VerbsError:
    """Return a VerbsError that says `attempt`, the errno of a pyverbs error, and `hint`."""
    number = error_number(error)
    text = f"{attempt}: {errno_text(number) if number else error}"
    return VerbsError(f"{text}; {hint}" if hint else text, errno=number)


def host_info() -> HostInfo:
    """Return the facts of this process and its machine."""
    uname = platform.uname()
    version, rdma_core = library_versions()
    soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return HostInfo(
        hostname=uname.node,
        kernel=uname.release,
        machine=uname.machine,
        python=platform.python_version(),
        executable=sys.executable,
        pyverbs=version,
        rdma_core=rdma_core,
        pid=os.getpid(),
        uid=os.getuid(),
        memlock_soft=soft,
        memlock_hard=hard,
    )
