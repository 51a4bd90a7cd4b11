"""What a checked post is refused for, and how requests are counted, on an endpoint that has no device behind it."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_rdma.endpoint import Endpoint
from pytest_rdma.errors import RdmaUsageError, RefusedError
from pytest_rdma.host import LocalHost
from pytest_rdma.ledger import Queue, account
from pytest_rdma.model import (
    Access,
    Completion,
    DeviceInfo,
    EndpointCaps,
    Opcode,
    PortInfo,
    QPState,
    RecvWR,
    RemoteMemory,
    SendWR,
    Sge,
)
from pytest_rdma.verbs_check import check_recvs, check_sends
from pytest_rdma.verbs_queue import QPEntry

ADDR, LENGTH, LKEY, RKEY = 0x7F0000001000, 4096, 0x55, 0x66
PEER = RemoteMemory(0x7F1100000000, 0x77, 8192)


def endpoint(state: QPState = QPState.RTS, provider: str = "mlx5_core", **caps: Any) -> QPEntry:
    port = PortInfo(1, "ACTIVE", "Ethernet", 1024, 4096, 0, False, 1 << 20, (0xFFFF,), ())
    info = DeviceInfo("rxe0", provider, "InfiniBand", "", "", 0, 0, -1, {}, (port,))
    pd: Any = SimpleNamespace(device=SimpleNamespace(name="rxe0", info=info))
    cq: Any = SimpleNamespace(qps={}, stash=[])
    made = QPEntry(LocalHost("host1"), pd, cq, port, None)
    buffer: Any = SimpleNamespace(addr=ADDR, length=LENGTH, lkey=LKEY, rkey=RKEY, access=Access.ALL, pd=pd)
    made.buffer, made.qp_num, made.state, made.remote = buffer, 0x11, state, PEER
    made.caps = EndpointCaps(**{"send_depth": 4, "recv_depth": 4, **caps})
    made.raw_qp = SimpleNamespace(query=lambda mask: (SimpleNamespace(qp_state=int(state)), None))
    cq.qps[0x11] = made
    return made


def sge(offset: int = 0, length: int = 16, lkey: int = LKEY) -> Sge:
    return Sge(ADDR + offset, length, lkey)


def post(queue: Queue, wanted: list[tuple[int, bool]]) -> None:
    for wr_id, signaled in wanted:
        queue.post([SendWR(Opcode.SEND, wr_id=wr_id, signaled=signaled)], False)


def left(queue: Queue) -> list[tuple[int, bool]]:
    return [(one.wr_id, one.signaled) for one in queue.outstanding]


SEND = SendWR(Opcode.SEND, (sge(),))
WRITE = SendWR(Opcode.RDMA_WRITE, (sge(),), remote_addr=PEER.addr, rkey=PEER.rkey)
READ = replace(WRITE, opcode=Opcode.RDMA_READ)
ATOMIC = replace(WRITE, opcode=Opcode.ATOMIC_FETCH_AND_ADD, sges=(sge(length=8),))


def refusal(entry: QPEntry, request: SendWR | RecvWR) -> str:
    check: Any = check_sends if isinstance(request, SendWR) else check_recvs
    with pytest.raises(RefusedError) as caught:
        check(entry, [request])
    assert str(caught.value).startswith("refused on host1 rxe0/1: ")
    return str(caught.value)


@pytest.mark.parametrize("request_", [SEND, WRITE, READ, ATOMIC], ids=lambda one: one.opcode.name)
def test_what_is_right_is_not_refused(request_: SendWR) -> None:
    check_sends(endpoint(), [request_] * 4)


@pytest.mark.parametrize("state", [QPState.RESET, QPState.INIT, QPState.RTR])
def test_a_send_before_rts_is_refused_and_the_state_named(state: QPState) -> None:
    assert f"QP 0x11 is {state.name}, not RTS" in refusal(endpoint(state), SEND)


@pytest.mark.parametrize("state", [QPState.RTS, QPState.ERR])
def test_a_send_in_rts_or_err_is_allowed(state: QPState) -> None:
    check_sends(endpoint(state), [SEND])


def test_a_receive_is_allowed_from_init_on() -> None:
    for state in (QPState.INIT, QPState.RTR, QPState.RTS, QPState.ERR):
        check_recvs(endpoint(state), [RecvWR((sge(),))])
    assert "is RESET" in refusal(endpoint(QPState.RESET), RecvWR((sge(),)))


def test_a_state_that_moved_behind_our_back_is_asked_for_before_refusing() -> None:
    entry = endpoint(QPState.INIT)
    entry.raw_qp = SimpleNamespace(query=lambda mask: (SimpleNamespace(qp_state=int(QPState.RTS)), None))
    check_sends(entry, [SEND])


def test_depth_is_refused_only_beyond_what_was_granted() -> None:
    entry = endpoint()
    post(entry.sends, [(1, True), (2, True), (3, True)])
    check_sends(entry, [SEND])
    post(entry.sends, [(4, True)])
    assert "4 sends are in flight on QP 0x11 and 1 more do not fit its 4: poll first" in refusal(entry, SEND)


def test_a_queue_full_of_unsignaled_sends_says_that_none_will_complete() -> None:
    entry = endpoint()
    post(entry.sends, [(1, False)] * 4)
    assert "none of those in flight is signaled" in refusal(entry, SEND)


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (replace(SEND, sges=(sge(), sge())), "SEND of 2 SGEs, and QP 0x11 was granted 1"),
        (replace(SEND, sges=(sge(offset=LENGTH - 8),)), "16 bytes at .* are not within the buffer of lkey 0x55: 4096"),
        (replace(SEND, sges=(sge(lkey=0x99),)), "lkey 0x99 is of no buffer in the PD"),
        (replace(SEND, inline=True), "16 bytes inline, and QP 0x11 was granted 0"),
        (replace(READ, inline=True, sges=(sge(length=0),)), "RDMA_READ cannot be inline"),
        (replace(SEND, imm=1 << 32), "not a number of 32 bits"),
        (replace(SEND, imm=5), "SEND carries no immediate, and one of 5 was given"),
        (replace(SEND, opcode=Opcode.SEND_WITH_INV, imm=5), "SEND_WITH_INV carries no immediate"),
        (replace(SEND, wr_id=-1), "not a number of 64 bits"),
        (replace(WRITE, rkey=0), "rkey 0"),
        (replace(WRITE, remote_addr=PEER.addr + 8190), "not within the peer's 8192 bytes"),
        (replace(ATOMIC, remote_addr=PEER.addr + 4), "aligned to 8"),
    ],
)
def test_a_bad_request_is_refused_with_its_numbers(request_: SendWR, words: str) -> None:
    import re

    assert re.search(words, refusal(endpoint(), request_))


def test_nothing_is_checked_of_an_empty_sge() -> None:
    check_sends(endpoint(), [replace(SEND, sges=(Sge(0, 0, 0x99),))])


@pytest.mark.parametrize("request_", [READ, ATOMIC, RecvWR((sge(),))], ids=["read", "atomic", "receive"])
def test_what_is_written_to_locally_needs_local_write(request_: Any) -> None:
    entry = endpoint()
    entry.buffer.access = Access.REMOTE_READ
    assert "without LOCAL_WRITE" in refusal(entry, request_)
    check_sends(entry, [SEND])


@pytest.mark.parametrize(("transport", "request_"), [("UC", READ), ("UC", ATOMIC), ("UD", READ), ("UD", WRITE)])
def test_an_operation_that_the_transport_has_not_is_refused(transport: str, request_: SendWR) -> None:
    words = f"{request_.opcode.name} is no operation of {transport}"
    assert words in refusal(endpoint(transport=transport), request_)
    check_sends(endpoint(transport=transport), [SEND])


def test_a_datagram_is_no_longer_than_a_packet() -> None:
    entry = endpoint(transport="UD")
    check_sends(entry, [replace(SEND, sges=(sge(length=1024),))])
    assert "1025 bytes are over the MTU 1024" in refusal(entry, replace(SEND, sges=(sge(length=1025),)))


def test_receives_of_a_shared_queue_are_refused_elsewhere() -> None:
    entry = endpoint()
    queue: Any = SimpleNamespace(front=SimpleNamespace(label="SRQ 7"))
    entry.srq = queue
    assert "takes its receives from SRQ 7: post them there" in refusal(entry, RecvWR((sge(),)))


def test_reads_are_refused_when_none_may_be_open() -> None:
    entry = endpoint()
    entry.rd_atomic = 0
    assert "rd_atomic 0" in refusal(entry, READ)
    check_sends(entry, [WRITE])


def test_a_message_over_the_port_limit_is_refused_but_not_on_rxe_which_tells_too_little() -> None:
    large = replace(SEND, sges=(sge(length=(1 << 20) + 1),))
    assert "largest message" in refusal(endpoint(), large)
    entry = endpoint(provider="rxe")
    entry.buffer.length = 1 << 33
    check_sends(entry, [large])
    assert "largest message of 2147483648" in refusal(entry, replace(SEND, sges=(sge(length=(1 << 31) + 1),)))


def test_a_piece_that_its_length_field_cannot_hold_is_refused() -> None:
    entry = endpoint(provider="rxe")
    entry.buffer.length = 1 << 33
    assert "one holds at most 4294967295" in refusal(entry, RecvWR((sge(length=1 << 32),)))


# -- counting


def done(wr_id: int, status: int = 0, opcode: int = 0) -> Completion:
    return Completion(wr_id, status, opcode, 0, None, 0, 0x11)


def test_unsignaled_requests_retire_with_the_next_signaled_one() -> None:
    entry = endpoint()
    post(entry.sends, [(1, False), (2, False), (3, True), (4, True)])
    account(entry.cq, [done(3)])
    assert left(entry.sends) == [(4, True)]


def test_an_unsignaled_request_of_the_same_wr_id_is_not_mistaken_for_the_signaled_one() -> None:
    entry = endpoint()
    post(entry.sends, [(7, False), (7, True), (7, True)])
    account(entry.cq, [done(7)])
    assert left(entry.sends) == [(7, True)]


def test_a_failed_unsignaled_request_retires_itself() -> None:
    entry = endpoint()
    post(entry.sends, [(1, False), (2, True)])
    account(entry.cq, [done(1, status=12)])
    assert left(entry.sends) == [(2, True)]


def test_receives_retire_by_their_own_completions() -> None:
    entry = endpoint()
    post(entry.recvs, [(1, True), (2, True)])
    post(entry.sends, [(1, True)])
    account(entry.cq, [done(1, opcode=128)])
    assert left(entry.recvs) == [(2, True)] and left(entry.sends) == [(1, True)]
    account(entry.cq, [done(2, status=5)])
    assert not entry.recvs


def test_a_completion_of_what_was_never_counted_changes_nothing() -> None:
    entry = endpoint()
    post(entry.sends, [(1, True)])
    account(entry.cq, [done(9), replace(done(1), qp_num=0x99)])
    assert left(entry.sends) == [(1, True)]


def test_bytes_are_no_buffer() -> None:
    wrong: Any = b"abc"
    with pytest.raises(RdmaUsageError, match="a request takes a Buffer, not b'abc': write the data into one first"):
        Endpoint.send(SimpleNamespace(_sges=lambda *args: Endpoint._sges(wrong, *args)), wrong)  # type: ignore[arg-type]
