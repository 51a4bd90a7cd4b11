"""The helper's functions as methods: numbers, `model` objects and errors on this side, structures on the other.

Every method releases the GIL while C runs. A wait takes `deadline_ns` on the clock of `time.monotonic_ns()` (one that
has passed means: look once) and a stop flag. At the deadline it returns what came, or None; stopped with nothing to
give it raises StoppedError; what the driver or the kernel refuses is a VerbsError.
"""

from __future__ import annotations

import ctypes
import errno
import threading
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple, Union

from pytest_rdma.deadline import StopFlag
from pytest_rdma.errors import DeadlineError, RdmaEnvironmentError, StoppedError, VerbsError, errno_text
from pytest_rdma.model import Completion, RecvWR, SendWR, Sge
from pytest_rdma.native.structs import (
    ABI_VERSION,
    MIRRORS,
    AbiStruct,
    AsyncEventStruct,
    CQViewStruct,
    PollStruct,
    QPViewStruct,
    RecvWRStruct,
    SendWRStruct,
    SgeStruct,
    VerbsStruct,
    WCStruct,
    WriterStruct,
)

_FENCE, _SIGNALED, _SOLICITED, _INLINE = 1, 2, 4, 8
_WC_WITH_IMM = 2
_WC_WITH_INV = 8
_WC_SUCCESS = 0
_WC_RECV = 128
_MASK64 = (1 << 64) - 1

_pointer = ctypes.c_void_p
_int, _i64, _u32, _u64 = ctypes.c_int, ctypes.c_int64, ctypes.c_uint32, ctypes.c_uint64
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "prdma_abi_version": (_int,),
    "prdma_abi": (None, _pointer),
    "prdma_post_send": (_int, _pointer, _pointer, _int, _pointer),
    "prdma_post_recv": (_int, _pointer, _pointer, _int, _pointer),
    "prdma_poll": (_int, _pointer),
    "prdma_poll_events": (_int, _pointer, _pointer, _pointer, _int),
    "prdma_req_notify": (_int, _pointer, _int),
    "prdma_set_nonblocking": (_int, _int),
    "prdma_wait_fd": (_int, _int, _i64, _pointer),
    "prdma_wait_cq_event": (_int, _pointer, _pointer, _pointer, _i64, _pointer),
    "prdma_wait_async_event": (_int, _pointer, _pointer, _pointer, _i64, _pointer),
    "prdma_fill": (None, _pointer, _u64, _u64, _u64),
    "prdma_verify": (_int, _pointer, _u64, _u64, _u64, _pointer),
    "prdma_find_not": (_int, _pointer, _u64, ctypes.c_uint8, _pointer),
    "prdma_peek": (_int, _u64, _pointer, _u64),
    "prdma_qp_view": (_int, _u64, _pointer),
    "prdma_cq_view": (_int, _u64, _pointer),
    "prdma_writer_init": (None, _pointer, _int),
    "prdma_frame_write": (_int, _pointer, ctypes.c_char_p, _u32, _i64),
    "prdma_heartbeat_start": (_int, _pointer, _int),
    "prdma_heartbeat_stop": (_int, _pointer),
    "prdma_call_begin": (_int, _pointer, _u64),
    "prdma_call_end": (None, _pointer, _int),
}


class QPView(NamedTuple):
    """A QP read through its pointer; addresses are of libibverbs' structures, 0 for none."""

    context: int
    pd: int
    send_cq: int
    recv_cq: int
    srq: int
    handle: int
    qp_num: int
    state: int
    qp_type: int
    cmd_fd: int
    async_fd: int
    pd_handle: int
    pd_context: int


class CQView(NamedTuple):
    """A CQ read through its pointer; without a channel, `channel` is 0 and `channel_fd` -1."""

    context: int
    channel: int
    channel_context: int
    handle: int
    cqe: int
    cmd_fd: int
    async_fd: int
    channel_fd: int


class NativeAsyncEvent(NamedTuple):
    """`type` as `ibv_event_type` numbers it; `number` is a QP number, a port, or a handle of a CQ or SRQ."""

    type: int
    number: int
    element: int


