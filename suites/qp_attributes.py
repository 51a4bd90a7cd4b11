"""The attributes of each step from RESET to RTS, by the names of `Endpoint.modify`."""

from __future__ import annotations

from typing import Any

from pytest_rdma import Access, Endpoint
from pytest_rdma.model import ConnectionAttributes, ExchangeRecord


def init_attributes(port: int = 1, access: Access = Access.ALL) -> dict[str, Any]:
    return {"pkey_index": 0, "port_num": port, "qp_access_flags": int(access)}


def rtr_attributes(own: Endpoint, peer: ExchangeRecord, attributes: ConnectionAttributes) -> dict[str, Any]:
    """Towards the QP that `peer` describes, over the endpoint's own port and GID row."""
    return {
        "ah_port": own.port,
        "dlid": peer.lid,
        "dgid": peer.gid,
        "sgid_index": own.record.gid_index,
        "hop_limit": attributes.hop_limit,
        "path_mtu": attributes.mtu,
        "dest_qp_num": peer.qp_num,
        "rq_psn": peer.psn,
        "max_dest_rd_atomic": attributes.rd_atomic,
        "min_rnr_timer": attributes.min_rnr_timer,
    }


def rts_attributes(own: ExchangeRecord, attributes: ConnectionAttributes) -> dict[str, Any]:
    return {
        "timeout": attributes.ack_timeout,
        "retry_cnt": attributes.retry_count,
        "rnr_retry": attributes.rnr_retry,
        "sq_psn": own.psn,
        "max_rd_atomic": attributes.rd_atomic,
    }
