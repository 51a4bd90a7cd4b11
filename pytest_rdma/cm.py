"""Connections by rdma_cm: listen, dial, accept, reject and disconnect for ordinary endpoints, and the pair made so.

An endpoint of `Host.endpoint` or of `rdma_pairs(connect=False)` is in INIT; the connection takes it to RTS with the
attributes that rdma_cm negotiated. Addresses are IP addresses of GID rows, never names. Each wait has a deadline.
"""

from __future__ import annotations

import ipaddress
import struct
from contextlib import suppress
from typing import Any, ClassVar

from pytest_rdma.endpoint import Endpoint
from pytest_rdma.errors import DeadlineError, RdmaError, RdmaUsageError, StoppedError
from pytest_rdma.host import Call, Handle, Host
from pytest_rdma.model import ConnectionAttributes, RemoteMemory
from pytest_rdma.pairing import Overrides, Pair, both

TIMEOUT_S = 10.0
REQUEST_BYTES, REPLY_BYTES, REJECT_BYTES = 56, 196, 148
MEMORY = struct.Struct(">QIQ")


class CMConnection(Handle):
    """One end of a connection. `private_data` is what the other end sent, padded with zeros by the transport."""

    kind: ClassVar[str] = "cm"
    address: str
    port: int
    peer_address: str
    peer_port: int
    private_data: bytes

    @property
    def label(self) -> str:
        return f"rdma_cm connection to {self.peer_address} port {self.peer_port}"

    def disconnect(self) -> None:
        """Move the QP to ERR, which flushes it, and tell the other end."""
        self._invoke("cm.disconnect")

    def wait_disconnected(self, timeout_s: float = TIMEOUT_S) -> None:
        """Wait until both ends know that the connection is over, answer where due; the QP is in ERR then."""
        self._invoke("cm.wait_disconnected", timeout_s=timeout_s)

    def wait_reusable(self, timeout_s: float = TIMEOUT_S) -> None:
        """Wait for the end of the time wait after a disconnect: sooner the QP number would be refused as stale."""
        self._invoke("cm.wait_reusable", timeout_s=timeout_s)

    def close(self) -> None:
        self._invoke_close("cm.close")


