"""Devices of this host: which there are, why one does not open, what they and their ports can do; the device lock."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import time
from collections import deque
from pathlib import Path
from typing import Any, NamedTuple

from pytest_rdma import netlink
from pytest_rdma.deadline import Deadline
from pytest_rdma.errors import NoDeviceError, RdmaEnvironmentError, RdmaUsageError, errno_text
from pytest_rdma.host import InUse, LocalHost, Resource, op
from pytest_rdma.model import AsyncEvent, DeviceInfo, GidRow, HostInfo, PortInfo
from pytest_rdma.verbs_library import error_number, pyverbs

SYSFS = Path("/sys/class/infiniband")
UVERBS = Path("/sys/class/infiniband_verbs")

PORT_STATES = ("NOP", "DOWN", "INIT", "ARMED", "ACTIVE", "ACTIVE_DEFER")
LINK_LAYERS = ("unspecified", "InfiniBand", "Ethernet")
GID_TYPES = ("IB", "IB/RoCE v1", "RoCE v2")
QPF_GRH_REQUIRED = 1
LIMITS = (
    "max_mr_size", "max_qp", "max_qp_wr", "max_sge", "max_sge_rd", "max_cq", "max_cqe", "max_mr", "max_pd",
    "max_qp_rd_atom", "max_res_rd_atom", "max_qp_init_rd_atom", "atomic_cap", "device_cap_flags", "max_mw",
    "max_srq", "max_srq_wr", "max_srq_sge", "max_ah", "max_pkeys", "local_ca_ack_delay", "phys_port_cnt",
    "max_mcast_grp", "max_mcast_qp_attach",
)  # fmt: skip
PAST_KEPT = 256
PYVERBS_NAMES = {"atomic_cap": "atomic_caps"}


class OpenDevice:
    """An open context and what was asked of it when it was opened or last listed."""

    def __init__(self, host: LocalHost, name: str) -> None:
        try:
            self.context = pyverbs().device.Context(name=name)
        except pyverbs().pyverbs_error.PyverbsError as error:
            check_name(host, name)
            text = f"cannot open {name} on {host.name}: {explain_open_error(name, error_number(error), str(error))}"
            raise RdmaEnvironmentError(text) from error
        self.host = host
        self.name = name
        self.info = query_device(name, self.context)
        self.in_use = InUse(f"{name} on {host.name}")
        self.events: list[AsyncEvent] = []
        self.past: deque[tuple[int, Resource | AsyncEvent]] = deque(maxlen=PAST_KEPT)
        """Events that came and QPs and regions that were closed of late, for who explains a failure; when, in ns."""

    def keep_event(self, event: AsyncEvent) -> None:
        with self.host.lock:
            self.events.append(event)
        self.past.append((time.monotonic_ns(), event))

    def take_events(self) -> list[AsyncEvent]:
        """Return the events that were read and that no test has asked for yet."""
        with self.host.lock:
            found, self.events = self.events, []
        return found

    def note_closed(self, entry: Resource) -> None:
        self.past.append((time.monotonic_ns(), entry))

    def port(self, number: int) -> PortInfo:
        for port in self.info.ports:
            if port.number == number:
                return port
        known = "port 1" if len(self.info.ports) == 1 else f"ports 1 to {len(self.info.ports)}"
        raise RdmaUsageError(f"{self.name} on {self.host.name} has no port {number}: it has {known}")

    def fresh_port(self, number: int, gid_index: int | None) -> PortInfo:
        """Return a port as it is now: all is asked anew when its state, MTU or this GID row has changed."""
        known = self.port(number)
        now = self.context.query_port(number)
        row = next((row for row in known.gids if row.index == gid_index), None)
        changed = (PORT_STATES[now.state], mtu_bytes(now.active_mtu)) != (known.state, known.active_mtu)
        if row is None and gid_index is not None:
            changed = True  # it was empty when it was last looked at
        elif row is not None and not changed:
            changed = self.context.query_gid(number, row.index).gid != eight_words(row.gid)
        if changed:
            self.refresh()
        return self.port(number)

    def refresh(self) -> DeviceInfo:
        self.info = query_device(self.name, self.context)
        return self.info

    def close(self) -> None:
        self.in_use.end()
        self.context.close()


def open_device(host: LocalHost, name: str) -> OpenDevice:
    """Return the host's one context of the device, opened when first asked for."""
    with host.lock:
        found: OpenDevice | None = host.contexts.get(name)
        if found is None:
            found = host.contexts[name] = OpenDevice(host, name)
        return found