class SendList:
    """Send requests as C takes them: built once, posted as often as one likes; `wrs[i]` may be changed in between."""

    def __init__(self, requests: Sequence[SendWR]) -> None:
        self.wrs = (SendWRStruct * len(requests))()
        self._sges = [_sge_array(request.sges) for request in requests]
        for to, request, sges in zip(self.wrs, requests, self._sges):
            to.wr_id, to.opcode = request.wr_id, request.opcode
            to.sge, to.num_sge = ctypes.addressof(sges), len(request.sges)
            to.send_flags = _send_flags(request)
            to.imm = request.imm or 0
            to.remote_addr, to.rkey = request.remote_addr, request.rkey
            to.compare_add, to.swap = request.compare_add, request.swap
            to.invalidate_rkey = request.invalidate_rkey


class RecvList:
    """Receive requests as C takes them; see SendList."""

    def __init__(self, requests: Sequence[RecvWR]) -> None:
        self.wrs = (RecvWRStruct * len(requests))()
        self._sges = [_sge_array(request.sges) for request in requests]
        for to, request, sges in zip(self.wrs, requests, self._sges):
            to.wr_id = request.wr_id
            to.sge, to.num_sge = ctypes.addressof(sges), len(request.sges)


def _sge_array(sges: Sequence[Sge]) -> ctypes.Array[SgeStruct]:
    return (SgeStruct * len(sges))(*[SgeStruct(sge.addr, sge.length, sge.lkey) for sge in sges])


def _send_flags(request: SendWR) -> int:
    flags = _SIGNALED if request.signaled else 0
    flags |= _FENCE if request.fence else 0
    flags |= _SOLICITED if request.solicited else 0
    return flags | (_INLINE if request.inline else 0)


def _completion(wc: WCStruct) -> Completion:
    # rxe sets the flag, without a value, for the sender of an immediate too.
    received = wc.status == _WC_SUCCESS and wc.opcode & _WC_RECV
    imm = wc.imm if received and wc.wc_flags & _WC_WITH_IMM else None
    invalidated = wc.imm if received and wc.wc_flags & _WC_WITH_INV else None
    return Completion(
        wc.wr_id, wc.status, wc.opcode, wc.byte_len, imm, wc.vendor_err, wc.qp_num, wc.wc_flags, invalidated
    )


def _stop_address(stop: StopFlag | None) -> int | None:
    return ctypes.addressof(stop.cell) if stop is not None else None


def _check(rc: int, attempted: str) -> int:
    """Return a count; raise what a negative errno means."""
    if rc >= 0:
        return rc
    if rc == -errno.ECANCELED:
        raise StoppedError(f"stopped: {attempted}")
    raise VerbsError(f"cannot {attempted}: {errno_text(-rc)}", errno=-rc)


class _Scratch(threading.local):
    """What a call to poll needs, kept for the next one of the same thread."""

    def __init__(self) -> None:
        self.spec = PollStruct()
        self.wcs = (WCStruct * 64)()

    def room_for(self, count: int) -> ctypes.Array[WCStruct]:
        if count > len(self.wcs):
            self.wcs = (WCStruct * count)()
        return self.wcs


