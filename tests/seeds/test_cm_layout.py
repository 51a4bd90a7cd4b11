"""The structures of librdmacm that are written down in Python are those of the headers."""

from __future__ import annotations

import ctypes

from toolchain import compiled

from pytest_rdma import Host, cm_library

MIRRORS = {
    "rdma_event_channel": cm_library.EventChannel,
    "rdma_cm_id": cm_library.CMId,
    "rdma_conn_param": cm_library.ConnParam,
    "rdma_cm_event": cm_library.CMEvent,
    "ibv_global_route": cm_library.GlobalRoute,
    "ibv_ah_attr": cm_library.AHAttr,
    "ibv_qp_attr": cm_library.QPAttr,
}


def test_structures_lie_as_the_headers_say(rdma_peer: Host) -> None:
    said = rdma_peer.run([compiled(rdma_peer, "layout")]).stdout.decode().split("\n")
    numbers = {line.split()[0]: int(line.split()[1]) for line in said if line}
    assert len(numbers) > 40
    for name, number in numbers.items():
        structure, _, member = name.partition(".")
        mirror = MIRRORS[structure]
        assert number == (getattr(mirror, member).offset if member else ctypes.sizeof(mirror)), name
