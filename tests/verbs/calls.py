"""What the tests run on the hosts; it travels there."""

from __future__ import annotations

from pytest_rdma.endpoint import Endpoint


def ask(endpoint: Endpoint, data: bytes) -> bytes:
    """Send the data and return what comes back."""
    half = endpoint.buffer.length // 2
    received = endpoint.post_recv(offset=half)
    endpoint.buffer.write(data)
    completion, _ = endpoint.wait(received, endpoint.send(length=len(data)), timeout_s=10)
    return endpoint.buffer.read(half, completion.byte_len)


def answer(endpoint: Endpoint) -> None:
    """Send back one message."""
    (completion,) = endpoint.wait(endpoint.post_recv(), timeout_s=10)
    endpoint.wait(endpoint.send(length=completion.byte_len))


def number_by_pyverbs(endpoint: Endpoint) -> int:
    """Return the QP's number as pyverbs tells it."""
    number: int = endpoint.raw.qp.qp_num
    return number


def progress(endpoint: Endpoint) -> list[list[int]]:
    """Return of sends and receives what was posted and completed, what is outstanding, when the last of each was."""
    entry = endpoint.host.entry("qp", endpoint.handle)
    with entry.lock:
        entry.ledger.look_at_loop()
        return [
            [queue.posted, queue.completed, len(queue), queue.last_post_ns, queue.last_completion_ns]
            for queue in (entry.sends, entry.recvs)
        ]


def users(endpoint: Endpoint) -> int:
    """Return how many native calls work on the QP."""
    count: int = endpoint.host.entry("qp", endpoint.handle).in_use._users  # type: ignore[attr-defined]
    return count
