"""Endpoints on a real device, in whichever mode the run is: what is refused, what waits say, what is left behind."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import calls
import pytest

from pytest_rdma import Host, Pair, QPState, SendWR, Sge, WCOpcode
from pytest_rdma.errors import (
    CompletionError,
    DeadlineError,
    PostError,
    RdmaUsageError,
    RefusedError,
    StoppedError,
    VerbsError,
)
from pytest_rdma.model import Access, EndpointCaps, Opcode

if TYPE_CHECKING:
    from pytest_rdma.endpoint import CQ, Buffer, Endpoint
    from pytest_rdma.session import DeviceContext

Pairs = Callable[..., Pair]


def resources(host: Host) -> dict[str, int]:
    """Return what the kernel counts on the host: QPs, CQs, MRs, PDs, of all processes."""
    shown = json.loads(host.run(["rdma", "-j", "resource", "show"]).stdout)
    return {name: sum(device[name] for device in shown) for name in ("qp", "cq", "mr", "pd")}


@pytest.fixture
def nothing_is_left(rdma_local: Host, rdma_peer: Host, _rdma_ready: None) -> Iterator[None]:
    """What the kernel counts after the test is what it counted before."""
    before = [resources(host) for host in (rdma_local, rdma_peer)]
    yield
    assert [resources(host) for host in (rdma_local, rdma_peer)] == before


# -- what is made, and what is refused in making it


def test_granted_capabilities_are_at_least_those_asked_for(rdma_pairs: Pairs) -> None:
    caps = EndpointCaps(send_depth=100, recv_depth=50, send_sges=2, recv_sges=3, inline_bytes=40)
    granted = rdma_pairs(caps).local.caps
    assert granted.send_depth >= 100
    assert granted.recv_depth >= 50
    assert granted.send_sges >= 2
    assert granted.recv_sges >= 3
    assert granted.inline_bytes >= 40


def test_the_capability_that_the_device_refuses_is_named(nothing_is_left: None, rdma_context: DeviceContext) -> None:
    limits = rdma_context.device.limits
    for name, limit in (("send_sges", "max_sge"), ("recv_sges", "max_sge"), ("send_depth", "max_qp_wr")):
        with pytest.raises(VerbsError, match=f"{name} is over {limit} {limits[limit]}"):
            rdma_context.endpoint(EndpointCaps().with_(**{name: limits[limit] + 1}))


def test_the_inline_size_in_the_refusal_is_the_one_that_is_granted(
    nothing_is_left: None, rdma_context: DeviceContext
) -> None:
    with pytest.raises(VerbsError, match="inline_bytes are granted") as refused:
        rdma_context.endpoint(EndpointCaps(inline_bytes=1 << 16))
    limit = int(str(refused.value).split("at most ")[1].split()[0])
    endpoint = rdma_context.endpoint(EndpointCaps(inline_bytes=limit))
    assert endpoint.caps.inline_bytes == limit
    endpoint.close()


def test_a_gid_row_that_is_not_there_is_refused_with_those_that_are(rdma_context: DeviceContext) -> None:
    end = rdma_context.end
    with pytest.raises(RdmaUsageError, match=r"has no GID row 900; valid rows: \d"):
        rdma_context.host.endpoint(end.device.name, end.port.number, 900)


def test_a_pkey_index_that_is_not_there_is_refused(nothing_is_left: None, rdma_context: DeviceContext) -> None:
    with pytest.raises(RdmaUsageError, match=r"has no pkey 77; it has 0 0x"):
        rdma_context.endpoint(pkey_index=77)


def test_remote_write_without_local_write_is_explained(nothing_is_left: None, rdma_context: DeviceContext) -> None:
    with pytest.raises(VerbsError, match="need LOCAL_WRITE"):
        rdma_context.endpoint(EndpointCaps(access=Access.REMOTE_WRITE))


# -- states


def test_a_refused_move_says_where_what_and_why(rdma_pairs: Pairs) -> None:
    endpoint = rdma_pairs(connect=False).local
    with pytest.raises(VerbsError) as refused:
        endpoint.modify(QPState.RTS)
    text = str(refused.value)
    assert text.startswith(f"cannot move QP {endpoint.qp_num:#x} from INIT to RTS on {endpoint.host.name} ")
    assert "EINVAL (22)" in text
    assert f"own gid {endpoint.record.gid_index} " in text
    assert refused.value.errno == 22
    assert endpoint.state == QPState.INIT


def test_more_open_reads_than_the_device_has_are_explained(rdma_pairs: Pairs) -> None:
    pair = rdma_pairs(connect=False)
    limit = pair.rail.local.device.limits["max_qp_rd_atom"]
    with pytest.raises(VerbsError, match=f"over max_qp_rd_atom {limit}|over max_qp_init_rd_atom"):
        pair.connect({"local": {"rd_atomic": 255}})


def test_a_pair_can_be_connected_anew_after_an_error(rdma_pair: Pair) -> None:
    rdma_pair.local.to_error()
    with pytest.raises(CompletionError, match=r"WR_FLUSH_ERR \(5\)") as failed:
        rdma_pair.local.wait(rdma_pair.local.send())
    assert failed.value.completions[0].status == 5
    rdma_pair.reconnect()
    received = rdma_pair.peer.post_recv()
    rdma_pair.local.wait(rdma_pair.local.send(length=7))
    assert rdma_pair.peer.wait(received)[0].byte_len == 7


# -- posting


def test_a_send_before_the_pair_is_connected_is_refused(rdma_pairs: Pairs) -> None:
    pair = rdma_pairs(connect=False)
    with pytest.raises(RefusedError, match="is INIT, not RTS: connect the pair first"):
        pair.local.send()
    with pytest.raises(RefusedError, match="no peer yet"):
        pair.local.write()
    pair.local.post_recv()


@pytest.mark.rdma_caps(send_depth=8, recv_depth=8)
def test_the_send_queue_takes_what_was_granted_and_no_more(rdma_pair: Pair) -> None:
    local = rdma_pair.local
    posted = [local.write(length=8) for _ in range(local.caps.send_depth)]
    with pytest.raises(RefusedError, match=f"{len(posted)} sends are in flight .* do not fit its {len(posted)}"):
        local.write(length=8)
    local.wait(*posted)
    local.wait(local.write(length=8))


@pytest.mark.rdma_caps(send_depth=8, recv_depth=8)
def test_unsignaled_requests_free_their_slots_with_the_next_signaled_one(rdma_pair: Pair) -> None:
    local = rdma_pair.local
    for _ in range(3):
        for _ in range(local.caps.send_depth - 1):
            local.write(length=8, signaled=False)
        local.wait(local.write(length=8))


def test_an_unchecked_post_of_too_many_sges_is_refused_by_the_driver(rdma_pair: Pair) -> None:
    local = rdma_pair.local
    sges = (local.buffer.sge(0, 1),) * (rdma_pair.rail.local.device.limits["max_sge"] + 1)
    good = SendWR(Opcode.SEND, (), wr_id=1)
    with pytest.raises(PostError, match=r"cannot post send wr_id 0x2 .* SGEs of") as refused:
        local.post_raw([good, SendWR(Opcode.SEND, sges, wr_id=2)])
    assert (refused.value.errno in (12, 22), refused.value.bad_index) == (True, 1)


@pytest.mark.rdma_caps(access=Access.ALL)
@pytest.mark.rdma_requires("atomics")
def test_atomics_change_the_peer_and_bring_the_old_value(rdma_pair: Pair) -> None:
    local, peer = rdma_pair.local, rdma_pair.peer
    peer.buffer.write((41).to_bytes(8, "little"), 64)
    (added,) = local.wait(local.fetch_add(1, remote_offset=64))
    (swapped,) = local.wait(local.compare_swap(42, 99, offset=8, remote_offset=64))
    assert (added.opcode, swapped.opcode) == (WCOpcode.FETCH_ADD, WCOpcode.COMP_SWAP)
    assert [int.from_bytes(local.buffer.read(at, 8), "little") for at in (0, 8)] == [41, 42]
    assert int.from_bytes(peer.buffer.read(64, 8), "little") == 99


@pytest.mark.rdma_caps(inline_bytes=64)
def test_inline_data_is_taken_when_it_is_posted(rdma_pair: Pair) -> None:
    received = rdma_pair.peer.post_recv()
    rdma_pair.local.buffer.write(b"first")
    sent = rdma_pair.local.send(length=5, inline=True)
    rdma_pair.local.buffer.write(b"other")
    rdma_pair.local.wait(sent)
    rdma_pair.peer.wait(received)
    assert rdma_pair.peer.buffer.read(0, 5) == b"first"


def test_a_message_is_gathered_from_many_pieces(rdma_pairs: Pairs) -> None:
    pair = rdma_pairs(send_sges=3, recv_sges=2)
    local, peer = pair.local.buffer, pair.peer.buffer
    local.write(b"abcdefghi")
    received = pair.peer.post_recv(sges=[peer.sge(100, 4), peer.sge(0, 50)])
    pair.local.wait(pair.local.send(sges=[local.sge(6, 3), local.sge(0, 3), local.sge(3, 3)]))
    assert pair.peer.wait(received)[0].byte_len == 9
    assert peer.read(100, 4) + peer.read(0, 5) == b"ghiabcdef"


# -- waiting


def test_a_wait_where_nothing_can_complete_says_so(rdma_pair: Pair) -> None:
    with pytest.raises(DeadlineError, match="no completion can arrive here: no request is outstanding on this side"):
        rdma_pair.peer.poll(timeout_s=0.05)


def test_a_wait_for_an_unsignaled_request_says_so(rdma_pair: Pair) -> None:
    wr_id = rdma_pair.local.write(length=8, signaled=False)
    with pytest.raises(DeadlineError, match=f"wr_id {wr_id:#x} was posted unsignaled"):
        rdma_pair.local.wait(wr_id, timeout_s=0.05)


def test_a_wait_that_is_over_names_what_is_outstanding_and_the_state(rdma_pair: Pair) -> None:
    wr_id = rdma_pair.peer.post_recv()
    with pytest.raises(DeadlineError, match=rf"is RTS, outstanding: 1 receives: {wr_id:#x}"):
        rdma_pair.peer.wait(wr_id, timeout_s=0.05)
    rdma_pair.local.send(length=1)
    assert rdma_pair.peer.wait(wr_id)[0].byte_len == 1


def test_completions_are_returned_in_the_order_asked_for(rdma_pair: Pair) -> None:
    posted = [rdma_pair.local.write(length=8) for _ in range(5)]
    asked = [posted[3], posted[0], posted[4]]
    assert [one.wr_id for one in rdma_pair.local.wait(*asked)] == asked
    assert [one.wr_id for one in rdma_pair.local.poll(2)] == [posted[1], posted[2]]


def test_a_poll_that_is_too_much_to_ask_loses_nothing(rdma_pair: Pair) -> None:
    wr_id = rdma_pair.local.write(length=8)
    with pytest.raises(DeadlineError, match="1 of 2 completions"):
        rdma_pair.local.poll(2, timeout_s=0.2)
    assert rdma_pair.local.poll()[0].wr_id == wr_id


def test_a_wait_can_be_stopped(rdma_pair: Pair) -> None:
    waiting = rdma_pair.peer.host.submit("qp.poll", rdma_pair.peer.handle, 1, True, timeout_s=30)
    waiting.cancel()
    with pytest.raises(StoppedError):
        waiting.result()


def test_one_thread_posts_while_another_polls(rdma_pair: Pair) -> None:
    local = rdma_pair.local
    polling = local.host.submit("qp.poll", local.handle, 100, True, timeout_s=10)
    posted = [local.write(length=8) for _ in range(100)]
    assert [one.wr_id for one in polling.result()] == posted


def test_closing_ends_a_wait_that_is_under_way(nothing_is_left: None, rdma_pairs: Pairs) -> None:
    pair = rdma_pairs()
    waiting = pair.peer.host.submit("qp.poll", pair.peer.handle, 1, True, timeout_s=30)
    pair.local.wait(pair.local.write(length=8))
    pair.close()
    with pytest.raises(RdmaUsageError, match="closed"):
        waiting.result()


def test_memory_stays_while_it_is_filled(rdma_mr: Callable[..., Buffer], rdma_local: Host) -> None:
    buffer = rdma_mr(16 << 20)
    filling = rdma_local.submit("mr.fill", buffer.handle, 1, 0, 16 << 20, 0)
    buffer.close()
    with contextlib.suppress(RdmaUsageError):  # it was closed before it began
        filling.result()
    assert rdma_local.run(["true"]).returncode == 0


def test_a_reset_takes_nothing_from_another_qp_of_the_cq(
    rdma_cq: Callable[..., CQ], rdma_qp: Callable[..., Endpoint]
) -> None:
    cq = rdma_cq()
    one, other = rdma_qp(cq=cq), rdma_qp(cq=cq, recv_depth=4)
    received = [other.post_recv() for _ in range(other.caps.recv_depth)]
    other.to_error()
    one.reset()
    assert [completion.wr_id for completion in other.poll(len(received))] == received
    other.post_recv()


@pytest.mark.rdma_caps(events=True)
def test_an_event_comes_once_for_a_queue_that_was_armed(rdma_pair: Pair) -> None:
    rdma_pair.peer.arm()
    received = rdma_pair.peer.post_recv()
    rdma_pair.local.send(length=3)
    rdma_pair.peer.wait_event()
    rdma_pair.peer.wait(received)
    with pytest.raises(DeadlineError, match="no completion event"):
        rdma_pair.peer.wait_event(0.05)


# -- keys, and what is left behind


def test_a_key_of_the_own_end_does_not_open_the_peer(rdma_pair: Pair) -> None:
    """Two contexts and two PDs also on one device: the local buffer's key means nothing at the peer, or no access."""
    local = rdma_pair.local
    own = local.buffer
    local.post_raw(SendWR(Opcode.RDMA_WRITE, (Sge(own.addr, 8, own.lkey),), 1, remote_addr=own.addr, rkey=own.rkey))
    with pytest.raises(CompletionError, match=r"REM_ACCESS_ERR \(10\)"):
        local.wait(1)