@op("host.info")
def op_info(host: LocalHost, deadline: Deadline) -> HostInfo:
    return host.info


@op("device.list")
def op_list(host: LocalHost, deadline: Deadline) -> list[DeviceInfo]:
    """Return all devices that the kernel has; one that does not open has `error` set."""
    found = []
    for name in device_names(host.name):
        try:
            found.append(op_device(host, deadline, name))
        except RdmaEnvironmentError as error:
            found.append(unopened(name, str(error)))
    return found


def unopened(name: str, error: str) -> DeviceInfo:
    return DeviceInfo(name, "", "", "", "", 0, 0, -1, {}, (), error=error)


@op("device.info")
def op_device(host: LocalHost, deadline: Deadline, name: str) -> DeviceInfo:
    check_name(host, name)
    fresh = name not in host.contexts
    device = open_device(host, name)
    return device.info if fresh else device.refresh()


def is_gone(host: LocalHost, name: str) -> bool:
    """Whether there is no such device any more: its file goes first, the rest when nobody has it open."""
    return not (SYSFS / name).is_dir() or (name not in host.contexts and uverbs_node(name) is None)


def check_name(host: LocalHost, name: str) -> None:
    known = device_names(host.name)
    if name not in known:
        raise RdmaUsageError(f"{host.name} has no device {name!r}; it has {', '.join(known)}")


def device_names(host_name: str) -> list[str]:
    """Return what devices the kernel has here; NoDeviceError says what is missing."""
    if not SYSFS.is_dir():
        raise NoDeviceError(f"{host_name} has no RDMA: no /sys/class/infiniband; load a driver, or try --rdma-lab")
    names = sorted(entry.name for entry in SYSFS.iterdir())
    if not names:
        hint = "`rdma link add rxe0 type rxe netdev NETDEV` makes a Soft-RoCE one; or try --rdma-lab"
        raise NoDeviceError(f"{host_name} has no RDMA device: /sys/class/infiniband is empty; {hint}")
    return names


def uverbs_node(name: str) -> str | None:
    """Return the device file of a device, None when ib_uverbs does not serve it."""
    if UVERBS.is_dir():
        for entry in UVERBS.iterdir():
            if _read(entry / "ibdev") == name:
                return f"/dev/infiniband/{entry.name}"
    return None


def explain_open_error(name: str, number: int, text: str) -> str:
    """Say why a device that the kernel has does not open: its device file, permissions, or the provider library."""
    node = uverbs_node(name)
    if node is None:
        return f"the kernel has {name} but no uverbs device for it: `modprobe ib_uverbs`"
    number = _open_errno(node) or number  # libibverbs loses the errno on its way
    if number == errno.ENOENT:
        return f"{node} is not here; in a container, pass --device=/dev/infiniband"
    if number == errno.EACCES:
        return f"no permission for {node}: run as root, or as a user who may read and write it"
    if number == errno.EPERM:
        return f"{errno_text(number)}: the device cgroup denies {node}; in a container, pass --device=/dev/infiniband"
    if number:
        return f"{errno_text(number)} for {node}"
    if "find" in text:
        return (
            f"the kernel has {name} but libibverbs has no provider for it: install ibverbs-providers (Debian) or "
            "libibverbs (Fedora), and see that IBV_DRIVERS and RDMAV_DRIVERS do not hide it"
        )
    return text


