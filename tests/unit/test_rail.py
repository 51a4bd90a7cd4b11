"""Which device, port, rows and attributes both ends take, on made-up devices."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pytest_rdma.errors import NoDeviceError, RdmaUsageError
from pytest_rdma.model import DeviceInfo, GidRow, PortInfo
from pytest_rdma.rail import Rail, choose_rail

V1, V2 = "IB/RoCE v1", "RoCE v2"
LIMITS = {"max_qp_rd_atom": 128, "max_qp_init_rd_atom": 128}


def row(index: int, address: str, kind: str = V2, **changes: Any) -> GidRow:
    ipv4 = "." in address
    return replace(GidRow(index, f"::ffff:{address}" if ipv4 else address, kind, "eth1", 24 if ipv4 else 64), **changes)


def port(*rows: GidRow, number: int = 1, state: str = "ACTIVE", mtu: int = 1024, **changes: Any) -> PortInfo:
    made = PortInfo(number, state, "Ethernet", mtu, 4096, 0, False, 1 << 30, (0xFFFF,), rows)
    return replace(made, **changes)


def device(name: str, *ports: PortInfo, **changes: Any) -> DeviceInfo:
    return replace(DeviceInfo(name, "rxe", "InfiniBand", "", "", 0, 0, -1, dict(LIMITS), ports), **changes)


def ib_port(lid: int, prefix: str = "fe80:", **changes: Any) -> PortInfo:
    gid = GidRow(0, f"{prefix}:{lid or 99:x}", "IB", None)
    return port(gid, link_layer="InfiniBand", lid=lid, mtu=4096, **changes)


HERE = device("rxe0", port(row(0, "fe80::1"), row(1, "10.0.0.1")))
THERE = device("rxe0", port(row(0, "fe80::2"), row(1, "10.0.0.2")))


def chosen_rows(rail: Rail) -> tuple[int | None, int | None]:
    local, peer = rail.local.gid, rail.peer.gid
    return local.index if local else None, peer.index if peer else None


def refusal(*args: Any, **kwargs: Any) -> str:
    with pytest.raises((RdmaUsageError, NoDeviceError)) as caught:
        choose_rail(*args, **kwargs)
    text = str(caught.value)
    assert "\n" not in text
    return text


# -- rows


def test_the_index_of_one_host_is_not_assumed_on_the_other() -> None:
    there = device("rxe0", port(row(0, "fe80::2"), row(3, "192.168.7.7"), row(5, "10.0.0.2")))
    assert chosen_rows(choose_rail([HERE], [there])) == (1, 5)


def test_a_pair_in_one_subnet_wins_over_one_that_is_routed() -> None:
    here = device("rxe0", port(row(1, "10.1.0.1", routes=("0.0.0.0/0",)), row(2, "10.2.0.1")))
    there = device("rxe0", port(row(1, "10.3.0.1", routes=("0.0.0.0/0",)), row(2, "10.2.0.2")))
    rail = choose_rail([here], [there])
    assert chosen_rows(rail) == (2, 2)
    assert any("in one subnet, 10.2.0.0/24" in reason for reason in rail.reasons)


def test_hosts_without_subnet_or_route_in_common_are_refused_with_all_rows() -> None:
    text = refusal([device("rxe0", port(row(1, "10.1.0.1")))], [device("rxe0", port(row(1, "10.2.0.1")))])
    assert "10.1.0.1" in text and "10.2.0.1" in text and "no subnet" in text


def test_v1_against_v2_is_refused_before_any_qp_moves() -> None:
    text = refusal([HERE], [device("rxe0", port(row(1, "10.0.0.2", V1)))])
    assert V1 in text and V2 in text


def test_explicit_rows_win() -> None:
    rail = choose_rail([HERE], [THERE], local_gid_index=0, peer_gid_index=0)
    assert chosen_rows(rail) == (0, 0)


def test_one_explicit_row_decides_the_family_of_the_other() -> None:
    assert chosen_rows(choose_rail([HERE], [THERE], local_gid_index=0)) == (0, 0)


def test_explicit_rows_in_different_subnets_are_taken_as_asked() -> None:
    there = device("rxe0", port(row(1, "10.9.0.2")))
    assert chosen_rows(choose_rail([HERE], [there], local_gid_index=1, peer_gid_index=1)) == (1, 1)


def test_explicit_rows_that_cannot_speak_are_refused_and_both_named() -> None:
    text = refusal([HERE], [THERE], local_gid_index=0, peer_gid_index=1)
    assert "fe80::1" in text and "10.0.0.2" in text and "link-local" in text


def test_an_empty_row_is_refused_with_the_valid_ones() -> None:
    text = refusal([HERE], [THERE], peer_gid_index=900, names=("a", "b"))
    assert text.startswith("--peer-gid-index 900: that GID row of rxe0/1 on b is empty or out of the table")
    assert "1 10.0.0.2 (RoCE v2, netdev eth1)" in text


def test_an_explicit_row_without_a_netdev_is_refused() -> None:
    here = device("rxe0", port(row(0, "10.0.0.9", netdev=None), row(1, "10.0.0.1")))
    assert "has no netdev in this namespace" in refusal([here], [THERE], local_gid_index=0)


def test_a_netdev_without_an_address_is_named() -> None:
    here = device("rxe0", port(row(0, "fe80::1", prefix_length=None)))
    assert "netdev eth1 of rxe0/1 on host1 has no address" in refusal([here], [THERE])


def test_a_device_whose_netdev_is_elsewhere_is_told_so() -> None:
    here = device("rxe0", port(row(0, "10.0.0.1", netdev=None)))
    assert "its netdev is elsewhere" in refusal([here], [THERE])


# -- devices and ports


def test_the_device_is_the_first_that_opens_and_has_an_active_port() -> None:
    broken = device("mlx5_0", error="cannot open mlx5_0")
    down = device("mlx5_1", port(row(1, "10.0.0.8"), state="DOWN"))
    assert choose_rail([broken, down, HERE], [THERE]).local.device.name == "rxe0"


def test_an_unknown_device_is_refused_with_those_there_are() -> None:
    assert "host1 has no device 'mlx5_9'; it has rxe0" in refusal([HERE], [THERE], local_device="mlx5_9")


def test_a_device_that_does_not_open_says_why() -> None:
    assert refusal([device("x0", error="cannot open x0: why")], [THERE], local_device="x0") == "cannot open x0: why"


def test_a_port_can_be_asked_for() -> None:
    here = device("rxe0", port(row(1, "10.0.0.1")), port(row(1, "10.0.0.3"), number=2))
    assert choose_rail([here], [THERE], local_device="rxe0/2").local.port.number == 2


@pytest.mark.parametrize("text", ["rxe0/", "/1", "rxe0/x", "rxe0/-1", ""])
def test_an_odd_device_is_refused(text: str) -> None:
    assert "NAME/PORT" in refusal([HERE], [THERE], local_device=text)


def test_a_port_out_of_range_is_refused() -> None:
    assert "rxe0 on host2 has no port 7: it has port 1" in refusal([HERE], [THERE], peer_device="rxe0/7")


def test_a_port_that_is_not_active_is_refused_with_its_state_and_what_to_check() -> None:
    down = device("rxe0", port(row(1, "10.0.0.1"), state="DOWN"))
    assert "is DOWN, not ACTIVE: see that its netdev eth1 is up" in refusal([down], [THERE], local_device="rxe0")


def test_the_peer_device_is_the_one_of_the_same_name() -> None:
    other = device("abc0", port(row(1, "10.0.0.9")))
    assert choose_rail([HERE], [other, THERE]).peer.device.name == "rxe0"


def test_the_peer_device_is_else_the_only_one_that_shares_a_gid_type() -> None:
    v1_only = device("v1", port(row(1, "10.0.0.9", V1)))
    assert choose_rail([HERE], [v1_only, replace(THERE, name="roce3")]).peer.device.name == "roce3"


def test_a_peer_device_that_cannot_be_told_is_asked_for() -> None:
    text = refusal([HERE], [replace(THERE, name="a0"), replace(THERE, name="b0")])
    assert "a0 (port 1 ACTIVE RoCE v2); b0 (port 1 ACTIVE RoCE v2)" in text and "--peer-device" in text


def test_one_host_is_looped_back_on_one_device_by_the_same_row() -> None:
    rail = choose_rail([HERE], [HERE], same_host=True)
    assert rail.peer == rail.local and chosen_rows(rail) == (1, 1)


def test_two_devices_of_one_host_need_no_route() -> None:
    second = device("rxe1", port(row(1, "10.7.0.1", netdev="eth2")))
    rail = choose_rail([HERE, second], [HERE, second], peer_device="rxe1", same_host=True)
    assert (rail.local.device.name, rail.peer.device.name) == ("rxe0", "rxe1")


def test_link_layers_must_be_the_same() -> None:
    text = refusal([HERE], [device("rxe0", ib_port(5))])
    assert "Ethernet" in text and "InfiniBand" in text


def test_iwarp_is_told_to_connect_by_rdma_cm() -> None:
    iwarp = device("siw0", port(row(0, "10.0.0.1")), transport="iWARP")
    assert "rdma_cm only" in refusal([iwarp], [THERE], local_device="siw0")
    assert "siw0 is iWARP" in refusal([iwarp], [THERE])


# -- MTU and reads


def test_the_path_mtu_is_the_smaller_of_both_active_ones() -> None:
    assert choose_rail([HERE], [device("rxe0", port(row(1, "10.0.0.2"), mtu=4096))]).mtu == 1024


def test_an_mtu_over_an_active_one_is_refused_with_both_numbers() -> None:
    text = refusal([HERE], [device("rxe0", port(row(1, "10.0.0.2"), mtu=4096))], mtu=4096)
    assert "1024 at rxe0/1 on host1" in text and "4096 at rxe0/1 on host2" in text


def test_an_mtu_that_does_not_exist_is_refused() -> None:
    assert "256, 512, 1024, 2048 or 4096" in refusal([HERE], [THERE], mtu=1500)


def test_reads_are_limited_by_initiator_and_responder_of_both() -> None:
    there = device("rxe0", port(row(1, "10.0.0.2")), limits={"max_qp_rd_atom": 16, "max_qp_init_rd_atom": 4})
    assert choose_rail([HERE], [there]).rd_atomic == 4


# -- InfiniBand


def test_infiniband_within_one_subnet_needs_no_grh() -> None:
    rail = choose_rail([device("mlx5_0", ib_port(5))], [device("mlx5_0", ib_port(6))])
    assert chosen_rows(rail) == (None, None) and rail.local.label == "mlx5_0/1 InfiniBand lid 5"


@pytest.mark.parametrize(
    ("there", "options"),
    [
        (ib_port(6, grh_required=True), {}),
        (ib_port(6, prefix="fe80:0:0:1:"), {}),
        (ib_port(0), {}),
        (ib_port(6), {"local_gid_index": 0}),
    ],
    ids=["the port asks", "another subnet", "no lid", "the user asks"],
)
def test_infiniband_takes_a_grh_where_due(there: PortInfo, options: dict[str, Any]) -> None:
    rail = choose_rail([device("mlx5_0", ib_port(5))], [device("mlx5_0", there)], **options)
    assert chosen_rows(rail) == (0, 0)


def test_the_label_is_what_the_header_shows() -> None:
    assert choose_rail([HERE], [THERE]).local.label == "rxe0/1 RoCEv2 gid 1 10.0.0.1"
