"""Paths that do not carry: GID rows, MTU, loss, a filter, delay, a port that is down."""

from __future__ import annotations

import pytest
from green import Break, Quick, green_after

from pytest_rdma import DeadlineError, Host, Pair
from pytest_rdma.model import GidRow

NETDEV = "fabric"
QDISC = ["tc", "qdisc", "add", "dev", NETDEV, "root", "netem"]
NO_QDISC = ["tc", "qdisc", "del", "dev", NETDEV, "root"]
TABLE = "pytest_rdma_fault"
NO_RULE = ["nft", "delete", "table", "inet", TABLE]


def drop(broken: Break, host: Host, rule: str) -> None:
    """Drop at the host's input what the nftables rule matches."""
    table = f"table inet {TABLE} {{ chain in {{ type filter hook input priority 0; {rule} drop; }}; }}\n"
    broken(host, ["nft", "-f", "-"], NO_RULE, table.encode())


def send(pair: Pair, length: int = 64, timeout_s: float = 5.0) -> None:
    pair.peer.post_recv()
    pair.local.wait(pair.local.send(length=length), timeout_s=timeout_s)


def lose_address(broken: Break, host: Host, row: GidRow) -> None:
    """Take the row's address away; it is mended when the kernel has filled the row again, which it does later."""
    change = f"ip address {{}} {row.address}/24 dev {NETDEV}"
    file = f"/sys/class/infiniband/rxe0/ports/1/gids/{row.index}"
    back = f"{change.format('add')}; until grep -qv ^0000:0000:0000:0000:0000:0000:0000 {file}; do sleep 0.02; done"
    broken(host, change.format("del").split(), ["timeout", "10", "sh", "-c", back])


def other_family(pair: Pair) -> str:
    end = pair.rail.peer
    return next(row.gid for row in end.port.gids if row.address.version != end.gid.address.version)


@pytest.mark.fault("wrong-destination-gid|gid-unroutable", words="10.98.0.9", bound_s=10)
def test_gid_without_a_route(quick: Quick) -> None:
    quick(peer={"gid": "::ffff:10.98.0.9"})


@pytest.mark.fault("wrong-destination-gid|gid-unroutable", words="10.99.0.77", bound_s=20)
def test_gid_that_nobody_answers_for(quick: Quick) -> None:
    quick(peer={"gid": "::ffff:10.99.0.77"})


@pytest.mark.fault("wrong-destination-gid|gid-types-differ", bound_s=10)
def test_gid_of_another_family(quick: Quick, rdma_pair: Pair) -> None:
    quick(peer={"gid": other_family(rdma_pair)})


@pytest.mark.fault("gid-gone", bound_s=10)
def test_own_gid_row_gone(rdma_pairs: Quick, broken: Break, rdma_local: Host) -> None:
    pair = rdma_pairs(connect=False)
    lose_address(broken, rdma_local, pair.rail.local.gid)
    pair.connect()


@pytest.mark.fault("gid-gone", bound_s=10)
def test_peers_gid_row_gone_after_connecting(quick: Quick, broken: Break, rdma_peer: Host) -> None:
    pair = quick()
    lose_address(broken, rdma_peer, pair.rail.peer.gid)
    send(pair)


@pytest.mark.fault("mtu-beyond-path", bound_s=10)
def test_netdev_carries_less_than_the_path_mtu(quick: Quick, broken: Break, rdma_local: Host) -> None:
    pair = quick()
    broken(rdma_local, *(["ip", "link", "set", "dev", NETDEV, "mtu", mtu] for mtu in ("2048", "9000")))
    send(pair, length=4096)


@pytest.mark.fault("mtu-beyond-path", bound_s=10)
def test_a_hop_drops_large_packets(quick: Quick, broken: Break, rdma_peer: Host) -> None:
    """Small messages pass, large fail."""
    pair = quick()
    drop(broken, rdma_peer, "udp dport 4791 meta length > 2000")
    send(pair, length=64)
    send(pair, length=16384)


@pytest.mark.fault("packets-dropped", words="4791|none of them", bound_s=10)
def test_filter_at_the_peer(quick: Quick, broken: Break, rdma_peer: Host) -> None:
    pair = quick()
    drop(broken, rdma_peer, "udp dport 4791")
    send(pair)


@pytest.mark.fault("packets-dropped", words="4791|none of them", bound_s=10)
def test_filter_here_keeps_answers_out(quick: Quick, broken: Break, rdma_local: Host) -> None:
    pair = quick()
    drop(broken, rdma_local, "udp dport 4791")
    send(pair)


@pytest.mark.fault("packets-lost", bound_s=30)
def test_lossy_path(quick: Quick, broken: Break, rdma_local: Host) -> None:
    pair = quick({"retry_count": 1})
    broken(rdma_local, [*QDISC, "loss", "40%"], NO_QDISC)
    for _ in range(20):
        send(pair, length=65536)


@pytest.mark.fault("packets-dropped", bound_s=10)
def test_everything_is_lost(quick: Quick, broken: Break, rdma_local: Host) -> None:
    pair = quick()
    broken(rdma_local, [*QDISC, "loss", "100%"], NO_QDISC)
    send(pair)


@pytest.mark.fault("wrong-destination-qpn", words="0xfffff0", bound_s=5)  # and behind it, endless-retries
def test_retries_that_never_end(quick: Quick) -> None:
    send(quick({"retry_count": 7}, {"qp_num": 0xFFFFF0}), timeout_s=0.5)


@pytest.mark.fault("timeout-too-small", bound_s=10)
def test_delay_longer_than_the_retries(quick: Quick, broken: Break, rdma_local: Host) -> None:
    pair = quick({"ack_timeout": 10, "retry_count": 2})
    broken(rdma_local, [*QDISC, "delay", "400ms"], NO_QDISC)
    send(pair)


@pytest.mark.fault("port-down", words="DOWN", bound_s=15)
def test_port_of_the_peer_goes_down(quick: Quick, broken: Break, rdma_peer: Host) -> None:
    pair = quick()
    take_down(broken, rdma_peer)
    send(pair)


@pytest.mark.fault("port-down", words="DOWN", bound_s=15)
def test_own_port_goes_down(quick: Quick, broken: Break, rdma_local: Host) -> None:
    pair = quick()
    take_down(broken, rdma_local)
    send(pair)


def take_down(broken: Break, host: Host) -> None:
    """Take the netdev down; its static IPv6 addresses, hence the rows of the GID table, are kept."""
    host.run(["sysctl", "-qw", f"net.ipv6.conf.{NETDEV}.keep_addr_on_down=1"])
    broken(host, *(["ip", "link", "set", "dev", NETDEV, how] for how in ("down", "up")))


@pytest.mark.fault("port-down", words="DOWN", bound_s=15)
def test_port_goes_down_while_waiting(quick: Quick, broken: Break, rdma_peer: Host) -> None:
    """A receive is awaited, and the port goes away: no completion ever comes."""
    pair = quick()
    received = pair.peer.post_recv()
    take_down(broken, rdma_peer)
    with pytest.raises(DeadlineError):
        pair.peer.wait(received, timeout_s=0.2)
    pair.peer.wait(received, timeout_s=0.2)


test_green = green_after(__name__)
