import pytest

from pytest_rdma import Access


@pytest.mark.rdma_caps(buffer_bytes=1 << 20, send_depth=16, access=Access.ALL)
@pytest.mark.rdma_requires("atomics", max_qp_wr=16)
def test_fetch_and_add(rdma_pair):
    local, peer = rdma_pair.local, rdma_pair.peer
    peer.buffer.write((41).to_bytes(8, "little"))
    local.wait(local.fetch_add(1))
    assert int.from_bytes(local.buffer.read(0, 8), "little") == 41
    assert int.from_bytes(peer.buffer.read(0, 8), "little") == 42
