"""A diagnosis never raises, whatever odd or scanty evidence it is given, and each cause is on the page for users."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import evidence_builders as make
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import pytest_rdma
from pytest_rdma.diagnosis import Cause, diagnose
from pytest_rdma.evidence import Evidence
from pytest_rdma.model import Access, AsyncEvent, GidRow, Opcode, QPState, Sge

PAGE = Path(__file__).parents[2] / "docs" / "diagnosis.md"
SOURCES = Path(pytest_rdma.__file__).parent
TIMES = st.one_of(st.none(), st.floats(-1, 1e9))
KEYS = st.one_of(st.sampled_from([0, make.KEY["host1"], make.KEY["host2"], 0x0B2A0000]), st.integers(0, 2**32 - 1))
ADDRS = st.one_of(st.sampled_from([*make.ADDR.values(), 0x10000, 0]), st.integers(0, 2**64 - 1))
SGES = st.builds(Sge, ADDRS, st.integers(0, 2**32), KEYS)
ATTRIBUTES = st.one_of(
    st.just({}),
    st.fixed_dictionaries(
        {},
        optional=dict.fromkeys(
            ("timeout", "retry_cnt", "rnr_retry", "min_rnr_timer", "path_mtu", "sq_psn", "rq_psn", "dest_qp_num",
             "qp_access_flags", "max_rd_atomic", "max_dest_rd_atomic"),
            st.one_of(st.integers(-1, 2**24), st.none(), st.integers(0, 8)),
        ),
    ),
)  # fmt: skip


@st.composite
def requests(draw: Any) -> Any:
    if draw(st.booleans()):
        return make.receive(draw(st.integers(0, 2**33)))
    sges = tuple(draw(st.lists(SGES, max_size=3)))
    changes = {"sges": sges, "remote_addr": draw(ADDRS), "rkey": draw(KEYS), "signaled": draw(st.booleans())}
    return make.send(draw(st.sampled_from(Opcode)), **changes)


@st.composite
def ledgers(draw: Any) -> Any:
    outstanding = draw(st.lists(requests(), max_size=2))
    numbers = {name: draw(st.integers(0, 300)) for name in ("posted", "completed", "outstanding_count")}
    times = {name: draw(TIMES) for name in ("last_post_ago_s", "last_completion_ago_s")}
    return make.ledger(*outstanding, **numbers, **times, most_bytes_completed=draw(st.integers(0, 9000)))


def failures() -> Any:
    return st.one_of(
        st.none(), st.builds(make.failure, st.integers(-1, 40), st.one_of(st.none(), requests()), st.floats(-1, 1e6))
    )


@st.composite
def qps(draw: Any, host: str) -> Any:
    changes: dict[str, Any] = {
        "attributes": draw(ATTRIBUTES),
        "state": draw(st.one_of(st.none(), st.sampled_from(QPState))),
        "peer": draw(st.sampled_from([None, make.record("host1"), make.record("host2")])),
        "connected": draw(st.sampled_from([None, make.CONNECTED])),
        "sends": draw(ledgers()),
        "recvs": draw(ledgers()),
        "failure": draw(failures()),
        "first_flush": draw(failures()),
        "flushed": draw(st.integers(0, 3)),
        "recent": tuple(make.completion(*draw(st.tuples(st.integers(0, 30), st.integers(0, 300))))
                        for _ in range(draw(st.integers(0, 2)))),
        "shared_recvs": draw(st.booleans()),
        "closed": draw(st.booleans()),
        "pd": draw(st.integers(0, 2)),
    }  # fmt: skip
    made = make.qp(host, **changes)
    if draw(st.booleans()):
        made.attributes.clear()
    return made


@st.composite
def devices(draw: Any, host: str) -> Any:
    if draw(st.booleans()):
        return draw(st.sampled_from([None, make.device(make.port(host))]))
    gid, kind = draw(st.sampled_from(["::", "fe80::1", *make.GID.values()])), draw(st.sampled_from(["IB", "RoCE v2"]))
    row = GidRow(1, gid, kind, draw(st.sampled_from([None, "eth1"])), draw(st.sampled_from([None, 24])))
    port = make.port(
        host,
        number=draw(st.integers(0, 2)),
        state=draw(st.sampled_from(["ACTIVE", "DOWN"])),
        link_layer=draw(st.sampled_from(["Ethernet", "InfiniBand"])),
        active_mtu=draw(st.sampled_from([0, 512, 4096])),
        gids=draw(st.sampled_from([(), (row,)])),
    )
    return make.device(port, draw(st.sampled_from(["rxe", "mlx5"])))


@st.composite
def hosts(draw: Any, name: str) -> Any:
    regions = tuple(
        make.region(name, rkey=draw(KEYS), lkey=draw(KEYS), pd=draw(st.integers(0, 2)), closed=draw(st.booleans()),
                    access=Access(draw(st.integers(0, 31))), length=draw(st.integers(0, 2**33)))
        for _ in range(draw(st.integers(0, 3)))
    )  # fmt: skip
    counters = draw(st.dictionaries(st.sampled_from(["sent_pkts", "rcvd_pkts", "duplicate_request", "out_of_sequence",
                                                     "send_rnr_err"]), st.integers(-5, 1000)))  # fmt: skip
    events = draw(st.lists(st.sampled_from(["CQ_ERR", "QP_FATAL", "PORT_ERR", "DEVICE_FATAL", "event 77"]), max_size=2))
    return make.host(
        name,
        *draw(st.lists(qps(name), max_size=2)),
        device=draw(devices(name)),
        regions=regions,
        counters=counters,
        async_events=tuple(AsyncEvent(one, "") for one in events),
        lost=draw(st.sampled_from(["", "it ended"])),
    )


TYPES = (
    "DeadlineError",
    "CompletionError",
    "AssertionError",
    "PostError",
    "VerbsError",
    "DataMismatchError",
    "",
    "Odd",
)
ERRORS = ("", "ENOMEM", "cannot register 99 bytes x: ENOMEM (12)", "wr_id 0x1 was posted unsignaled", "RTR: ETIMEDOUT")
NUMBERS = st.sampled_from([None, 0x11, 0x12, 0x777])


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    local=hosts("host1"),
    peer=hosts("host2"),
    numbers=st.tuples(NUMBERS, NUMBERS),
    words=st.tuples(st.sampled_from(["local", "peer", ""]), st.sampled_from(TYPES), st.sampled_from(ERRORS)),
)
def test_odd_evidence_is_diagnosed_without_an_error(local: Any, peer: Any, numbers: Any, words: Any) -> None:
    found = diagnose(Evidence(local, peer, *numbers, *words))
    for cause in found:
        assert cause.name in listed()
        assert cause.headline
        assert "\n" not in cause.headline
        assert "None" not in cause.headline
    assert len(set(found)) == len(found)


def test_a_lost_host_without_anything_known_is_named() -> None:
    bare = make.host("host2", device=None, regions=(), lost="the stream ended")
    (cause, *_) = diagnose(make.evidence(make.host("host1"), bare, error_type="HostLostError"))
    assert cause.name == "process-gone"
    assert "host2" in cause.headline


# -- the page


def listed() -> dict[str, str]:
    """The rows of the page's table: name and the rest."""
    return dict(re.findall(r"^\| `([a-z0-9-]+)` \| (.*) \|$", PAGE.read_text(), re.MULTILINE))


def named_in_code() -> Iterator[str]:
    for path in SOURCES.glob("diagnosis*.py"):
        yield from re.findall(r'Cause\(\s*"([a-z0-9-]+)"', path.read_text())
    yield from ("receive-queue-full", "send-queue-full")  # named by their kind


def test_the_page_lists_each_cause_that_the_code_can_name() -> None:
    assert sorted(listed()) == sorted(set(named_in_code()))


@pytest.mark.parametrize("name", sorted(set(named_in_code())))
def test_each_row_of_the_page_is_whole(name: str) -> None:
    cells = listed()[name].split(" | ")
    assert len(cells) == 3, f"{name}: what it says, what it rests on, what to do"


def test_a_cause_is_plain_data() -> None:
    assert Cause("a", "b", "c", True) == Cause("a", "b", "c", True)