def test_a_pd_in_use_is_not_closed(nothing_is_left: None, rdma_context: DeviceContext) -> None:
    pd = rdma_context.pd()
    buffer = rdma_context.host.mr(pd, 4096)
    with pytest.raises(RefusedError, match=rf"still used by buffer {buffer.handle}"):
        pd.close()
    buffer.close()
    pd.close()
    pd.close()


def test_a_closed_endpoint_says_so(rdma_pairs: Pairs) -> None:
    pair = rdma_pairs()
    pair.close()
    for use in (pair.local.send, pair.local.buffer.read, lambda: pair.local.state):
        with pytest.raises(RdmaUsageError, match="is closed"):
            use()


def test_pairs_leave_nothing_behind(nothing_is_left: None, rdma_pairs: Pairs) -> None:
    for events in (True, False):
        pair = rdma_pairs(events=events)
        pair.local.wait(pair.local.write(length=8))
        pair.peer.post_recv()
        pair.close()
        pair.close()


def test_a_pair_and_an_echo_cost_at_most_four_round_trips_a_host(
    rdma_local: Host, rdma_peer: Host, rdma_pairs: Pairs
) -> None:
    before = rdma_local.round_trips, rdma_peer.round_trips
    pair = rdma_pairs(connect=False)
    pair.connect({"local": {"rnr_retry": 7}})  # the message may come before the echo's receive is posted
    echoing = rdma_peer.submit_call(calls.answer, pair.peer)
    assert rdma_local.call(calls.ask, pair.local, b"echo") == b"echo"
    echoing.result()
    pair.close()
    assert rdma_local.round_trips - before[0] <= 4
    assert rdma_peer.round_trips - before[1] <= 4


def test_pyverbs_objects_are_reached_where_the_endpoint_lives(rdma_pair: Pair) -> None:
    assert rdma_pair.local.host.call(calls.number_by_pyverbs, rdma_pair.local) == rdma_pair.local.qp_num
