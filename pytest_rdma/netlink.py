"""Addresses and routes of this network namespace, read from the kernel as numbers (rtnetlink(7))."""

from __future__ import annotations

import ipaddress
import os
import socket
import struct
from collections.abc import Iterator

RTM_NEWADDR, RTM_GETADDR, RTM_NEWROUTE, RTM_GETROUTE = 20, 22, 24, 26
NLM_F_REQUEST, NLM_F_DUMP = 0x1, 0x300
NLMSG_ERROR, NLMSG_DONE = 2, 3
IFA_ADDRESS, IFA_LOCAL = 1, 2
RTA_DST, RTA_OIF = 1, 4
RT_TABLE_LOCAL, RTN_UNICAST = 255, 1
HEADER = struct.Struct("=IHHII")
RECEIVE_TIMEOUT_S = 5.0

Address = tuple[str, int]


def _dump(request_type: int, header: bytes, answer_type: int) -> Iterator[bytes]:
    """Yield the payload of each message that answers a dump request."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as link:
        link.settimeout(RECEIVE_TIMEOUT_S)
        link.sendto(
            HEADER.pack(HEADER.size + len(header), request_type, NLM_F_REQUEST | NLM_F_DUMP, 1, 0) + header, (0, 0)
        )
        while True:
            data = link.recv(1 << 18)
            while data:
                length, kind, _, _, _ = HEADER.unpack_from(data)
                payload, data = data[HEADER.size : length], data[(length + 3) & ~3 :]
                if kind == NLMSG_DONE:
                    return
                if kind == NLMSG_ERROR:
                    number = -struct.unpack_from("=i", payload)[0]
                    raise OSError(number, os.strerror(number))
                if kind == answer_type:
                    yield payload


def _attributes(data: bytes) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    while len(data) >= 4:
        length, kind = struct.unpack_from("=HH", data)
        found[kind & 0x3FFF] = data[4:length]
        data = data[(max(length, 4) + 3) & ~3 :]
    return found


def addresses() -> dict[int, list[Address]]:
    """Return, by interface index, the addresses that are there and their prefix lengths."""
    found: dict[int, list[Address]] = {}
    for payload in _dump(RTM_GETADDR, bytes(8), RTM_NEWADDR):
        _, prefix_length, _, _, index = struct.unpack_from("=BBBBI", payload)
        attributes = _attributes(payload[8:])
        raw = attributes.get(IFA_LOCAL) or attributes.get(IFA_ADDRESS)
        if raw:
            found.setdefault(index, []).append((str(ipaddress.ip_address(raw)), prefix_length))
    return found


def routes() -> dict[int, list[str]]:
    """Return, by interface index, the networks that unicast routes of any table but the local one reach through it."""
    found: dict[int, list[str]] = {}
    for payload in _dump(RTM_GETROUTE, bytes(12), RTM_NEWROUTE):
        family, length, _, _, table, _, _, kind, _ = struct.unpack_from("=BBBBBBBBI", payload)
        attributes = _attributes(payload[12:])
        if kind != RTN_UNICAST or table == RT_TABLE_LOCAL or RTA_OIF not in attributes:
            continue
        if family not in (socket.AF_INET, socket.AF_INET6):
            continue
        destination = attributes.get(RTA_DST, bytes(4 if family == socket.AF_INET else 16))
        network = f"{ipaddress.ip_address(destination)}/{length}"
        found.setdefault(struct.unpack("=i", attributes[RTA_OIF])[0], []).append(network)
    return found
