"""What a QP is told about its peer, and what is said when the driver does not take it."""

from __future__ import annotations

import errno
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_rdma.errors import RdmaUsageError
from pytest_rdma.host import LocalHost
from pytest_rdma.model import (
    ConnectionAttributes,
    DeviceInfo,
    EndpointCaps,
    ExchangeRecord,
    GidRow,
    PortInfo,
    QPState,
    RemoteMemory,
)
from pytest_rdma.verbs_create import cq_depth
from pytest_rdma.verbs_modify import address_vector, explain_modify, modify
from pytest_rdma.verbs_queue import QPEntry

LIMITS = {"max_qp_rd_atom": 16, "max_qp_init_rd_atom": 4, "max_cqe": 32767, "max_qp_wr": 20000}
ROW = GidRow(3, "::ffff:10.0.0.1", "RoCE v2", "eth1", 24)
ATTRIBUTES = ConnectionAttributes(2048, sl=3, traffic_class=106)
PEER = ExchangeRecord(0x12, 7, 6, "::ffff:10.0.0.2", 1, "RoCE v2", "Ethernet", 4096, 16, 16, RemoteMemory(1, 2, 3))


def endpoint(gid: GidRow | None = ROW, link_layer: str = "Ethernet") -> QPEntry:
    port = PortInfo(1, "ACTIVE", link_layer, 2048, 4096, 5, False, 1 << 30, (0xFFFF,), (ROW,))
    info = DeviceInfo("mlx5_1", "mlx5_core", "InfiniBand", "", "", 0, 0, -1, LIMITS, (port,))
    pd: Any = SimpleNamespace(device=SimpleNamespace(name="mlx5_1", info=info))
    made = QPEntry(LocalHost("host2"), pd, SimpleNamespace(qps={}), port, gid)  # type: ignore[arg-type]
    made.qp_num, made.state = 0x1A2B, QPState.INIT
    return made


def explanation(number: int, peer: ExchangeRecord | None = PEER, **attributes: Any) -> str:
    entry = endpoint()
    attributes = {**address_vector(entry, PEER, ATTRIBUTES), **attributes}
    return explain_modify(entry, QPState.RTR, attributes, peer, number)


def test_the_source_row_is_the_one_whose_gid_the_peer_was_told() -> None:
    assert address_vector(endpoint(), PEER, ATTRIBUTES) == {
        "ah_port": 1,
        "sl": 3,
        "dgid": "::ffff:10.0.0.2",
        "sgid_index": 3,
        "hop_limit": 64,
        "traffic_class": 106,
    }


def test_infiniband_is_addressed_by_lid_and_by_gid_only_where_a_row_was_taken() -> None:
    assert address_vector(endpoint(None, "InfiniBand"), PEER, ATTRIBUTES) == {"ah_port": 1, "sl": 3, "dlid": 6}
    with_grh = address_vector(endpoint(ROW, "InfiniBand"), PEER, ATTRIBUTES)
    assert (with_grh["dlid"], with_grh["dgid"], with_grh["sgid_index"]) == (6, "::ffff:10.0.0.2", 3)


def test_a_refused_move_names_all_that_could_be_wrong() -> None:
    text = explanation(errno.EINVAL, path_mtu=2048, dest_qp_num=0x12)
    assert text.startswith("cannot move QP 0x1a2b from INIT to RTR on host2 mlx5_1/1: EINVAL (22): Invalid argument; ")
    for words in (
        "own gid 3 10.0.0.1 (RoCE v2, netdev eth1)",
        "pkey 0xffff",
        "peer QP 0x12 gid 10.0.0.2",
        "path_mtu 2048",
        "dest_qp_num 0x12",
    ):
        assert words in text


@pytest.mark.parametrize(
    ("number", "attributes", "hint"),
    [
        (errno.ENODEV, {}, "GID row 3 has no netdev here"),
        (errno.ENODATA, {"sgid_index": 9}, "GID row 9 is empty"),
        (errno.ETIMEDOUT, {}, "the peer's address was not resolved"),
        (errno.EINVAL, {"path_mtu": 4096}, "path_mtu is over the active MTU 2048"),
        (errno.EINVAL, {"max_dest_rd_atomic": 17}, "max_dest_rd_atomic is over max_qp_rd_atom 16"),
        (errno.EINVAL, {"max_rd_atomic": 5}, "max_rd_atomic is over max_qp_init_rd_atom 4"),
        (errno.EINVAL, {"port_num": 2}, "mlx5_1 has ports 1 to 1"),
        (errno.EINVAL, {"pkey_index": 1}, "the port has 1 pkeys"),
    ],
)
def test_the_errno_and_the_attributes_give_the_hint(number: int, attributes: dict[str, Any], hint: str) -> None:
    assert hint in explanation(number, **attributes)


def test_a_link_local_peer_is_named_as_not_routable() -> None:
    text = explanation(errno.ETIMEDOUT, replace(PEER, gid="fe80::1"))
    assert "the peer's GID is link-local and not routable: pass --rdma-gid-index" in text


def test_an_attribute_that_does_not_exist_is_refused_before_the_driver_is_asked() -> None:
    with pytest.raises(RdmaUsageError, match="no QP attribute path_mtuu; there are"):
        modify(None, QPState.RTR, {"path_mtuu": 1})


@pytest.mark.parametrize(
    ("send", "recv", "depth"),
    [(128, 128, 512), (100, 50, 128 + 64), (255, 255, 512), (0, 1, 1 + 2), (16384, 8000, 32767), (20000, 20000, 40000)],
)
def test_a_cq_holds_what_the_driver_may_round_both_queues_up_to(send: int, recv: int, depth: int) -> None:
    assert cq_depth(EndpointCaps(send_depth=send, recv_depth=recv), LIMITS) == depth


def test_a_queue_over_the_qp_limit_is_left_for_the_qp_to_refuse() -> None:
    assert cq_depth(EndpointCaps(send_depth=1 << 20), LIMITS) == LIMITS["max_cqe"]
