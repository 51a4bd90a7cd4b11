"""Keys, addresses and access flags that do not fit, at the peer and at the own end."""

from __future__ import annotations

from dataclasses import replace

import pytest
from green import ENDLESS_RNR, Quick, green_after

from pytest_rdma import Access, Endpoint, Opcode, Pair, SendWR, Sge


def aimed(pair: Pair, **changes: object) -> SendWR:
    """A Write of 64 bytes to the start of the peer's buffer, but for what is changed."""
    target = pair.peer.buffer
    good = SendWR(Opcode.RDMA_WRITE, (pair.local.buffer.sge(0, 64),), 7, remote_addr=target.addr, rkey=target.rkey)
    return replace(good, **changes)


def post(local: Endpoint, request: SendWR) -> None:
    local.post_raw(request)
    local.wait(request.wr_id)


@pytest.mark.fault("rkey-unknown", bound_s=5)
def test_rkey_unknown(quick: Quick) -> None:
    pair = quick()
    post(pair.local, aimed(pair, rkey=pair.peer.buffer.rkey ^ 0x7FFF00))


@pytest.mark.fault("rkey-stale", bound_s=5)
def test_rkey_stale(quick: Quick) -> None:
    pair = quick()
    region = pair.peer.host.mr(pair.peer.pd, 4096, Access.ALL)
    region.close()
    post(pair.local, aimed(pair, rkey=region.rkey, remote_addr=region.addr))


@pytest.mark.fault("rkey-of-another-pd", bound_s=5)
def test_rkey_of_another_pd(quick: Quick) -> None:
    pair, other = quick(), quick().peer.buffer
    post(pair.local, aimed(pair, rkey=other.rkey, remote_addr=other.addr))


@pytest.mark.fault("rkey-byte-swapped", bound_s=5)
def test_rkey_byte_swapped(quick: Quick) -> None:
    pair = quick()
    swapped = int.from_bytes(pair.peer.buffer.rkey.to_bytes(4, "little"), "big")
    post(pair.local, aimed(pair, rkey=swapped))


@pytest.mark.fault("rkey-zero", bound_s=5)
def test_rkey_zero(quick: Quick) -> None:
    pair = quick()
    post(pair.local, aimed(pair, rkey=0))


@pytest.mark.fault("address-truncated", bound_s=5)
def test_address_without_its_upper_32_bits(quick: Quick) -> None:
    pair = quick()
    post(pair.local, aimed(pair, remote_addr=pair.peer.buffer.addr & 0xFFFFFFFF))


@pytest.mark.fault("address-out-of-range", words="16", bound_s=5)
def test_address_16_bytes_beyond_the_end(quick: Quick) -> None:
    pair = quick()
    end = pair.peer.buffer.addr + pair.peer.buffer.length
    post(pair.local, aimed(pair, remote_addr=end - 48))


@pytest.mark.fault("address-out-of-range", words="8", bound_s=5)
def test_address_8_bytes_before_the_start(quick: Quick) -> None:
    pair = quick()
    post(pair.local, aimed(pair, remote_addr=pair.peer.buffer.addr - 8))


@pytest.mark.fault("mr-access-missing", words="REMOTE_WRITE", bound_s=5)
def test_mr_without_remote_write(quick: Quick) -> None:
    pair = quick(access=Access.LOCAL_WRITE | Access.REMOTE_READ, qp_access=Access.ALL)
    post(pair.local, aimed(pair))


@pytest.mark.fault("qp-access-missing", words="REMOTE_WRITE", bound_s=5)
def test_qp_without_remote_write(quick: Quick) -> None:
    pair = quick(access=Access.ALL, qp_access=Access.LOCAL_WRITE | Access.REMOTE_READ)
    post(pair.local, aimed(pair))


@pytest.mark.fault("mr-access-missing", words="REMOTE_READ", bound_s=5)
def test_mr_without_remote_read(quick: Quick) -> None:
    pair = quick(access=Access.LOCAL_WRITE | Access.REMOTE_WRITE, qp_access=Access.ALL)
    post(pair.local, aimed(pair, opcode=Opcode.RDMA_READ))


@pytest.mark.fault("qp-access-missing", words="REMOTE_READ", bound_s=5)
def test_qp_without_remote_read(quick: Quick) -> None:
    pair = quick(access=Access.ALL, qp_access=Access.LOCAL_WRITE | Access.REMOTE_WRITE)
    post(pair.local, aimed(pair, opcode=Opcode.RDMA_READ))


def of_own(pair: Pair, **changes: int) -> SendWR:
    return aimed(pair, sges=(replace(pair.local.buffer.sge(0, 64), **changes),))


@pytest.mark.fault("own-lkey-unknown", bound_s=5)
def test_own_lkey_wrong(quick: Quick) -> None:
    pair = quick()
    post(pair.local, of_own(pair, lkey=pair.local.buffer.lkey ^ 0xFFFF00))


@pytest.mark.fault("own-address-out-of-range", bound_s=5)
def test_own_range_beyond_the_end(quick: Quick) -> None:
    pair = quick()
    post(pair.local, of_own(pair, addr=pair.local.buffer.addr + pair.local.buffer.length - 60))


@pytest.mark.fault("own-mr-closed", bound_s=5)
def test_own_mr_deregistered(quick: Quick) -> None:
    pair = quick()
    region = pair.local.host.mr(pair.local.pd, 4096)
    region.close()
    post(pair.local, aimed(pair, sges=(Sge(region.addr, 64, region.lkey),)))


@pytest.mark.fault("own-mr-of-another-pd", bound_s=5)
def test_own_mr_of_another_pd(quick: Quick) -> None:
    pair, other = quick(), quick().local.buffer
    post(pair.local, aimed(pair, sges=(other.sge(0, 64),)))


@pytest.mark.fault("own-mr-without-local-write", words="LOCAL_WRITE", bound_s=5)
def test_read_into_memory_without_local_write(quick: Quick) -> None:
    pair = quick()
    sink = pair.local.host.mr(pair.local.pd, 4096, Access.NONE)
    post(pair.local, aimed(pair, opcode=Opcode.RDMA_READ, sges=(sink.sge(0, 64),)))


@pytest.mark.fault("rkey-stale", bound_s=5)
def test_peer_deregisters_in_flight(quick: Quick) -> None:
    """The MR goes while requests that aim at it are being sent again and again for want of a receive before them."""
    pair = quick(ENDLESS_RNR)
    region = pair.peer.host.mr(pair.peer.pd, 4096, Access.ALL)
    pair.local.send(length=8)
    pair.local.post_raw(aimed(pair, rkey=region.rkey, remote_addr=region.addr))
    region.close()
    pair.peer.post_recv()
    pair.local.wait(7)


@pytest.mark.fault("rd-atomic-zero", bound_s=5)
def test_rd_atomic_zero_at_the_peer(quick: Quick) -> None:
    pair = quick(peer={"rd_atomic": 0})
    post(pair.local, aimed(pair, opcode=Opcode.RDMA_READ))


@pytest.mark.fault("rd-atomic-zero", bound_s=5)
def test_rd_atomic_zero_here(quick: Quick) -> None:
    pair = quick({"rd_atomic": 0})
    pair.local.post_raw(aimed(pair, opcode=Opcode.RDMA_READ))
    pair.local.wait(7, timeout_s=0.5)


test_green = green_after(__name__)
