"""Whether a device can still be used: it is there, our context lives, its port is ACTIVE, its GID row the same."""

from __future__ import annotations

import contextlib
from typing import Any

from pytest_rdma.deadline import Deadline
from pytest_rdma.host import LocalHost, op
from pytest_rdma.verbs_device import PORT_STATES, SYSFS, eight_words
from pytest_rdma.verbs_library import error_number, pyverbs

ACTIVE = "ACTIVE"
RENEW = "renew"
"""The answer when the device is there, but what was opened of it is dead: a new process can use it."""


@op("device.health")
def op_health(
    host: LocalHost, deadline: Deadline, name: str, port: int, gid_index: int | None, gid: str | None
) -> str | None:
    """Return in words what keeps the device from being used, `RENEW`, or None when nothing does."""
    if not (SYSFS / name).is_dir():
        return f"{name} on {host.name} is gone"
    open_device = host.contexts.get(name)
    if open_device is None:
        return None
    label = f"{name}/{port} on {host.name}"
    try:
        state = PORT_STATES[open_device.context.query_port(port).state]
        row = open_device.context.query_gid(port, gid_index).gid if gid_index is not None else None
    except pyverbs().pyverbs_error.PyverbsError as error:
        return RENEW if error_number(error) else f"{label} cannot be asked for its state: {error}"
    if state != ACTIVE:
        return f"{label} is {state}{_netdev(name, port, gid_index)}"
    if gid is not None and row != eight_words(gid):
        return f"row {gid_index} of the GID table of {label} is no longer {gid}"
    return None


def _netdev(name: str, port: int, gid_index: int | None) -> str:
    found: Any = None
    with contextlib.suppress(OSError):
        found = (SYSFS / name / "ports" / str(port) / "gid_attrs" / "ndevs" / str(gid_index)).read_text().strip()
    return f": see that its netdev {found} is up" if found else ""
