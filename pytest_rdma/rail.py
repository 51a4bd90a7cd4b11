"""Which device, port and GID row each end takes, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pytest_rdma import gids
from pytest_rdma.errors import NoDeviceError, RdmaUsageError
from pytest_rdma.model import DeviceInfo, GidRow, PortInfo

MTUS = (256, 512, 1024, 2048, 4096)
INFINIBAND, ETHERNET = "InfiniBand", "Ethernet"


@dataclass(frozen=True)
class RailEnd:
    """What one end takes. `gid` is None only on an InfiniBand port whose packets need no GRH."""

    device: DeviceInfo
    port: PortInfo
    gid: GidRow | None

    @property
    def place(self) -> str:
        return f"{self.device.name}/{self.port.number}"

    @property
    def label(self) -> str:
        """Return it for the header line: `rxe0/1 RoCEv2 gid 1 10.99.0.1`."""
        place = self.place
        if self.port.link_layer == INFINIBAND:
            return f"{place} InfiniBand lid {self.port.lid}" + (f" gid {self.gid.index}" if self.gid else "")
        if self.gid is None:
            return place
        kind = gids.SHORT_TYPES.get(self.gid.type, self.gid.type)
        return f"{place} {kind} gid {self.gid.index} {self.gid.address}"


@dataclass(frozen=True)
class Rail:
    """The choice for both ends: path MTU in bytes, outstanding reads either way, and the reasons in words."""

    local: RailEnd
    peer: RailEnd
    mtu: int
    rd_atomic: int
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class _Side:
    """A host as `choose_rail` sees it: what it is called, its devices, what the user asked for."""

    name: str
    devices: Sequence[DeviceInfo]
    asked: str | None
    gid_index: int | None
    gid_option: str


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
    """Choose for both ends; RdmaUsageError or NoDeviceError says in one line why there is no choice.

    Devices are given as `NAME` or `NAME/PORT`. `same_host` says that both lists are those of one host. What concerns
    InfiniBand ports is untested on hardware.
    """
    local_side = _Side(names[0], local_devices, local_device, local_gid_index, "--rdma-gid-index")
    peer_side = _Side(names[1], peer_devices, peer_device, peer_gid_index, "--peer-gid-index")
    local, local_reason = _choose_port(local_side)
    peer, peer_reason = _choose_peer(peer_side, local, same_host)
    places = _place(local, names[0]), _place(peer, names[1])
    if local[1].link_layer != peer[1].link_layer:
        raise RdmaUsageError(
            f"{places[0]} is {local[1].link_layer} and {places[1]} is {peer[1].link_layer}: they cannot be connected"
        )
    rows, row_reason = _choose_rows(local_side, peer_side, (local[1], peer[1]), places, same_host)
    path_mtu, mtu_reason = _choose_mtu(mtu, (local[1], peer[1]), places)
    return Rail(
        RailEnd(*local, rows[0]),
        RailEnd(*peer, rows[1]),
        path_mtu,
        rd_atomic(local[0], peer[0]),
        (
            f"device {local[0].name}: {local_reason}",
            f"peer device {peer[0].name}: {peer_reason}",
            row_reason,
            mtu_reason,
        ),
    )


Port = tuple[DeviceInfo, PortInfo]


def _choose_peer(side: _Side, local: Port, same_host: bool) -> tuple[Port, str]:
    if side.asked is not None:
        return _choose_port(side)
    return (local, "looped back") if same_host else _choose_peer_port(side, local)


def _place(port: Port, host: str) -> str:
    return f"{port[0].name}/{port[1].number} on {host}"


def rd_atomic(local: DeviceInfo, peer: DeviceInfo) -> int:
    """Return how many reads and atomics may be open either way: no initiator over its responder's limit."""
    return min(
        local.limits["max_qp_init_rd_atom"],
        peer.limits["max_qp_rd_atom"],
        peer.limits["max_qp_init_rd_atom"],
        local.limits["max_qp_rd_atom"],
    )


def parse_device(text: str) -> tuple[str, int | None]:
    """Return name and port of `NAME` or `NAME/PORT`."""
    name, slash, number = text.partition("/")
    if not name or (slash and not number.isdecimal()):
        raise RdmaUsageError(f"a device is given as NAME or NAME/PORT, for instance rxe0/1, not {text!r}")
    return name, int(number) if slash else None


