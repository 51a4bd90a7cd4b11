"""The GID table of a port: which rows can be used, which is best, and which rows of two ports reach each other."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import NamedTuple

from pytest_rdma.model import GidRow

ROCE_V2 = "RoCE v2"
SHORT_TYPES = {"RoCE v2": "RoCEv2", "IB/RoCE v1": "RoCEv1"}


def family(row: GidRow) -> str:
    """Return `IPv4`, `IPv6` or `link-local`; private and unique local addresses are as routable as others."""
    address = row.address
    if address.is_link_local:
        return "link-local"
    return f"IPv{address.version}"


FAMILIES = ("IPv4", "IPv6", "link-local")


def preference(row: GidRow) -> int:
    """Return the row's place, lower is better: v2 before v1, within each IPv4, then global IPv6, then link-local."""
    return FAMILIES.index(family(row)) + (0 if row.type == ROCE_V2 else len(FAMILIES))


def why_unusable(row: GidRow) -> str:
    """Return why a row of an Ethernet port cannot be taken unasked; empty when it can."""
    if row.netdev is None:
        return "it has no netdev in this namespace"
    if row.prefix_length is None:
        return f"its address is not on netdev {row.netdev}"
    return ""


def usable(rows: Sequence[GidRow]) -> list[GidRow]:
    """Return the rows that can be taken, best first."""
    return sorted((row for row in rows if not why_unusable(row)), key=lambda row: (preference(row), row.index))


def describe(row: GidRow) -> str:
    """Return a row in words: `1 10.99.0.1 (RoCE v2, netdev eth1)`."""
    return f"{row.index} {row.address} ({row.type}, netdev {row.netdev or 'none'})"


def describe_all(rows: Sequence[GidRow]) -> str:
    return ", ".join(describe(row) for row in rows) or "none"


def mismatch(local: GidRow, peer: GidRow) -> str:
    """Return in which respect the rows cannot speak to each other; empty when they can."""
    if local.type != peer.type:
        return f"their types differ, {local.type} and {peer.type}"
    if family(local) != family(peer):
        return f"one is {family(local)}, the other {family(peer)}"
    return ""


def same_subnet(local: GidRow, peer: GidRow) -> bool:
    """Say whether each address is in the subnet that the other host's prefix length tells."""
    if local.prefix_length is None or peer.prefix_length is None:
        return False
    networks = [ipaddress.ip_network(f"{row.address}/{row.prefix_length}", strict=False) for row in (local, peer)]
    return peer.address in networks[0] and local.address in networks[1]


def routed(source: GidRow, target: GidRow) -> bool:
    """Say whether the host of `source` has a route to `target` through the row's netdev."""
    if family(target) == "link-local":
        return False
    return any(target.address in ipaddress.ip_network(network) for network in source.routes)


class Match(NamedTuple):
    """Two rows that can speak, and why it is thought that they reach each other."""

    local: GidRow
    peer: GidRow
    distance: int
    reason: str


def reach(local: GidRow, peer: GidRow, same_host: bool) -> tuple[int, str]:
    """Return how far apart two rows are, lower is nearer, in numbers and words; UNREACHABLE when no way is known."""
    if local == peer and same_host:
        return 0, "the same row"
    if same_subnet(local, peer):
        if family(local) == "link-local":
            return 1, "link-local, which does not leave the link"
        return 1, f"in one subnet, {ipaddress.ip_network(f'{local.address}/{local.prefix_length}', strict=False)}"
    if same_host:
        return 2, "on one host"
    if routed(local, peer) and routed(peer, local):
        return 2, f"routed through {local.netdev} and {peer.netdev}"
    return UNREACHABLE, "in different subnets, without a route seen between them"


UNREACHABLE = 9


def matches(local_rows: Sequence[GidRow], peer_rows: Sequence[GidRow], same_host: bool) -> list[Match]:
    """Return all pairs of rows that can speak, best first: by preference, then by how near they are, then by index."""
    found = [
        Match(local, peer, *reach(local, peer, same_host))
        for local in local_rows
        for peer in peer_rows
        if not mismatch(local, peer)
    ]
    return sorted(
        found,
        key=lambda one: (
            one.distance == UNREACHABLE,
            preference(one.local),
            one.distance,
            one.local.index,
            one.peer.index,
        ),
    )


def subnet_prefix(gid: str) -> int:
    """Return the upper 64 bits of a GID: the InfiniBand subnet prefix."""
    return int(ipaddress.IPv6Address(gid)) >> 64
