"""Connections by rdma_cm: InfiniBand specification, volume 1, chapter 12 (communication management); rdma_cm(7).

The addresses are those of the GID rows that the run has chosen, never the names by which the hosts are reached.
Covers C7 of the seeds, and what gordma's listener gets wrong: events are dispatched by id.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import closing, suppress

import pytest
from host_addresses import address_without_rdma

from pytest_rdma import (
    CMConnection,
    CMError,
    CMListener,
    CMPair,
    CMRequest,
    DeadlineError,
    Endpoint,
    Host,
    Pair,
    QPState,
    RdmaError,
    VerbsError,
    WCStatus,
)
from pytest_rdma.cm import REJECT_BYTES, REPLY_BYTES, REQUEST_BYTES, dial, fabric_address, listen, submit_dial
from pytest_rdma.errors import RdmaUsageError, StoppedError
from pytest_rdma.model import GidRow

NOBODY_LISTENS, REFUSED = 8, 28
SOON_S = 0.25


class Party:
    """A listener at the peer, and all that is made of it in a test; it is closed in the order of its making."""

    def __init__(self, pair: Pair) -> None:
        self.local, self.peer = pair.local, pair.peer
        self.listener: CMListener = listen(pair.peer.host, fabric_address(pair.peer))
        self.made: list[CMConnection | CMRequest | CMListener] = [self.listener]

    def connect(
        self, dialling: Endpoint, accepting: Endpoint, hello: bytes = b"", answer: bytes = b""
    ) -> tuple[CMConnection, CMConnection]:
        """Return the dialling and the accepting end of a new connection."""
        call = submit_dial(dialling, self.listener.address, self.listener.port, private_data=hello)
        try:
            request = self.listener.get_request()
        except DeadlineError:
            call.result()  # why no request came is known there
            raise
        passive = request.accept(accepting, answer)
        active: CMConnection = call.result()
        self.made += [active, passive]
        return active, passive

    def close(self) -> None:
        for one in reversed(self.made):
            one.close()


@pytest.fixture
def party(rdma_pairs: Callable[..., Pair]) -> Iterator[Party]:
    """Two unconnected endpoints, and a listener at the peer."""
    party = Party(rdma_pairs(connect=False))
    yield party
    party.close()


def carry(source: Endpoint, target: Endpoint, seed: int) -> None:
    """Send a pattern and compare it where it arrives."""
    received = target.post_recv(length=1000)
    source.buffer.fill(seed, 0, 1000)
    source.wait(source.send(length=1000))
    target.wait(received)
    target.buffer.verify(seed, 0, 1000)


def test_c7_pair_writes_and_reads_with_keys_from_private_data(rdma_cm_pair: CMPair) -> None:
    """Verify: both ends are in RTS and reach each other's buffer with what private data told them."""
    for source, target, seed in (
        (rdma_cm_pair.local, rdma_cm_pair.peer, 31),
        (rdma_cm_pair.peer, rdma_cm_pair.local, 32),
    ):
        assert source.state == QPState.RTS
        assert source.remote == target.buffer.remote
        source.buffer.fill(seed, 0, 5000)
        source.wait(source.write(length=5000, remote_offset=8192))
        target.buffer.verify(seed, 8192, 5000)
        source.wait(source.read(offset=16384, length=5000, remote_offset=8192))
        source.buffer.verify(seed, 16384, 5000)


def test_addresses_are_those_of_the_gid_rows(rdma_cm_pair: CMPair) -> None:
    """The name that a host is reached by names another network: not one of its addresses may be used."""
    active, passive, rail = rdma_cm_pair.active, rdma_cm_pair.passive, rdma_cm_pair.rail
    assert active is not None
    assert passive is not None
    if rail.local.gid is None or rail.peer.gid is None:
        pytest.skip("the port is addressed by LIDs: GID rows of InfiniBand are no IP addresses")
    assert active.address == passive.peer_address == str(rail.local.gid.address)
    assert passive.address == active.peer_address == str(rail.peer.gid.address)


def test_private_data_goes_both_ways(party: Party) -> None:
    """Verify: as many bytes as fit arrive as they were sent; what was not sent is zeros."""
    hello, answer = bytes(range(1, REQUEST_BYTES + 1)), bytes(range(1, REPLY_BYTES + 1))
    active, passive = party.connect(party.local, party.peer, hello, answer)
    assert (passive.private_data, active.private_data) == (hello, answer)
    carry(party.local, party.peer, 33)


