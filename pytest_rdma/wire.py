"""Frames between controller and agent: a 4-byte big-endian length, then JSON in UTF-8 with tagged objects.

JSON has no bytes, dataclasses or handles; they become objects with one key that starts with `$`. Nothing that comes in
is ever evaluated: a tag names an entry of a table here, or the frame is refused.
"""

from __future__ import annotations

import base64
import dataclasses
import enum
import importlib
import json
import struct
from typing import Any, Callable, TypeVar

from pytest_rdma import model
from pytest_rdma.errors import HostLostError, RdmaUsageError

PROTOCOL = 1
MAX_FRAME_BYTES = 64 * 1024 * 1024
HEADER = struct.Struct(">I")

ClassT = TypeVar("ClassT", bound=type)

DATA_MODULES = ("traffic", "evidence")
"""What defines plain data beside `model`; loaded when a name is not known yet."""

_CLASSES: dict[str, type] = {}
_ENUMS: dict[str, type] = {
    name: value for name, value in vars(model).items() if isinstance(value, type) and issubclass(value, enum.IntEnum)
}
_ENUMS.update(
    (name, value) for name, value in vars(model).items() if isinstance(value, type) and issubclass(value, enum.IntFlag)
)


def plain_data(cls: ClassT) -> ClassT:
    """Let a dataclass cross the stream; fields declared as tuples and as enums of `model` arrive as such."""
    _CLASSES[cls.__name__] = cls
    return cls


for _value in list(vars(model).values()):
    if isinstance(_value, type) and dataclasses.is_dataclass(_value):
        plain_data(_value)


def encode(value: Any, host: Any) -> bytes:
    """Return `value` as the payload of a frame; `host` is the one whose handles it may hold.

    RdmaUsageError names what is not plain data; StaleHandleError comes from a handle of an earlier agent.
    """
    data = json.dumps(_plain(value, host), separators=(",", ":")).encode()
    if len(data) > MAX_FRAME_BYTES:
        raise RdmaUsageError(
            f"a message of {len(data)} bytes to or from {host.name} is over the limit of {MAX_FRAME_BYTES}: "
            "send it in pieces, or as a file by put()"
        )
    return data


def decode(data: bytes, host: Any) -> Any:
    """Return what `encode` was given; handles become the live objects of a LocalHost, or fronts of a RemoteHost."""
    return json.loads(data, object_hook=lambda found: _rebuild(found, host))


def frame(data: bytes) -> bytes:
    return HEADER.pack(len(data)) + data


def length_of(header: bytes | bytearray, sender: str) -> int:
    """Return the length that a frame's header announces; one beyond the limit means that the stream is garbled."""
    length: int = HEADER.unpack(header)[0]
    if length > MAX_FRAME_BYTES:
        raise HostLostError(
            f"the stream from {sender} is garbled: a frame announces {length} bytes, the limit is {MAX_FRAME_BYTES}"
        )
    return length


class FrameReader:
    """Cuts a byte stream into frames, whatever pieces it comes in."""

    def __init__(self, sender: str) -> None:
        self._sender = sender
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Return the payloads that `data` completes."""
        self._buffer += data
        frames = []
        start = 0
        while len(self._buffer) - start >= HEADER.size:
            end = start + HEADER.size + length_of(self._buffer[start : start + HEADER.size], self._sender)
            if end > len(self._buffer):
                break
            frames.append(bytes(self._buffer[start + HEADER.size : end]))
            start = end
        del self._buffer[:start]
        return frames

    @property
    def rest(self) -> bytes:
        """The beginning of a frame that is not complete yet."""
        return bytes(self._buffer)


def _plain(value: Any, host: Any) -> Any:
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return value
    if isinstance(value, (list, tuple)):
        return [_plain(item, host) for item in value]
    if isinstance(value, dict):
        return _plain_dict(value, host)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return {"$b": base64.b64encode(value).decode()}
    if type(value) in _CLASSES.values():
        values = [_plain(getattr(value, field.name), host) for field in dataclasses.fields(value)]
        return {"$d": type(value).__name__, "v": values}
    if callable(getattr(value, "describe", None)):
        return {"$h": _describe(value, host)}
    raise RdmaUsageError(
        f"a {type(value).__module__}.{type(value).__qualname__} cannot cross to or from {host.name}: only None, bool, "
        "int, float, str, bytes, list, tuple, dict, this package's plain data and its handles can"
    )


def _plain_dict(value: dict[Any, Any], host: Any) -> dict[str, Any]:
    for key in value:
        if not isinstance(key, str):
            raise RdmaUsageError(f"the key {key!r} of a dict cannot cross to or from {host.name}: keys must be str")
    if any(key.startswith("$") for key in value):
        return {"$m": [[key, _plain(item, host)] for key, item in value.items()]}
    return {key: _plain(item, host) for key, item in value.items()}


def _describe(handle: Any, host: Any) -> dict[str, Any]:
    if handle.host is not host:
        raise RdmaUsageError(f"{handle!r} cannot be used on {host.name}: it belongs to another host")
    handle.check_usable()
    description = handle.describe()
    if not hasattr(host, "resolve"):  # the owner knows the facts of its own objects
        return {"kind": description["kind"], "handle": description["handle"]}
    return {key: _plain(item, host) for key, item in description.items()}


def _rebuild(found: dict[str, Any], host: Any) -> Any:
    if "$b" in found:
        return base64.b64decode(found["$b"])
    if "$d" in found:
        return _rebuild_dataclass(found["$d"], found["v"])
    if "$m" in found:
        return {key: value for key, value in found["$m"]}  # noqa: C416  (pairs arrive as lists)
    if "$h" in found:
        return _rebuild_handle(found["$h"], host)
    return found


def _rebuild_dataclass(name: str, values: list[Any]) -> Any:
    if name not in _CLASSES:
        for module in DATA_MODULES:
            importlib.import_module(f"pytest_rdma.{module}")
    cls: Any = _CLASSES.get(name)
    if cls is None:
        raise RdmaUsageError(f"the stream names the data class {name!r}, which is not known here")
    return cls(*(_restore(field.type, value) for field, value in zip(dataclasses.fields(cls), values)))


def _restore(annotation: Any, value: Any) -> Any:
    """Give back the type that JSON took away, as far as the field's annotation tells (they are strings here)."""
    kind = str(annotation).partition("[")[0].partition("|")[0].strip()
    if kind == "tuple" and isinstance(value, list):
        return tuple(value)
    if kind in _ENUMS and value is not None:
        make: Callable[[int], Any] = _ENUMS[kind]
        try:
            return make(value)
        except ValueError:  # a number that was forged on purpose stays what it is
            return value
    return value


def _rebuild_handle(description: dict[str, Any], host: Any) -> Any:
    if hasattr(host, "resolve"):
        return host.resolve(description["kind"], description["handle"])
    from pytest_rdma.host import Handle

    return Handle.from_description(host, description)
