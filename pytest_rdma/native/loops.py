"""The traffic loops of the helper: structures of loops.h, and a run of them as an object.

A `LoopRun` is built once, may post its receives before it is started, runs in a thread of C, and leaves numbers.
"""

from __future__ import annotations

import ctypes
import functools
import os
import threading
from collections.abc import Sequence
from ctypes import c_int32, c_int64, c_uint32, c_uint64
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pytest_rdma.deadline import Deadline
from pytest_rdma.errors import RdmaEnvironmentError, VerbsError, errno_text
from pytest_rdma.model import RecvWR, SendWR
from pytest_rdma.native.helper import Native, RecvList, SendList
from pytest_rdma.native.structs import WCStruct

FLOW, PINGPONG_SEND, PINGPONG_WRITE, ROUND_TRIP = range(4)
SPLIT, RESPONDER, UNTIL_TOLD = 1, 2, 4
ENDLESS = (1 << 64) - 1
RECV_BIT = 1 << 62
LANE_SHIFT = 32
BUCKETS, INTERVALS = 2112, 256
FIRST_INTERVAL_NS = 1_000_000
CALIBRATE_NS = 20_000_000
SLICE_MS = 50
PATIENCE, PATIENCE_ALONE = 1024, 4
CHEAP_CLOCK_PS = 200_000
CLOCKSOURCE = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")


class ClockStruct(ctypes.Structure):
    """`struct prdma_clock`."""

    _fields_ = [("mult", c_uint64)]


class HistogramStruct(ctypes.Structure):
    """`struct prdma_histogram`."""

    _fields_ = [
        ("count", c_uint64),
        ("sum_ns", c_uint64),
        ("min_ns", c_uint64),
        ("max_ns", c_uint64),
        ("buckets", c_uint64 * BUCKETS),
    ]


class SeriesStruct(ctypes.Structure):
    """`struct prdma_series`."""

    _fields_ = [
        ("interval_ns", c_uint64),
        ("used", c_uint32),
        ("reserved", c_uint32),
        ("counts", c_uint64 * INTERVALS),
    ]


class MarkStruct(ctypes.Structure):
    """`struct prdma_mark`."""

    _fields_ = [("seen", c_uint64), ("at", c_uint64)]


class LaneStruct(ctypes.Structure):
    """`struct prdma_lane`."""

    _fields_ = [
        ("qp", c_uint64),
        ("sends", c_uint64),
        ("recvs", c_uint64),
        ("sends_length", c_uint32),
        ("recvs_length", c_uint32),
        ("send_target", c_uint64),
        ("recv_target", c_uint64),
        ("send_slot", c_uint32),
        ("done_slot", c_uint32),
        ("recv_slot", c_uint32),
        ("recv_due", c_uint32),
        ("posted", c_uint64),
        ("completed", c_uint64),
        ("signaled", c_uint64),
        ("next_signal", c_uint64),
        ("recv_taken", c_uint64),
        ("recv_posted", c_uint64),
        ("received", c_uint64),
        ("post", MarkStruct),
        ("completion", MarkStruct),
        ("recv_post", MarkStruct),
        ("arrival", MarkStruct),
    ]


class RunStruct(ctypes.Structure):
    """`struct prdma_run`: what to do, then what came of it, then what the loop keeps."""

    _fields_ = [
        ("lanes", c_uint64),
        ("cqs", c_uint64),
        ("lane_count", c_uint32),
        ("cq_count", c_uint32),
        ("kind", c_uint32),
        ("flags", c_uint32),
        ("depth", c_uint32),
        ("batch", c_uint32),
        ("signal_every", c_uint32),
        ("recv_batch", c_uint32),
        ("iterations", c_uint64),
        ("duration_ns", c_int64),
        ("gap_ps", c_uint64),
        ("deadline_ns", c_int64),
        ("stop", c_uint64),
        ("clock", ClockStruct),
        ("histogram", c_uint64),
        ("series", c_uint64),
        ("tail_source", c_uint64),
        ("tail_target", c_uint64),
        ("tail_bytes", c_uint32),
        ("clock_stride", c_uint32),
        ("rc", c_int32),
        ("cpu", c_int32),
        ("error", WCStruct),
        ("error_message", c_uint64),
        ("elapsed_ns", c_int64),
        ("received_bytes", c_uint64),
        ("post_calls", c_uint64),
        ("polls", c_uint64),
        ("empty_polls", c_uint64),
        ("post_ns", c_int64),
        ("poll_ns", c_int64),
        ("start", c_uint64),
        ("now", c_uint64),
        ("last", c_uint64),
        ("end_at", c_uint64),
        ("deadline_at", c_uint64),
        ("next_post", c_uint64),
        ("boundary", c_uint64),
        ("pending", c_uint64),
        ("look", c_uint32),
        ("idle", c_uint32),
        ("failed", c_uint32),
        ("patience", c_uint32),
        ("sent_at", c_uint64),
        ("thread", c_uint64),
        ("done_fd", c_int32),
        ("running", c_int32),
        ("sent", c_int32),
        ("ended", c_int32),
        ("told", c_uint64),
    ]


