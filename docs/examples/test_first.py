def test_write_lands_in_the_peers_memory(rdma_pair):
    local, peer = rdma_pair.local, rdma_pair.peer
    local.buffer.write(b"hello rdma")
    local.wait(local.write(length=10))
    assert peer.buffer.read(0, 10) == b"hello rdma"


def test_send_is_received(rdma_pair):
    local, peer = rdma_pair.local, rdma_pair.peer
    received = peer.post_recv()
    local.buffer.fill(seed=7, length=4096)
    local.wait(local.send(length=4096))
    (completion,) = peer.wait(received)
    assert completion.byte_len == 4096
    peer.buffer.verify(seed=7, length=4096)
