"""What may be typed for --peer, and what one line says of what may not."""

from __future__ import annotations

import pytest

from pytest_rdma.errors import RdmaUsageError
from pytest_rdma.ssh import parse_address


@pytest.mark.parametrize(
    ("text", "user", "host", "port"),
    [
        ("host2", None, "host2", None),
        ("root@host2", "root", "host2", None),
        ("host2:2222", None, "host2", 2222),
        ("root@host2.example.com:1", "root", "host2.example.com", 1),
        ("10.0.0.2:65535", None, "10.0.0.2", 65535),
        ("[2001:db8::2]:2222", None, "2001:db8::2", 2222),
        ("[2001:db8::2]", None, "2001:db8::2", None),
        ("root@[::1]", "root", "::1", None),
        ("2001:db8::2", None, "2001:db8::2", None),
        ("babe:2::5:1800", None, "babe:2::5:1800", None),
        ("fe80::1%eth0", None, "fe80::1%eth0", None),
        ("root@[fe80::1%eth0]:22", "root", "fe80::1%eth0", 22),
    ],
)
def test_an_address_is_taken_apart(text: str, user: str | None, host: str, port: int | None) -> None:
    address = parse_address(text)
    assert (address.user, address.host, address.port) == (user, host, port)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "is empty"),
        ("  ", "is empty"),
        ("-oProxyCommand=x", "starts with a dash"),
        ("root@-oProxyCommand=x", "not a host name"),
        ("-l@host2", "starts with a dash"),
        ("@host2", "user before @ is empty"),
        ("root@", "host is empty"),
        (":22", "host is empty"),
        ("host2:", "port '' is not a number from 1 to 65535"),
        ("host2:0", "port '0'"),
        ("host2:65536", "port '65536'"),
        ("host2:abc", "port 'abc'"),
        ("host2:-1", "port '-1'"),
        ("host2:²", "port '²'"),
        ("[::1]:99999", "port '99999'"),
        ("[::1]x", "brackets do not fit"),
        ("[::1", "brackets do not fit"),
        ("[host2]:22", "not an IPv6 address"),
        ("fe80::1", "link-local and needs an interface: fe80::1%eth0"),
        ("[fe80::1]:22", "link-local and needs an interface"),
        ("fe80::1%", "interface after % is empty"),
        ("1:2:3", "no IPv6 address; with a port write"),
        ("ssh://host2", "URL"),
        ("host 2", "not a host name"),
        ("host2;reboot", "not a host name"),
        ("$(reboot)", "not a host name"),
        ("host%eth0", "not a host name"),
    ],
)
def test_an_odd_address_is_refused_in_one_line(text: str, why: str) -> None:
    with pytest.raises(RdmaUsageError) as refused:
        parse_address(text)
    assert why in str(refused.value)
    assert "\n" not in str(refused.value)
