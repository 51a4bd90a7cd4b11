"""What users of gordma have and must have here too: C1 to C10 and C12 to C15, but for those that have a suite.

C7 is in suites/test_rdma_cm.py, C9 and C13 in suites/test_one_sided.py, C12 in suites/test_messages.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from pytest_rdma import (
    Access,
    Buffer,
    CompletionError,
    Endpoint,
    Host,
    Opcode,
    Pair,
    PostError,
    QPState,
    RecvWR,
    RefusedError,
    SendWR,
    VerbsError,
    WCOpcode,
    WCStatus,
    wire,
)
from pytest_rdma.endpoint import CQ
from pytest_rdma.errors import RdmaUsageError
from pytest_rdma.model import DeviceInfo, RemoteMemory
from pytest_rdma.status import describe

Pairs = Callable[..., Pair]
QUICK = {"peer in INIT": {"retry_count": 1}, "no receive": {"rnr_retry": 1, "min_rnr_timer": 1}}
PAGE_BYTES = 4096


def echo(pair: Pair, size: int = 1000) -> None:
    """Send a pattern there and what arrived back; compare at both ends."""
    for seed, source, target in ((1, pair.local, pair.peer), (2, pair.peer, pair.local)):
        received = target.post_recv(offset=size, length=size)
        source.buffer.fill(seed, 0, size)
        source.wait(source.send(length=size))
        (completion,) = target.wait(received)
        assert (completion.opcode, completion.byte_len) == (WCOpcode.RECV, size)
        target.buffer.verify(seed, size, size)


def test_c1_device_port_and_gid_row_are_told(rdma_local: Host, rdma_device: DeviceInfo, rdma_pair: Pair) -> None:
    assert rdma_device.name in [device.name for device in rdma_local.devices()]
    end = rdma_pair.rail.local
    port = next(port for port in rdma_device.ports if port.number == end.port.number)
    assert (port.state, port.active_mtu in (256, 512, 1024, 2048, 4096)) == ("ACTIVE", True)
    assert rdma_device.limits["max_qp_wr"] > 0
    if end.gid is not None:
        (row,) = [row for row in port.gids if row.index == end.gid.index]
        assert row.type in ("RoCE v2", "IB/RoCE v1", "IB")
        assert row.netdev or port.link_layer == "InfiniBand"
        assert rdma_pair.local.record.gid == row.gid


@pytest.mark.parametrize("size", [1, PAGE_BYTES - 1, PAGE_BYTES, (1 << 20) + 1])
def test_c2_memory_of_any_size_and_rights_is_page_aligned_and_bounded(
    rdma_mr: Callable[..., Buffer], size: int
) -> None:
    for access in (Access.NONE, Access.LOCAL_WRITE, Access.ALL):
        buffer = rdma_mr(size, access)
        assert (buffer.length, buffer.access, buffer.addr % PAGE_BYTES) == (size, access, 0)
        sge = buffer.sge(size - 1, 1)
        assert (sge.addr, sge.length, sge.lkey) == (buffer.addr + size - 1, 1, buffer.lkey)
        for offset, length in ((0, size + 1), (size, 1), (-1, 1)):
            with pytest.raises(RefusedError, match="are not within"):
                buffer.sge(offset, length)


@pytest.mark.rdma_caps(events=True)
def test_c3_event_wakes_the_waiter_and_the_queue_is_polled(rdma_pair: Pair) -> None:
    """Steps: arm, send, wait for the event, poll; and again: no event is lost in between."""
    for _ in range(3):
        received = rdma_pair.peer.post_recv(length=64)
        rdma_pair.peer.arm()
        sent = rdma_pair.local.send(length=64)
        rdma_pair.peer.wait_event()
        (completion,) = rdma_pair.peer.poll(1)
        assert completion.wr_id == received
        rdma_pair.local.wait(sent)


def test_c3_queue_without_a_channel_is_polled_and_says_so(rdma_pair: Pair, rdma_cq: Callable[..., CQ]) -> None:
    echo(rdma_pair)
    with pytest.raises(RefusedError, match="events=True"):
        rdma_pair.local.arm()
    assert rdma_cq(100).depth >= 100
    assert rdma_cq(100, events=True).events


def test_c4_every_state_is_reached_by_hand_with_every_attribute_given(rdma_pairs: Pairs) -> None:
    """RESET, INIT, RTR, RTS by ibv_modify_qp alone, then ERR and RESET; a short cut is refused."""
    pair = rdma_pairs(connect=False)
    for end in pair.ends:
        end.modify(QPState.RESET)
        with pytest.raises(VerbsError, match="from RESET to RTS"):
            end.modify(QPState.RTS)
        end.modify(QPState.INIT, pkey_index=0, port_num=end.port, qp_access_flags=int(Access.ALL))
    for end, other in (pair.ends, pair.ends[::-1]):
        there = other.record
        vector = {"dlid": there.lid, "ah_port": end.port, "sl": 0}
        if pair.rail.local.gid is not None:
            vector |= {"sgid_index": end.record.gid_index, "hop_limit": 7, "traffic_class": 8}
            vector |= {"dgid": there.gid}  # type: ignore[dict-item]
        numbers = {"dest_qp_num": there.qp_num, "rq_psn": 77, "max_dest_rd_atomic": 1, "min_rnr_timer": 5}
        end.modify(QPState.RTR, path_mtu=1024, **vector, **numbers)
    for end in pair.ends:
        end.modify(QPState.RTS, timeout=13, retry_cnt=5, rnr_retry=4, sq_psn=77, max_rd_atomic=1)
        found = end.query()
        assert (found["qp_state"], found["path_mtu"], found["timeout"]) == (QPState.RTS, 1024, 13)
        assert (found["retry_cnt"], found["rnr_retry"], found["min_rnr_timer"]) == (5, 4, 5)
    echo(pair)
    for end in pair.ends:
        end.to_error()
        assert end.state == QPState.ERR
        end.modify(QPState.RESET)
        assert end.state == QPState.RESET


@pytest.mark.parametrize("where", ["between the two ends", "within the local host", "within the peer"])
def test_c5_pairs_connect_between_hosts_and_within_each(rdma_pair: Pair, where: str) -> None:
    """Within one host the two ends are two QPs in two PDs of one device."""
    if where == "between the two ends":
        echo(rdma_pair)
        return
    host, end = (
        (rdma_pair.local.host, rdma_pair.rail.local)
        if where == "within the local host"
        else (rdma_pair.peer.host, rdma_pair.rail.peer)
    )
    pair = Pair.create(host, host, replace(rdma_pair.rail, local=end, peer=end))
    try:
        pair.connect()
        echo(pair)
    finally:
        pair.close()


@pytest.mark.parametrize("size", [0, 1, 4096, 30000])
def test_c6_echo_comes_back_in_whatever_order_it_is_reaped(rdma_pair: Pair, size: int) -> None:
    local, peer = rdma_pair.local, rdma_pair.peer
    for first in ("send", "receive"):
        local.buffer.fill(6, 0, size)
        arrives, comes_back = peer.post_recv(length=size), local.post_recv(offset=size, length=size)
        sent = local.send(length=size)
        peer.wait(arrives)
        peer.wait(peer.send(length=size))
        order = (sent, comes_back) if first == "send" else (comes_back, sent)
        assert [completion.wr_id for completion in local.wait(*order)] == list(order)
        local.buffer.verify(6, size, size)


def test_c8_record_crosses_the_stream_whole_with_64_bit_numbers(rdma_pair: Pair) -> None:
    """Verify: every field arrives as it was, the largest address and key too; an unknown field is refused."""
    record = replace(rdma_pair.local.record, memory=RemoteMemory((1 << 64) - 4096, (1 << 32) - 1, 1 << 40))
    host = rdma_pair.local.host
    assert wire.decode(wire.encode(record, host), host) == record
    assert record.version == 1
    with pytest.raises(RdmaUsageError, match="cannot override rkey"):
        rdma_pair.connect({"peer": {"rkey": 1}})


@pytest.mark.rdma_caps(send_depth=16, inline_bytes=32)
def test_c10_posts_single_in_a_list_inline_and_with_a_period_of_signals(rdma_pair: Pair) -> None:
    """Steps: 12 writes in a list of which each fourth is signaled, one inline, one alone. Verify: bytes and signals."""
    local, target = rdma_pair.local, rdma_pair.peer.buffer
    local.buffer.fill(10, 0, 12 * 100)
    writes = [
        SendWR(
            Opcode.RDMA_WRITE,
            (local.buffer.sge(100 * index, 100),),
            wr_id=index,
            signaled=index % 4 == 3,
            remote_addr=target.addr + 100 * index,
            rkey=target.rkey,
        )
        for index in range(12)
    ]
    assert local.post(writes) == list(range(12))
    assert [completion.wr_id for completion in local.poll(3)] == [3, 7, 11]
    target.verify(10, 0, 1200)
    inlined = local.write(length=32, remote_offset=2000, inline=True)
    local.buffer.memset(0, 0, 32)  # what was posted inline is the driver's own copy by now
    local.wait(inlined)
    target.verify(10, 2000, 32)
    assert local.poll(1, timeout_s=0, exactly=False) == []


# the first of each is the specification's, the others are Soft-RoCE's; suites/test_error_*.py judge them exactly
CAUSES = {
    "key that is none": (WCStatus.REM_ACCESS_ERR,),
    "peer in INIT": (WCStatus.RETRY_EXC_ERR,),
    "no receive": (WCStatus.RNR_RETRY_EXC_ERR,),
    "own QP in ERR": (WCStatus.WR_FLUSH_ERR,),
    "receive too short": (WCStatus.REM_INV_REQ_ERR, WCStatus.REM_OP_ERR),
    "receive with a bad lkey": (WCStatus.REM_OP_ERR,),
    "own bad lkey": (WCStatus.LOC_PROT_ERR, WCStatus.LOC_QP_OP_ERR, WCStatus.WR_FLUSH_ERR),
}


def provoke(pair: Pair, cause: str) -> int:
    """Post a send request that fails for this cause; return its wr_id."""
    local, peer = pair.local, pair.peer
    bad = replace(local.buffer.sge(0, 64), lkey=local.buffer.lkey ^ 0xFFFF00)
    if cause == "peer in INIT":
        peer.reset()
    elif cause == "own QP in ERR":
        local.to_error()
    elif cause == "receive too short":
        peer.post_recv(length=32)
    elif cause == "receive with a bad lkey":
        peer.post_raw(RecvWR((replace(peer.buffer.sge(0, 64), lkey=peer.buffer.lkey ^ 0xFFFF00),)))
    elif cause == "key that is none":
        return local.write(length=64, to=replace(peer.buffer.remote, rkey=peer.buffer.rkey ^ 0xFFFF00))
    elif cause == "own bad lkey":
        local.post_raw(SendWR(Opcode.SEND, (bad,), wr_id=99))
        return 99
    return local.send(length=64)


@pytest.mark.parametrize("cause", CAUSES)
def test_c14_failed_completion_is_named_with_number_and_meaning(rdma_pairs: Pairs, cause: str) -> None:
    pair = rdma_pairs(overrides={"local": QUICK.get(cause, {}), "peer": QUICK.get(cause, {})})
    wr_id = provoke(pair, cause)
    with pytest.raises(CompletionError) as error:
        pair.local.wait(wr_id)
    status = WCStatus(error.value.completions[0].status)
    assert status in CAUSES[cause]
    assert f"{wr_id:#x}: {status.name} ({int(status)}): " in str(error.value)
    assert describe(status) in str(error.value)


def test_c15_full_send_queue_is_enomem_beyond_the_granted_depth(rdma_pairs: Pairs) -> None:
    """Steps: stall the QP (no receive, endless RNR retries), post until the driver refuses. Never before the depth."""
    endless = {"rnr_retry": 7}
    pair = rdma_pairs(send_depth=8, overrides={"local": endless, "peer": endless})
    local = pair.local
    request = SendWR(Opcode.SEND, (local.buffer.sge(0, 8),))
    with pytest.raises(PostError, match="the queue is full: poll completions") as error:
        for first in range(0, 1 << 16, 64):
            local.post_raw([replace(request, wr_id=first + index) for index in range(64)])
    assert first + error.value.bad_index >= local.caps.send_depth
    with pytest.raises(RefusedError, match=rf"do not fit its {local.caps.send_depth}"):
        local.send(length=8)


def test_c15_completion_queue_that_overflows_is_an_async_event(
    rdma_cq: Callable[..., CQ], rdma_qp: Callable[..., Endpoint]
) -> None:
    """Steps: flush more receives than the CQ holds. Verify: CQ_ERR, instead of completions that are lost in silence."""
    cq = rdma_cq(2)
    endpoint = rdma_qp(cq=cq, recv_depth=64)
    for _ in range(min(endpoint.caps.recv_depth, cq.depth + 8)):
        endpoint.post_recv(length=8)
    endpoint.to_error()
    assert "CQ_ERR" in [event.type for event in endpoint.async_events(timeout_s=5)]


def test_c15_read_without_resources_is_refused_and_limits_are_told(rdma_pairs: Pairs) -> None:
    pair = rdma_pairs(overrides={"local": {"rd_atomic": 0}})
    with pytest.raises(RefusedError, match="rd_atomic 0"):
        pair.local.read(length=64)
    assert 1 <= pair.attributes.rd_atomic <= pair.rail.local.device.limits["max_qp_init_rd_atom"]
    assert pair.local.host.info.memlock_soft != 0
