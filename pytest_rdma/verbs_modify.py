"""ibv_modify_qp(3) with named attributes, and what to say when the driver refuses it."""

from __future__ import annotations

import errno
import ipaddress
from typing import TYPE_CHECKING, Any

from pytest_rdma.errors import RdmaUsageError, errno_text
from pytest_rdma.model import ConnectionAttributes, ExchangeRecord, QPState
from pytest_rdma.transitions import AV_NAMES, fault_of
from pytest_rdma.verbs_device import eight_words, mtu_bytes, mtu_code
from pytest_rdma.verbs_library import pyverbs

if TYPE_CHECKING:
    from pytest_rdma.verbs_queue import QPEntry

QP_STATE = 1 << 0
QP_AV = 1 << 7
MASKS = {
    "cur_qp_state": 1 << 1,
    "en_sqd_async_notify": 1 << 2,
    "qp_access_flags": 1 << 3,
    "pkey_index": 1 << 4,
    "port_num": 1 << 5,
    "qkey": 1 << 6,
    "path_mtu": 1 << 8,
    "timeout": 1 << 9,
    "retry_cnt": 1 << 10,
    "rnr_retry": 1 << 11,
    "rq_psn": 1 << 12,
    "max_rd_atomic": 1 << 13,
    "min_rnr_timer": 1 << 15,
    "sq_psn": 1 << 16,
    "max_dest_rd_atomic": 1 << 17,
    "path_mig_state": 1 << 18,
    "dest_qp_num": 1 << 20,
    "rate_limit": 1 << 25,
}
QUERIED = (*MASKS, "qp_state", "sq_draining")
QUERY_MASK = (1 << 21) - 1


def modify(qp: Any, state: QPState | None, attributes: dict[str, Any]) -> None:
    """Modify with exactly these attributes; a pyverbs error is the driver's."""
    values = dict(attributes)
    vector = {name: values.pop(name) for name in AV_NAMES if name in values}
    unknown = sorted(set(values) - set(MASKS))
    if unknown:
        raise RdmaUsageError(f"no QP attribute {', '.join(unknown)}; there are {', '.join((*MASKS, *AV_NAMES))}")
    wanted = pyverbs().qp.QPAttr()
    mask = 0
    if state is not None:
        wanted.qp_state = int(state)
        mask |= QP_STATE
    if vector:
        wanted.ah_attr = address_handle_attributes(vector)
        mask |= QP_AV
    for name, value in values.items():
        setattr(wanted, name, mtu_code(value) if name == "path_mtu" else int(value))
        mask |= MASKS[name]
    qp.modify(wanted, mask)


def address_handle_attributes(vector: dict[str, Any]) -> Any:
    """Return pyverbs' AHAttr of an address vector."""
    addr = pyverbs().addr
    route = None
    if "dgid" in vector:
        route = addr.GlobalRoute(
            dgid=addr.GID(eight_words(vector["dgid"])),
            flow_label=vector.get("flow_label", 0),
            sgid_index=vector.get("sgid_index", 0),
            hop_limit=vector.get("hop_limit", 1),
            traffic_class=vector.get("traffic_class", 0),
        )
    return addr.AHAttr(
        dlid=vector.get("dlid", 0),
        sl=vector.get("sl", 0),
        port_num=vector.get("ah_port", 1),
        is_global=int(route is not None),
        gr=route,
    )


def query(qp: Any) -> dict[str, Any]:
    """Return what the driver tells of the QP, by the names of `struct ibv_qp_attr`; MTUs in bytes."""
    attributes, _ = qp.query(QUERY_MASK)
    found: dict[str, Any] = {name: int(getattr(attributes, name)) for name in QUERIED if name != "rate_limit"}
    found["path_mtu"] = mtu_bytes(found["path_mtu"])
    vector = attributes.ah_attr
    found.update(dlid=vector.dlid, sl=vector.sl, ah_port=vector.port_num)
    if vector.is_global:
        found.update(dgid=str(ipaddress.IPv6Address(str(vector.dgid))), sgid_index=vector.sgid_index)
        found.update(hop_limit=vector.hop_limit, traffic_class=vector.traffic_class)
    return found


