"""Which GID rows are taken: the tables are made up, the rules are those that users were bitten by."""

from __future__ import annotations

import pytest

from pytest_rdma import gids
from pytest_rdma.model import GidRow

V1, V2 = "IB/RoCE v1", "RoCE v2"


def row(index: int, address: str, kind: str = V2, netdev: str | None = "eth1", prefix: int | None = 64) -> GidRow:
    gid = f"::ffff:{address}" if "." in address else address
    length = 24 if prefix == 64 and "." in address else prefix
    return GidRow(index, gid, kind, netdev, length)


def order(*rows: GidRow) -> list[int]:
    return [one.index for one in gids.usable(rows)]


def test_v2_with_ipv4_comes_first_then_global_then_link_local_then_v1() -> None:
    table = (
        row(0, "fe80::1", V1),
        row(1, "fe80::1"),
        row(2, "2001:db8::1", V1),
        row(3, "2001:db8::1"),
        row(4, "10.0.0.1", V1),
        row(5, "10.0.0.1"),
    )
    assert order(*table) == [5, 3, 1, 4, 2, 0]


def test_a_global_row_is_taken_where_only_link_local_ones_come_before_it() -> None:
    assert order(row(0, "fe80::1", V1), row(1, "fe80::1"), row(2, "2001:db8::1", V1), row(3, "2001:db8::1"))[0] == 3


def test_a_unique_local_address_is_as_good_as_a_global_one() -> None:
    assert order(row(0, "fe80::1"), row(1, "fd93::1"))[0] == 1


@pytest.mark.parametrize("address", ["10.1.2.3", "192.168.0.1", "172.16.0.1"])
def test_a_private_ipv4_address_counts_as_routable(address: str) -> None:
    assert gids.family(row(0, address)) == "IPv4"


def test_index_0_is_a_value() -> None:
    assert order(row(0, "10.0.0.1"), row(1, "fe80::1"))[0] == 0


def test_a_row_without_a_netdev_here_is_left_out() -> None:
    assert order(row(0, "10.0.0.1", netdev=None), row(1, "10.0.0.2")) == [1]


def test_a_row_whose_address_is_not_on_the_netdev_is_left_out() -> None:
    assert order(row(0, "10.0.0.1", prefix=None), row(1, "fe80::1")) == [1]


def test_rows_of_different_types_cannot_speak() -> None:
    assert "types differ" in gids.mismatch(row(0, "10.0.0.1", V1), row(0, "10.0.0.2", V2))


def test_rows_of_different_families_cannot_speak() -> None:
    assert "IPv4" in gids.mismatch(row(0, "10.0.0.1"), row(0, "fd00::1"))
    assert "link-local" in gids.mismatch(row(0, "fe80::1"), row(0, "fd00::1"))


def test_a_subnet_is_judged_by_both_prefix_lengths() -> None:
    assert gids.same_subnet(row(0, "10.0.0.1"), row(0, "10.0.0.2"))
    assert not gids.same_subnet(row(0, "10.0.0.1"), row(0, "10.0.1.2"))
    assert not gids.same_subnet(row(0, "10.0.0.1", prefix=16), row(0, "10.0.1.2", prefix=24))


def test_a_route_through_the_netdev_of_the_row_counts() -> None:
    here = GidRow(1, "::ffff:10.0.0.1", V2, "eth1", 24, ("0.0.0.0/0",))
    there = GidRow(1, "::ffff:10.0.1.1", V2, "eth1", 24, ("10.0.0.0/16",))
    assert gids.reach(here, there, same_host=False) == (2, "routed through eth1 and eth1")
    assert gids.reach(here, row(1, "10.0.1.1"), same_host=False)[0] == gids.UNREACHABLE