def _open_errno(node: str) -> int:
    """Return the errno with which a device file does not open, 0 when it does."""
    try:
        os.close(os.open(node, os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        return error.errno or 0
    return 0


def query_device(name: str, context: Any) -> DeviceInfo:
    attributes = context.query_device()
    folder = SYSFS / name
    networks = Networks(netlink.addresses(), netlink.routes(), dict(socket.if_nameindex()))
    rows: dict[int, list[GidRow]] = {}
    ports = range(1, attributes.phys_port_cnt + 1)
    queried = {number: context.query_port(number) for number in ports}
    for entry in context.query_gid_table(sum(port.gid_tbl_len for port in queried.values())):
        rows.setdefault(entry.port_num, []).append(_gid_row(folder / "ports" / str(entry.port_num), entry, networks))
    return DeviceInfo(
        name=name,
        provider=_provider(folder),
        transport="iWARP" if (_read(folder / "node_type") or "").startswith("4") else "InfiniBand",
        firmware=str(attributes.fw_version),
        node_guid=_read(folder / "node_guid") or "",
        vendor_id=attributes.vendor_id,
        vendor_part_id=attributes.vendor_part_id,
        numa_node=int(_read(folder / "device" / "numa_node") or -1),
        limits={limit: int(getattr(attributes, PYVERBS_NAMES.get(limit, limit))) for limit in LIMITS},
        ports=tuple(
            _port_info(folder / "ports" / str(number), number, queried[number], rows.get(number, []))
            for number in ports
        ),
    )


class Networks(NamedTuple):
    """What is asked once for all rows: addresses and routes by interface index, interface names."""

    addresses: dict[int, list[netlink.Address]]
    routes: dict[int, list[str]]
    names: dict[int, str]


def _port_info(folder: Path, number: int, port: Any, rows: list[GidRow]) -> PortInfo:
    pkeys = (_read(folder / "pkeys" / str(index)) for index in range(port.pkey_tbl_len))
    return PortInfo(
        number=number,
        state=PORT_STATES[port.state] if port.state < len(PORT_STATES) else str(port.state),
        link_layer=LINK_LAYERS[port.link_layer] if port.link_layer < len(LINK_LAYERS) else str(port.link_layer),
        active_mtu=mtu_bytes(port.active_mtu),
        max_mtu=mtu_bytes(port.max_mtu),
        lid=port.lid,
        grh_required=bool(port.flags & QPF_GRH_REQUIRED),
        max_msg_bytes=port.max_msg_sz,
        pkeys=tuple(int(pkey or "0", 16) for pkey in pkeys),
        gids=tuple(sorted(rows, key=lambda row: row.index)),
    )


def _gid_row(folder: Path, entry: Any, networks: Networks) -> GidRow:
    gid = ipaddress.IPv6Address(entry.gid_str())
    row = GidRow(entry.gid_index, str(gid), GID_TYPES[entry.gid_type], None)
    netdev = _read(folder / "gid_attrs" / "ndevs" / str(entry.gid_index))
    if not netdev or networks.names.get(entry.ndev_ifindex) != netdev:
        return row
    there = networks.addresses.get(entry.ndev_ifindex, [])
    prefix_length = next((length for address, length in there if address == str(row.address)), None)
    return GidRow(
        row.index, row.gid, row.type, netdev, prefix_length, tuple(networks.routes.get(entry.ndev_ifindex, ()))
    )


def _provider(folder: Path) -> str:
    if (folder / "parent").exists():  # of rxe alone; older kernels lend it the device of its netdev
        return "rxe"
    driver = folder / "device" / "driver"
    return driver.resolve().name if driver.exists() else "unknown"


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:  # an empty row answers EINVAL
        return None


def eight_words(gid: str) -> str:
    """Return a GID as pyverbs writes and reads it: eight words in full, never with a dotted IPv4 part."""
    return ipaddress.IPv6Address(gid).packed.hex(":", 2)


def mtu_bytes(code: int) -> int:
    """Return the bytes of an `ibv_mtu`."""
    return 128 << code


def mtu_code(size: int) -> int:
    """Return the `ibv_mtu` of a number of bytes; RdmaUsageError when there is none."""
    code = size.bit_length() - 8
    if code not in range(1, 6) or mtu_bytes(code) != size:
        raise RdmaUsageError(f"a path MTU is 256, 512, 1024, 2048 or 4096 bytes, not {size}")
    return code
