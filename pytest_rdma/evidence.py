"""What is known of both ends when a test has failed: plain data that a host collects and a diagnosis reads."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Union

from pytest_rdma.model import (
    Access,
    AsyncEvent,
    Completion,
    ConnectionAttributes,
    DeviceInfo,
    EndpointCaps,
    ExchangeRecord,
    HostInfo,
    QPState,
    RecvWR,
    SendWR,
)
from pytest_rdma.wire import plain_data


@plain_data
@dataclass(frozen=True)
class Posted:
    """A request of the ledger: what was posted, how long ago, and the opcode's name (`RECV` for a receive).

    `wr_id` is what its completion carries; a native loop gives its requests others than `request` has.
    """

    opcode: str
    bytes: int
    ago_s: float
    signaled: bool
    request: Union[SendWR, RecvWR]
    wr_id: int = 0


@plain_data
@dataclass(frozen=True)
class QueueLedger:
    """One queue of a QP: how many were posted and completed since it was last reset, when, and what is outstanding.

    `outstanding` holds the oldest, at most `LEDGER_SHOWN`; `outstanding_count` is how many there are. Times are seconds
    ago, None for never. `most_bytes_completed` is the length of the longest request that completed with success.
    `silent` holds the wr_ids that last completed unsignaled, by the completion of a later request. `signaled_count` is
    how many of all that is outstanding are signaled, None where only those of `outstanding` are known.
    """

    posted: int
    completed: int
    last_post_ago_s: float | None
    last_completion_ago_s: float | None
    outstanding_count: int
    outstanding: tuple[Posted, ...] = ()
    most_bytes_completed: int = 0
    silent: tuple[int, ...] = ()
    signaled_count: int | None = None

    @property
    def none_signaled(self) -> bool:
        """Whether something is outstanding, and none of it is known to be signaled."""
        known = sum(one.signaled for one in self.outstanding) if self.signaled_count is None else self.signaled_count
        return self.outstanding_count > 0 and known == 0


LEDGER_SHOWN = 8


@plain_data
@dataclass(frozen=True)
class Failure:
    """A completion of a QP that was no success, and the request that it is of."""

    completion: Completion
    ago_s: float
    request: Posted | None


def closed_after(closed_ago_s: float | None, failure: Failure | None) -> bool:
    """Whether something is known to have been closed after a failure was seen, as a test that fails does in the end."""
    return failure is not None and closed_ago_s is not None and closed_ago_s < failure.ago_s


@plain_data
@dataclass(frozen=True)
class QPEvidence:
    """One QP: `state` and `attributes` as ibv_query_qp(3) tells them now, its ledger, and how it was connected.

    `peer` and `connected` are what it was connected with, None when it never was since the last reset; `own` is what it
    tells a peer. `failure` is the first completion that was neither a success nor a flush; `flushed` counts those with
    WR_FLUSH_ERR, and `first_flush` is the first of them, of a send where there is one: rxe flushes what fails by its
    own memory, and so all that is known of the cause is the request. `recent` holds the last completions, oldest first.
    `awaits` is what a call that is still running, or the last that ran out of time, waited for; `awaited_wr_ids` are
    the requests that it named.
    """

    handle: int
    qp_num: int
    device: str
    port: int
    state: QPState | None
    attributes: dict[str, Any]
    caps: EndpointCaps
    own: ExchangeRecord
    peer: ExchangeRecord | None
    connected: ConnectionAttributes | None
    pd: int
    sends: QueueLedger
    recvs: QueueLedger
    failure: Failure | None
    flushed: int
    recent: tuple[Completion, ...]
    awaits: str
    shared_recvs: bool = False
    closed: bool = False
    closed_ago_s: float | None = None
    error: str = ""
    first_flush: Failure | None = None
    awaited_wr_ids: tuple[int, ...] = ()

    @property
    def may_receive(self) -> bool:
        """Whether a message may complete a receive; how many a shared queue holds only its device knows."""
        return self.shared_recvs or self.recvs.outstanding_count > 0


@plain_data
@dataclass(frozen=True)
class Region:
    """A memory region of the host, also one that was closed during the test (`closed`), or a bound memory window."""

    addr: int
    length: int
    lkey: int
    rkey: int
    access: Access
    pd: int
    closed: bool
    window: bool = False
    closed_ago_s: float | None = None


@plain_data
@dataclass(frozen=True)
class HostEvidence:
    """One host: who it is, its device as it is now, all QPs and regions of the agent, what the kernel counted and said.

    `counters` are differences since the test began, by name, only those that changed; `unread` says what could not be
    read and why, by what it is (`counters`, `kernel log`, `QP 0x11`). `device` is None where it was not read; its
    `error` says that it is gone or does not open. `netdevs` holds `mtu`, `operstate` and `carrier` of the netdevs of
    the port's GID rows, `memory` VmLck, VmPin and VmRSS in bytes. `ping_s` is the round trip of an ICMP echo to the
    other end's address, and `ping_error` why there was none; neither is set where none was sent.
    """

    name: str
    info: HostInfo
    device: DeviceInfo | None
    port: int
    gid_index: int | None
    qps: tuple[QPEvidence, ...]
    regions: tuple[Region, ...]
    async_events: tuple[AsyncEvent, ...]
    counters: dict[str, int]
    kernel_log: tuple[str, ...]
    stderr: str = ""
    lost: str = ""
    unread: dict[str, str] = field(default_factory=dict)
    netdevs: dict[str, dict[str, str]] = field(default_factory=dict)
    memory: dict[str, int] = field(default_factory=dict)
    ping_s: float | None = None
    ping_error: str = ""


@plain_data
@dataclass(frozen=True)
class Evidence:
    """Both ends of a test that failed. `local_qp` and `peer_qp` are the QP numbers of the pair that the error is about,
    where known.

    `failed_side` is `local` or `peer`: the end whose call failed. `error` is what it said, `error_qp` the number of the
    QP that it names.
    """

    local: HostEvidence
    peer: HostEvidence
    local_qp: int | None
    peer_qp: int | None
    failed_side: str
    error_type: str
    error: str
    error_qp: int | None = None
