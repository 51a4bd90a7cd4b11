"""What can go wrong, in one hierarchy: the user's mistake, the environment's lack, the transport's word.

Every error crosses the stream between controller and agent as plain data (`to_plain`, `from_plain`) and arrives as the
same class, with `host` and `remote_traceback` set. A message is one line that says what was attempted, where, what
came back and what to do.
"""

from __future__ import annotations

import contextlib
import errno as errno_module
import os
import traceback
from typing import Any, Callable

TEXT_LIMIT = 100_000
TEXT_KEPT = 40_000


class RdmaError(Exception):
    """The base of all errors of this package; keyword arguments become attributes and travel with it."""

    host: str | None = None
    remote_traceback: str | None = None

    def __init__(self, message: str = "", **fields: Any) -> None:
        super().__init__(message)
        self.fields = fields
        self.__dict__.update(fields)

    def __reduce__(self) -> tuple[Callable[..., RdmaError], tuple[str, str, dict[str, Any]]]:
        return _rebuild, (type(self).__name__, str(self), self.fields)


class RdmaUsageError(RdmaError):
    """What the user asked for cannot be: an unknown device, a bad address, an option out of range."""


class RdmaEnvironmentError(RdmaError):
    """What the run needs is not here: no device, no pyverbs, no lab tool, a host that does not answer."""


class NoDeviceError(RdmaEnvironmentError):
    """The host has no usable RDMA device."""


class DeviceBusyError(RdmaEnvironmentError):
    """Another run holds the lock of the device; the message names it."""


class HostUnreachableError(RdmaEnvironmentError):
    """The host could not be reached: name, route, port, authentication or interpreter."""


class HostKeyError(HostUnreachableError):
    """The host key is unknown or has changed."""


class HostLostError(RdmaError):
    """The agent, or the stream to it, ended while it was needed."""


class BlockedError(RdmaError):
    """A test cannot run, for a host or a device was lost before it; the message is the first cause."""


class StaleHandleError(RdmaError):
    """An object of an agent that has since been restarted was used; the message says which test broke the host."""


class DeadlineError(RdmaError, TimeoutError):
    """A wait ended without what it waited for."""


class StoppedError(RdmaError):
    """A wait was ended from outside, by a cancel or by Ctrl-C."""


class RefusedError(RdmaError, ValueError):
    """A checked call was refused before the driver saw it: state, bounds, keys, depth, inline or SGEs."""


class VerbsError(RdmaError):
    """A verb failed; `errno` is positive."""

    errno: int

    def __init__(self, message: str = "", *, errno: int = 0, **fields: Any) -> None:
        super().__init__(message, errno=errno, **fields)


class PostError(VerbsError):
    """The driver refused a work request; `bad_index` is its position in the list that was posted."""

    bad_index: int

    def __init__(self, message: str = "", *, errno: int = 0, bad_index: int = 0, **fields: Any) -> None:
        super().__init__(message, errno=errno, bad_index=bad_index, **fields)


class CompletionError(RdmaError):
    """A work request completed with a status other than success; `completions` holds all that were reaped."""

    completions: list[Any]

    def __init__(self, message: str = "", *, completions: Any = (), **fields: Any) -> None:
        super().__init__(message, completions=list(completions), **fields)


class CMError(RdmaError):
    """rdma_cm reported an event that ends the attempt to connect; `private_data` is that of a rejection.

    `event` is its name in `rdma_cm_event_type` without the prefix; `status` is a negative errno, or the reason of a
    REJECTED.
    """

    event: str
    status: int
    private_data: bytes

    def __init__(
        self, message: str = "", *, event: str = "", status: int = 0, private_data: bytes = b"", **fields: Any
    ) -> None:
        super().__init__(message, event=event, status=status, private_data=private_data, **fields)


class DataMismatchError(RdmaError, AssertionError):
    """Bytes in a buffer are not what they must be; `offset` is the first that differs."""

    offset: int

    def __init__(self, message: str = "", *, offset: int = 0, **fields: Any) -> None:
        super().__init__(message, offset=offset, **fields)


class RemoteError(RdmaError):
    """An exception of another kind, raised by code that ran on a host; `type_name` is its class."""

    type_name: str = ""
    errno: int | None = None


def errno_text(number: int) -> str:
    """Return the name, number and text of an errno: `EINVAL (22): Invalid argument`."""
    number = abs(number)
    return f"{errno_module.errorcode.get(number, 'errno')} ({number}): {os.strerror(number)}"


def _classes(base: type[RdmaError] = RdmaError) -> dict[str, type[RdmaError]]:
    found = {base.__name__: base}
    for child in base.__subclasses__():
        found.update(_classes(child))
    return found


def _rebuild(type_name: str, message: str, fields: dict[str, Any]) -> RdmaError:
    return _classes().get(type_name, RdmaError)(message, **fields)


def message_of(error: BaseException) -> str:
    """Return what an error says, shortened where it says too much; a class may be too odd to say anything."""
    try:
        return _shortened(str(error))
    except Exception as failed:  # it is the error of somebody else's code
        return f"(its text cannot be had: {type(failed).__name__})"


def errno_of(error: BaseException) -> int | None:
    """Return the error's number; None where it has none, or something else by that name."""
    number = getattr(error, "errno", None)
    return number if type(number) is int else None


def _shortened(text: str) -> str:
    if len(text) <= TEXT_LIMIT:
        return text
    return f"{text[:TEXT_KEPT]} ... ({len(text)} characters) ... {text[-TEXT_KEPT:]}"


def to_plain(error: BaseException) -> dict[str, Any]:
    """Return the error as plain data for the stream (its fields may still hold what the frame codec encodes)."""
    return {
        "type": type(error).__name__,
        "message": message_of(error),
        "errno": errno_of(error),
        "fields": error.fields if isinstance(error, RdmaError) else {},
        "traceback": _shortened("".join(traceback.format_exception(type(error), error, error.__traceback__))),
    }


def from_plain(plain: dict[str, Any], host: str) -> RdmaError:
    """Return the error that `to_plain` described.

    One that is not of this package, or of a class of the user's that is not made of a message, becomes a RemoteError.
    """
    error: RdmaError | None = None
    if plain["type"] in _classes():
        with contextlib.suppress(Exception):  # it is somebody else's code
            error = _rebuild(plain["type"], plain["message"], plain["fields"])
    if error is None:
        text = f"{plain['type']} on {host}: {plain['message']}"
        error = RemoteError(text, type_name=plain["type"], errno=plain["errno"])
    error.host = host
    error.remote_traceback = plain["traceback"]
    return error
