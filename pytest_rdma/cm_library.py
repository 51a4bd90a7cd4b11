"""librdmacm through ctypes: its calls give the GIL away, and its event channel has a descriptor to wait on.

pyverbs has neither. The structures are the public ABI of rdma_cma.h and verbs.h; a test compares them with
the headers.
"""

from __future__ import annotations

import ctypes
import ipaddress
import socket
import struct
from ctypes import c_int, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p
from functools import cache
from typing import Any

from pytest_rdma.errors import RdmaEnvironmentError, RdmaUsageError, VerbsError, errno_text

PS_TCP = 0x0106
SOCKADDR_BYTES = 128


class EventChannel(ctypes.Structure):
    """`struct rdma_event_channel`."""

    _fields_ = [("fd", c_int)]


class CMId(ctypes.Structure):
    """`struct rdma_cm_id`, up to what is read here."""

    _fields_ = [
        ("verbs", c_void_p),
        ("channel", c_void_p),
        ("context", c_void_p),
        ("qp", c_void_p),
        ("src_addr", c_uint8 * SOCKADDR_BYTES),
        ("dst_addr", c_uint8 * SOCKADDR_BYTES),
        ("ibaddr", c_uint8 * 40),
        ("path_rec", c_void_p),
        ("num_paths", c_int),
        ("end_of_route", c_int),
        ("ps", c_int),
        ("port_num", c_uint8),
    ]


class ConnParam(ctypes.Structure):
    """`struct rdma_conn_param`."""

    _fields_ = [
        ("private_data", c_void_p),
        ("private_data_len", c_uint8),
        ("responder_resources", c_uint8),
        ("initiator_depth", c_uint8),
        ("flow_control", c_uint8),
        ("retry_count", c_uint8),
        ("rnr_retry_count", c_uint8),
        ("srq", c_uint8),
        ("qp_num", c_uint32),
    ]


class CMEvent(ctypes.Structure):
    """`struct rdma_cm_event`; the union holds the larger `struct rdma_ud_param`."""

    _fields_ = [
        ("id", c_void_p),
        ("listen_id", c_void_p),
        ("event", c_int),
        ("status", c_int),
        ("conn", ConnParam),
        ("rest_of_union", c_uint8 * 32),
    ]


class GlobalRoute(ctypes.Structure):
    """`struct ibv_global_route`."""

    _fields_ = [
        ("dgid", c_uint64 * 2),
        ("flow_label", c_uint32),
        ("sgid_index", c_uint8),
        ("hop_limit", c_uint8),
        ("traffic_class", c_uint8),
    ]


class AHAttr(ctypes.Structure):
    """`struct ibv_ah_attr`."""

    _fields_ = [
        ("grh", GlobalRoute),
        ("dlid", c_uint16),
        ("sl", c_uint8),
        ("src_path_bits", c_uint8),
        ("static_rate", c_uint8),
        ("is_global", c_uint8),
        ("port_num", c_uint8),
    ]


class QPAttr(ctypes.Structure):
    """`struct ibv_qp_attr`."""

    _fields_ = [
        ("qp_state", c_int),
        ("cur_qp_state", c_int),
        ("path_mtu", c_int),
        ("path_mig_state", c_int),
        ("qkey", c_uint32),
        ("rq_psn", c_uint32),
        ("sq_psn", c_uint32),
        ("dest_qp_num", c_uint32),
        ("qp_access_flags", c_uint32),
        ("cap", c_uint32 * 5),
        ("ah_attr", AHAttr),
        ("alt_ah_attr", AHAttr),
        ("pkey_index", c_uint16),
        ("alt_pkey_index", c_uint16),
        ("en_sqd_async_notify", c_uint8),
        ("sq_draining", c_uint8),
        ("max_rd_atomic", c_uint8),
        ("max_dest_rd_atomic", c_uint8),
        ("min_rnr_timer", c_uint8),
        ("port_num", c_uint8),
        ("timeout", c_uint8),
        ("retry_cnt", c_uint8),
        ("rnr_retry", c_uint8),
        ("alt_port_num", c_uint8),
        ("alt_timeout", c_uint8),
        ("rate_limit", c_uint32),
    ]


