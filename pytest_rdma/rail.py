"""Which device, port and GID row each end takes, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pytest_rdma.model import DeviceInfo, GidRow, PortInfo


@dataclass(frozen=True)
class RailEnd:
    """What one end takes. `gid` is None only on an InfiniBand port that needs no GRH."""

    device: DeviceInfo
    port: PortInfo
    gid: GidRow | None

    @property
    def label(self) -> str:
        """Return it for the header line: `rxe0/1 RoCEv2 gid 1 10.99.0.1`."""
        raise NotImplementedError


@dataclass(frozen=True)
class Rail:
    """The choice for both ends: path MTU in bytes, outstanding reads either way, and the reasons in words."""

    local: RailEnd
    peer: RailEnd
    mtu: int
    rd_atomic: int
    reasons: tuple[str, ...]


def choose_rail(
    local_devices: Sequence[DeviceInfo],
    peer_devices: Sequence[DeviceInfo],
    *,
    local_device: str | None = None,
    peer_device: str | None = None,
    local_gid_index: int | None = None,
    peer_gid_index: int | None = None,
    mtu: int | None = None,
    same_host: bool = False,
    names: tuple[str, str] = ("host1", "host2"),
) -> Rail:
    raise NotImplementedError
