"""A pytest plugin and hardware test harness for RDMA: the public names.

They are loaded on first use, so that an idle plugin costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_rdma.cm import CMConnection, CMListener, CMPair, CMRequest
    from pytest_rdma.deviations import Deviation, Expectation
    from pytest_rdma.endpoint import CQ, SRQ, Buffer, Endpoint, MemoryWindow
    from pytest_rdma.errors import (
        CMError,
        CompletionError,
        DataMismatchError,
        DeadlineError,
        HostLostError,
        PostError,
        RdmaError,
        RefusedError,
        VerbsError,
    )
    from pytest_rdma.host import Host
    from pytest_rdma.model import (
        Access,
        AsyncEvent,
        Completion,
        EndpointCaps,
        Opcode,
        QPState,
        RecvWR,
        RemoteMemory,
        SendWR,
        Sge,
        WCOpcode,
    )
    from pytest_rdma.outcomes import EndOutcome, Probe
    from pytest_rdma.pairing import Pair
    from pytest_rdma.status import WCStatus
    from pytest_rdma.traffic import Latency, PingPong, Pipeline, RecvDrain, Spec, TrafficResult
    from pytest_rdma.traffic_pair import PairResult, run_pairs

_HOMES = {
    "pytest_rdma.deviations": ("Deviation", "Expectation"),
    "pytest_rdma.cm": ("CMConnection", "CMListener", "CMPair", "CMRequest"),
    "pytest_rdma.endpoint": ("CQ", "SRQ", "Buffer", "Endpoint", "MemoryWindow"),
    "pytest_rdma.errors": (
        "CMError",
        "CompletionError",
        "DataMismatchError",
        "DeadlineError",
        "HostLostError",
        "PostError",
        "RdmaError",
        "RefusedError",
        "VerbsError",
    ),
    "pytest_rdma.host": ("Host",),
    "pytest_rdma.model": (
        "Access",
        "AsyncEvent",
        "Completion",
        "EndpointCaps",
        "Opcode",
        "QPState",
        "RecvWR",
        "RemoteMemory",
        "SendWR",
        "Sge",
        "WCOpcode",
    ),
    "pytest_rdma.outcomes": ("EndOutcome", "Probe"),
    "pytest_rdma.pairing": ("Pair",),
    "pytest_rdma.status": ("WCStatus",),
    "pytest_rdma.traffic": ("Latency", "PingPong", "Pipeline", "RecvDrain", "Spec", "TrafficResult"),
    "pytest_rdma.traffic_pair": ("PairResult", "run_pairs"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "CQ",
    "SRQ",
    "Access",
    "AsyncEvent",
    "Buffer",
    "CMConnection",
    "CMError",
    "CMListener",
    "CMPair",
    "CMRequest",
    "Completion",
    "CompletionError",
    "DataMismatchError",
    "DeadlineError",
    "Deviation",
    "EndOutcome",
    "Endpoint",
    "EndpointCaps",
    "Expectation",
    "Host",
    "HostLostError",
    "Latency",
    "MemoryWindow",
    "Opcode",
    "Pair",
    "PairResult",
    "PingPong",
    "Pipeline",
    "PostError",
    "Probe",
    "QPState",
    "RdmaError",
    "RecvDrain",
    "RecvWR",
    "RefusedError",
    "RemoteMemory",
    "SendWR",
    "Sge",
    "Spec",
    "TrafficResult",
    "VerbsError",
    "WCOpcode",
    "WCStatus",
    "run_pairs",
]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name in _HOME_OF:
        return getattr(importlib.import_module(_HOME_OF[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
