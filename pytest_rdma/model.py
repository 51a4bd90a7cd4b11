"""Plain data that both ends share: what a host, a device and a port are, what a test asks for, what completed.

Everything here is frozen, holds plain values only and crosses the stream as it is (see `wire`).
"""

from __future__ import annotations

import enum
import ipaddress
from dataclasses import dataclass, field, replace
from typing import Any

from pytest_rdma.errors import RdmaUsageError


class Access(enum.IntFlag):
    """Access flags of memory regions and QPs, as `ibv_access_flags` numbers them."""

    NONE = 0
    LOCAL_WRITE = 1
    REMOTE_WRITE = 2
    REMOTE_READ = 4
    REMOTE_ATOMIC = 8
    MW_BIND = 16
    ALL = LOCAL_WRITE | REMOTE_WRITE | REMOTE_READ | REMOTE_ATOMIC

    @property
    def text(self) -> str:
        """The flags in words, the same on every Python: `LOCAL_WRITE|REMOTE_READ`."""
        flags = (Access.LOCAL_WRITE, Access.REMOTE_WRITE, Access.REMOTE_READ, Access.REMOTE_ATOMIC, Access.MW_BIND)
        return "|".join(str(flag.name) for flag in flags if flag & self) or "no access"


class QPState(enum.IntEnum):
    """`ibv_qp_state`."""

    RESET = 0
    INIT = 1
    RTR = 2
    RTS = 3
    SQD = 4
    SQE = 5
    ERR = 6


class Opcode(enum.IntEnum):
    """Opcodes of send requests, as `ibv_wr_opcode` numbers them."""

    RDMA_WRITE = 0
    RDMA_WRITE_WITH_IMM = 1
    SEND = 2
    SEND_WITH_IMM = 3
    RDMA_READ = 4
    ATOMIC_CMP_AND_SWP = 5
    ATOMIC_FETCH_AND_ADD = 6
    LOCAL_INV = 7
    BIND_MW = 8
    SEND_WITH_INV = 9


class WCOpcode(enum.IntEnum):
    """Opcodes of completions, as `ibv_wc_opcode` numbers them; valid only when the status is SUCCESS."""

    SEND = 0
    RDMA_WRITE = 1
    RDMA_READ = 2
    COMP_SWAP = 3
    FETCH_ADD = 4
    BIND_MW = 5
    LOCAL_INV = 6
    RECV = 128
    RECV_RDMA_WITH_IMM = 129


@dataclass(frozen=True)
class GidRow:
    """One row of a port's GID table. `type` is the kernel's word: `RoCE v2`, `IB/RoCE v1` or `IB`.

    `prefix_length` is that of the address on its netdev, None when the address is not there; `routes` are the networks
    that the host's routing tables reach through the netdev.
    """

    index: int
    gid: str
    type: str
    netdev: str | None
    prefix_length: int | None = None
    routes: tuple[str, ...] = ()

    @property
    def address(self) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
        """The IP address that the GID stands for; IPv4 where the GID is an IPv4-mapped one."""
        gid = ipaddress.IPv6Address(self.gid)
        return gid.ipv4_mapped or gid


@dataclass(frozen=True)
class PortInfo:
    """A port as `ibv_query_port` and sysfs tell it; MTUs and `max_msg_bytes` in bytes."""

    number: int
    state: str
    link_layer: str
    active_mtu: int
    max_mtu: int
    lid: int
    grh_required: bool
    max_msg_bytes: int
    pkeys: tuple[int, ...]
    gids: tuple[GidRow, ...]


@dataclass(frozen=True)
class DeviceInfo:
    """A device; `limits` holds the numbers of `ibv_query_device` by their names there (`max_qp_wr`, `max_sge`, ...).

    `error` says why a device that the kernel has does not open; only its name is known then.
    """

    name: str
    provider: str
    transport: str
    firmware: str
    node_guid: str
    vendor_id: int
    vendor_part_id: int
    numa_node: int
    limits: dict[str, int]
    ports: tuple[PortInfo, ...]
    error: str = ""


@dataclass(frozen=True)
class HostInfo:
    """Who answers: the machine and the process that holds the verbs objects; memory limits in bytes, -1 for none."""

    hostname: str
    kernel: str
    machine: str
    python: str
    executable: str
    pyverbs: str
    rdma_core: str
    pid: int
    uid: int
    memlock_soft: int
    memlock_hard: int


