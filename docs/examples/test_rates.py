import pytest

from pytest_rdma import Opcode, PingPong, Pipeline


@pytest.mark.rdma_caps(send_depth=128)
def test_write_rate(rdma_pair, rdma_benchmark):
    spec = Pipeline(Opcode.RDMA_WRITE, size_bytes=4096, duration_s=0.2, depth=128, batch=16, signal_every=16)
    measured = rdma_benchmark(rdma_pair, spec, rounds=3)
    assert measured.messages_per_second > 0


def test_send_latency(rdma_pair, rdma_benchmark):
    measured = rdma_benchmark(rdma_pair, PingPong(Opcode.SEND, size_bytes=8, iterations=200), rounds=3)
    assert measured.latency.percentile(50) > 0