_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "rdma_create_event_channel": (ctypes.POINTER(EventChannel),),
    "rdma_destroy_event_channel": (None, ctypes.POINTER(EventChannel)),
    "rdma_create_id": (c_int, ctypes.POINTER(EventChannel), ctypes.POINTER(c_void_p), c_void_p, c_int),
    "rdma_destroy_id": (c_int, c_void_p),
    "rdma_migrate_id": (c_int, c_void_p, ctypes.POINTER(EventChannel)),
    "rdma_bind_addr": (c_int, c_void_p, ctypes.c_char_p),
    "rdma_listen": (c_int, c_void_p, c_int),
    "rdma_resolve_addr": (c_int, c_void_p, ctypes.c_char_p, ctypes.c_char_p, c_int),
    "rdma_resolve_route": (c_int, c_void_p, c_int),
    "rdma_connect": (c_int, c_void_p, ctypes.POINTER(ConnParam)),
    "rdma_accept": (c_int, c_void_p, ctypes.POINTER(ConnParam)),
    "rdma_reject": (c_int, c_void_p, ctypes.c_char_p, c_uint8),
    "rdma_establish": (c_int, c_void_p),
    "rdma_disconnect": (c_int, c_void_p),
    "rdma_init_qp_attr": (c_int, c_void_p, ctypes.POINTER(QPAttr), ctypes.POINTER(c_int)),
    "rdma_get_cm_event": (c_int, ctypes.POINTER(EventChannel), ctypes.POINTER(ctypes.POINTER(CMEvent))),
    "rdma_ack_cm_event": (c_int, ctypes.POINTER(CMEvent)),
}


@cache
def librdmacm() -> Any:
    """Return the loaded library; RdmaEnvironmentError says what to install."""
    try:
        library = ctypes.CDLL("librdmacm.so.1", use_errno=True)
    except OSError as error:
        raise RdmaEnvironmentError(
            f"cannot load librdmacm: {error}; install it: `apt-get install librdmacm1` or `dnf install librdmacm`"
        ) from error
    for name, (result, *arguments) in _SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def check(result: int, attempt: str, hint: str = "") -> None:
    """Raise VerbsError with errno when a call has returned non-zero."""
    if result:
        number = ctypes.get_errno()
        text = f"{attempt}: {errno_text(number)}"
        raise VerbsError(f"{text}; {hint}" if hint else text, errno=number)


def pack_address(address: str, port: int = 0, scope: int = 0) -> bytes:
    """Return a sockaddr of an IP address, which is never a name; `scope` is the interface of a link-local one."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        raise RdmaUsageError(f"{address!r} is no IP address: rdma_cm takes that of a GID row, not a name") from None
    if ip.version == 4:
        return struct.pack("=H", socket.AF_INET) + struct.pack(">H4s8x", port, ip.packed)
    return struct.pack("=H", socket.AF_INET6) + struct.pack(">HI16s", port, 0, ip.packed) + struct.pack("=I", scope)


def unpack_address(sockaddr: Any) -> tuple[str, int]:
    """Return IP address and port of a sockaddr; "" where it holds none."""
    raw = bytes(sockaddr)
    family = struct.unpack_from("=H", raw)[0]
    port = struct.unpack_from(">H", raw, 2)[0]
    if family == socket.AF_INET:
        return str(ipaddress.IPv4Address(raw[4:8])), port
    if family == socket.AF_INET6:
        return str(ipaddress.IPv6Address(raw[8:24])), port
    return "", port


def device_name(identifier: CMId) -> str:
    """Return the name of the device that the route leads through, "" before there is one."""
    if not identifier.verbs:
        return ""
    verbs = ctypes.CDLL("libibverbs.so.1")
    verbs.ibv_get_device_name.restype, verbs.ibv_get_device_name.argtypes = ctypes.c_char_p, [c_void_p]
    device = c_void_p.from_address(identifier.verbs).value  # the first member of struct ibv_context
    name: bytes = verbs.ibv_get_device_name(device)
    return name.decode()
