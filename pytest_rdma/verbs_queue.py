"""QPs of a LocalHost: what changes about them, how they move from state to state and are destroyed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from pytest_rdma.deadline import Deadline
from pytest_rdma.endpoint import Endpoint
from pytest_rdma.errors import VerbsError
from pytest_rdma.host import InUse, LocalHost, Resource, close_all, op
from pytest_rdma.ledger import Ledger
from pytest_rdma.model import (
    ConnectionAttributes,
    EndpointCaps,
    ExchangeRecord,
    GidRow,
    PortInfo,
    QPState,
    RemoteMemory,
)
from pytest_rdma.verbs_cq import CQEntry
from pytest_rdma.verbs_library import error_number, pyverbs
from pytest_rdma.verbs_memory import MREntry, PDEntry
from pytest_rdma.verbs_modify import explain_modify, modify
from pytest_rdma.verbs_transports import Address, init_attributes, rtr_attributes, rts_attributes

if TYPE_CHECKING:
    from pytest_rdma.verbs_srq import SRQEntry


class QPEntry(Resource):
    """A QP and all that changes about it: its state as last moved, what is outstanding, the peer."""

    close_rank: ClassVar[int] = 10
    front: Endpoint

    def __init__(self, host: LocalHost, pd: PDEntry, cq: CQEntry, port: PortInfo, gid: GidRow | None) -> None:
        self.host = host
        self.pd = pd
        self.cq = cq
        self.device = pd.device
        self.port = port
        self.gid = gid
        self.pkey_index = 0
        self.owned: list[Resource] = []
        self.windows: list[Resource] = []
        self.lock = threading.Lock()
        self.in_use = InUse(f"a QP on {self.where}")
        self.raw_qp: Any = None
        self.pointer = 0
        self.context_pointer = 0
        self.qp_num = 0
        self.state = QPState.RESET
        self.caps = EndpointCaps()
        self.ledger = Ledger()
        self.sends, self.recvs = self.ledger.sends, self.ledger.recvs
        self.next_wr_id = 1
        self.rd_atomic: int | None = None
        self.peer: ExchangeRecord | None = None
        self.connected: ConnectionAttributes | None = None
        self.remote: RemoteMemory | None = None
        self.address: Address | None = None
        self.srq: SRQEntry | None = None
        self.buffer: MREntry

    @property
    def where(self) -> str:
        """What messages call the place: `host2 rxe0/1`."""
        return f"{self.host.name} {self.device.name}/{self.port.number}"

    @property
    def label(self) -> str:
        return f"QP {self.qp_num:#x}"

    @property
    def raw(self) -> Raw:
        self.pd.lent = True
        return Raw(self)

    @property
    def about(self) -> dict[str, Any]:
        """What an error that is about this QP says of it beside its text."""
        return {"host": self.host.name, "device": self.device.name, "qp_num": self.qp_num}

    def live_state(self) -> QPState:
        """Ask the driver for the state."""
        with self.in_use:
            attributes, _ = self.raw_qp.query(1)
        self.state = QPState(attributes.qp_state)
        return self.state

    def forget_outstanding(self) -> None:
        """After RESET nothing is outstanding, and completions of before mean nothing."""
        self.cq.sweep()
        self.cq.forget(self.qp_num)
        with self.lock:
            self.ledger.clear()

    def forget_address(self) -> None:
        address, self.address = self.address, None
        if address is not None:
            address.close()

    def close(self) -> None:
        self.cq.qps.pop(self.qp_num, None)
        self.pd.users.pop(self.front.handle, None)
        if self.srq is not None:
            self.srq.users.pop(self.front.handle, None)
        self.in_use.end()
        self.device.note_closed(self)
        # rxe waits 50 s for the windows that a QP has bound
        windows = [partial(self.host.discard, window.front.handle) for window in self.windows]
        owned = [partial(self.host.discard, entry.front.handle) for entry in self.owned]
        close_all([*windows, self.raw_qp.close, self.forget_address, *self._made_in_own_pd(), *owned])

    def _made_in_own_pd(self) -> list[Callable[[], None]]:
        """Return what closes all else in the PD that goes with this QP: pyverbs would, and leave the handles."""
        if self.pd not in self.owned:
            return []
        table = self.host.table()
        users = sorted((table[number].close_rank, number) for number in self.pd.users if number in table)
        return [partial(self.host.discard, number) for _, number in users]


class Raw:
    """The pyverbs objects behind an endpoint."""

    def __init__(self, entry: QPEntry) -> None:
        self.context = entry.device.context
        self.pd = entry.pd.raw
        self.cq = entry.cq.raw
        self.qp = entry.raw_qp
        self.mr = entry.buffer.raw


def to_init(entry: QPEntry) -> None:
    move(entry, QPState.INIT, init_attributes(entry))


def move(entry: QPEntry, state: QPState | None, attributes: dict[str, Any], peer: ExchangeRecord | None = None) -> None:
    """Modify the QP; the error says all that could have been wrong with it."""
    try:
        with entry.in_use:
            modify(entry.raw_qp, state, attributes)
    except pyverbs().pyverbs_error.PyverbsRDMAError as error:
        number = error_number(error)
        entry.live_state()  # it may have gone to ERR by itself
        text = explain_modify(entry, state, attributes, peer, number)
        raise VerbsError(text, errno=number, **entry.about) from error
    if state is not None:
        entry.state = state
    if state == QPState.RESET:
        entry.forget_outstanding()


@op("qp.connect")
def op_qp_connect(
    host: LocalHost, deadline: Deadline, handle: int, peer: ExchangeRecord, attributes: ConnectionAttributes
) -> None:
    """Move to RTR towards the QP that `peer` describes, and on to RTS."""
    entry = host.entry("qp", handle)
    move(entry, QPState.RTR, rtr_attributes(entry, peer, attributes), peer)
    if entry.caps.transport == "UD":
        entry.address = Address(entry, peer, attributes)
    entry.remote = entry.front.remote = peer.memory
    entry.peer, entry.connected = peer, attributes
    move(entry, QPState.RTS, rts_attributes(entry, attributes))
    entry.rd_atomic = attributes.rd_atomic


@op("qp.modify")
def op_qp_modify(
    host: LocalHost, deadline: Deadline, handle: int, state: int | None, attributes: dict[str, Any]
) -> None:
    move(host.entry("qp", handle), None if state is None else QPState(state), attributes)


@op("qp.reset")
def op_qp_reset(host: LocalHost, deadline: Deadline, handle: int, psn: int | None = None) -> None:
    """Move to RESET and on to INIT; `psn` is where its packets begin from then on."""
    entry: QPEntry = host.entry("qp", handle)
    move(entry, QPState.RESET, {})
    entry.remote = entry.front.remote = entry.rd_atomic = entry.peer = entry.connected = None
    entry.forget_address()
    to_init(entry)
    if psn is not None:
        entry.front.record = replace(entry.front.record, psn=psn)


@op("qp.close")
def op_qp_close(host: LocalHost, deadline: Deadline, handle: int) -> None:
    host.discard(handle)
