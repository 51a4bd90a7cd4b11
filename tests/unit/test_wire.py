"""Frames carry every kind of plain data unchanged, and refuse the rest by name."""

from __future__ import annotations

import json
import types
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_rdma import wire
from pytest_rdma.errors import HostLostError, RdmaUsageError, StaleHandleError
from pytest_rdma.host import Handle
from pytest_rdma.model import (
    Access,
    Completion,
    EndpointCaps,
    ExchangeRecord,
    Opcode,
    QPState,
    RecvWR,
    RemoteMemory,
    SendWR,
    Sge,
)


class Remote:
    """As much of a RemoteHost as the codec sees."""

    name = "host2"
    generation = 0
    restart_cause = None


class Local(Remote):
    """As much of a LocalHost as the codec sees: it resolves handles to its live objects."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, int], Handle] = {}

    def resolve(self, kind: str, handle: int) -> Handle:
        return self.objects[kind, handle]


class Thing(Handle):
    kind = "thing of test_wire"


@pytest.fixture(autouse=True)
def forget_thing():
    Handle.KINDS[Thing.kind] = Thing
    yield
    del Handle.KINDS[Thing.kind]


def through(value: Any, host: Any = None) -> Any:
    host = host or Remote()
    return wire.decode(wire.encode(value, host), host)


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(plain)
def test_plain_data_arrives_as_it_was(value: Any) -> None:
    assert through(value) == value


@pytest.mark.parametrize(
    "value",
    [
        SendWR(Opcode.SEND, (Sge(2**64 - 1, 2**32 - 1, 7),), wr_id=2**64 - 1, imm=0),
        RecvWR((Sge(0, 0, 0), Sge(1, 2, 3))),
        Completion(1, 12, 0, 0, None, 129, 0x1A2B),
        EndpointCaps(access=Access.NONE, qp_access=None),
        EndpointCaps(qp_access=Access.ALL),
        ExchangeRecord(1, 2, 3, "::", 0, "RoCE v2", "Ethernet", 4096, 1, 1, RemoteMemory(2**63, 4, 5)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_dataclasses_arrive_equal_with_their_tuples_and_enums(value: Any) -> None:
    arrived = through(value)
    assert arrived == value
    assert type(arrived) is type(value)
    for name in type(value).__dataclass_fields__:
        assert type(getattr(arrived, name)) is type(getattr(value, name))


def test_a_forged_opcode_crosses_as_the_number_it_is() -> None:
    assert through(SendWR(99, imm=None)).opcode == 99  # type: ignore[arg-type]


def test_enums_arrive_as_numbers_and_tuples_as_lists() -> None:
    assert through((QPState.RTS, Access.REMOTE_READ)) == [3, 4]


def test_a_dict_that_looks_like_a_tag_arrives_as_a_dict() -> None:
    assert through({"$h": 1, "$b": "x"}) == {"$h": 1, "$b": "x"}


@pytest.mark.parametrize("value", [object(), {1, 2}, {1: 2}, types, len, Exception("x")])
def test_what_is_not_plain_data_is_refused_by_name(value: Any) -> None:
    with pytest.raises(RdmaUsageError, match="host2"):
        wire.encode([value], Remote())


def test_a_class_of_the_users_own_is_not_taken_for_ours_of_that_name() -> None:
    @dataclass
    class Sge:
        addr: int

    with pytest.raises(RdmaUsageError, match=r"Sge cannot cross"):
        wire.encode(Sge(1), Remote())


def test_a_handle_arrives_as_the_owners_live_object() -> None:
    local, remote = Local(), Remote()
    live = local.objects[Thing.kind, 5] = Thing(local, 5, {"qp_num": 17})  # type: ignore[arg-type]
    front = wire.decode(wire.encode(live, local), remote)
    assert (type(front), front.host, front.qp_num) == (Thing, remote, 17)
    assert wire.decode(wire.encode({"x": [front]}, remote), local) == {"x": [live]}


def test_a_handle_of_another_host_is_refused() -> None:
    with pytest.raises(RdmaUsageError, match="belongs to another host"):
        wire.encode(Thing(Remote(), 1, {}), Remote())  # type: ignore[arg-type]


def test_a_handle_of_an_agent_that_was_restarted_is_stale() -> None:
    remote = Remote()
    thing = Thing(remote, 1, {})  # type: ignore[arg-type]
    remote.generation = 1
    with pytest.raises(StaleHandleError):
        wire.encode(thing, remote)


@pytest.mark.parametrize("sizes", [[1], [3, 4], [1000]])
def test_frames_are_cut_right_whatever_pieces_they_come_in(sizes: list[int]) -> None:
    payloads = [b"", b"x", b"y" * 70000, "ü".encode()]
    data = b"".join(wire.frame(payload) for payload in payloads)
    reader = wire.FrameReader("host2")
    found = []
    while data:
        size = sizes[len(found) % len(sizes)]
        found += reader.feed(data[:size])
        data = data[size:]
    assert found == payloads
    assert reader.rest == b""


def test_a_length_beyond_the_limit_means_a_garbled_stream() -> None:
    with pytest.raises(HostLostError, match=r"stream from host2 is garbled.*limit"):
        wire.FrameReader("host2").feed(b"Last login: yesterday")


def test_a_message_beyond_the_limit_is_refused_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "MAX_FRAME_BYTES", 1000)
    with pytest.raises(RdmaUsageError, match=r"over the limit of 1000.*put\(\)"):
        wire.encode(b"x" * 1000, Remote())


def test_a_data_class_that_is_not_in_the_table_is_refused() -> None:
    with pytest.raises(RdmaUsageError, match="'Popen'"):
        wire.decode(json.dumps({"$d": "Popen", "v": []}).encode(), Remote())
