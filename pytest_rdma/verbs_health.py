"""Whether a device can still be used: it is there, our context lives, its port is ACTIVE, its GID row the same."""

from __future__ import annotations

import contextlib
from pathlib import Path

from pytest_rdma.deadline import Deadline
from pytest_rdma.host import LocalHost, op
from pytest_rdma.verbs_device import PORT_STATES, SYSFS, eight_words, is_gone
from pytest_rdma.verbs_library import error_number, pyverbs

ACTIVE = "ACTIVE"
RENEW = "renew"
"""The answer when the device is there, but what was opened of it is dead: a new process can use it."""
OTHER_ROW = "other row"
"""The answer when the GID row is empty by now, or holds another GID: another row may do."""


@op("device.health")
def op_health(
    host: LocalHost, deadline: Deadline, name: str, port: int, gid_index: int | None, gid: str | None
) -> str | None:
    """Return in words what keeps the device from being used, `RENEW`, `OTHER_ROW`, or None when nothing does."""
    if is_gone(host, name):
        return f"{name} on {host.name} is gone"
    open_device = host.contexts.get(name)
    label = f"{name}/{port} on {host.name}"
    place = SYSFS / name / "ports" / str(port)
    if open_device is not None:
        try:
            state = PORT_STATES[open_device.context.query_port(port).state]
        except pyverbs().pyverbs_error.PyverbsError as error:
            return RENEW if error_number(error) else f"{label} cannot be asked for its state: {error}"
        if state != ACTIVE:
            netdev = _read(place / "gid_attrs" / "ndevs" / str(gid_index))
            return f"{label} is {state}{f': see that its netdev {netdev} is up' if netdev else ''}"
    # from sysfs, since libibverbs answers for an empty row with an error, as it does for a dead context
    if gid is not None and _read(place / "gids" / str(gid_index)) != eight_words(gid):
        return OTHER_ROW
    return None


def _read(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text().strip()
    return ""
