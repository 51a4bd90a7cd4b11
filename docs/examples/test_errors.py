import pytest

from pytest_rdma import Access, CompletionError, Opcode, RefusedError, SendWR, WCStatus


def test_checked_post_names_the_mistake(rdma_pair):
    with pytest.raises(RefusedError, match="65537"):
        rdma_pair.local.write(length=65537)


@pytest.mark.rdma_caps(access=Access.LOCAL_WRITE, qp_access=Access.ALL)
def test_raw_post_shows_what_the_device_says(rdma_pair):
    local, target = rdma_pair.local, rdma_pair.peer.buffer.remote
    local.post_raw(
        SendWR(Opcode.RDMA_WRITE, (local.buffer.sge(0, 8),), wr_id=1, remote_addr=target.addr, rkey=target.rkey)
    )
    with pytest.raises(CompletionError) as error:
        local.wait(1)
    assert error.value.completions[0].status == WCStatus.REM_ACCESS_ERR
