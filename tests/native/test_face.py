"""The ctypes face over the stub provider."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from pytest_rdma import native
from pytest_rdma.deadline import StopFlag
from pytest_rdma.errors import DeadlineError, StoppedError, VerbsError
from pytest_rdma.model import Completion, Opcode, RecvWR, SendWR, Sge
from pytest_rdma.native.structs import SendWRStruct


def in_s(seconds: float) -> int:
    return time.monotonic_ns() + int(seconds * 1e9)


def sent(stub: Any, index: int) -> tuple[SendWRStruct, int]:
    seen = SendWRStruct()
    length = stub.library.stub_sent(stub.address, index, ctypes.byref(seen))
    return seen, length


def test_a_send_request_reaches_the_provider_as_it_was_written(stub: Any) -> None:
    request = SendWR(
        Opcode.RDMA_WRITE_WITH_IMM,
        (Sge(0x7F00_0000_1000, 77, 5), Sge(1, 2, 3)),
        wr_id=2**64 - 1,
        inline=True,
        fence=True,
        solicited=True,
        imm=0x89ABCDEF,
        remote_addr=0x7FFF_1234_5678,
        rkey=2**32 - 1,
    )
    assert native.load().post_send(stub.qp, [request]) == (0, 1)
    seen, length = sent(stub, 0)
    assert (seen.wr_id, seen.opcode, seen.num_sge) == (2**64 - 1, Opcode.RDMA_WRITE_WITH_IMM, 2)
    assert (seen.sge, length) == (0x7F00_0000_1000, 77)
    assert (seen.send_flags, seen.imm) == (1 | 2 | 4 | 8, 0x89ABCDEF)
    assert (seen.remote_addr, seen.rkey) == (0x7FFF_1234_5678, 2**32 - 1)


def test_an_unsignaled_request_has_no_flags(stub: Any) -> None:
    native.load().post_send(stub.qp, [SendWR(Opcode.SEND, signaled=False)])
    assert sent(stub, 0)[0].send_flags == 0


def test_a_prepared_list_can_be_posted_again_and_changed(stub: Any) -> None:
    prepared = native.SendList([SendWR(Opcode.SEND, (Sge(1, 1, 1),), wr_id=i) for i in range(3)])
    assert native.load().post_send(stub.qp, prepared) == (0, 3)
    prepared.wrs[0].wr_id = 50
    assert native.load().post_send(stub.qp, prepared) == (0, 3)
    assert [sent(stub, i)[0].wr_id for i in range(6)] == [0, 1, 2, 50, 1, 2]


def test_a_refused_post_names_the_request(stub: Any) -> None:
    stub.set("refuse_at", 2)
    stub.set("refuse_rc", errno.ENOMEM)
    assert native.load().post_send(stub.qp, [SendWR(Opcode.SEND)] * 4) == (-errno.ENOMEM, 2)
    assert native.load().post_recv(stub.qp, [RecvWR()] * 4) == (-errno.ENOMEM, 2)


def test_completions_arrive_as_model_objects(stub: Any) -> None:
    stub.complete(7, wc_flags=2, imm=0x89ABCDEF)
    stub.complete(8)
    stub.complete(9, status=5, wc_flags=2, imm=1)
    seen = native.load().poll(stub.cq, 3, in_s(5))
    assert seen == [
        Completion(7, 0, 128, 64, 0x89ABCDEF, 0, 0x1234, 2),
        Completion(8, 0, 128, 64, None, 0, 0x1234, 0),
        Completion(9, 5, 128, 64, None, 0, 0x1234, 2),
    ]


def test_more_completions_than_ever_before_fit(stub: Any) -> None:
    for wr_id in range(500):
        stub.complete(wr_id)
    assert [wc.wr_id for wc in native.load().poll(stub.cq, 500, in_s(5))] == list(range(500))


def test_at_most_takes_what_else_is_there(stub: Any) -> None:
    for wr_id in range(10):
        stub.complete(wr_id)
    assert len(native.load().poll(stub.cq, 1, in_s(5), at_most=4)) == 4
    assert len(native.load().poll(stub.cq, 0, 0, at_most=100)) == 6


def test_a_deadline_gives_a_short_list(stub: Any) -> None:
    stub.complete(1)
    assert len(native.load().poll(stub.cq, 2, in_s(0.02))) == 1
    assert native.load().poll(stub.cq, 2, 0) == []


def test_a_failed_poll_is_an_error(stub: Any) -> None:
    stub.set("fail_poll_after", 0)
    stub.set("poll_rc", -errno.EIO)
    with pytest.raises(VerbsError, match=r"cannot poll the CQ: EIO \(5\)") as caught:
        native.load().poll(stub.cq, 1, in_s(5))
    assert caught.value.errno == errno.EIO


@pytest.mark.parametrize("wait", ["poll", "poll_events", "wait_cq_event", "wait_async_event", "wait_fd"])
def test_a_stop_ends_every_wait_and_the_lock_of_the_interpreter_is_free_meanwhile(stub: Any, wait: str) -> None:
    helper, stop = native.load(), StopFlag()
    silent, _unused = os.pipe()
    calls: dict[str, Callable[[], object]] = {
        "poll": lambda: helper.poll(stub.cq, 1, in_s(20), stop),
        "poll_events": lambda: helper.poll_events(stub.cq, stub.channel, 1, in_s(20), stop),
        "wait_cq_event": lambda: helper.wait_cq_event(stub.channel, in_s(20), stop),
        "wait_async_event": lambda: helper.wait_async_event(stub.context, in_s(20), stop),
        "wait_fd": lambda: helper.wait_fd(silent, in_s(20), stop),
    }
    timer = threading.Timer(0.05, stop.set)
    timer.start()
    begin = time.monotonic()
    with pytest.raises(StoppedError):
        calls[wait]()
    assert time.monotonic() - begin < 5
    timer.join()


def test_completions_by_event(stub: Any) -> None:
    stub.complete(1)
    assert [wc.wr_id for wc in native.load().poll_events(stub.cq, stub.channel, 1, in_s(5))] == [1]
    assert native.load().poll_events(stub.cq, stub.channel, 1, in_s(0.02)) == []


def test_events_name_their_source(stub: Any) -> None:
    stub.library.stub_ring(stub.address)
    assert native.load().wait_cq_event(stub.channel, in_s(5)) == stub.cq
    assert native.load().wait_cq_event(stub.channel, 0) is None
    stub.library.stub_raise_async(stub.address, 1)
    assert native.load().wait_async_event(stub.context, in_s(5)) == (1, 0x1234, stub.qp)
    assert native.load().wait_async_event(stub.context, 0) is None


def test_views_of_what_the_provider_made(stub: Any) -> None:
    qp = native.load().qp_view(stub.qp)
    assert qp is not None
    assert (qp.context, qp.send_cq, qp.recv_cq) == (stub.context, stub.cq, stub.cq)
    assert (qp.qp_num, qp.handle, qp.cmd_fd, qp.pd_handle) == (0x1234, 3, 77, 5)
    cq = native.load().cq_view(qp.send_cq)
    assert cq is not None
    assert (cq.channel, cq.cqe) == (stub.channel, 255)
    assert native.load().qp_view(16) is None


def test_the_pattern_of_c_is_that_of_python() -> None:
    random.seed(1)
    memory = ctypes.create_string_buffer(400)
    at = ctypes.addressof(memory)
    for seed in (0, 1, -1, 2**64 - 1, random.getrandbits(64)):
        for _ in range(20):
            start, length, shift = random.randrange(2**40), random.randrange(300), random.randrange(16)
            native.load().fill(at + shift, length, seed, start)
            assert memory.raw[shift : shift + length] == native.pattern(seed, length, start)
            assert native.load().verify(at + shift, length, seed, start) is None


def test_wrong_bytes_are_named() -> None:
    memory = ctypes.create_string_buffer(native.pattern(9, 100), 100)
    memory[41] = bytes([memory.raw[41] ^ 1])
    assert native.load().verify(ctypes.addressof(memory), 100, 9) == 41
    guard = ctypes.create_string_buffer(b"\xa5" * 30 + b"x", 31)
    assert native.load().find_not(ctypes.addressof(guard), 31, 0xA5) == 30
    assert native.load().find_not(ctypes.addressof(guard), 30, 0xA5) is None


def read_frame(fd: int) -> bytes:
    with open(fd, "rb", buffering=0, closefd=False) as file:
        head = file.read(4)
        assert head is not None
        return file.read(int.from_bytes(head, "big")) or b""


def test_frames_and_beats_of_the_writer() -> None:
    reading, writing = os.pipe()
    writer = native.load().writer(writing)
    writer.write(b'{"a": 1}', in_s(5))
    assert read_frame(reading) == b'{"a": 1}'
    index = writer.begin_call(12)
    writer.start_heartbeat(10_000)
    beat = json.loads(read_frame(reading))
    assert beat["t"] == "beat"
    assert beat["n"] == 1
    ((call, seconds),) = beat["calls"]
    assert call == 12
    assert 0 <= seconds < 5
    writer.end_call(index)
    writer.close()
    writer.close()
    os.close(reading)
    with pytest.raises(BrokenPipeError):
        writer.write(b"x", in_s(5))


def test_a_full_stream_is_a_deadline_error() -> None:
    _reading, writing = os.pipe()
    writer = native.load().writer(writing)
    os.set_blocking(writing, False)
    with pytest.raises(BlockingIOError):
        while True:
            os.write(writing, bytes(512))
    with pytest.raises(DeadlineError):
        writer.write(b"x", in_s(0.02))


def test_beats_go_on_while_a_call_holds_the_lock_of_the_interpreter() -> None:
    reading, writing = os.pipe()
    writer = native.load().writer(writing)
    writer.start_heartbeat(10)
    # A function called through PyDLL keeps the lock: no thread of Python runs meanwhile.
    ctypes.PyDLL(None).usleep(300_000)
    writer.close()
    os.close(writing)
    beats = []
    while frame := read_frame_or_end(reading):
        beats.append(json.loads(frame)["n"])
    assert len(beats) > 5


def read_frame_or_end(fd: int) -> bytes:
    try:
        return read_frame(fd)
    except ValueError:
        return b""


def test_an_interpreter_that_ends_with_a_beating_heart_ends_well() -> None:
    code = """
import os, sys
from pytest_rdma import native
writer = native.load().writer(1)
writer.start_heartbeat(1)
os.read(0, 1)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin
        assert child.stdout
        child.stdout.read(4)
        child.stdin.write(b"x")
        child.stdin.close()
        assert child.stdout.read().endswith(b"]}")
        assert child.wait(10) == 0
