"""The loopback provider, driven from Python."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from typing import Any

ENDS_S = 60.0
"""The longest that a loop of these tests may go on; each has a deadline of 20 s."""

NEVER = (1 << 64) - 1


class Note(ctypes.Structure):
    """`struct loopback_note`: a send as the provider was given it."""

    _fields_ = [
        ("wr_id", ctypes.c_uint64),
        ("addr", ctypes.c_uint64),
        ("length", ctypes.c_uint64),
        ("remote_addr", ctypes.c_uint64),
        ("opcode", ctypes.c_uint32),
        ("send_flags", ctypes.c_uint32),
    ]


class Loopback:
    """Two connected QPs; with a seed, what happens at each look is random."""

    def __init__(self, library: ctypes.CDLL, seed: int = 0) -> None:
        self._library = library
        self._address = ctypes.c_void_p(library.loopback_new(ctypes.c_uint64(seed)))

    def close(self) -> None:
        self._library.loopback_free(self._address)

    def pointer(self, end: int, name: str) -> int:
        found: int = self._library.loopback_pointer(self._address, end, name.encode())
        return found

    def qp(self, end: int) -> int:
        return self.pointer(end, "qp")

    def cq(self, end: int) -> int:
        return self.pointer(end, "cq")

    def get(self, end: int, name: str) -> int:
        return int(self._library.loopback_field(self._address, end, name.encode()).contents.value)

    def set(self, end: int, name: str, value: int) -> None:
        self._library.loopback_field(self._address, end, name.encode()).contents.value = value

    def notes(self, end: int) -> Iterator[Note]:
        count = self.get(end, "posted")
        yield from (Note * count).from_address(self.pointer(end, "log"))


def declare(library: ctypes.CDLL) -> ctypes.CDLL:
    library.loopback_new.restype = ctypes.c_void_p
    library.loopback_field.restype = ctypes.POINTER(ctypes.c_uint64)
    library.loopback_pointer.restype = ctypes.c_uint64
    return library


class Beside:
    """A call in a thread that is waited for only so long, and does not keep the interpreter from ending."""

    def __init__(self, call: Callable[..., Any], *args: Any) -> None:
        self._thread = threading.Thread(target=call, args=args, daemon=True)
        self._thread.start()

    def end(self) -> None:
        self._thread.join(ENDS_S)
        assert not self._thread.is_alive(), f"it has not ended within {ENDS_S:g} s"
