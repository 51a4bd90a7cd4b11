"""Limits: what a device, a queue or the system does not give, and that the message names which, and how much there is.

InfiniBand specification 1.4, volume 1: 10.8.3.1 (CQ overrun), 11.2.4.1 (create QP), 10.6.1 (registration).
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import replace

import pytest
from bounds import become_unprivileged, register_beyond_the_mapping
from trials import SUCCESS, TrialFactory, echo

from pytest_rdma import EndOutcome, Endpoint, Host, Opcode, Pair, PostError, QPState, RecvWR, SendWR, VerbsError

FAR_BEYOND = 8
MEMLOCK_BYTES = 64 << 10


@pytest.mark.rdma_caps(send_depth=16)
def test_send_queue_takes_all_that_was_granted(rdma_pair: Pair, rdma_pairs: Callable[..., Pair]) -> None:
    """Stalled by a peer without receives: the granted depth fits, and what does not is ENOMEM with its bad_wr."""
    pair = rdma_pairs(overrides={"local": {"rnr_retry": 7}})
    local = pair.local
    granted = local.caps.send_depth
    request = SendWR(Opcode.SEND, (local.buffer.sge(0, 8),))
    local.post_raw([replace(request, wr_id=number) for number in range(granted)])
    full = refused_at(local, [replace(request, wr_id=number) for number in range(FAR_BEYOND * granted)])
    assert f"send wr_id {full.bad_index:#x}" in str(full)
    assert "the queue is full: poll completions" in str(full)
    echo(rdma_pair)
    pair.close()  # a QP of rxe whose queue was full mostly sends nothing after RESET
    echo(rdma_pairs())


@pytest.mark.rdma_caps(recv_depth=16)
def test_c15_receive_queue_takes_all_that_was_granted(rdma_pair: Pair, rdma_pairs: Callable[..., Pair]) -> None:
    pair = rdma_pairs()
    peer = pair.peer
    granted = peer.caps.recv_depth
    request = RecvWR((peer.buffer.sge(0, 8),))
    peer.post_raw([replace(request, wr_id=number) for number in range(granted)])
    full = refused_at(peer, [replace(request, wr_id=number) for number in range(FAR_BEYOND * granted)])
    assert f"receive wr_id {full.bad_index:#x}" in str(full)
    echo(rdma_pair)
    pair.reconnect()
    echo(pair)


def refused_at(endpoint: Endpoint, requests: list[SendWR] | list[RecvWR]) -> PostError:
    with pytest.raises(PostError) as refused:
        endpoint.post_raw(requests)
    assert refused.value.errno == errno.ENOMEM
    return refused.value


def test_cq_overrun(trial: TrialFactory, rdma_pairs: Callable[..., Pair]) -> None:
    """More completions than the CQ holds: an asynchronous event tells, and nothing else does."""

    def with_a_small_cq(beside: Pair) -> Pair:
        forward = trial.active_end == "local"
        active, end = (beside.local, beside.rail.local) if forward else (beside.peer, beside.rail.peer)
        cq = active.host.cq(active.device, depth=2)
        place = active.device, active.port, end.gid.index if end.gid else None
        small, other = active.host.endpoint(*place, active.caps.with_(send_depth=16), cq=cq), rdma_pairs(connect=False)
        ends = (small, other.peer) if forward else (other.local, small)
        return Pair(*ends, beside.rail, beside.attributes)

    made = trial(pair=with_a_small_cq)
    cq = made.requester.cq
    made.active.send(*[made.one_sided(Opcode.RDMA_WRITE)] * (cq.depth + 3))
    echo(made.bystander)  # by then all are answered: one that came after the first poll would find room
    overrun = EndOutcome(sends=(SUCCESS,) * cq.depth, state=QPState.ERR, events=("CQ_ERR", "QP_FATAL"))
    made.expect("cq-overrun", overrun, untouched=False, anew=True)
    cq.close()


CAPS_LIMITS = {
    "send_depth": "max_qp_wr",
    "recv_depth": "max_qp_wr",
    "send_sges": "max_sge",
    "recv_sges": "max_sge",
}


@pytest.mark.parametrize("capability", CAPS_LIMITS)
def test_qp_capability_beyond_the_device_is_named(rdma_pair: Pair, capability: str) -> None:
    """One more than the device allows: refused with the capability, the limit's name and its value."""
    end = rdma_pair.rail.local
    limit = CAPS_LIMITS[capability]
    most = end.device.limits[limit]
    place = end.device.name, end.port.number, end.gid.index if end.gid else None
    caps = rdma_pair.local.caps.with_(**{capability: most + 1})
    with pytest.raises(VerbsError, match=f"{capability} is over {limit} {most}"):
        rdma_pair.local.host.endpoint(*place, caps)
    echo(rdma_pair)


def test_inline_beyond_the_device_is_named(rdma_pair: Pair) -> None:
    """The limit cannot be asked for; the message says what would have been granted, and that much is granted."""
    end = rdma_pair.rail.local
    place = end.device.name, end.port.number, end.gid.index if end.gid else None
    host, caps = rdma_pair.local.host, rdma_pair.local.caps
    with pytest.raises(VerbsError, match=r"at most (\d+) inline_bytes are granted") as refused:
        host.endpoint(*place, caps.with_(inline_bytes=1 << 20))
    most = int(str(refused.value).split("at most ")[1].split()[0])
    made = host.endpoint(*place, caps.with_(inline_bytes=most))
    assert made.caps.inline_bytes >= most
    made.close()
    echo(rdma_pair)


def test_c15_memlock_limit_of_an_unprivileged_user_is_shown(rdma_peer: Host, rdma_pair: Pair) -> None:
    """The limit of the process that registers, on the host where it runs; root is not bound by it."""
    spawned = rdma_peer.spawn()
    try:
        spawned.call(become_unprivileged, MEMLOCK_BYTES)
        pd = spawned.pd(rdma_pair.peer.device)
        with pytest.raises(VerbsError, match=f"RLIMIT_MEMLOCK .*{MEMLOCK_BYTES} bytes") as refused:
            spawned.mr(pd, 16 * MEMLOCK_BYTES)
        assert refused.value.errno == errno.ENOMEM
        spawned.mr(pd, MEMLOCK_BYTES // 4).close()
    finally:
        spawned.close()
    echo(rdma_pair)


def test_mr_over_an_unmapped_page(rdma_pair: Pair) -> None:
    """Two pages of which only the first is mapped: the registration is refused with EFAULT."""
    for end in rdma_pair.ends:
        assert end.host.call(register_beyond_the_mapping, end) == errno.EFAULT
    echo(rdma_pair)