def address_vector(entry: QPEntry, peer: ExchangeRecord, attributes: ConnectionAttributes) -> dict[str, Any]:
    """Return the address vector towards the peer; a GRH goes with a GID row.

    What concerns InfiniBand is untested on hardware.
    """
    vector: dict[str, Any] = {"ah_port": entry.port.number, "sl": attributes.sl}
    if entry.port.link_layer == "InfiniBand":
        vector["dlid"] = peer.lid
    if entry.gid is not None:
        vector.update(
            dgid=peer.gid,
            sgid_index=entry.gid.index,
            hop_limit=attributes.hop_limit,
            traffic_class=attributes.traffic_class,
        )
    return vector


def explain_modify(
    entry: QPEntry, state: QPState | None, attributes: dict[str, Any], peer: ExchangeRecord | None, number: int
) -> str:
    """Return the one line that says what was attempted, with what, and what may be wrong."""
    target = (
        f"move {entry.label} from {entry.state.name} to {state.name}" if state is not None else f"modify {entry.label}"
    )
    parts = [_own_end(entry)]
    if peer is not None:
        lid = f" lid {peer.lid}" if peer.lid else ""
        parts.append(f"peer QP {peer.qp_num:#x} gid {_address(peer.gid)}{lid}")
    shown = {name: value for name, value in attributes.items() if name not in AV_NAMES or name == "sgid_index"}
    parts.append(
        "with " + (", ".join(f"{name} {_number(name, value)}" for name, value in shown.items()) or "no attributes")
    )
    hint = modify_hint(entry, attributes, peer, number)
    if hint:
        parts.append(hint)
    fault = fault_of(entry.state, state, attributes) if number == errno.EINVAL and entry.caps.transport == "RC" else ""
    if fault:
        parts.append(fault)
    return f"cannot {target} on {entry.where}: {errno_text(number)}; {'; '.join(parts)}"


def _own_end(entry: QPEntry) -> str:
    pkeys = entry.port.pkeys
    pkey = (
        f"{pkeys[entry.pkey_index]:#06x}" if entry.pkey_index < len(pkeys) else f"index {entry.pkey_index}, not there"
    )
    if entry.gid is None:
        return f"own lid {entry.port.lid}, pkey {pkey}"
    row = entry.gid
    return f"own gid {row.index} {row.address} ({row.type}, netdev {row.netdev or 'none'}), pkey {pkey}"


def _number(name: str, value: Any) -> str:
    return hex(value) if name in ("dest_qp_num", "rq_psn", "sq_psn", "qp_access_flags") else str(value)


def _address(gid: str) -> str:
    address = ipaddress.IPv6Address(gid)
    return str(address.ipv4_mapped or address)


def modify_hint(entry: QPEntry, attributes: dict[str, Any], peer: ExchangeRecord | None, number: int) -> str:
    row = attributes.get("sgid_index", entry.gid.index if entry.gid else 0)
    if number == errno.ENODEV:
        return f"GID row {row} has no netdev here: take a row of a netdev in this namespace"
    if number == errno.ENODATA:
        return f"GID row {row} is empty"
    if peer is not None and ipaddress.IPv6Address(peer.gid).is_link_local and entry.port.link_layer != "InfiniBand":
        return (
            "the peer's GID is link-local and not routable: "
            "pass --rdma-gid-index and --peer-gid-index, or give the ports addresses"
        )
    if number in (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH):
        return "the peer's address was not resolved: see that the netdevs of both GID rows reach each other (ping)"
    return _limit_hint(entry, attributes) if number == errno.EINVAL else ""


def _limit_hint(entry: QPEntry, attributes: dict[str, Any]) -> str:
    limits, port = entry.device.info.limits, entry.port
    if attributes.get("port_num", 1) not in [one.number for one in entry.device.info.ports]:
        return f"{entry.device.name} has ports 1 to {len(entry.device.info.ports)}"
    if attributes.get("max_dest_rd_atomic", 0) > limits["max_qp_rd_atom"]:
        return f"max_dest_rd_atomic is over max_qp_rd_atom {limits['max_qp_rd_atom']}"
    if attributes.get("max_rd_atomic", 0) > limits["max_qp_init_rd_atom"]:
        return f"max_rd_atomic is over max_qp_init_rd_atom {limits['max_qp_init_rd_atom']}"
    if attributes.get("path_mtu", 0) > port.active_mtu:
        return f"path_mtu is over the active MTU {port.active_mtu}"
    if attributes.get("pkey_index", 0) >= max(len(port.pkeys), 1):
        return f"the port has {len(port.pkeys)} pkeys"
    return ""
