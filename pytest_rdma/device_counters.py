"""The counters of a device and of its port, and by how much they have changed since a test began."""

from __future__ import annotations

import os
import time

from pytest_rdma.deadline import Deadline
from pytest_rdma.errors import errno_text
from pytest_rdma.rdma_netlink import RdmaNetlink, parse_counters
from pytest_rdma.verbs_device import SYSFS

AGREE_S = 0.012
"""Two readings that agree this far apart have settled: the kernel itself keeps what it has read for 10 ms
(drivers/infiniband/core, RDMA_HW_STATS_DEFAULT_LIFESPAN).
"""
VALUE_BYTES = 64


class DeviceCounters:
    """Hardware counters come in one message of netlink; what else there is, in one file each, kept open.

    What is read is parsed only when somebody asks, so that a test that nobody asks about costs one message.
    """

    def __init__(self, netlink: RdmaNetlink | None, device: str, port: int) -> None:
        self._device, self._port = device, port
        self._netlink = netlink
        self.unread = ""
        folder = SYSFS / device
        where = [folder / "ports" / str(port) / "counters", folder / "hw_counters"]
        try:
            told = parse_counters(netlink.counters(device, port)) if netlink is not None else {}
        except (OSError, KeyError) as error:
            told = {}
            self.unread = errno_text(getattr(error, "errno", 0) or 0)
        if not told:
            self._netlink = None
            where.append(folder / "ports" / str(port) / "hw_counters")
        paths = [path for one in where if one.is_dir() for path in sorted(one.iterdir())]
        opened = [(path.name, os.open(path, os.O_RDONLY | os.O_CLOEXEC)) for path in paths if os.access(path, os.R_OK)]
        self._files = [(name, file) for name, file in opened if name != "lifespan" and _value(_read(file)) is not None]
        for _, file in set(opened) - set(self._files):
            os.close(file)
        if self._netlink is not None or self._files:
            self.unread = ""
        elif not self.unread:
            self.unread = f"{device} has no counters"
        self._before = self._raw()

    def close(self) -> None:
        for _, file in self._files:
            os.close(file)

    def _raw(self) -> tuple[bytes, ...]:
        try:
            told = self._netlink.counters(self._device, self._port) if self._netlink is not None else b""
        except (OSError, KeyError):  # the device is gone, which others report
            told = b""
        return (told, *(_read(file) for _, file in self._files))

    def _parsed(self, raw: tuple[bytes, ...]) -> dict[str, int]:
        found = {name: _value(text) or 0 for (name, _), text in zip(self._files, raw[1:])}
        return {**found, **parse_counters(raw[0])}

    def begin(self) -> None:
        """Count from now on."""
        self._before = self._raw()

    def values(self) -> dict[str, int]:
        return self._parsed(self._raw())

    def counted(self) -> dict[str, int]:
        """Return by how much each counter has changed; only those that have."""
        before, now = self._parsed(self._before), self.values()
        return {name: now[name] - before.get(name, 0) for name in sorted(now) if now[name] != before.get(name, 0)}

    def settled(self, deadline: Deadline) -> dict[str, int]:
        """Return what `counted` does once two readings agree: some drivers refresh their counters at intervals."""
        found = self.counted()
        while not deadline.passed:
            time.sleep(AGREE_S)  # no driver tells when it has refreshed them
            before, found = found, self.counted()
            if found == before:
                break
        return found


def _read(file: int) -> bytes:
    try:
        return os.pread(file, VALUE_BYTES, 0)
    except OSError:
        return b""


def _value(text: bytes) -> int | None:
    return int(text) if text.strip().isdigit() else None
