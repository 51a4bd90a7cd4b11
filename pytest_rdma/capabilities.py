"""What a test may require of a device: names for the marker `rdma_requires(...)`, and how each is checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable

from pytest_rdma.errors import RdmaUsageError
from pytest_rdma.model import DeviceInfo, PortInfo

MEM_MGT_EXTENSIONS = 1 << 21
XRC = 1 << 20
MEM_WINDOW_TYPE_2 = (1 << 23) | (1 << 24)


@dataclass(frozen=True)
class Capability:
    """One name: the limit of ibv_query_device(3) that tells, whether its value suffices, and what would."""

    limit: str
    suffices: Callable[[int], bool]
    needed: str


def _at_least(limit: str, minimum: int) -> Capability:
    return Capability(limit, lambda value: value >= minimum, f"at least {minimum}")


def _flag(bits: int, name: str) -> Capability:
    return Capability("device_cap_flags", lambda value: bool(value & bits), name)


CAPABILITIES: dict[str, Capability] = {
    "atomics": Capability("atomic_cap", lambda value: value > 0, "1 (IBV_ATOMIC_HCA) or 2 (IBV_ATOMIC_GLOB)"),
    "srq": _at_least("max_srq", 1),
    "memory_windows": _at_least("max_mw", 1),
    "memory_windows_type_2": _flag(MEM_WINDOW_TYPE_2, "IBV_DEVICE_MEM_WINDOW_TYPE_2A or _2B"),
    "local_invalidate": _flag(MEM_MGT_EXTENSIONS, "IBV_DEVICE_MEM_MGT_EXTENSIONS"),
    "multicast": _at_least("max_mcast_grp", 1),
    "xrc": _flag(XRC, "IBV_DEVICE_XRC"),
    "rdma_read": _at_least("max_qp_rd_atom", 1),
}
LINKS = {"roce": "Ethernet", "infiniband": "InfiniBand"}
MINIMUMS = (
    "max_mr_size",
    "max_qp",
    "max_qp_wr",
    "max_sge",
    "max_sge_rd",
    "max_cq",
    "max_cqe",
    "max_mr",
    "max_pd",
    "max_qp_rd_atom",
    "max_qp_init_rd_atom",
    "max_res_rd_atom",
    "max_mw",
    "max_mcast_grp",
    "max_mcast_qp_attach",
    "max_ah",
    "max_srq",
    "max_srq_wr",
    "max_srq_sge",
    "max_pkeys",
    "phys_port_cnt",
)


def check_names(names: tuple[Any, ...], minimums: dict[str, Any]) -> None:
    """Raise RdmaUsageError for what `rdma_requires` does not know."""
    for name in names:
        if name not in CAPABILITIES and name not in LINKS:
            known = ", ".join([*CAPABILITIES, *LINKS])
            raise RdmaUsageError(f"rdma_requires knows no {name!r}; names are {known}, minimums {', '.join(MINIMUMS)}")
    for name, minimum in minimums.items():
        if name not in MINIMUMS:
            raise RdmaUsageError(f"rdma_requires knows no minimum {name!r}; minimums are {', '.join(MINIMUMS)}")
        if isinstance(minimum, bool) or not isinstance(minimum, int):
            raise RdmaUsageError(f"rdma_requires({name}={minimum!r}): a minimum is a whole number")


def lacking(
    names: tuple[str, ...], minimums: dict[str, int], host: str, device: DeviceInfo, port: PortInfo
) -> str | None:
    """Return why the device does not do: host, device, the value found, where it was read, what was required."""
    where = f"{host} {device.name}"
    for name in names:
        if name in LINKS:
            if port.link_layer != LINKS[name]:
                return (
                    f"needs {name}: {where}/{port.number} has link_layer {port.link_layer} (ibv_query_port), "
                    f"{LINKS[name]} is required"
                )
            continue
        reason = _unmet(f"needs {name}", where, device, CAPABILITIES[name])
        if reason:
            return reason
    for name, minimum in minimums.items():
        reason = _unmet(f"needs {name} of {minimum}", where, device, _at_least(name, minimum))
        if reason:
            return reason
    return None


def _unmet(what: str, where: str, device: DeviceInfo, capability: Capability) -> str | None:
    value = device.limits.get(capability.limit)
    if value is None:
        return f"{what}: {where} does not tell {capability.limit} (ibv_query_device), {capability.needed} is required"
    if capability.suffices(value):
        return None
    shown = f"{value:#x}" if capability.limit == "device_cap_flags" else str(value)
    return f"{what}: {where} has {capability.limit} {shown} (ibv_query_device), {capability.needed} is required"