def test_private_data_that_does_not_fit_is_refused_with_the_limit(party: Party) -> None:
    with pytest.raises(RdmaUsageError, match=f"carries {REQUEST_BYTES}"):
        dial(party.local, party.listener.address, party.listener.port, private_data=bytes(REQUEST_BYTES + 1))
    call = submit_dial(party.local, party.listener.address, party.listener.port)
    request = party.listener.get_request()
    with pytest.raises(RdmaUsageError, match=f"carries {REPLY_BYTES}"):
        request.accept(party.peer, bytes(REPLY_BYTES + 1))
    with pytest.raises(RdmaUsageError, match=f"carries {REJECT_BYTES}"):
        request.reject(bytes(REJECT_BYTES + 1))
    request.reject()
    with pytest.raises(CMError):
        call.result()


def test_rejection_carries_private_data_and_the_next_dial_is_accepted(party: Party) -> None:
    call = submit_dial(party.local, party.listener.address, party.listener.port)
    party.listener.get_request().reject(b"come back later")
    with pytest.raises(CMError, match="the program there refused") as error:
        call.result()
    assert (error.value.event, error.value.status) == ("REJECTED", REFUSED)
    assert error.value.private_data.rstrip(b"\0") == b"come back later"
    assert party.local.state == QPState.INIT
    party.connect(party.local, party.peer)
    carry(party.peer, party.local, 34)


def test_dialling_a_port_where_nobody_listens_says_so(party: Party) -> None:
    party.listener.close()
    with pytest.raises(CMError, match="nobody listens") as error:
        dial(party.local, party.listener.address, party.listener.port)
    assert (error.value.event, error.value.status) == ("REJECTED", NOBODY_LISTENS)


def test_request_without_an_answer_ends_at_the_deadline(party: Party) -> None:
    """Verify: the dial ends within its time and says what it waited for; the listener serves the next client."""
    with pytest.raises(DeadlineError, match="has not answered"):
        dial(party.local, party.listener.address, party.listener.port, timeout_s=SOON_S)
    request = party.listener.get_request()
    party.made.append(request)
    with suppress(RdmaError):  # the client has gone: whether that is known here yet is up to the packets
        party.made.append(request.accept(party.peer, timeout_s=SOON_S))


def test_listener_without_a_client_waits_no_longer_than_asked(party: Party) -> None:
    with pytest.raises(DeadlineError, match="CONNECT_REQUEST"):
        party.listener.get_request(timeout_s=SOON_S)


def test_dial_is_heard_when_it_is_cancelled(party: Party) -> None:
    call = submit_dial(party.local, party.listener.address, party.listener.port, timeout_s=30.0)
    party.made.append(party.listener.get_request())
    call.cancel()
    with pytest.raises(StoppedError):
        call.result()


def test_address_that_nothing_answers_for_is_an_error_in_time(party: Party) -> None:
    """192.0.2.0/24 and 2001:db8::/32 are for documentation: no host has such an address."""
    nowhere = "2001:db8::1" if ":" in party.listener.address else "192.0.2.1"
    with pytest.raises((CMError, VerbsError, DeadlineError)) as error:
        dial(party.local, nowhere, party.listener.port, timeout_s=SOON_S)
    assert nowhere in str(error.value)


def test_address_without_an_rdma_device_is_named_as_such(rdma_local: Host) -> None:
    with pytest.raises(VerbsError, match=r"no RDMA device for that IP|no address of this host") as error:
        listen(rdma_local, "192.0.2.1")
    assert "192.0.2.1" in str(error.value)


def test_address_of_a_network_without_rdma_is_named_as_such(rdma_local: Host) -> None:
    """A management address is the usual mistake: it is an address of this host, and no RDMA device has it."""
    other = rdma_local.call(address_without_rdma)
    if other is None:
        pytest.skip(f"every address of {rdma_local.name} is one of an RDMA device")
    with pytest.raises(VerbsError, match="no RDMA device for that IP"):
        listen(rdma_local, other)


def test_two_clients_at_once_are_told_apart(party: Party, rdma_pairs: Callable[..., Pair]) -> None:
    """Steps: both dial before either is accepted; accept in the order that private data says, not that of arrival.

    Verify: each reaches the end that was meant for it.
    """
    second = rdma_pairs(connect=False)
    clients = {b"one": (party.local, party.peer), b"two": (second.local, second.peer)}
    where = party.listener.address, party.listener.port
    calls = [submit_dial(client, *where, private_data=name) for name, (client, _) in clients.items()]
    waiting = [party.listener.get_request() for _ in calls]
    requests = {request.private_data.rstrip(b"\0"): request for request in waiting}
    for name in (b"two", b"one"):
        party.made.append(requests[name].accept(clients[name][1], name))
    for name, call in zip(clients, calls):
        connection = call.result()
        party.made.append(connection)
        assert connection.private_data.rstrip(b"\0") == name
    for seed, ends in enumerate(clients.values(), 40):
        carry(*ends, seed)


