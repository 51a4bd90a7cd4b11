"""Netlink, and what rtnetlink(7) says of this network namespace as numbers: addresses and routes."""

from __future__ import annotations

import ipaddress
import os
import socket
import struct
from collections.abc import Iterator

RTM_NEWADDR, RTM_GETADDR, RTM_NEWROUTE, RTM_GETROUTE = 20, 22, 24, 26
NLM_F_REQUEST, NLM_F_MULTI, NLM_F_DUMP = 0x1, 0x2, 0x300
NLMSG_ERROR, NLMSG_DONE = 2, 3
IFA_ADDRESS, IFA_LOCAL = 1, 2
RTA_DST, RTA_OIF = 1, 4
RT_TABLE_LOCAL, RTN_UNICAST = 255, 1
HEADER = struct.Struct("=IHHII")
ATTRIBUTE, ATTRIBUTE_TYPE = struct.Struct("=HH"), 0x3FFF
CHUNK_BYTES = 1 << 16
RECEIVE_TIMEOUT_S = 5.0

Address = tuple[str, int]


def dump(
    link: socket.socket, request_type: int, payload: bytes, flags: int = NLM_F_DUMP
) -> Iterator[tuple[int, bytes]]:
    """Send a request and yield type and payload of each message that answers it; OSError holds the kernel's errno."""
    link.send(HEADER.pack(HEADER.size + len(payload), request_type, NLM_F_REQUEST | flags, 1, 0) + payload)
    while True:
        data = link.recv(CHUNK_BYTES)
        while data:
            length, kind, answer_flags, _, _ = HEADER.unpack_from(data)
            content, data = data[HEADER.size : length], data[(length + 3) & ~3 :]
            if kind == NLMSG_DONE:
                return
            if kind == NLMSG_ERROR:
                number = -struct.unpack_from("=i", content)[0]
                raise OSError(number, os.strerror(number))
            yield kind, content
            if not answer_flags & NLM_F_MULTI:
                return


def open_link(protocol: int) -> socket.socket:
    """Return a socket to the kernel's side of a netlink protocol."""
    link = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol)
    link.settimeout(RECEIVE_TIMEOUT_S)
    link.connect((0, 0))
    return link


def attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield type and value of each attribute in the order that the kernel wrote them."""
    offset = 0
    while offset + 4 <= len(data):
        length, kind = ATTRIBUTE.unpack_from(data, offset)
        yield kind & ATTRIBUTE_TYPE, data[offset + 4 : offset + length]
        offset += (max(length, 4) + 3) & ~3


def attribute(kind: int, value: bytes) -> bytes:
    """Return an attribute for a request."""
    return ATTRIBUTE.pack(4 + len(value), kind) + value + bytes(-len(value) % 4)


def _route_dump(request_type: int, header: bytes, answer_type: int) -> Iterator[bytes]:
    with open_link(socket.NETLINK_ROUTE) as link:
        for kind, payload in dump(link, request_type, header):
            if kind == answer_type:
                yield payload


def addresses() -> dict[int, list[Address]]:
    """Return, by interface index, the addresses that are there and their prefix lengths."""
    found: dict[int, list[Address]] = {}
    for payload in _route_dump(RTM_GETADDR, bytes(8), RTM_NEWADDR):
        _, prefix_length, _, _, index = struct.unpack_from("=BBBBI", payload)
        told = dict(attributes(payload[8:]))
        raw = told.get(IFA_LOCAL) or told.get(IFA_ADDRESS)
        if raw:
            found.setdefault(index, []).append((str(ipaddress.ip_address(raw)), prefix_length))
    return found


def routes() -> dict[int, list[str]]:
    """Return, by interface index, the networks that unicast routes of any table but the local one reach through it."""
    found: dict[int, list[str]] = {}
    for payload in _route_dump(RTM_GETROUTE, bytes(12), RTM_NEWROUTE):
        family, length, _, _, table, _, _, kind, _ = struct.unpack_from("=BBBBBBBBI", payload)
        told = dict(attributes(payload[12:]))
        if kind != RTN_UNICAST or table == RT_TABLE_LOCAL or RTA_OIF not in told:
            continue
        if family not in (socket.AF_INET, socket.AF_INET6):
            continue
        destination = told.get(RTA_DST, bytes(4 if family == socket.AF_INET else 16))
        network = f"{ipaddress.ip_address(destination)}/{length}"
        found.setdefault(struct.unpack("=i", told[RTA_OIF])[0], []).append(network)
    return found
