"""The verbs pointer behind a pyverbs object, in every version of pyverbs.

From 61 on pyverbs gives it: `QP.qp`, `CQ.cq`. Below 61 it is found by reading the words of the object and looking, with
reads that cannot fault, whether one points to a structure that says what pyverbs says. Attributes are looked up on the
class first: before 61 `CQ.cq` (from 54 on), `Context.context` and `PD.pd` (up to 59) cast the pointer to a Python
object, so that merely touching them corrupts memory.
"""

from __future__ import annotations

import ctypes
import gc
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pytest_rdma.errors import RdmaEnvironmentError
from pytest_rdma.native.helper import Native, QPView


def qp_pointer(native: Native, qp: Any, pd: Any = None, context: Any = None) -> int:
    """Return the address of the `struct ibv_qp`; `pd` and `context` are pyverbs objects, found if not given."""
    if _on_class(qp, "qp"):
        return int(qp.qp)
    pd = pd or _referent(qp, "PD")
    context = context or _referent(qp, "Context") or _referent(pd, "Context")
    expected = {"qp_num": qp.qp_num, "qp_type": int(qp.qp_type)}
    if pd is not None:
        expected["pd_handle"] = pd.handle
    if context is None:
        raise _refusal(qp, "its Context was not found")
    expected["cmd_fd"] = context.cmd_fd

    def agrees(address: int) -> bool:
        view = native.qp_view(address)
        return view is not None and _agree(view, expected) and view.pd_context in (0, view.context)

    return _search(qp, agrees)


def cq_pointer(native: Native, cq: Any, context: Any = None) -> int:
    """Return the address of the `struct ibv_cq`, also of a CQ that has no QP yet."""
    if _has_safe_pointers():
        return int(cq.cq)
    context = context or _referent(cq, "Context")
    if context is None:
        raise _refusal(cq, "its Context was not found")
    has_channel = _referent(cq, "CompChannel") is not None
    expected = {"cqe": cq.cqe, "cmd_fd": context.cmd_fd}

    def agrees(address: int) -> bool:
        view = native.cq_view(address)
        if view is None or not _agree(view, expected) or bool(view.channel) != has_channel:
            return False
        return view.channel_context in (0, view.context)

    return _search(cq, agrees)


def object_pointer(native: Native, instance: Any, words: dict[int, int], numbers: dict[int, int]) -> int:
    """Return the address of the structure behind any other object: the one that has these at their offsets in bytes.

    `words` are of 64 bits and `numbers` of 32: the addresses of its context and PD, and what pyverbs says of it.
    """
    expected = {offset: value.to_bytes(8, sys.byteorder) for offset, value in words.items()}
    expected.update({offset: value.to_bytes(4, sys.byteorder) for offset, value in numbers.items()})
    size = max(offset + len(value) for offset, value in expected.items())

    def agrees(address: int) -> bool:
        there = native.peek(address, size)
        return there is not None and all(
            there[offset : offset + len(value)] == value for offset, value in expected.items()
        )

    return _search(instance, agrees)


def _on_class(instance: Any, name: str) -> bool:
    return any(name in vars(base) for base in type(instance).__mro__)


def _has_safe_pointers() -> bool:
    """Say whether this pyverbs gives pointers as numbers: the release that brought `QP.qp` also mended the others."""
    from pyverbs.qp import QP

    return "qp" in vars(QP)


def _referent(instance: Any, class_name: str) -> Any:
    """Return the pyverbs object of that class that the other one holds; pyverbs shows it by no attribute."""
    for held in gc.get_referents(instance) if instance is not None else ():
        if any(base.__name__ == class_name for base in type(held).__mro__):
            return held
    return None


def _agree(view: QPView | Any, expected: dict[str, int]) -> bool:
    return all(getattr(view, name) == value for name, value in expected.items())


def _search(instance: Any, agrees: Callable[[int], bool]) -> int:
    """Return the one word of the object that points to what agrees."""
    if sys.implementation.name != "cpython":
        raise _refusal(instance, f"{sys.implementation.name} gives no address of an object")
    size = type(instance).__basicsize__
    words = memoryview(ctypes.string_at(id(instance), size - size % 8)).cast("Q")
    candidates = {word for word in words if word and word % 8 == 0}
    found = [word for word in candidates if agrees(word)]
    if len(found) != 1:
        raise _refusal(instance, f"{len(found)} words of the object point to one that agrees with it")
    return found[0]


def _refusal(instance: Any, why: str) -> RdmaEnvironmentError:
    kind = type(instance).__name__
    return RdmaEnvironmentError(f"cannot find the verbs pointer behind a {kind} of {pyverbs_version()}: {why}")


def pyverbs_version() -> str:
    """Return `pyverbs 56.1`, as far as it can be told: before 65 only the libibverbs that it loaded bears a version."""
    import pyverbs

    version = getattr(pyverbs, "__version__", None) or loaded_rdma_core_version()
    return f"pyverbs {version}" if version else "pyverbs (version unknown)"


def loaded_rdma_core_version() -> str | None:
    """Return the version in the name of the libibverbs that this process has loaded (`libibverbs.so.1.14.56.1`)."""
    found = re.search(r"/libibverbs\.so\.\d+\.\d+\.(\d+\.\d+)$", Path("/proc/self/maps").read_text(), re.MULTILINE)
    return found.group(1) if found else None
