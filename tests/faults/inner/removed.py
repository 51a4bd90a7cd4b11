"""A device that a side process deletes while a test uses it; without a device no test can begin."""

from __future__ import annotations

import on_host

from pytest_rdma import Host, Pair


def test_device_is_deleted_meanwhile(rdma_pair: Pair, rdma_peer: Host) -> None:
    """Soft-RoCE waits with that until nobody has the device open, and serves who has."""
    rdma_peer.call(on_host.start_alone, ["rdma", "link", "delete", rdma_pair.peer.device])
    rdma_pair.local.wait(rdma_pair.local.write(length=4096))


def test_device_is_still_there_for_who_has_it(rdma_pair: Pair) -> None:
    rdma_pair.local.wait(rdma_pair.local.write(length=4096))
