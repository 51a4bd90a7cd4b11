"""Evidence for the tests of the diagnosis: a healthy connected pair, and what is changed about it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pytest_rdma.diagnosis import Cause
from pytest_rdma.evidence import Evidence, Failure, HostEvidence, Posted, QPEvidence, QueueLedger, Region
from pytest_rdma.model import (
    Access,
    Completion,
    ConnectionAttributes,
    DeviceInfo,
    EndpointCaps,
    ExchangeRecord,
    GidRow,
    HostInfo,
    Opcode,
    PortInfo,
    QPState,
    RecvWR,
    RemoteMemory,
    SendWR,
    Sge,
    WCOpcode,
)
from pytest_rdma.status import WCStatus

LENGTH = 65536
ADDR = {"host1": 0x7F1000000000, "host2": 0x7F2000010000}
KEY = {"host1": 0x1111, "host2": 0x2A0B}
QPN = {"host1": 0x11, "host2": 0x12}
PSN = {"host1": 0x001000, "host2": 0x900000}
GID = {"host1": "::ffff:10.99.0.1", "host2": "::ffff:10.99.0.2"}
OTHER = {"host1": "host2", "host2": "host1"}
CONNECTED = ConnectionAttributes(1024, retry_count=6, ack_timeout=14, rnr_retry=6, min_rnr_timer=12, rd_atomic=16)
IDLE = QueueLedger(0, 0, None, None, 0)


def record(host: str) -> ExchangeRecord:
    memory = RemoteMemory(ADDR[host], KEY[host], LENGTH)
    return ExchangeRecord(QPN[host], PSN[host], 0, GID[host], 1, "RoCE v2", "Ethernet", 1024, 16, 16, memory)


def qp(host: str, **changes: Any) -> QPEvidence:
    attributes = {
        "qp_access_flags": int(Access.ALL),
        "path_mtu": 1024,
        "timeout": 14,
        "retry_cnt": 6,
        "rnr_retry": 6,
        "min_rnr_timer": 12,
        "max_rd_atomic": 16,
        "max_dest_rd_atomic": 16,
        "dest_qp_num": QPN[OTHER[host]],
        "sq_psn": PSN[host],
        "rq_psn": PSN[OTHER[host]],
    }
    good: dict[str, Any] = {
        "handle": 4,
        "qp_num": QPN[host],
        "device": "rxe0",
        "port": 1,
        "state": QPState.RTS,
        "caps": EndpointCaps(access=Access.ALL),
        "own": record(host),
        "peer": record(OTHER[host]),
        "connected": CONNECTED,
        "pd": 1,
        "sends": IDLE,
        "recvs": IDLE,
        "failure": None,
        "flushed": 0,
        "recent": (),
        "awaits": "",
    }
    attributes.update(changes.pop("attributes", {}))
    return QPEvidence(**{**good, "attributes": attributes, **changes})


def port(host: str, **changes: Any) -> PortInfo:
    rows = (GidRow(1, GID[host], "RoCE v2", "eth1", 24),)
    return replace(PortInfo(1, "ACTIVE", "Ethernet", 1024, 4096, 0, False, 1 << 30, (0xFFFF,), rows), **changes)


def device(port: PortInfo, provider: str = "rxe") -> DeviceInfo:
    return DeviceInfo("rxe0", provider, "InfiniBand", "", "", 0, 0, -1, {}, (port,))


def region(host: str, **changes: Any) -> Region:
    return replace(Region(ADDR[host], LENGTH, KEY[host], KEY[host], Access.ALL, 1, False), **changes)


def host(name: str, *qps: QPEvidence, **changes: Any) -> HostEvidence:
    info = HostInfo(name, "6.12", "x86_64", "3.13", "/usr/bin/python3", "56.1", "56.1", 1, 0, -1, -1)
    good: dict[str, Any] = {
        "info": info,
        "device": device(port(name)),
        "port": 1,
        "gid_index": 1,
        "qps": qps or (qp(name),),
        "regions": (region(name),),
        "async_events": (),
        "counters": {},
        "kernel_log": (),
    }
    return HostEvidence(name, **{**good, **changes})


def evidence(local: HostEvidence | None = None, peer: HostEvidence | None = None, **changes: Any) -> Evidence:
    """A pair whose local end failed, unless `changes` say otherwise."""
    found = Evidence(local or host("host1"), peer or host("host2"), 0x11, 0x12, "local", "CompletionError", "it failed")
    return replace(found, **changes)


# -- requests and what came of them


def send(opcode: Opcode = Opcode.RDMA_WRITE, length: int = 64, *, ago_s: float = 1.0, **changes: Any) -> Posted:
    """A send request of host1's own buffer, aimed at the start of host2's."""
    good: dict[str, Any] = {
        "sges": (Sge(ADDR["host1"], length, KEY["host1"]),),
        "wr_id": 1,
        "remote_addr": ADDR["host2"],
        "rkey": KEY["host2"],
    }
    request = SendWR(opcode, **{**good, **changes})
    return Posted(opcode.name, sum(sge.length for sge in request.sges), ago_s, request.signaled, request)


def receive(length: int = 64, **changes: Any) -> Posted:
    """A receive of host2 into its own buffer."""
    sge = replace(Sge(ADDR["host2"], length, KEY["host2"]), **changes)
    return Posted("RECV", length, 2.0, True, RecvWR((sge,), 1))


def failure(status: WCStatus | int, request: Posted | None, ago_s: float = 0.5) -> Failure:
    return Failure(completion(int(status)), ago_s, request)


def completion(status: int = 0, opcode: int = WCOpcode.SEND, byte_len: int = 0) -> Completion:
    return Completion(1, status, opcode, byte_len, None, 0, 0x11)


def ledger(*outstanding: Posted, posted: int = 0, completed: int = 0, **changes: Any) -> QueueLedger:
    queue = QueueLedger(posted or len(outstanding), completed, 1.0, None, len(outstanding), outstanding)
    return replace(queue, **changes)


def failed(
    status: WCStatus, request: Posted | None = None, far: HostEvidence | None = None, **changes: Any
) -> Evidence:
    """host1's request (a Write by default) failed with `status`; `changes` are of host1's QP."""
    first = failure(status, request if request is not None else send())
    return evidence(host("host1", qp("host1", failure=first, state=QPState.ERR, **changes)), far)


def waiting(local: QPEvidence, peer: QPEvidence | None = None, **changes: Any) -> Evidence:
    """host1 waits in vain."""
    local = local if local.awaits else replace(local, awaits="wr_id 0x1")
    ends = host("host1", local), host("host2", peer or qp("host2"))
    return evidence(
        *ends, **{"error_type": "DeadlineError", "error": "wr_id 0x1 did not complete", "error_qp": 0x11, **changes}
    )


def names(found: list[Cause]) -> list[str]:
    return [cause.name for cause in found]
