"""UC and UD beside RC: the operations that each has, and what it has not is refused.

InfiniBand specification, volume 1, sections 9.8.2 (Unreliable Connection) and 9.8.3 (Unreliable Datagram). Nothing is
acknowledged: a sender's completion says only that the message has left.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from targets import GUARD_BYTES, SIZES, Direction, GuardedTarget, assert_quiet

from pytest_rdma import Endpoint, Pair, RefusedError, WCOpcode

GRH_BYTES = 40
UC = pytest.mark.rdma_caps(transport="UC", buffer_bytes=(64 << 10) + 2 * GUARD_BYTES)
UD = pytest.mark.rdma_caps(transport="UD")
UC_SIZES = tuple(size for size in SIZES if size != "1MiB")  # so many packets in one go may be lost, and stay lost
UD_SIZES = ("0", "1", "MTU-1", "MTU")


def bytes_of(end: Endpoint, size: str) -> int:
    assert end.pair is not None
    return SIZES[size](end.pair.attributes.mtu)


@UC
@pytest.mark.combined(size=UC_SIZES, imm=(None, 0x89ABCDEF))
def test_uc_echo(direction: Direction, size: str, imm: int | None) -> None:
    """Steps: send, and send back what arrived. Verify: bytes, guards, immediates and completions at both ends."""
    length = bytes_of(direction.source, size)
    direction.source.buffer.fill(1, GUARD_BYTES, length)
    for source, target in ((direction.source, direction.target), (direction.target, direction.source)):
        received, _ = (target.post_recv(offset=GUARD_BYTES, length=length) for _ in range(2))
        sent = source.send(offset=GUARD_BYTES, length=length, imm=imm)
        (done,) = source.wait(sent)
        (completion,) = target.wait(received)
        assert (completion.opcode, completion.byte_len, completion.imm) == (WCOpcode.RECV, length, imm)
        assert done.opcode == WCOpcode.SEND
        target.buffer.verify(1, GUARD_BYTES, length)
        target.buffer.check_untouched(0, 0, GUARD_BYTES)
        target.buffer.check_untouched(0, GUARD_BYTES + length, GUARD_BYTES)
    assert_quiet(direction.source, direction.target)


@UC
@pytest.mark.combined(size=UC_SIZES, imm=(0x01020304, 0xFFFFFFFF))
def test_uc_write_with_immediate(direction: Direction, size: str, imm: int) -> None:
    """The receive that it takes says when a Write of UC has landed: nothing else does."""
    source, target = direction.source, direction.target
    length = bytes_of(source, size)
    arrival = GuardedTarget(target.buffer, length)
    source.buffer.fill(2, 0, length)
    received, _ = (target.post_recv(sges=[]) for _ in range(2))
    written = source.write(length=length, remote_offset=GUARD_BYTES, imm=imm)
    (completion,) = target.wait(received)
    assert (completion.opcode, completion.byte_len, completion.imm) == (WCOpcode.RECV_RDMA_WITH_IMM, length, imm)
    arrival.verify(2)
    assert source.wait(written)[0].opcode == WCOpcode.RDMA_WRITE
    assert_quiet(source, target)


@UC
def test_uc_write_has_landed_when_the_message_after_it_arrives(direction: Direction) -> None:
    source, target = direction.source, direction.target
    arrival = GuardedTarget(target.buffer, 10000)
    source.buffer.fill(3, 0, 10000)
    received = target.post_recv(offset=20000, length=8)
    posted = [source.write(length=10000, remote_offset=GUARD_BYTES), source.send(offset=20000, length=8)]
    target.wait(received)
    arrival.verify(3)
    source.wait(*posted)
    assert_quiet(source, target)


@UD
@pytest.mark.combined(size=UD_SIZES, imm=(None, 0, 0x89ABCDEF))
def test_ud_echo(direction: Direction, size: str, imm: int | None) -> None:
    """Steps: send, and send back what arrived behind the forty bytes of the GRH. Verify: as for UC."""
    length = bytes_of(direction.source, size)
    direction.source.buffer.fill(4, GRH_BYTES, length)
    for source, target in ((direction.source, direction.target), (direction.target, direction.source)):
        received, _ = (target.post_recv(length=GRH_BYTES + length) for _ in range(2))
        (done,) = source.wait(source.send(offset=GRH_BYTES, length=length, imm=imm))
        (completion,) = target.wait(received)
        assert (completion.opcode, completion.byte_len, completion.imm) == (WCOpcode.RECV, GRH_BYTES + length, imm)
        assert done.opcode == WCOpcode.SEND
        target.buffer.verify(4, GRH_BYTES, length)
        target.buffer.check_untouched(0, GRH_BYTES + length, GUARD_BYTES)
    assert_quiet(direction.source, direction.target)


@UD
def test_ud_datagrams_arrive_each_in_a_receive_of_its_own(direction: Direction) -> None:
    source, target = direction.source, direction.target
    source.buffer.fill(5, 0, 8000)
    receives = [target.post_recv(offset=2000 * n, length=1040) for n in range(8)]
    source.wait(*[source.send(offset=1000 * n, length=1000) for n in range(8)])
    target.wait(*receives)
    for n in range(8):
        target.buffer.verify(5, 2000 * n + GRH_BYTES, 1000, pattern_offset=1000 * n)


@UD
def test_ud_message_of_more_than_a_packet_is_refused(rdma_pair: Pair) -> None:
    mtu = rdma_pair.rail.local.port.active_mtu
    with pytest.raises(RefusedError, match=f"{mtu + 1} bytes are over the MTU {mtu}, and a UD message is one packet"):
        rdma_pair.local.send(length=mtu + 1)


Operation = Callable[[Endpoint], int]
ONE_SIDED: dict[str, Operation] = {
    "RDMA_READ": lambda end: end.read(length=8),
    "ATOMIC_FETCH_AND_ADD": lambda end: end.fetch_add(1),
    "RDMA_WRITE": lambda end: end.write(length=8),
}


@pytest.mark.parametrize(
    ("transport", "operation"),
    [("UC", "RDMA_READ"), ("UC", "ATOMIC_FETCH_AND_ADD"), ("UD", "RDMA_READ"), ("UD", "RDMA_WRITE")],
)
def test_what_a_transport_has_not_is_refused(rdma_pairs: Callable[..., Pair], transport: str, operation: str) -> None:
    pair = rdma_pairs(transport=transport)
    with pytest.raises(RefusedError, match=f"{operation} is no operation of {transport}"):
        ONE_SIDED[operation](pair.local)