def _choose_port(side: _Side) -> tuple[Port, str]:
    if side.asked is None:
        return _first_active(side), "the first with an ACTIVE port"
    name, number = parse_device(side.asked)
    device = next((one for one in side.devices if one.name == name), None)
    if device is None:
        known = ", ".join(one.name for one in side.devices) or "none"
        raise RdmaUsageError(f"{side.name} has no device {name!r}; it has {known}")
    if device.error:
        raise NoDeviceError(device.error)
    _refuse_iwarp(device, side.name)
    port = _port(device, number, side.name)
    if port.state != "ACTIVE":
        raise NoDeviceError(f"port {_place((device, port), side.name)} is {port.state}, not ACTIVE: {_check(port)}")
    return (device, port), "as asked"


def _port(device: DeviceInfo, number: int | None, host: str) -> PortInfo:
    """Return the port asked for, else the first that is ACTIVE, else the first."""
    if number is None:
        return _active_port(device) or device.ports[0]
    for port in device.ports:
        if port.number == number:
            return port
    last = len(device.ports)
    raise RdmaUsageError(
        f"{device.name} on {host} has no port {number}: it has {'port 1' if last == 1 else f'1 to {last}'}"
    )


def _active_port(device: DeviceInfo, preferred: int | None = None) -> PortInfo | None:
    active = [port for port in device.ports if port.state == "ACTIVE"]
    return next((port for port in active if port.number == preferred), active[0] if active else None)


def _check(port: PortInfo) -> str:
    """Return what to look at when a port is not ACTIVE."""
    if port.link_layer == INFINIBAND:
        return "see the cable, and that a subnet manager runs"
    netdev = next((row.netdev for row in port.gids if row.netdev), None)
    if netdev is None:
        return "see that its netdev is up and has a carrier"
    return f"see that its netdev {netdev} is up and has a carrier (`ip link set {netdev} up`)"


def _refuse_iwarp(device: DeviceInfo, host: str) -> None:
    if device.transport == "iWARP":
        raise RdmaUsageError(f"{device.name} on {host} is iWARP, which connects by rdma_cm only: take another device")


def _first_active(side: _Side) -> Port:
    for device in side.devices:
        port = _active_port(device)
        if port is not None and device.transport != "iWARP":
            return device, port
    found = [
        one.error or f"{one.name} is iWARP" if one.error or one.transport == "iWARP" else
        ", ".join(f"{one.name}/{port.number} is {port.state}: {_check(port)}" for port in one.ports)
        for one in side.devices
    ]  # fmt: skip
    raise NoDeviceError(f"{side.name} has no device with an ACTIVE port: {'; '.join(found) or 'no device at all'}")


def _choose_peer_port(side: _Side, local: Port) -> tuple[Port, str]:
    """Take the same name if it is ACTIVE there, else the only device that shares a GID type with the local port."""
    wanted = {row.type for row in local[1].gids}
    candidates: list[Port] = []
    for device in side.devices:
        port = _active_port(device, local[1].number)
        if port is None or device.transport == "iWARP":
            continue
        if device.name == local[0].name:
            return (device, port), "of the same name"
        if port.link_layer == local[1].link_layer and wanted & {row.type for row in port.gids}:
            candidates.append((device, port))
    if len(candidates) == 1:
        return candidates[0], f"the only one on {side.name} that shares a GID type with {local[0].name}"
    listed = "; ".join(_summary(device) for device in side.devices) or "no device at all"
    many = "more than one device that shares" if candidates else "no ACTIVE device that shares"
    raise RdmaUsageError(
        f"{side.name} has no ACTIVE {local[0].name}, and {many} a GID type with it; it has {listed}: pass --peer-device"
    )


def _summary(device: DeviceInfo) -> str:
    if device.error:
        return f"{device.name} ({device.error})"
    ports = (f"{port.number} {port.state} {'/'.join(sorted({row.type for row in port.gids}))}" for port in device.ports)
    return f"{device.name} ({', '.join(f'port {port}'.strip() for port in ports)})"


Rows = tuple["GidRow | None", "GidRow | None"]


def _choose_rows(
    local_side: _Side, peer_side: _Side, ports: tuple[PortInfo, PortInfo], places: tuple[str, str], same_host: bool
) -> tuple[Rows, str]:
    if ports[0].link_layer == INFINIBAND:
        return _infiniband_rows(local_side, peer_side, ports, places)
    local_rows = _candidates(local_side, ports[0], places[0])
    peer_rows = _candidates(peer_side, ports[1], places[1])
    found = gids.matches(local_rows, peer_rows, same_host)
    explicit = local_side.gid_index is not None or peer_side.gid_index is not None
    if not found or (found[0].distance == gids.UNREACHABLE and not explicit):
        raise RdmaUsageError(_no_match(local_side, peer_side, (local_rows, peer_rows), places))
    best = found[0]
    kind = f"{best.local.type} {gids.family(best.local)}"
    return (best.local, best.peer), f"gid rows {best.local.index} and {best.peer.index}: {kind}, {best.reason}"


