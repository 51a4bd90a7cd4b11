"""Objects and counters of RDMA devices as the kernel tells them, in numbers (include/uapi/rdma/rdma_netlink.h)."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from pytest_rdma.netlink import attribute, attributes, dump, open_link

NETLINK_RDMA = 20
NLDEV = 5 << 10
CMD_GET, CMD_STAT_GET = 1, 17
DEV_INDEX, DEV_NAME, PORT_INDEX = 1, 2, 3
LQPN, RES_PID, LKEY, MR_BYTES = 21, 28, 43, 45
PDN, CQN, MRN, CM_IDN, CTXN, SRQN = 60, 61, 62, 63, 64, 90
HWCOUNTERS, HWCOUNTER_NAME, HWCOUNTER_VALUE = 80, 82, 83


class Kind(NamedTuple):
    """A kind of object: the command that lists it, the attribute that holds its entries, and those within an entry."""

    name: str
    command: int
    table: int
    number: int
    parent: int = 0
    parent_kind: str = ""


KINDS = (
    Kind("context", 22, 86, CTXN),
    Kind("PD", 14, 46, PDN, CTXN, "context"),
    Kind("CQ", 12, 35, CQN, CTXN, "context"),
    Kind("SRQ", 23, 88, SRQN, PDN, "PD"),
    Kind("MR", 13, 40, MRN, PDN, "PD"),
    Kind("QP", 10, 19, LQPN, PDN, "PD"),
    Kind("cm_id", 11, 30, CM_IDN),
)
"""In the order in which they hang on each other."""


class KernelObject(NamedTuple):
    """An object of a device. `pid` is that of the *thread* that made it, 0 for the kernel's own and once that ended.

    `parent` is the number of its context, or of its PD for MR, QP and SRQ. `key` is the lkey of an MR where the reader
    has CAP_NET_ADMIN, else 0; `bytes` is its length.
    """

    device: str
    kind: str
    number: int
    pid: int
    parent: int | None
    key: int
    bytes: int

    @property
    def text(self) -> str:
        number = hex(self.number) if self.kind == "QP" else str(self.number)
        size = f" of {self.bytes} bytes" if self.kind == "MR" else ""
        return f"{self.kind} {number}{size} on {self.device}"


class RdmaNetlink:
    """A socket to the kernel's lists of RDMA objects; what has not changed since it was last asked is not parsed."""

    def __init__(self) -> None:
        self._link = open_link(NETLINK_RDMA)
        self._devices: dict[str, int] = {}
        self._seen: dict[tuple[str, str], tuple[bytes, tuple[KernelObject, ...]]] = {}

    def close(self) -> None:
        self._link.close()

    def _ask(self, command: int, payload: bytes = b"", *, all: bool = True) -> bytes:
        extra = {} if all else {"flags": 0}
        return b"".join(content for _, content in dump(self._link, NLDEV + command, payload, **extra))

    def devices(self) -> dict[str, int]:
        """Return the index of each device of this network namespace by its name."""
        self._devices = {}
        index = 0
        for kind, value in attributes(self._ask(CMD_GET)):
            if kind == DEV_INDEX:
                index = _number(value)
            elif kind == DEV_NAME:
                self._devices[value.rstrip(b"\0").decode()] = index
        return self._devices

    def objects(self, device: str) -> list[KernelObject]:
        """Return all objects of a device, whosever they are; KeyError when it is gone, OSError from the kernel."""
        address = attribute(DEV_INDEX, struct.pack("=I", self._index(device)))
        found: list[KernelObject] = []
        for kind in KINDS:
            raw = self._ask(kind.command, address)
            key = (device, kind.name)
            if key not in self._seen or self._seen[key][0] != raw:
                self._seen[key] = (raw, tuple(parse_objects(device, kind, raw)))
            found += self._seen[key][1]
        return found

    def counters(self, device: str, port: int) -> bytes:
        """Return the hardware counters of a port, to be parsed by `parse_counters`."""
        where = attribute(DEV_INDEX, struct.pack("=I", self._index(device)))
        return self._ask(CMD_STAT_GET, where + attribute(PORT_INDEX, struct.pack("=I", port)), all=False)

    def _index(self, device: str) -> int:
        return self._devices[device] if device in self._devices else self.devices()[device]


def parse_objects(device: str, kind: Kind, raw: bytes) -> Iterator[KernelObject]:
    """Yield the objects of one kind from the messages of a dump."""
    for table, entries in attributes(raw):
        if table != kind.table:
            continue
        for _, entry in attributes(entries):
            told = dict(attributes(entry))
            numbers = {
                one: _number(told[one]) for one in (kind.number, RES_PID, kind.parent, LKEY, MR_BYTES) if one in told
            }
            if kind.number in numbers:
                yield KernelObject(
                    device,
                    kind.name,
                    numbers[kind.number],
                    numbers.get(RES_PID, 0),
                    numbers.get(kind.parent) if kind.parent else None,
                    numbers.get(LKEY, 0),
                    numbers.get(MR_BYTES, 0),
                )


def parse_counters(raw: bytes) -> dict[str, int]:
    """Return the counters of an answer by their names."""
    found: dict[str, int] = {}
    for kind, entries in attributes(raw):
        if kind == HWCOUNTERS:
            for _, entry in attributes(entries):
                told = dict(attributes(entry))
                found[told[HWCOUNTER_NAME].rstrip(b"\0").decode()] = _number(told[HWCOUNTER_VALUE])
    return found


def _number(value: bytes) -> int:
    return int.from_bytes(value, "little" if struct.pack("=H", 1) == b"\1\0" else "big")
