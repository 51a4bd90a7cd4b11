"""What of rdma_cm needs no device: addresses, private data, and what the events say."""

from __future__ import annotations

import errno
import re

import pytest

from pytest_rdma.cm import pack_memory, unpack_memory
from pytest_rdma.cm_events import ERRORS, EVENTS, describe_event
from pytest_rdma.cm_library import pack_address, unpack_address
from pytest_rdma.errors import CMError, RdmaUsageError, from_plain, to_plain
from pytest_rdma.model import RemoteMemory


@pytest.mark.parametrize("address", ["10.99.0.1", "fd99::1", "::1", "255.255.255.255"])
@pytest.mark.parametrize("port", [0, 7471, 65535])
def test_addresses_go_into_a_sockaddr_and_come_back(address: str, port: int) -> None:
    packed = pack_address(address, port)
    assert len(packed) == (28 if ":" in address else 16)
    assert unpack_address(packed.ljust(128, b"\0")) == (address, port)


def test_empty_sockaddr_is_no_address() -> None:
    assert unpack_address(bytes(128)) == ("", 0)


@pytest.mark.parametrize("name", ["host2", "", "10.99.0", "10.99.0.1:7471", "fe80::zz"])
def test_what_is_no_address_is_refused(name: str) -> None:
    with pytest.raises(RdmaUsageError, match="is no IP address"):
        pack_address(name)


def test_keys_travel_as_private_data_whole_and_padded() -> None:
    memory = RemoteMemory((1 << 64) - 4096, (1 << 32) - 1, 1 << 40)
    assert unpack_memory(pack_memory(memory).ljust(196, b"\0")) == memory


@pytest.mark.parametrize(
    ("event", "status", "said"),
    [
        ("REJECTED", 28, "REJECTED, reason 28: the program there refused"),
        ("REJECTED", 8, "nobody listens on that port"),
        ("REJECTED", 10, "stale connection"),
        ("REJECTED", 99, "reason 99: see enum ib_cm_rej_reason"),
        ("ADDR_ERROR", -errno.ENODEV, r"ADDR_ERROR \(-19\), ENODEV \(19\).*no RDMA device for that IP"),
        ("ADDR_ERROR", -errno.ETIMEDOUT, "nothing answers for that address.*arp_ignore and accept_local"),
        ("UNREACHABLE", -errno.ETIMEDOUT, r"UNREACHABLE \(-110\)"),
        ("DISCONNECTED", 0, "^DISCONNECTED$"),
    ],
)
def test_events_that_end_an_attempt_say_what_to_do(event: str, status: int, said: str) -> None:
    assert re.search(said, describe_event(event, status))


def test_events_are_numbered_as_in_the_header() -> None:
    assert (EVENTS.index("CONNECT_REQUEST"), EVENTS.index("ESTABLISHED"), EVENTS[-1]) == (4, 9, "TIMEWAIT_EXIT")
    assert set(EVENTS) > ERRORS


def test_rejection_crosses_the_stream_with_its_private_data() -> None:
    error = CMError("refused", event="REJECTED", status=28, private_data=b"\0later")
    found = from_plain(to_plain(error), "host2")
    assert isinstance(found, CMError)
    assert (found.event, found.status, found.private_data) == ("REJECTED", 28, b"\0later")