def _candidates(side: _Side, port: PortInfo, place: str) -> list[GidRow]:
    """Return the row that was asked for, else all usable ones."""
    if side.gid_index is not None:
        return [explicit_row(side.gid_index, port, place, side.gid_option)]
    rows = gids.usable(port.gids)
    if rows:
        return rows
    netdevs = sorted({row.netdev for row in port.gids if row.netdev})
    if netdevs:
        raise RdmaUsageError(
            f"netdev {netdevs[0]} of {place} has no address: `ip address add ADDRESS dev {netdevs[0]}`"
        )
    raise RdmaUsageError(
        f"{place} has no GID row with a netdev in this network namespace: the device is visible here, its netdev is "
        f"elsewhere; rows: {gids.describe_all(port.gids)}"
    )


def explicit_row(index: int, port: PortInfo, place: str, option: str) -> GidRow:
    """Return the row that was asked for; an empty one, or one without a netdev, is refused with those that can be."""
    row = next((one for one in port.gids if one.index == index), None)
    if row is not None and (row.netdev is not None or port.link_layer == INFINIBAND):
        return row
    what = "is empty or out of the table" if row is None else "has no netdev in this namespace"
    valid = [one for one in port.gids if one.netdev is not None or port.link_layer == INFINIBAND]
    raise RdmaUsageError(f"{option} {index}: that GID row of {place} {what}; valid rows: {gids.describe_all(valid)}")


def _no_match(
    local_side: _Side, peer_side: _Side, rows: tuple[list[GidRow], list[GidRow]], places: tuple[str, str]
) -> str:
    if local_side.gid_index is not None and peer_side.gid_index is not None:
        why = gids.mismatch(rows[0][0], rows[1][0])
    elif {row.type for row in rows[0]}.isdisjoint(row.type for row in rows[1]):
        why = "no GID type is common to both"
    elif not gids.matches(*rows, same_host=False):
        why = "no two rows are of one type and one address family"
    else:
        why = "they share no subnet, and there is no route on each host through the row's netdev"
    return (
        f"no GID row of {places[0]} can speak to one of {places[1]}: {why}; "
        f"{places[0]}: {gids.describe_all(rows[0])}; {places[1]}: {gids.describe_all(rows[1])}"
    )


def _infiniband_rows(
    local_side: _Side, peer_side: _Side, ports: tuple[PortInfo, PortInfo], places: tuple[str, str]
) -> tuple[Rows, str]:
    """Take rows, and with them a GRH, only where due: asked for by user or port, no LID, or another subnet prefix."""
    rows: list[GidRow | None] = []
    for side, port, place in zip((local_side, peer_side), ports, places):
        if side.gid_index is not None:
            rows.append(explicit_row(side.gid_index, port, place, side.gid_option))
        else:
            rows.append(port.gids[0] if port.gids else None)
    reason = _grh_reason((local_side, peer_side), ports, (rows[0], rows[1]))
    if not reason:
        return (None, None), f"lids {ports[0].lid} and {ports[1].lid}: one InfiniBand subnet, no GRH"
    if None in rows:
        raise RdmaUsageError(f"{places[rows.index(None)]} has no GID, and a GRH is needed: {reason}")
    return (rows[0], rows[1]), f"with a GRH: {reason}"


def _grh_reason(sides: tuple[_Side, _Side], ports: tuple[PortInfo, PortInfo], rows: Rows) -> str:
    if any(side.gid_index is not None for side in sides):
        return "a GID row was asked for"
    if any(port.grh_required for port in ports):
        return "a port asks for it"
    if not all(port.lid for port in ports):
        return "a port has no LID"
    if rows[0] and rows[1] and gids.subnet_prefix(rows[0].gid) != gids.subnet_prefix(rows[1].gid):
        return "the subnet prefixes differ"
    return ""


def _choose_mtu(asked: int | None, ports: tuple[PortInfo, PortInfo], places: tuple[str, str]) -> tuple[int, str]:
    active = [port.active_mtu for port in ports]
    if asked is None:
        return min(active), f"mtu {min(active)}: the smaller of {active[0]} and {active[1]}"
    check_mtu(asked, active, places)
    return asked, f"mtu {asked}: as asked"


def check_mtu(asked: int, active: Sequence[int], places: Sequence[str]) -> None:
    """Refuse a path MTU that one of the ports does not carry: rxe would take it in silence."""
    if asked not in MTUS:
        raise RdmaUsageError(f"path MTU {asked}: it can be {', '.join(map(str, MTUS[:-1]))} or {MTUS[-1]}")
    if asked > min(active):
        raise RdmaUsageError(
            f"path MTU {asked} is over an active MTU: {active[0]} at {places[0]}, {active[1]} at {places[1]}"
        )