class CMRequest(Handle):
    """A request to connect that waits for `accept` or `reject`; `private_data` is padded with zeros."""

    kind: ClassVar[str] = "cm_request"
    address: str
    port: int
    peer_address: str
    peer_port: int
    device: str
    private_data: bytes

    @property
    def label(self) -> str:
        return f"rdma_cm request of {self.peer_address} port {self.peer_port}"

    def accept(
        self,
        endpoint: Endpoint,
        private_data: bytes = b"",
        *,
        attributes: ConnectionAttributes | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> CMConnection:
        """Connect the endpoint, with up to 196 bytes for the other end, and wait until it is established there."""
        _check_length(private_data, REPLY_BYTES, "an acceptance")
        args = (endpoint.handle, private_data, attributes or _attributes(endpoint))
        made: CMConnection = self._invoke("cm.accept", *args, timeout_s=timeout_s)
        self.mark_closed()
        return made

    def reject(self, private_data: bytes = b"") -> None:
        """Refuse, with up to 148 bytes for the other end."""
        _check_length(private_data, REJECT_BYTES, "a rejection")
        self._invoke("cm.reject", private_data)
        self.mark_closed()

    def close(self) -> None:
        self._invoke_close("cm.close")


class CMListener(Handle):
    """A listener on an address of a GID row; `port` is the one that the kernel chose where 0 was asked for."""

    kind: ClassVar[str] = "cm_listener"
    address: str
    port: int

    @property
    def label(self) -> str:
        return f"rdma_cm listener {self.address} port {self.port}"

    def get_request(self, timeout_s: float = TIMEOUT_S) -> CMRequest:
        """Wait for the next request to connect."""
        request: CMRequest = self._invoke("cm.get_request", timeout_s=timeout_s)
        return request

    def close(self) -> None:
        """Listen no more; connections that came of it stay."""
        self._invoke_close("cm.close")


def listen(host: Host, address: str, port: int = 0, backlog: int = 16) -> CMListener:
    """Listen on the address of one of the host's GID rows; with port 0 the kernel chooses one."""
    made: CMListener = host.invoke("cm.listen", address, port, backlog)
    return made


def dial(endpoint: Endpoint, address: str, port: int, **options: Any) -> CMConnection:
    """Connect the endpoint to a listener; options as those of `submit_dial`.

    CMError tells what came instead of a connection: `event`, `status`, and `private_data` of a rejection.
    """
    made: CMConnection = submit_dial(endpoint, address, port, **options).result()
    return made


def submit_dial(
    endpoint: Endpoint,
    address: str,
    port: int,
    *,
    private_data: bytes = b"",
    source: str | None = None,
    attributes: ConnectionAttributes | None = None,
    timeout_s: float = TIMEOUT_S,
) -> Call:
    """Start to connect, with up to 56 bytes for the other end; the result of the call is the CMConnection.

    `source` is by default the address of the endpoint's own GID row. Of `attributes`, MTU, retries, timers and
    rd_atomic count; service level, traffic class and path are the route's.
    """
    _check_length(private_data, REQUEST_BYTES, "a request")
    endpoint.check_usable()
    source = source if source is not None else fabric_address(endpoint)
    args = (address, port, source, private_data, attributes or _attributes(endpoint))
    return endpoint.host.submit("cm.dial", endpoint.handle, *args, timeout_s=timeout_s)


def fabric_address(endpoint: Endpoint) -> str:
    """Return the IP address that the endpoint's own GID row stands for."""
    record = endpoint.record
    if record.link_layer == "InfiniBand":
        raise RdmaUsageError(
            f"the GID rows of {endpoint.device}/{endpoint.port} on {endpoint.host.name} are no IP addresses: "
            "rdma_cm over InfiniBand needs the address of an IPoIB netdev, given by hand"
        )
    return ip_of_gid(record.gid)


def ip_of_gid(gid: str) -> str:
    address = ipaddress.IPv6Address(gid)
    return str(address.ipv4_mapped or address)


def pack_memory(memory: RemoteMemory) -> bytes:
    """Return a buffer's address, key and length as private data: 64, 32 and 64 bits in network order."""
    return MEMORY.pack(memory.addr, memory.rkey, memory.length)


def unpack_memory(private_data: bytes) -> RemoteMemory:
    """Return what `pack_memory` packed; what is behind it is the transport's padding."""
    return RemoteMemory(*MEMORY.unpack_from(private_data))


def _attributes(endpoint: Endpoint) -> ConnectionAttributes:
    if endpoint.pair is not None:
        return endpoint.pair.attributes
    record = endpoint.record
    rd_atomic = min(record.max_rd_atomic, record.max_dest_rd_atomic)
    return ConnectionAttributes(record.active_mtu, rd_atomic=rd_atomic)


def _check_length(private_data: bytes, limit: int, what: str) -> None:
    if len(private_data) > limit:
        raise RdmaUsageError(f"{len(private_data)} bytes of private data, and {what} carries {limit}")


class CMPair(Pair):
    """A pair that rdma_cm connects: the peer listens, the local end dials, private data carries both buffers' keys.

    `active` and `passive` are the ends of the connection. The attributes that go beyond `submit_dial` are the route's.
    """

    active: CMConnection | None = None
    passive: CMConnection | None = None

    def connect(self, overrides: Overrides | None = None) -> None:
        if overrides:
            raise RdmaUsageError("rdma_cm makes the records itself: overrides are for rdma_pairs")
        listener = listen(self.peer.host, fabric_address(self.peer))
        try:
            self._establish(listener)
        finally:
            listener.close()
        ends = [end for end in (self.active, self.passive) if end is not None]
        memories = [unpack_memory(end.private_data) for end in ends]
        for end, memory in zip(self.ends, memories):
            end.remote = memory
        hosts, handles = [end.host for end in self.ends], [end.handle for end in self.ends]
        both(hosts, "cm.aim", list(zip(handles, memories)))

    def _establish(self, listener: CMListener) -> None:
        keys = [pack_memory(end.buffer.remote) for end in self.ends]
        dialing = submit_dial(self.local, listener.address, listener.port, private_data=keys[0])
        request = None
        try:
            request = listener.get_request()
            self.passive = request.accept(self.peer, keys[1])
        except RdmaError as error:
            if request is not None:
                request.close()
            if not isinstance(error, DeadlineError):
                dialing.cancel()
            with suppress(StoppedError):
                dialing.result()  # what the dialling end says tells more
            raise
        self.active = dialing.result()

    def disconnect(self) -> None:
        """End the connection from the local end and wait until both ends know; both QPs are in ERR then."""
        if self.active is not None and self.passive is not None:
            self.active.disconnect()
            self.passive.wait_disconnected()
            self.active.wait_disconnected()

    def reset(self) -> None:
        """End the connection, wait until the QP numbers may be used again, and move both ends to INIT."""
        if self.active is not None and self.passive is not None:
            self.disconnect()
            for connection in (self.active, self.passive):
                connection.wait_reusable()
        self._close_connections()
        super().reset()

    def close(self) -> None:
        self._close_connections()
        super().close()

    def _close_connections(self) -> None:
        connections, self.active, self.passive = (self.active, self.passive), None, None
        for connection in connections:
            if connection is not None:
                connection.close()