class LoopsAbiStruct(ctypes.Structure):
    """`struct prdma_loops_abi`."""

    _fields_ = [
        ("sizeof_clock", c_uint32),
        ("sizeof_histogram", c_uint32),
        ("sizeof_series", c_uint32),
        ("sizeof_lane", c_uint32),
        ("sizeof_run", c_uint32),
        ("sizeof_ibv_send_wr", c_uint32),
        ("sizeof_ibv_recv_wr", c_uint32),
    ]


MIRRORS = {
    "sizeof_clock": ClockStruct,
    "sizeof_histogram": HistogramStruct,
    "sizeof_series": SeriesStruct,
    "sizeof_lane": LaneStruct,
    "sizeof_run": RunStruct,
}
_pointer = ctypes.c_void_p
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "prdma_loops_abi": (None, _pointer),
    "prdma_clock_calibrate": (ctypes.c_int, _pointer, c_int64),
    "prdma_clock_cost_ps": (c_uint64, _pointer),
    "prdma_clock_ago_ns": (c_int64, _pointer, c_uint64),
    "prdma_histogram_add": (None, _pointer, c_uint64),
    "prdma_histogram_value": (c_uint64, c_uint32),
    "prdma_build_sends": (None, _pointer, c_uint32, _pointer, c_uint32, c_uint32),
    "prdma_build_recvs": (None, _pointer, c_uint32, _pointer, c_uint32, c_uint32),
    "prdma_run_prepare": (ctypes.c_int, _pointer, c_uint32),
    "prdma_run_start": (ctypes.c_int, _pointer),
    "prdma_run_wait": (ctypes.c_int, _pointer, ctypes.c_int),
    "prdma_run_loop": (None, _pointer),
}


@dataclass(frozen=True)
class LaneSpec:
    """One QP's part: a cycle of requests to send and one of receives, and how many of each (ENDLESS: until told)."""

    qp: int
    sends: Sequence[SendWR] = ()
    recvs: Sequence[RecvWR] = ()
    send_target: int = 0
    recv_target: int = 0


@dataclass(frozen=True)
class Work:
    """What a run does with its lanes, by the names of `struct prdma_run`; 0 is none, or as many as the targets say.

    `recv_depth` is how many receives are posted before the start, on each lane. `tail_*` are of a ping-pong by Write.
    """

    kind: int = FLOW
    flags: int = 0
    depth: int = 1
    batch: int = 1
    signal_every: int = 1
    recv_depth: int = 0
    recv_batch: int = 1
    iterations: int = 0
    duration_ns: int = 0
    gap_ps: int = 0
    tail_source: int = 0
    tail_target: int = 0
    tail_bytes: int = 0


@dataclass(frozen=True)
class Clock:
    """The clock of the runs in this process, and what one reading of it costs."""

    name: str
    mult: int
    cost_ps: int


@functools.lru_cache(maxsize=4)
def library(native: Native) -> tuple[ctypes.CDLL, LoopsAbiStruct]:
    """Return the helper's library with the loops' functions declared, and the sizes it tells."""
    lib = native._lib  # this module is the part of its face that few processes need
    for name, (result, *arguments) in _SIGNATURES.items():
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    abi = LoopsAbiStruct()
    lib.prdma_loops_abi(ctypes.byref(abi))
    for name, mirror in MIRRORS.items():
        if getattr(abi, name) != ctypes.sizeof(mirror):
            raise RdmaEnvironmentError(f"the native helper's {name} is {getattr(abi, name)}: rebuild it")
    return lib, abi


@functools.lru_cache(maxsize=4)
def clock(native: Native) -> Clock:
    """Choose the clock, once a process: the TSC where the kernel itself trusts it, else CLOCK_MONOTONIC_RAW."""
    lib, _ = library(native)
    made = ClockStruct()
    name = "CLOCK_MONOTONIC_RAW"
    if _tsc_is_trusted() and lib.prdma_clock_calibrate(ctypes.byref(made), CALIBRATE_NS) == 0:
        name = "TSC"
    return Clock(name, made.mult, lib.prdma_clock_cost_ps(ctypes.byref(made)))


def _tsc_is_trusted() -> bool:
    """Whether it ticks evenly in every power state, and the kernel keeps its own time by it."""
    try:
        flags = Path("/proc/cpuinfo").read_text()
        source = CLOCKSOURCE.read_text().strip()
    except OSError:
        return False
    return source == "tsc" and " constant_tsc" in flags and " nonstop_tsc" in flags


