"""Programs that listen, on a LocalHost and on a RemoteHost alike."""

from __future__ import annotations

import socket

import pytest

from pytest_rdma.errors import DeadlineError, RdmaEnvironmentError
from pytest_rdma.host import Host

SERVER = """
import socket, sys
with socket.create_server((sys.argv[2], int(sys.argv[1]))) as server:
    server.accept()[0].sendall(b"hello")
"""


def test_a_server_listens_when_its_start_returns(host: Host) -> None:
    server = host.invoke("server.start", ["python3", "-c", SERVER, "PORT", "127.0.0.1"], "127.0.0.1")
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as client:
        assert client.makefile().read() == "hello"
    assert server.wait().returncode == 0
    server.close()


def test_one_that_ends_before_is_shown_with_its_last_words(host: Host) -> None:
    with pytest.raises(RdmaEnvironmentError, match=r"`python3` on .* ended before it listened: no device"):
        host.invoke("server.start", ["python3", "-c", "raise SystemExit('no device')"], "127.0.0.1")


def test_one_that_never_listens_ends_at_the_deadline(host: Host) -> None:
    with pytest.raises(DeadlineError, match="no listening port of `sleep` on"):
        host.invoke("server.start", ["sleep", "60"], "127.0.0.1", timeout_s=0.3)


def test_an_address_of_another_host_is_refused(host: Host) -> None:
    with pytest.raises(RdmaEnvironmentError, match=r"has no port of 192\.0\.2\.1 to listen on"):
        host.invoke("server.start", ["sleep", "60"], "192.0.2.1")