@dataclass(frozen=True)
class EndpointCaps:
    """What the endpoints of a pair can do; the marker `rdma_caps(...)` takes these names.

    Depths are in work requests, `inline_bytes` and `buffer_bytes` in bytes. `access` is what the endpoint's own buffer
    and its QP allow the peer; `qp_access` overrides it for the QP alone. `events` gives the CQ a completion channel.
    `transport` is `RC`, `UC` or `UD`.
    """

    send_depth: int = 128
    recv_depth: int = 128
    send_sges: int = 1
    recv_sges: int = 1
    inline_bytes: int = 0
    buffer_bytes: int = 65536
    access: Access = Access.LOCAL_WRITE | Access.REMOTE_WRITE | Access.REMOTE_READ
    qp_access: Access | None = None
    signal_all: bool = False
    events: bool = False
    transport: str = "RC"

    def __post_init__(self) -> None:
        """Refuse what is no number that a device could ever grant; more than this one grants is its own to refuse."""
        for name in ("send_depth", "recv_depth", "send_sges", "recv_sges", "inline_bytes"):
            _check_number(name, getattr(self, name), 0, 2**31 - 1)
        _check_number("buffer_bytes", self.buffer_bytes, 1, 2**63 - 1)
        for name in ("access", "qp_access"):
            flags = getattr(self, name)
            if name == "access" or flags is not None:
                _check_number(name, flags, 0, 2**31 - 1)
                object.__setattr__(self, name, Access(flags))

    def with_(self, **changes: Any) -> EndpointCaps:
        """Return a copy with `changes`; an unknown name is a TypeError."""
        return replace(self, **changes)


def _check_number(name: str, value: object, least: int, most: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise RdmaUsageError(f"{name}={value!r}: it is a whole number from {least} to {most}")


@dataclass(frozen=True)
class Sge:
    """A piece of registered memory: address, bytes, local key."""

    addr: int
    length: int
    lkey: int


@dataclass(frozen=True)
class RemoteMemory:
    """What a peer needs to reach a buffer; `length` is in bytes."""

    addr: int
    rkey: int
    length: int


@dataclass(frozen=True)
class SendWR:
    """A send request exactly as the driver gets it; `imm` is a number in host order, None for no immediate."""

    opcode: Opcode
    sges: tuple[Sge, ...] = ()
    wr_id: int = 0
    signaled: bool = True
    inline: bool = False
    fence: bool = False
    solicited: bool = False
    imm: int | None = None
    remote_addr: int = 0
    rkey: int = 0
    compare_add: int = 0
    swap: int = 0
    invalidate_rkey: int = 0


@dataclass(frozen=True)
class RecvWR:
    """A receive request exactly as the driver gets it."""

    sges: tuple[Sge, ...] = ()
    wr_id: int = 0


@dataclass(frozen=True)
class Completion:
    """A work completion. `imm` is a number in host order, `invalidated_rkey` the key that a Send with invalidate named,
    None where none came; all but `wr_id`, `status`, `vendor_err` and `qp_num` have a meaning only when the status is
    SUCCESS (ibv_poll_cq(3))."""

    wr_id: int
    status: int
    opcode: int
    byte_len: int
    imm: int | None
    vendor_err: int
    qp_num: int
    wc_flags: int = 0
    invalidated_rkey: int | None = None


@dataclass(frozen=True)
class AsyncEvent:
    """An asynchronous event; `type` is its name in `ibv_event_type` without the prefix, `element` what it is about."""

    type: str
    element: str


@dataclass(frozen=True)
class ConnectionAttributes:
    """How a pair connects: `mtu` in bytes, `ack_timeout` and `min_rnr_timer` in the encodings of ibv_modify_qp(3)."""

    mtu: int
    sl: int = 0
    traffic_class: int = 0
    pkey_index: int = 0
    retry_count: int = 6
    rnr_retry: int = 6
    ack_timeout: int = 14
    min_rnr_timer: int = 12
    hop_limit: int = 64
    rd_atomic: int = 1


PSN_BITS = 24


@dataclass(frozen=True)
class ExchangeRecord:
    """What one end tells the other, version 1: all that the far side needs to address this QP and its buffer.

    `gid_type`, `link_layer` as in GidRow and PortInfo. `memory` is the endpoint's own buffer.
    """

    qp_num: int
    psn: int
    lid: int
    gid: str
    gid_index: int
    gid_type: str
    link_layer: str
    active_mtu: int
    max_dest_rd_atomic: int
    max_rd_atomic: int
    memory: RemoteMemory
    version: int = field(default=1)
