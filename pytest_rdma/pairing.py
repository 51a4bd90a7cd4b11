"""The choice of device, port, GID row and attributes for both ends, and the pair of endpoints that is made from it."""

from __future__ import annotations

from typing import Any

from pytest_rdma.endpoint import Endpoint
from pytest_rdma.host import Host
from pytest_rdma.model import ConnectionAttributes, EndpointCaps
from pytest_rdma.rail import Rail

Overrides = dict[str, dict[str, Any]]


class Pair:
    """Two endpoints of RC and how they connect. One of its methods is one round trip to each host, both at once."""

    def __init__(self, local: Endpoint, peer: Endpoint, rail: Rail, attributes: ConnectionAttributes) -> None:
        self.local = local
        self.peer = peer
        self.rail = rail
        self.attributes = attributes
        local.pair = peer.pair = self

    @classmethod
    def create(cls, local: Host, peer: Host, rail: Rail, caps: EndpointCaps | None = None, **attributes: Any) -> Pair:
        """Make both endpoints, in INIT; `attributes` override those that the rail gives."""
        raise NotImplementedError

    def connect(self, overrides: Overrides | None = None) -> None:
        """Move both ends to RTR, then both to RTS."""
        raise NotImplementedError

    def close(self) -> None:
        """Close both ends; idempotent; an error of one does not keep the other open."""
        raise NotImplementedError
