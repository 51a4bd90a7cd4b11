"""How a pair is made and connected: what each end is told, in how many round trips, and what a failure leaves."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_rdma.endpoint import CQ, PD, Buffer, Endpoint
from pytest_rdma.errors import HostLostError, RdmaUsageError, VerbsError
from pytest_rdma.host import Call, Host
from pytest_rdma.model import (
    Access,
    ConnectionAttributes,
    DeviceInfo,
    EndpointCaps,
    ExchangeRecord,
    GidRow,
    PortInfo,
    RemoteMemory,
)
from pytest_rdma.pairing import Pair
from pytest_rdma.rail import Rail, RailEnd


class Recorder(Host):
    """A host that writes down each request and answers as a device would."""

    def __init__(self, name: str, fail_at: str | None = None) -> None:
        self.name = name
        self.fail_at = fail_at
        self.requests: list[tuple[str, tuple[Any, ...]]] = []

    def invoke(self, name: str, *args: Any, timeout_s: float = 10.0) -> Any:
        self.requests.append((name, args))
        if name == self.fail_at:
            raise VerbsError(f"{name} failed on {self.name}", errno=22)
        return self.made() if name == "qp.create" else None

    def submit(self, name: str, *args: Any, timeout_s: float = 10.0) -> Call:
        return Answer(self, name, args)

    def made(self) -> Endpoint:
        memory = RemoteMemory(0x7F0000000000, 17, 4096)
        record = ExchangeRecord(3, 77, 0, "::ffff:10.0.0.1", 1, "RoCE v2", "Ethernet", 1024, 16, 16, memory)
        facts = {"addr": memory.addr, "length": 4096, "lkey": 5, "rkey": 17, "access": Access.ALL}
        parts = {"buffer": Buffer(self, 2, facts), "pd": PD(self, 1, {}), "cq": CQ(self, 3, {})}
        return Endpoint(
            self, 4, {"qp_num": 3, "device": "rxe0", "port": 1, "caps": EndpointCaps(), "record": record, **parts}
        )

    def open(self) -> None: ...
    def restart(self, cause: str) -> None:
        raise NotImplementedError

    def ensure(self) -> None: ...
    def close(self) -> None: ...
    def spawn(self) -> Host:
        return self

    @property
    def ops(self) -> list[str]:
        return [name for name, _ in self.requests]


class Answer(Call):
    def __init__(self, host: Recorder, name: str, args: tuple[Any, ...]) -> None:
        self.host, self.name, self.args = host, name, args

    def result(self) -> Any:
        return self.host.invoke(self.name, *self.args)

    def cancel(self) -> None: ...


def rail() -> Rail:
    gid = GidRow(1, "::ffff:10.0.0.1", "RoCE v2", "eth1", 24)
    port = PortInfo(1, "ACTIVE", "Ethernet", 1024, 4096, 0, False, 1 << 30, (0xFFFF,), (gid,))
    end = RailEnd(DeviceInfo("rxe0", "rxe", "InfiniBand", "", "", 0, 0, -1, {}, (port,)), port, gid)
    return Rail(end, end, 1024, 16, ())


@pytest.fixture
def hosts() -> tuple[Recorder, Recorder]:
    return Recorder("host1"), Recorder("host2")


def test_a_pair_costs_three_requests_a_host(hosts: tuple[Recorder, Recorder]) -> None:
    pair = Pair.create(*hosts, rail())
    pair.connect()
    pair.close()
    pair.close()
    for host in hosts:
        assert host.ops == ["qp.create", "qp.connect", "qp.close"]


def test_the_row_of_the_rail_is_the_one_that_the_qp_takes(hosts: tuple[Recorder, Recorder]) -> None:
    Pair.create(*hosts, rail())
    assert hosts[0].requests[0][1][:3] == ("rxe0", 1, 1)


def test_traffic_class_and_service_level_reach_both_ends(hosts: tuple[Recorder, Recorder]) -> None:
    Pair.create(*hosts, rail(), traffic_class=106, sl=3).connect()
    for host in hosts:
        attributes: ConnectionAttributes = host.requests[1][1][2]
        assert (attributes.traffic_class, attributes.sl, attributes.mtu, attributes.rd_atomic) == (106, 3, 1024, 16)


def test_each_end_knows_the_memory_of_the_other(hosts: tuple[Recorder, Recorder]) -> None:
    pair = Pair.create(*hosts, rail())
    assert pair.local.remote is None
    pair.connect()
    assert pair.local.remote == pair.peer.buffer.remote


def test_a_forged_record_is_seen_by_the_other_end_only(hosts: tuple[Recorder, Recorder]) -> None:
    pair = Pair.create(*hosts, rail())
    pair.connect({"local": {"qp_num": 0x123, "psn": 1, "retry_count": 1}})
    assert hosts[1].requests[1][1][1].qp_num == 0x123
    assert hosts[0].requests[1][1][1].qp_num == 3
    assert hosts[0].requests[1][1][2].retry_count == 1
    assert hosts[1].requests[1][1][2].retry_count == 6


def test_a_pair_that_is_connected_anew_begins_at_other_packet_numbers(hosts: tuple[Recorder, Recorder]) -> None:
    pair = Pair.create(*hosts, rail())
    pair.connect()
    pair.reconnect()
    assert [host.ops[-2:] for host in hosts] == [["qp.reset", "qp.connect"]] * 2
    own = [host.requests[-2][1][1] for host in hosts]
    told = [host.requests[-1][1][1].psn for host in hosts]
    assert told == own[::-1]
    assert len({77, *own}) > 1


@pytest.mark.parametrize("overrides", [{"locale": {}}, {"local": {"qpn": 3}}])
def test_what_cannot_be_forged_is_refused(hosts: tuple[Recorder, Recorder], overrides: dict[str, Any]) -> None:
    pair = Pair.create(*hosts, rail())
    with pytest.raises(RdmaUsageError, match="override"):
        pair.connect(overrides)
    assert hosts[0].ops == ["qp.create"]


def test_an_unknown_attribute_is_refused_with_those_there_are(hosts: tuple[Recorder, Recorder]) -> None:
    with pytest.raises(RdmaUsageError, match=r"no connection attribute retries; there are .*retry_count"):
        Pair.create(*hosts, rail(), retries=3)


@pytest.mark.parametrize(("mtu", "words"), [(4096, "1024 at rxe0/1 on host1, 1024 at rxe0/1 on host2"), (1500, "256")])
def test_a_path_mtu_that_a_port_does_not_carry_is_refused(
    hosts: tuple[Recorder, Recorder], mtu: int, words: str
) -> None:
    with pytest.raises(RdmaUsageError, match=words):
        Pair.create(*hosts, rail(), mtu=mtu)
    assert hosts[0].ops == ["qp.create", "qp.close"]


@pytest.mark.parametrize("failing", [0, 1])
def test_when_one_end_cannot_be_made_the_other_is_closed(failing: int) -> None:
    hosts = [Recorder("host1"), Recorder("host2")]
    hosts[failing].fail_at = "qp.create"
    with pytest.raises(VerbsError, match=rf"failed on host{failing + 1}$"):
        Pair.create(hosts[0], hosts[1], rail())
    assert hosts[1 - failing].ops == ["qp.create", "qp.close"]


def test_when_both_ends_fail_the_error_says_both() -> None:
    hosts = [Recorder("host1", "qp.create"), Recorder("host2", "qp.create")]
    with pytest.raises(VerbsError, match=r"host1.*and then.*host2") as caught:
        Pair.create(hosts[0], hosts[1], rail())
    assert caught.value.errno == 22


def test_an_error_while_one_end_closes_does_not_keep_the_other_open(hosts: tuple[Recorder, Recorder]) -> None:
    pair = Pair.create(*hosts, rail())
    hosts[0].fail_at = "qp.close"
    with pytest.raises(VerbsError):
        pair.close()
    assert hosts[1].ops[-1] == "qp.close"


@pytest.mark.parametrize("lost", [0, 1])
def test_a_host_that_takes_no_request_keeps_no_end_of_the_other_open(lost: int) -> None:
    class Lost(Recorder):
        def submit(self, name: str, *args: Any, timeout_s: float = 10.0) -> Call:
            if name == self.fail_at:
                raise HostLostError(f"{self.name} was lost")
            return super().submit(name, *args)

    hosts = [Lost("host1"), Lost("host2")]
    pair = Pair.create(hosts[0], hosts[1], rail())
    hosts[lost].fail_at = "qp.close"
    with pytest.raises(HostLostError):
        pair.close()
    assert hosts[1 - lost].ops[-1] == "qp.close"
    hosts[lost].fail_at = "qp.create"
    with pytest.raises(HostLostError):
        Pair.create(hosts[0], hosts[1], rail())
    assert hosts[1 - lost].ops[-2:] == ["qp.create", "qp.close"]


def test_the_first_failure_is_told_also_when_taking_back_fails() -> None:
    class Stubborn(Recorder):
        def invoke(self, name: str, *args: Any, timeout_s: float = 10.0) -> Any:
            if name == "qp.close":
                raise VerbsError("cannot close either", errno=16)
            return super().invoke(name, *args)

    with pytest.raises(VerbsError, match=r"qp\.create failed on host2$"):
        Pair.create(Stubborn("host1"), Recorder("host2", "qp.create"), rail())


def test_an_end_whose_agent_was_restarted_is_not_closed_again(hosts: tuple[Recorder, Recorder]) -> None:
    pair = Pair.create(*hosts, rail())
    hosts[0].generation = 1
    pair.close()
    assert hosts[0].ops == ["qp.create"] and hosts[1].ops[-1] == "qp.close"


def test_a_stale_endpoint_says_what_restarted_its_host(hosts: tuple[Recorder, Recorder]) -> None:
    from pytest_rdma.errors import StaleHandleError

    pair = Pair.create(*hosts, rail())
    hosts[1].generation, hosts[1].restart_cause = 1, "the agent died during test_x"
    with pytest.raises(StaleHandleError, match=r"QP 0x3 on host2 is gone: the agent died during test_x"):
        pair.peer.send()
