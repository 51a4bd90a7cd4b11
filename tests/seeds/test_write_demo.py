"""Defects of a C program that does one RDMA Write, provoked through our API: what comes of each, and what we say of it.

Each test names the defects of README.md (D1 to D27) that it provokes. Those that only a program shows are in
test_write_demo_programs.py.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from pytest_rdma import (
    Access,
    Buffer,
    CompletionError,
    DataMismatchError,
    DeadlineError,
    Endpoint,
    Host,
    Opcode,
    Pair,
    PostError,
    QPState,
    RefusedError,
    RemoteMemory,
    SendWR,
    VerbsError,
    WCStatus,
)
from pytest_rdma.cm import fabric_address, listen
from pytest_rdma.errors import RdmaUsageError

Pairs = Callable[..., Pair]
QUICK = {"ack_timeout": 8, "retry_count": 1}
SECONDS = 20  # as an acknowledgement time-out: 4.3 s, longer than a busy machine takes to answer
SOON_S = 0.25
GUARD = 0xA5
LOCAL_ONLY = Access.LOCAL_WRITE
# by the specification a missing right is REM_ACCESS_ERR; a QP that does not allow it is REM_INV_REQ_ERR on Soft-RoCE
NO_RIGHT = (WCStatus.REM_ACCESS_ERR, WCStatus.REM_INV_REQ_ERR)


def write_raw(pair: Pair, target: RemoteMemory, length: int = 64) -> WCStatus:
    """Write without any check; return the status with which it completes."""
    local = pair.local
    request = SendWR(Opcode.RDMA_WRITE, (local.buffer.sge(0, length),), wr_id=1)
    local.post_raw(replace(request, remote_addr=target.addr, rkey=target.rkey))
    (completion,) = local.poll(1)
    return WCStatus(completion.status)


def test_d2_address_cut_to_32_bits_reaches_nothing(rdma_pairs: Pairs) -> None:
    """Steps: the peer tells the low half of its address. Verify: REM_ACCESS_ERR, and no byte there has changed."""
    pair = rdma_pairs(connect=False)
    memory = pair.peer.buffer.remote
    assert memory.addr >> 32
    pair.connect({"peer": {"memory": replace(memory, addr=memory.addr & 0xFFFFFFFF)}})
    pair.peer.buffer.memset(GUARD)
    with pytest.raises(CompletionError, match="REM_ACCESS_ERR") as error:
        pair.local.wait(pair.local.write(length=64))
    assert error.value.completions[0].status == WCStatus.REM_ACCESS_ERR
    pair.peer.buffer.check_untouched(GUARD)


def test_d3_memory_without_remote_write_is_an_access_error(rdma_pairs: Pairs) -> None:
    pair = rdma_pairs(access=LOCAL_ONLY, qp_access=Access.ALL)
    assert write_raw(pair, pair.peer.buffer.remote) == WCStatus.REM_ACCESS_ERR
    pair.peer.buffer.check_untouched(0)


def test_d4_qp_without_remote_write_refuses_the_request(rdma_pairs: Pairs) -> None:
    pair = rdma_pairs(qp_access=LOCAL_ONLY)
    assert write_raw(pair, pair.peer.buffer.remote) in NO_RIGHT
    pair.peer.buffer.check_untouched(0)


def test_d5_rtr_without_an_address_vector_is_refused_and_the_state_stays(rdma_qp: Callable[..., Endpoint]) -> None:
    endpoint = rdma_qp()
    required = {"dest_qp_num": 17, "rq_psn": 1, "max_dest_rd_atomic": 1, "min_rnr_timer": 12}
    with pytest.raises(VerbsError, match=r"from INIT to RTR .*needs AV, path_mtu, .*; missing: AV$") as error:
        endpoint.modify(QPState.RTR, path_mtu=endpoint.record.active_mtu, **required)
    assert error.value.errno
    assert endpoint.state == QPState.INIT


def test_d6_record_holds_all_that_an_address_vector_needs(rdma_pair: Pair) -> None:
    """Verify: what each end tells is what its port and QP are, and both ends are set from what the other told."""
    for end, other, place in (
        (rdma_pair.local, rdma_pair.peer, rdma_pair.rail.local),
        (rdma_pair.peer, rdma_pair.local, rdma_pair.rail.peer),
    ):
        told = end.record
        assert (told.qp_num, told.lid, told.link_layer) == (end.qp_num, place.port.lid, place.port.link_layer)
        assert told.active_mtu == place.port.active_mtu
        assert place.gid is None or (told.gid, told.gid_type) == (place.gid.gid, place.gid.type)
        set_by_it = other.query()
        assert (set_by_it["dest_qp_num"], set_by_it["rq_psn"]) == (told.qp_num, told.psn)
        assert place.gid is None or set_by_it["dgid"] == told.gid


def test_d7_packet_numbers_start_at_random(rdma_pairs: Pairs) -> None:
    """With one number for all, a packet of an earlier connection could pass for one of this."""
    numbers = {end.record.psn for _ in range(3) for end in rdma_pairs(connect=False).ends}
    assert len(numbers) > 4
    assert all(0 <= number < 1 << 24 for number in numbers)


def test_d8_target_of_a_plain_write_is_told_that_nothing_can_come(rdma_pair: Pair) -> None:
    rdma_pair.local.wait(rdma_pair.local.write(length=64))
    with pytest.raises(DeadlineError, match="no completion can arrive here: no request is outstanding on this side"):
        rdma_pair.peer.poll(1, timeout_s=SOON_S)


def test_d9_immediate_without_a_receive_is_rnr(rdma_pairs: Pairs) -> None:
    quick = {"rnr_retry": 1, "min_rnr_timer": 1}
    pair = rdma_pairs(overrides={"local": quick, "peer": quick})
    with pytest.raises(CompletionError, match="RNR_RETRY_EXC_ERR"):
        pair.local.wait(pair.local.write(length=64, imm=1))


def test_d10_wait_for_a_lost_peer_ends(rdma_pairs: Pairs) -> None:
    """With 7 retries, which Soft-RoCE takes for endless, it is our deadline that ends the wait, and says so."""
    pair = rdma_pairs(overrides={"local": {**QUICK, "retry_count": 7}})
    pair.peer.close()
    sent = pair.local.send(length=64)
    with pytest.raises((DeadlineError, CompletionError)) as error:
        pair.local.wait(sent, timeout_s=SOON_S)
    assert f"{sent:#x}" in str(error.value)


def test_d12_send_before_rts_is_refused_by_us_and_by_the_driver(rdma_pairs: Pairs) -> None:
    """Verify: the state is named; the raw post has an errno, and waiting for it says what state the QP is in."""
    pair = rdma_pairs(connect=False)
    with pytest.raises(RefusedError, match="is INIT, not RTS"):
        pair.local.send(length=64)
    with pytest.raises(PostError, match="is INIT") as error:
        pair.local.post_raw(SendWR(Opcode.SEND, (pair.local.buffer.sge(0, 64),), wr_id=1))
    assert error.value.errno
    with pytest.raises(DeadlineError, match="is INIT"):
        pair.local.wait(1, timeout_s=SOON_S)


def test_d13_device_and_port_are_chosen_by_name_and_looked_at(rdma_local: Host, rdma_pair: Pair) -> None:
    end = rdma_pair.rail.local
    assert end.port.state == "ACTIVE"
    with pytest.raises(RdmaUsageError, match=f"has no device 'nosuch0'; it has .*{end.device.name}"):
        rdma_local.endpoint("nosuch0")
    with pytest.raises(RdmaUsageError, match="has no port 99"):
        rdma_local.endpoint(end.device.name, 99)


def test_d14_path_mtu_is_the_smaller_of_both_and_never_more(rdma_pair: Pair) -> None:
    smaller = min(end.record.active_mtu for end in rdma_pair.ends)
    assert rdma_pair.attributes.mtu <= smaller
    assert {end.query()["path_mtu"] for end in rdma_pair.ends} == {rdma_pair.attributes.mtu}
    with pytest.raises(RdmaUsageError, match=f"path MTU {2 * smaller}"):
        Pair.create(rdma_pair.local.host, rdma_pair.peer.host, rdma_pair.rail, mtu=2 * smaller)


def test_d18_port_that_is_taken_is_named_and_port_0_is_always_free(rdma_pairs: Pairs) -> None:
    peer = rdma_pairs(connect=False).peer
    first, second = (listen(peer.host, fabric_address(peer)) for _ in range(2))
    try:
        assert first.port != second.port
        with pytest.raises(VerbsError, match="the port is taken: ask for port 0"):
            listen(peer.host, fabric_address(peer), first.port)
    finally:
        first.close()
        second.close()


def test_d19_first_message_after_connecting_needs_no_retry(rdma_pairs: Pairs) -> None:
    """Connecting returns when both ends are ready: with no retry of any kind, five times over."""
    nothing = {"retry_count": 0, "rnr_retry": 0, "ack_timeout": SECONDS}
    pair = rdma_pairs(connect=False)
    for seed in range(5):
        received = [end.post_recv(length=64) for end in pair.ends]
        pair.connect({"local": nothing, "peer": nothing})
        for end in pair.ends:
            end.buffer.fill(seed, 4096, 64)
        sent = [end.send(offset=4096, length=64) for end in pair.ends]
        for end, *both in zip(pair.ends, received, sent):
            end.wait(*both)
            end.buffer.verify(seed, 0, 64)
        pair.reset()


def test_d19_write_to_a_peer_that_is_still_in_init_exhausts_its_retries(rdma_pairs: Pairs) -> None:
    pair = rdma_pairs(overrides={"local": QUICK})
    pair.peer.reset()
    assert write_raw(pair, pair.peer.buffer.remote) == WCStatus.RETRY_EXC_ERR
    pair.peer.buffer.check_untouched(0)


def test_d20_contents_are_compared_where_they_arrive(rdma_pair: Pair) -> None:
    """A write that went elsewhere completes all the same: only a comparison at the target tells."""
    rdma_pair.local.buffer.fill(20, 0, 64)
    rdma_pair.local.wait(rdma_pair.local.write(length=64, remote_offset=1))
    with pytest.raises(DataMismatchError, match="does not hold 64 bytes of pattern 20"):
        rdma_pair.peer.buffer.verify(20, 0, 64)
    rdma_pair.peer.buffer.verify(20, 1, 64)


def test_d21_end_that_leaves_first_takes_its_memory_along(rdma_pairs: Pairs) -> None:
    """Steps: the peer closes while the local end still writes. Verify: an error in time, never a wait without end."""
    pair = rdma_pairs(overrides={"local": QUICK})
    target = pair.peer.buffer.remote
    pair.peer.close()
    assert write_raw(pair, target) == WCStatus.RETRY_EXC_ERR


def test_d22_buffers_are_zeroed_and_only_what_was_asked_for_leaves(rdma_pair: Pair) -> None:
    local, peer = rdma_pair.local.buffer, rdma_pair.peer.buffer
    for buffer in (local, peer):
        buffer.check_untouched(0)
    local.memset(GUARD)
    rdma_pair.local.wait(rdma_pair.local.write(length=18))
    assert peer.read(0, 18) == bytes([GUARD]) * 18
    peer.check_untouched(0, 18)


def resources(host: Host, device: str) -> dict[str, Any]:
    """Return how many objects of each kind the kernel counts on a device."""
    shown = host.run(["sh", "-c", "PATH=$PATH:/sbin:/usr/sbin exec rdma -j resource show"])
    if shown.returncode:
        pytest.skip(f"{host.name} has no `rdma resource show`")
    return next(dict(one) for one in json.loads(shown.stdout) if one["ifname"] == device)


def test_d24_creation_that_fails_half_way_leaves_nothing(rdma_pair: Pair, rdma_local: Host) -> None:
    """The PD, the memory and the CQ are made before the QP is refused: the kernel counts none of them afterwards."""
    device = rdma_pair.rail.local.device
    before = resources(rdma_local, device.name)
    caps = rdma_pair.local.caps.with_(send_depth=2 * device.limits["max_qp_wr"])
    with pytest.raises(VerbsError, match="max_qp_wr"):
        rdma_local.endpoint(device.name, rdma_pair.local.port, rdma_pair.local.record.gid_index, caps)
    assert resources(rdma_local, device.name) == before


def test_d25_memory_is_whole_pages_and_survives_a_child_process(
    rdma_pair: Pair, rdma_mr: Callable[..., Buffer]
) -> None:
    """Steps: register, start and end a child of the same process, write into what was registered before."""
    assert rdma_mr(64).addr % 4096 == 0
    target = rdma_pair.peer.buffer
    assert target.addr % 4096 == 0
    target.memset(GUARD)
    assert rdma_pair.peer.host.run(["true"]).returncode == 0
    rdma_pair.local.buffer.fill(25, 0, 8192)
    rdma_pair.local.wait(rdma_pair.local.write(length=8192))
    target.verify(25, 0, 8192)


def test_d26_word_that_names_no_end_is_refused(rdma_pairs: Pairs) -> None:
    pair = rdma_pairs(connect=False)
    with pytest.raises(RdmaUsageError, match="'local' and 'peer', not for sever"):
        pair.connect({"sever": {}})
    with pytest.raises(RdmaUsageError, match="cannot override adress"):
        pair.connect({"peer": {"adress": 1}})


def test_d27_poll_does_not_wait_unless_told_to(rdma_pair: Pair) -> None:
    """A wait is one that has a time: without, an empty queue is an empty answer at once."""
    start = time.monotonic()
    assert rdma_pair.peer.poll(1, timeout_s=0, exactly=False) == []
    assert time.monotonic() - start < 2