class LoopRun:
    """A run with all the memory it works on. `struct` and `lanes` may be read when `run` has returned."""

    def __init__(self, native: Native, lanes: Sequence[LaneSpec], cqs: Sequence[int], work: Work) -> None:
        self._lib, self._abi = library(native)
        self.sent = threading.Event()
        self.clock = clock(native)
        self.recv_depth = work.recv_depth
        self.lanes = (LaneStruct * len(lanes))()
        self._cqs = (c_uint64 * len(cqs))(*cqs)
        self.histogram, self.series = HistogramStruct(), SeriesStruct(interval_ns=FIRST_INTERVAL_NS)
        self._kept: list[Any] = []
        for number, spec in enumerate(lanes):
            self._build(number, spec, work.depth, work.signal_every)
        asked = asdict(work)
        del asked["recv_depth"]
        self.struct = RunStruct(
            lanes=ctypes.addressof(self.lanes),
            cqs=ctypes.addressof(self._cqs),
            lane_count=len(lanes),
            cq_count=len(cqs),
            clock=ClockStruct(self.clock.mult),
            histogram=ctypes.addressof(self.histogram),
            series=ctypes.addressof(self.series) if work.kind == FLOW else 0,
            patience=PATIENCE if len(os.sched_getaffinity(0)) > 1 else PATIENCE_ALONE,
            clock_stride=1 if self.clock.cost_ps < CHEAP_CLOCK_PS else 16,
            **asked,
        )

    def _build(self, number: int, spec: LaneSpec, depth: int, signal_every: int) -> None:
        lane = self.lanes[number]
        lane.qp, lane.send_target, lane.recv_target = spec.qp, spec.send_target, spec.recv_target
        lane.next_signal = signal_every - 1
        if spec.sends:
            requests = SendList(spec.sends)
            for wr in requests.wrs:  # with a period, the loop gives the signals
                wr.send_flags = wr.send_flags | 2 if signal_every == 1 else wr.send_flags & ~2
            lane.sends_length = _ring_length(len(spec.sends), depth)
            ring = ctypes.create_string_buffer(lane.sends_length * self._abi.sizeof_ibv_send_wr)
            self._lib.prdma_build_sends(ring, lane.sends_length, requests.wrs, len(spec.sends), number)
            lane.sends = ctypes.addressof(ring)
            self._kept += [requests, ring]
        if spec.recvs:
            receives = RecvList(spec.recvs)
            lane.recvs_length = _ring_length(len(spec.recvs), self.recv_depth)
            ring = ctypes.create_string_buffer(lane.recvs_length * self._abi.sizeof_ibv_recv_wr)
            self._lib.prdma_build_recvs(ring, lane.recvs_length, receives.wrs, len(spec.recvs), number)
            lane.recvs = ctypes.addressof(ring)
            self._kept += [receives, ring]

    def prepare(self) -> None:
        """Post the receives of the beginning."""
        rc = self._lib.prdma_run_prepare(ctypes.byref(self.struct), self.recv_depth)
        if rc:
            raise VerbsError(f"cannot post the receives of a run: {errno_text(-rc)}", errno=-rc)

    def run(self, deadline: Deadline) -> None:
        """Run the loop in its thread, and wait; what interrupts the wait stops the loop first.

        How it ended is `struct.rc`: 0 or a negative errno (ECANCELED stopped, ETIMEDOUT, EIO with `struct.error`).
        """
        self.struct.deadline_ns = deadline.at_ns
        self.struct.stop = ctypes.addressof(deadline.stop.cell)
        address = ctypes.byref(self.struct)
        rc = self._lib.prdma_run_start(address)
        if rc:
            raise VerbsError(f"cannot start the thread of a run: {errno_text(-rc)}", errno=-rc)
        try:
            while self._lib.prdma_run_wait(address, SLICE_MS) == 0:
                if self.struct.sent:
                    self.sent.set()
        finally:
            # Its memory is ours: whatever ends this wait, the thread ends first.
            if self.struct.running:
                deadline.stop.set()
                while self._lib.prdma_run_wait(address, SLICE_MS) == 0:
                    pass
            self.sent.set()

    def wait_sent(self, deadline: Deadline) -> bool:
        """Wait until all sends have completed, or the run has ended, and tell whether they have."""
        while not self.sent.wait(SLICE_MS / 1e3):
            deadline.check("end of what a run sends")
        return bool(self.struct.sent)

    def ago_s(self, mark: MarkStruct) -> float | None:
        """Return how long ago a counter of a lane last moved, None when it never has; also while the loop runs."""
        ticks = mark.at
        return self._lib.prdma_clock_ago_ns(ctypes.byref(self.struct.clock), ticks) / 1e9 if ticks else None

    def buckets(self) -> list[tuple[int, int]]:
        """Return the filled buckets of the histogram: the middle in nanoseconds, and how many."""
        value = self._lib.prdma_histogram_value
        return [(value(index), count) for index, count in enumerate(self.histogram.buckets) if count]


def _ring_length(cycle: int, depth: int) -> int:
    """Return a whole number of cycles that holds all that can be in flight."""
    return cycle * max(1, -(-depth // cycle))
