"""Work below the checked methods, on the host that has the objects; it travels there."""

from __future__ import annotations

import time
from typing import Any

from pytest_rdma import native
from pytest_rdma.endpoint import Endpoint
from pytest_rdma.model import Opcode, SendWR, Sge

SEQUENCE_BYTES = 4


def facts_by_pyverbs(endpoint: Endpoint) -> dict[str, Any]:
    """Ask the pyverbs objects behind the endpoint, and the device below them."""
    raw = endpoint.raw
    attributes, _ = raw.qp.query(1)
    return {
        "qp_num": raw.qp.qp_num,
        "state": int(attributes.qp_state),
        "lkey": raw.mr.lkey,
        "rkey": raw.mr.rkey,
        "max_qp_wr": raw.context.query_device().max_qp_wr,
        "pd_handle": raw.pd.handle >= 0,
        "cqe": raw.cq.cqe,
    }


def write_by_pyverbs(endpoint: Endpoint, addr: int, rkey: int, length: int) -> int:
    """Write from the start of the endpoint's buffer with pyverbs alone; return the status of the completion."""
    from pyverbs.wr import SGE
    from pyverbs.wr import SendWR as PyverbsSendWR

    raw = endpoint.raw
    request = PyverbsSendWR(
        wr_id=77, num_sge=1, sg=[SGE(endpoint.buffer.addr, length, raw.mr.lkey)], opcode=0, send_flags=2
    )
    request.set_wr_rdma(rkey, addr)
    raw.qp.post_send(request)
    end = time.monotonic() + 10
    while time.monotonic() < end:
        count, found = raw.cq.poll()
        if count:
            assert found[0].wr_id == 77
            return int(found[0].status)
    raise TimeoutError("the write has not completed within 10 s")


def qp_number_by_pointer(endpoint: Endpoint) -> int:
    """Read the QP number through the pointer that the native loops use."""
    raw = endpoint.raw
    view = native.load().qp_view(native.qp_pointer(raw.qp, pd=raw.pd, context=raw.context))
    return view.qp_num if view else 0


def write_sequence(endpoint: Endpoint, count: int) -> int:
    """Write the numbers 1 to `count` one after the other to the start of the peer's buffer."""
    assert endpoint.remote is not None
    for number in range(1, count + 1):
        endpoint.buffer.write(number.to_bytes(SEQUENCE_BYTES, "little"))
        endpoint.wait(endpoint.write(length=SEQUENCE_BYTES))
    return count


def watch_sequence(endpoint: Endpoint, last: int, timeout_s: float) -> list[int]:
    """Watch the start of the buffer until `last` is there, and return what was seen, each number once."""
    seen = [0]
    end = time.monotonic() + timeout_s
    while seen[-1] != last:
        number = int.from_bytes(endpoint.buffer.read(0, SEQUENCE_BYTES), "little")
        if number != seen[-1]:
            seen.append(number)
        elif time.monotonic() >= end:
            raise TimeoutError(f"{seen[-1]} of {last} was seen within {timeout_s:g} s")
    return seen


def post_chain(endpoint: Endpoint, addr: int, rkey: int, pieces: int, piece_bytes: int) -> int:
    """Write `pieces` to an address that was told, in one raw list of which only the last is signaled."""
    source = endpoint.buffer
    requests = [
        SendWR(
            Opcode.RDMA_WRITE,
            (Sge(source.addr + index * piece_bytes, piece_bytes, source.lkey),),
            wr_id=index,
            signaled=index == pieces - 1,
            remote_addr=addr + index * piece_bytes,
            rkey=rkey,
        )
        for index in range(pieces)
    ]
    endpoint.post_raw(requests)
    return endpoint.wait(pieces - 1)[0].wr_id
