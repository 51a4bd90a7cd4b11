"""What differs between the transports RC, UC and UD: operations, attributes of each state, address handles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pytest_rdma import native
from pytest_rdma.errors import RdmaUsageError
from pytest_rdma.model import ConnectionAttributes, ExchangeRecord, Opcode, SendWR
from pytest_rdma.verbs_library import pyverbs, verbs_error
from pytest_rdma.verbs_modify import address_handle_attributes, address_vector

if TYPE_CHECKING:
    from pytest_rdma.verbs_queue import QPEntry

QP_TYPES = {"RC": 2, "UC": 3, "UD": 4}
SENDS = (Opcode.SEND, Opcode.SEND_WITH_IMM)
OPERATIONS: dict[str, tuple[Opcode, ...]] = {
    "RC": tuple(Opcode),
    "UC": (*SENDS, Opcode.RDMA_WRITE, Opcode.RDMA_WRITE_WITH_IMM, Opcode.BIND_MW, Opcode.LOCAL_INV),
    "UD": SENDS,
}
QKEY = 0x52444D41  # both ends of a UD pair use it; the highest bit would ask for a privileged process


def qp_type(transport: str) -> int:
    if transport not in QP_TYPES:
        raise RdmaUsageError(f"no transport {transport!r}; there are {', '.join(QP_TYPES)}")
    return QP_TYPES[transport]


def init_attributes(entry: QPEntry) -> dict[str, Any]:
    caps = entry.caps
    access = caps.access if caps.qp_access is None else caps.qp_access
    common = {"pkey_index": entry.pkey_index, "port_num": entry.port.number}
    return {**common, **({"qkey": QKEY} if caps.transport == "UD" else {"qp_access_flags": int(access)})}


def rtr_attributes(entry: QPEntry, peer: ExchangeRecord, attributes: ConnectionAttributes) -> dict[str, Any]:
    """Return what RTR takes; a UD QP has no peer."""
    if entry.caps.transport == "UD":
        return {}
    wanted = {
        **address_vector(entry, peer, attributes),
        "path_mtu": attributes.mtu,
        "dest_qp_num": peer.qp_num,
        "rq_psn": peer.psn,
    }
    if entry.caps.transport == "RC":
        wanted.update(max_dest_rd_atomic=attributes.rd_atomic, min_rnr_timer=attributes.min_rnr_timer)
    return wanted


def rts_attributes(entry: QPEntry, attributes: ConnectionAttributes) -> dict[str, Any]:
    wanted = {"sq_psn": entry.front.record.psn}
    if entry.caps.transport == "RC":
        wanted.update(
            timeout=attributes.ack_timeout,
            retry_cnt=attributes.retry_count,
            rnr_retry=attributes.rnr_retry,
            max_rd_atomic=attributes.rd_atomic,
        )
    return wanted


class Address:
    """The address handle of the QP that a UD endpoint sends to."""

    def __init__(self, entry: QPEntry, peer: ExchangeRecord, attributes: ConnectionAttributes) -> None:
        vector = address_vector(entry, peer, attributes)
        library = pyverbs()
        try:
            self._raw = library.addr.AH(entry.pd.raw, attr=address_handle_attributes(vector))
        except library.pyverbs_error.PyverbsError as error:
            raise verbs_error(f"cannot make an address handle for {peer.gid} on {entry.where}", error) from error
        view = native.load().qp_view(entry.pointer)
        assert view is not None  # the QP's pointer was found by what this view shows
        self._pointer = native.object_pointer(self._raw, {0: view.context, 8: view.pd})
        self._qp_num = peer.qp_num

    def prepare(self, requests: Sequence[SendWR]) -> native.SendList:
        """Return the requests as C takes them, each addressed."""
        prepared = native.SendList(requests)
        for to in prepared.wrs:
            to.ah, to.remote_qpn, to.remote_qkey = self._pointer, self._qp_num, QKEY
        return prepared

    def close(self) -> None:
        self._raw.close()
