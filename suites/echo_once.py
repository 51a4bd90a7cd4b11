"""One message there and back, each end's part run on its own host, so that an echo costs four round trips."""

from __future__ import annotations

from pytest_rdma import Endpoint

SEED = 21
MESSAGE_BYTES = 256
SOURCE, SINK = 0, MESSAGE_BYTES


def listen(endpoint: Endpoint) -> int:
    """Post the receive; returns its wr_id."""
    endpoint.buffer.memset(0, SINK, MESSAGE_BYTES)
    return endpoint.post_recv(offset=SINK, length=MESSAGE_BYTES)


def start(endpoint: Endpoint) -> int:
    """Post a receive for what will come back and send the pattern; returns the receive's wr_id."""
    received = listen(endpoint)
    endpoint.buffer.fill(SEED, SOURCE, MESSAGE_BYTES)
    endpoint.wait(endpoint.send(offset=SOURCE, length=MESSAGE_BYTES))
    return received


def finish(endpoint: Endpoint, received: int) -> None:
    """Wait for the message and compare all of it."""
    (completion,) = endpoint.wait(received)
    assert completion.byte_len == MESSAGE_BYTES
    endpoint.buffer.verify(SEED, SINK, MESSAGE_BYTES)


def answer(endpoint: Endpoint, received: int) -> None:
    """Wait for the message, compare all of it and send it back from where it lies."""
    finish(endpoint, received)
    endpoint.wait(endpoint.send(offset=SINK, length=MESSAGE_BYTES))