def test_client_that_leaves_does_not_disturb_the_next(party: Party, rdma_pairs: Callable[..., Pair]) -> None:
    """Steps: one client connects and disconnects while another dials. Verify: the listener meets no foreign event."""
    second = rdma_pairs(connect=False)
    active, passive = party.connect(party.local, party.peer)
    call = submit_dial(second.local, party.listener.address, party.listener.port)
    active.disconnect()
    party.made.append(party.listener.get_request().accept(second.peer))
    party.made.append(call.result())
    passive.wait_disconnected()
    carry(second.peer, second.local, 44)


@pytest.mark.parametrize("leaver", ["dialler", "listener"])
def test_disconnect_on_either_side_flushes_both(party: Party, leaver: str) -> None:
    """Verify: both ends learn of it, both QPs are in ERR, and the receives of both are flushed."""
    connections = party.connect(party.local, party.peer)
    posted = [(end, end.post_recv(length=64)) for end in (party.local, party.peer)]
    left, told = connections if leaver == "dialler" else reversed(connections)
    left.disconnect()
    told.wait_disconnected()
    left.wait_disconnected()
    for end, wr_id in posted:
        assert end.state == QPState.ERR
        (flushed,) = end.poll(1)
        assert (flushed.wr_id, flushed.status) == (wr_id, WCStatus.WR_FLUSH_ERR)


def test_pair_is_connected_again_after_its_time_wait(rdma_cm_pair: CMPair) -> None:
    """The same two QPs twice: sooner, rdma_cm would refuse their numbers as stale."""
    numbers = rdma_cm_pair.local.qp_num, rdma_cm_pair.peer.qp_num
    carry(rdma_cm_pair.local, rdma_cm_pair.peer, 45)
    rdma_cm_pair.reconnect()
    carry(rdma_cm_pair.peer, rdma_cm_pair.local, 46)
    assert numbers == (rdma_cm_pair.local.qp_num, rdma_cm_pair.peer.qp_num)


FAMILIES: dict[str, Callable[[GidRow], bool]] = {
    "IPv4": lambda row: row.address.version == 4,
    "IPv6": lambda row: row.address.version == 6 and not row.address.is_link_local,
    "link-local IPv6": lambda row: row.address.is_link_local,
}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_address_family_connects(rdma_cm_pair: CMPair, family: str) -> None:
    """Steps: take a row of the family on each port, connect endpoints of those rows. Verify: data arrives."""
    rail = rdma_cm_pair.rail
    ends: list[Endpoint] = []
    for host, end in ((rdma_cm_pair.local.host, rail.local), (rdma_cm_pair.peer.host, rail.peer)):
        rows = [row for row in end.port.gids if end.gid is not None and row.type == end.gid.type and row.netdev]
        fitting = [row for row in rows if FAMILIES[family](row)]
        if not fitting:
            pytest.skip(f"{end.place} on {host.name} has no GID row with an address of {family}")
        ends.append(host.endpoint(end.device.name, end.port.number, fitting[0].index))
    party = Party(Pair(ends[0], ends[1], rail, rdma_cm_pair.attributes))
    try:
        assert (":" in party.listener.address) == ("IPv6" in family)
        party.connect(ends[0], ends[1])
        carry(ends[0], ends[1], 47)
    except CMError as error:
        if rail.local.device.name == rail.peer.device.name or ends[0].host.info.hostname != ends[1].host.info.hostname:
            raise
        pytest.skip(f"between two devices of one host the way back depends on its policy routes: {error}")
    finally:
        party.close()
        for made in ends:
            made.close()


def test_end_of_the_peers_process_is_a_disconnect(party: Party, rdma_peer: Host) -> None:
    """Steps: connect to an endpoint in a process of its own and kill that. Verify: the local end is told."""
    end = party.peer
    with closing(rdma_peer.spawn()) as spawned:
        accepting = spawned.endpoint(end.device, end.port, end.record.gid_index)
        listener = listen(spawned, party.listener.address)
        call = submit_dial(party.local, listener.address, listener.port)
        listener.get_request().accept(accepting)
        active: CMConnection = call.result()
        party.made.append(active)
        spawned.kill(signal.SIGKILL)  # type: ignore[attr-defined]
        active.wait_disconnected(timeout_s=20)
    assert party.local.state == QPState.ERR


def test_closing_one_end_tells_the_other(rdma_cm_pair: CMPair) -> None:
    """The end of an id without a disconnect is one for the other end; the closed connection takes no more calls."""
    active, passive = rdma_cm_pair.active, rdma_cm_pair.passive
    assert active is not None
    assert passive is not None
    active.close()
    passive.wait_disconnected()
    with pytest.raises(RdmaUsageError, match="is closed"):
        active.disconnect()


def test_name_is_no_address(party: Party) -> None:
    """A name would lead to whatever network the resolver knows: addresses are those of GID rows."""
    with pytest.raises(RdmaUsageError, match=r"'host2\.invalid' is no IP address"):
        dial(party.local, "host2.invalid", party.listener.port)