class Native:
    """The loaded helper. `keep_open` is a descriptor that must live as long as the library does."""

    def __init__(self, path: str, keep_open: int = -1) -> None:
        self.keep_open = keep_open
        self._lib = ctypes.CDLL(path)
        self._verbs: VerbsStruct | None = None
        self._scratch = _Scratch()
        self._check_abi()
        for name, (result, *arguments) in _SIGNATURES.items():
            function = getattr(self._lib, name)
            function.restype, function.argtypes = result, arguments

    def _check_abi(self) -> None:
        version = int(self._lib.prdma_abi_version())
        if version != ABI_VERSION:
            raise RdmaEnvironmentError(f"the native helper has ABI version {version}, not {ABI_VERSION}: rebuild it")
        self.abi = AbiStruct()
        self._lib.prdma_abi(ctypes.byref(self.abi))
        for name, mirror in MIRRORS.items():
            if getattr(self.abi, name) != ctypes.sizeof(mirror):
                raise RdmaEnvironmentError(f"the native helper's {name} is {getattr(self.abi, name)}: rebuild it")

    # -- posting and polling

    def post_send(self, qp: int, requests: Union[Sequence[SendWR], SendList]) -> tuple[int, int]:
        """Post send requests; return 0 or a negative errno, and the index of the first that was not posted."""
        prepared = requests if isinstance(requests, SendList) else SendList(requests)
        return self._post(self._lib.prdma_post_send, qp, prepared.wrs)

    def post_recv(self, qp: int, requests: Union[Sequence[RecvWR], RecvList]) -> tuple[int, int]:
        """Post receive requests; returns what `post_send` does."""
        prepared = requests if isinstance(requests, RecvList) else RecvList(requests)
        return self._post(self._lib.prdma_post_recv, qp, prepared.wrs)

    def _post(self, function: Any, qp: int, wrs: ctypes.Array[Any]) -> tuple[int, int]:
        bad_index = ctypes.c_int(0)
        rc = function(qp, wrs, len(wrs), ctypes.byref(bad_index))
        return rc, bad_index.value

    def poll(
        self, cq: int, want: int, deadline_ns: int, stop: StopFlag | None = None, *, at_most: int | None = None
    ) -> list[Completion]:
        """Spin until `want` completions came; take up to `at_most` if more are there already."""
        spec, wcs = self._poll_spec(cq, want, deadline_ns, stop, at_most)
        got = _check(self._lib.prdma_poll(ctypes.byref(spec)), "poll the CQ")
        return [_completion(wcs[i]) for i in range(got)]

    def poll_events(
        self,
        cq: int,
        channel: int,
        want: int,
        deadline_ns: int,
        stop: StopFlag | None = None,
        *,
        at_most: int | None = None,
        solicited_only: bool = False,
    ) -> list[Completion]:
        """Do what `poll` does, sleeping on the completion channel in between."""
        spec, wcs = self._poll_spec(cq, want, deadline_ns, stop, at_most)
        verbs = ctypes.byref(self._libibverbs())
        rc = self._lib.prdma_poll_events(ctypes.byref(spec), channel, verbs, int(solicited_only))
        got = _check(rc, "poll the CQ by events")
        return [_completion(wcs[i]) for i in range(got)]

    def _poll_spec(
        self, cq: int, want: int, deadline_ns: int, stop: StopFlag | None, at_most: int | None
    ) -> tuple[PollStruct, ctypes.Array[WCStruct]]:
        scratch = self._scratch
        maximum = want if at_most is None else max(want, at_most)
        wcs = scratch.room_for(maximum)
        spec = scratch.spec
        spec.cq, spec.wc, spec.max, spec.want = cq, ctypes.addressof(wcs), maximum, want
        spec.deadline_ns, spec.stop = deadline_ns, _stop_address(stop) or 0
        return spec, wcs

    # -- events

    def req_notify(self, cq: int, solicited_only: bool = False) -> None:
        """Arm the CQ: its next (solicited) completion makes an event on its channel."""
        _check(self._lib.prdma_req_notify(cq, int(solicited_only)), "arm the CQ")

    def set_nonblocking(self, fd: int) -> None:
        """Make reads of the descriptor return at once; the event waits do it for theirs."""
        _check(self._lib.prdma_set_nonblocking(fd), f"make descriptor {fd} non-blocking")

    def wait_fd(self, fd: int, deadline_ns: int, stop: StopFlag | None = None) -> bool:
        """Wait until the descriptor is readable (or at its end); False at the deadline."""
        rc = self._lib.prdma_wait_fd(fd, deadline_ns, _stop_address(stop))
        return bool(_check(rc, f"wait for descriptor {fd}"))

    def wait_cq_event(self, channel: int, deadline_ns: int, stop: StopFlag | None = None) -> int | None:
        """Wait for a completion event, acknowledge it and return the pointer of its CQ; None at the deadline."""
        cq = ctypes.c_uint64(0)
        verbs = ctypes.byref(self._libibverbs())
        rc = self._lib.prdma_wait_cq_event(channel, verbs, ctypes.byref(cq), deadline_ns, _stop_address(stop))
        return cq.value if _check(rc, "wait for a completion event") else None

    def wait_async_event(self, context: int, deadline_ns: int, stop: StopFlag | None = None) -> NativeAsyncEvent | None:
        """Wait for an asynchronous event of the context, acknowledge it and return it; None at the deadline."""
        event = AsyncEventStruct()
        verbs = ctypes.byref(self._libibverbs())
        rc = self._lib.prdma_wait_async_event(context, verbs, ctypes.byref(event), deadline_ns, _stop_address(stop))
        if not _check(rc, "wait for an asynchronous event"):
            return None
        return NativeAsyncEvent(event.event_type, event.number, event.element)

    def _libibverbs(self) -> VerbsStruct:
        """Return the functions of the libibverbs that pyverbs has loaded."""
        if self._verbs is None:
            library = ctypes.CDLL("libibverbs.so.1")
            names = ("ibv_get_cq_event", "ibv_ack_cq_events", "ibv_get_async_event", "ibv_ack_async_event")
            self._verbs = VerbsStruct(*[ctypes.cast(getattr(library, name), _pointer).value for name in names])
        return self._verbs

    # -- memory

    def fill(self, addr: int, length: int, seed: int, start: int = 0) -> None:
        """Write the pattern's bytes `start` to `start + length` at `addr`."""
        self._lib.prdma_fill(addr, length, seed & _MASK64, start)

    def verify(self, addr: int, length: int, seed: int, start: int = 0) -> int | None:
        """Return the offset from `addr` of the first byte that is not the pattern's; None if all are."""
        bad = ctypes.c_uint64(0)
        differs = self._lib.prdma_verify(addr, length, seed & _MASK64, start, ctypes.byref(bad))
        return bad.value if differs else None

    def find_not(self, addr: int, length: int, byte: int) -> int | None:
        """Return the offset from `addr` of the first byte that is not `byte`; None if all are."""
        bad = ctypes.c_uint64(0)
        return bad.value if self._lib.prdma_find_not(addr, length, byte, ctypes.byref(bad)) else None

    # -- looking at verbs objects

    def peek(self, addr: int, length: int) -> bytes | None:
        """Return memory of this process, None where there is none."""
        buffer = ctypes.create_string_buffer(length)
        return buffer.raw if self._lib.prdma_peek(addr, buffer, length) == 0 else None

    def qp_view(self, qp: int) -> QPView | None:
        """Return what a `struct ibv_qp` at that address would say, None where memory cannot be read."""
        view = QPViewStruct()
        if self._lib.prdma_qp_view(qp, ctypes.byref(view)):
            return None
        return QPView(*[getattr(view, name) for name in QPView._fields])

    def cq_view(self, cq: int) -> CQView | None:
        """Return what a `struct ibv_cq` at that address would say, None where memory cannot be read."""
        view = CQViewStruct()
        if self._lib.prdma_cq_view(cq, ctypes.byref(view)):
            return None
        return CQView(*[getattr(view, name) for name in CQView._fields])

    # -- the agent's stream

    def writer(self, fd: int) -> FrameWriter:
        """Return the writer of frames and heartbeats on the descriptor."""
        return FrameWriter(self._lib, fd)


