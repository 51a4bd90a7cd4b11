"""A peer whose agent is an unprivileged user that may lock 64 KiB of memory."""

from __future__ import annotations

import pytest
from green import Quick, green_after

UNPRIVILEGED = "prlimit --memlock=65536:65536 setpriv --reuid=rdma --regid=rdma --clear-groups"
PEER_EXEC = f"ssh -F {{ssh_config}} host2 {UNPRIVILEGED}"


@pytest.mark.fault("memlock", words="65536", bound_s=10)
def test_buffer_beyond_the_memory_lock_limit(rdma_pairs: Quick) -> None:
    rdma_pairs(buffer_bytes=1 << 20)


test_green = green_after(__name__)
