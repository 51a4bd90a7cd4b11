import zlib
from pathlib import Path

from checksums import crc_of


def test_programs_run_on_either_host(rdma_local, rdma_peer):
    for host in (rdma_local, rdma_peer):
        assert host.run(["uname", "-r"]).stdout.decode().strip() == host.info.kernel


def test_files_travel(rdma_peer):
    path = rdma_peer.put(Path(__file__))
    assert rdma_peer.run(["cat", path]).stdout == Path(__file__).read_bytes()


def test_own_code_runs_beside_the_memory(rdma_pair):
    rdma_pair.local.buffer.write(b"x" * 5000)
    rdma_pair.local.wait(rdma_pair.local.write(length=5000))
    assert rdma_pair.peer.host.call(crc_of, rdma_pair.peer.buffer, 5000) == zlib.crc32(b"x" * 5000)
