"""An ICMP echo from a host along the path of a QP: whether anything passes there, and how long it takes."""

from __future__ import annotations

import ipaddress
import os
import select
import socket
import struct
import time
from collections.abc import Iterator
from typing import Any

from pytest_rdma.deadline import Deadline
from pytest_rdma.errors import DeadlineError, VerbsError, errno_text
from pytest_rdma.host import LocalHost, op

ECHO_REQUEST = {4: 8, 6: 128}
ECHO_REPLY = {4: 0, 6: 129}
ECHOES = 8


@op("evidence.ping")
def op_ping(host: LocalHost, deadline: Deadline, address: str, netdev: str) -> float:
    """Return the shortest round trip in seconds of some echoes to an address, one after the other, out of a netdev.

    A busy host answers late now and then, a path that delays does always. Where an echo gets no answer in its share of
    the time the next one goes out: a lossy path answers one of them, and a late answer counts for its own echo.
    DeadlineError when no answer comes, VerbsError when none can be sent: it takes a privileged process.
    """
    target = ipaddress.ip_address(address)
    identity = os.getpid() & 0xFFFF
    try:
        with _socket(target.version, netdev) as raw:
            scope = (0, socket.if_nametoindex(netdev)) if target.version == 6 else ()
            took = list(_round_trips(raw, (address, 0, *scope), identity, deadline))
    except OSError as error:
        number = error.errno or 0
        raise VerbsError(f"cannot ping {address} from {host.name}: {errno_text(number)}", errno=number) from error
    if took:
        return min(took)
    raise DeadlineError(f"no answer to a ping of {address} from {host.name} within {deadline.timeout_s:g} s")


def _round_trips(raw: socket.socket, target: tuple[Any, ...], identity: int, deadline: Deadline) -> Iterator[float]:
    version = 4 if raw.family == socket.AF_INET else 6
    poller = select.poll()  # select(2) takes no descriptor above 1023
    poller.register(raw, select.POLLIN)
    sent: dict[int, float] = {}
    for sequence in range(ECHOES):
        now = time.monotonic()
        until = now + deadline.remaining_s / (ECHOES - sequence)
        sent[sequence] = now
        raw.sendto(_echo(version, identity, sequence), target)
        while sent and poller.poll(max(0.0, until - time.monotonic()) * 1e3):
            packet = raw.recv(2048)
            answered = [number for number in sent if _answers(packet, version, identity, number)]
            if answered:
                yield time.monotonic() - sent.pop(answered[0])
                break


def _socket(version: int, netdev: str) -> socket.socket:
    family, protocol = (
        (socket.AF_INET, socket.IPPROTO_ICMP) if version == 4 else (socket.AF_INET6, socket.IPPROTO_ICMPV6)
    )
    raw = socket.socket(family, socket.SOCK_RAW, protocol)
    try:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, netdev.encode())
    except OSError:
        raw.close()
        raise
    return raw


def _echo(version: int, identity: int, sequence: int) -> bytes:
    """An echo request; the kernel fills in the checksum of ICMPv6, and that of ICMP is ours."""
    blank = struct.pack("!BBHHH", ECHO_REQUEST[version], 0, 0, identity, sequence)
    if version == 6:
        return blank
    total = sum(struct.unpack("!4H", blank))
    total = (total & 0xFFFF) + (total >> 16)
    return blank[:2] + struct.pack("!H", ~total & 0xFFFF) + blank[4:]


def _answers(packet: bytes, version: int, identity: int, sequence: int) -> bool:
    header = (packet[0] & 0xF) * 4 if version == 4 and packet else 0  # a raw IPv4 socket gives the IP header, too
    answer = packet[header : header + 8]
    return (
        len(answer) == 8 and answer[0] == ECHO_REPLY[version] and answer[4:8] == struct.pack("!HH", identity, sequence)
    )
