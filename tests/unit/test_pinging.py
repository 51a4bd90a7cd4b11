"""An echo from this machine to itself: the packets that are sent are right, and only their answers count."""

from __future__ import annotations

import socket
import struct

import pytest

from pytest_rdma.deadline import Deadline
from pytest_rdma.errors import DeadlineError, VerbsError
from pytest_rdma.host import LocalHost
from pytest_rdma.pinging import _answers, _echo, op_ping


def may_ping() -> bool:
    try:
        socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP).close()
    except OSError:
        return False
    return True


needs_root = pytest.mark.skipif(not may_ping(), reason="a raw socket takes CAP_NET_RAW")


def test_the_checksum_of_an_echo_is_that_of_rfc_1071() -> None:
    words = struct.unpack("!4H", _echo(4, 0xBEEF, 2))
    total = sum(words)
    assert (total & 0xFFFF) + (total >> 16) == 0xFFFF
    assert words[2:] == (0xBEEF, 2)


def test_only_the_answer_to_our_own_echo_counts() -> None:
    answer = struct.pack("!BBHHH", 129, 0, 0, 7, 1)
    assert _answers(answer, 6, 7, 1)
    assert not _answers(answer, 6, 7, 2)
    assert not _answers(answer, 6, 8, 1)
    assert not _answers(b"", 6, 7, 1)
    assert _answers(b"\x45" + bytes(19) + struct.pack("!BBHHH", 0, 0, 0, 7, 1), 4, 7, 1)
    assert not _answers(b"\x45" + bytes(19) + _echo(4, 7, 1), 4, 7, 1)


@needs_root
def test_this_machine_answers_itself() -> None:
    assert 0 < op_ping(LocalHost(), Deadline(2.0), "127.0.0.1", "lo") < 2.0


def test_where_echoes_are_lost_a_later_one_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """A datagram socket stands for the raw one: of eight echoes the sixth comes through."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    monkeypatch.setattr("pytest_rdma.pinging._socket", lambda version, netdev: Raw(ours, theirs, answered=5))
    with theirs:
        assert 0 <= op_ping(LocalHost(), Deadline(1.0), "fd99::77", "lo") < 0.2


class Raw:
    """A raw IPv6 socket whose peer answers the echo of one number."""

    family = socket.AF_INET6

    def __init__(self, ours: socket.socket, theirs: socket.socket, answered: int) -> None:
        self._ours, self._theirs, self._answered = ours, theirs, answered

    def fileno(self) -> int:
        return self._ours.fileno()

    def sendto(self, packet: bytes, target: object) -> None:
        if packet[7] == self._answered:
            self._theirs.send(b"\x81" + packet[1:])

    def recv(self, length: int) -> bytes:
        return self._ours.recv(length)

    def __enter__(self) -> Raw:
        return self

    def __exit__(self, *failure: object) -> None:
        self._ours.close()


@needs_root
def test_an_address_that_nobody_has_ends_within_the_deadline() -> None:
    with pytest.raises((DeadlineError, VerbsError), match=r"ping (of )?192\.0\.2\.1"):
        op_ping(LocalHost(), Deadline(0.1), "192.0.2.1", "lo")