def _stop_heartbeat(lib: ctypes.CDLL, struct: WriterStruct) -> None:
    lib.prdma_heartbeat_stop(ctypes.byref(struct))


class FrameWriter:
    """Writes length-prefixed frames, and from a thread of C heartbeats between them."""

    def __init__(self, lib: ctypes.CDLL, fd: int) -> None:
        self._lib = lib
        self._struct = WriterStruct()
        self._address = ctypes.addressof(self._struct)
        lib.prdma_writer_init(self._address, fd)
        # The thread writes from the structure: it must have ended before that goes, also when the interpreter ends.
        self._stop = weakref.finalize(self, _stop_heartbeat, lib, self._struct)

    def write(self, payload: bytes, deadline_ns: int) -> None:
        """Write one frame whole.

        DeadlineError: nothing of it was written by then. BrokenPipeError: the reader is gone, or a frame was cut by
        its deadline; the stream is of no more use.
        """
        rc = self._lib.prdma_frame_write(self._address, payload, len(payload), deadline_ns)
        if rc == -errno.ETIMEDOUT:
            raise DeadlineError(f"the stream took no frame of {len(payload)} bytes before the deadline")
        if rc:
            raise OSError(-rc, f"cannot write a frame of {len(payload)} bytes to the stream: {errno_text(-rc)}")

    def start_heartbeat(self, interval_ms: int, orphan_s: int = 0) -> None:
        """Start to write `{"t":"beat","n":N,"calls":[[id,seconds],...]}`, at once and then each interval.

        With `orphan_s` SIGALRM ends the process that long after the reader is found to be gone.
        """
        self._struct.orphan_s = orphan_s
        _check(self._lib.prdma_heartbeat_start(self._address, interval_ms), "start the heartbeat")

    def begin_call(self, call_id: int) -> int:
        """List a call in the heartbeats; return the index for `end_call`, -1 if too many are listed already."""
        return max(-1, int(self._lib.prdma_call_begin(self._address, call_id)))

    def end_call(self, index: int) -> None:
        """Take the call off the heartbeats."""
        if index >= 0:
            self._lib.prdma_call_end(self._address, index)

    def close(self) -> None:
        """Stop the heartbeat; the descriptor stays open."""
        self._stop()
