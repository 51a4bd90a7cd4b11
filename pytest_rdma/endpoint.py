"""What a test holds: Endpoint, Buffer, PD, CQ, SRQ, MemoryWindow.

Identity is here, all state beside the verbs objects on the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Union

from pytest_rdma.errors import CompletionError, RdmaUsageError, RefusedError
from pytest_rdma.host import Handle
from pytest_rdma.model import (
    Access,
    AsyncEvent,
    Completion,
    EndpointCaps,
    ExchangeRecord,
    Opcode,
    QPState,
    RecvWR,
    RemoteMemory,
    SendWR,
    Sge,
)

if TYPE_CHECKING:
    from pytest_rdma.host import Call
    from pytest_rdma.pairing import Pair
    from pytest_rdma.traffic import Spec, TrafficResult


class PD(Handle):
    """A protection domain."""

    kind: ClassVar[str] = "pd"
    device: str

    def close(self) -> None:
        self._invoke_close("pd.close")


class CQ(Handle):
    """A completion queue; `depth` is what the driver granted."""

    kind: ClassVar[str] = "cq"
    device: str
    depth: int
    events: bool

    def poll(self, count: int = 1, timeout_s: float = 5.0, *, exactly: bool = True) -> list[Completion]:
        """Return `count` completions of whatever QPs use the queue; with `exactly` False, what came in the time."""
        found: list[Completion] = self._invoke("cq.poll", count, exactly, timeout_s=timeout_s)
        return found

    def close(self) -> None:
        self._invoke_close("cq.close")


class Buffer(Handle):
    """Registered, zeroed, page-aligned memory on the host. Offsets and lengths are in bytes and checked."""

    kind: ClassVar[str] = "mr"
    addr: int
    length: int
    lkey: int
    rkey: int
    access: Access

    @property
    def label(self) -> str:
        return f"buffer {self.handle} ({self.length} bytes)"

    @property
    def remote(self) -> RemoteMemory:
        """What a peer needs to reach the whole buffer."""
        return RemoteMemory(self.addr, self.rkey, self.length)

    def range(self, offset: int = 0, length: int | None = None) -> tuple[int, int]:
        """Return (offset, length) after checking that the range lies within; None is up to the end."""
        size = self.length - offset if length is None else length
        if offset < 0 or size < 0 or offset + size > self.length:
            raise RefusedError(
                f"bytes {offset} to {offset + max(size, 0)} are not within {self.label} on {self.host.name}"
            )
        return offset, size

    def sge(self, offset: int = 0, length: int | None = None) -> Sge:
        offset, size = self.range(offset, length)
        return Sge(self.addr + offset, size, self.lkey)

    def write(self, data: bytes, offset: int = 0) -> None:
        self.range(offset, len(data))
        self._invoke("mr.write", data, offset)

    def read(self, offset: int = 0, length: int | None = None) -> bytes:
        found: bytes = self._invoke("mr.read", *self.range(offset, length))
        return found

    def fill(self, seed: int, offset: int = 0, length: int | None = None, *, pattern_offset: int = 0) -> None:
        """Write the pattern of `seed`, from its byte `pattern_offset` on."""
        self._invoke("mr.fill", seed, *self.range(offset, length), pattern_offset)

    def verify(self, seed: int, offset: int = 0, length: int | None = None, *, pattern_offset: int = 0) -> None:
        """Check, on the host, that the bytes are the pattern's; DataMismatchError names the first that is not."""
        self._invoke("mr.verify", seed, *self.range(offset, length), pattern_offset)

    def memset(self, byte: int, offset: int = 0, length: int | None = None) -> None:
        self._invoke("mr.memset", byte, *self.range(offset, length))

    def check_untouched(self, byte: int, offset: int = 0, length: int | None = None) -> None:
        """Check that every byte is still `byte`; DataMismatchError names the first that is not."""
        self._invoke("mr.check_untouched", byte, *self.range(offset, length))

    def close(self) -> None:
        self._invoke_close("mr.close")


class SRQ(Handle):
    """A shared receive queue; `depth` and `sges` are what the driver granted."""

    kind: ClassVar[str] = "srq"
    pd: PD
    depth: int
    sges: int

    @property
    def label(self) -> str:
        """What messages and asynchronous events call the queue."""
        return f"SRQ {self.handle}"

    def post_recv(self, buffer: Buffer, offset: int = 0, length: int | None = None, *, wr_id: int | None = None) -> int:
        """Post one receive, for whichever QP of the queue gets the next message; returns its wr_id."""
        request = RecvWR((buffer.sge(offset, length),), wr_id or 0)
        return self.post_recvs([request], number=wr_id is None)[0]

    def post_recvs(self, requests: Sequence[RecvWR], *, number: bool = False) -> list[int]:
        """Post many receives; with `number` the queue gives their wr_ids. Returns those."""
        posted: list[int] = self._invoke("srq.post_recv", list(requests), number)
        return posted

    def set_limit(self, limit: int) -> None:
        """Ask for one asynchronous event SRQ_LIMIT_REACHED when fewer receives than `limit` are left."""
        self._invoke("srq.limit", limit)

    def query(self) -> dict[str, int]:
        """Return what ibv_query_srq(3) tells, by the names there."""
        found: dict[str, int] = self._invoke("srq.query")
        return found

    def close(self) -> None:
        self._invoke_close("srq.close")


class MemoryWindow(Handle):
    """A memory window of `type` 1 or 2, bound by requests of the endpoint that it was made for."""

    kind: ClassVar[str] = "mw"
    type: int

    @property
    def label(self) -> str:
        return f"memory window {self.handle} of type {self.type}"

    def bind(
        self,
        buffer: Buffer,
        offset: int = 0,
        length: int | None = None,
        *,
        access: Access = Access.REMOTE_WRITE | Access.REMOTE_READ,
        signaled: bool = True,
    ) -> int:
        """Post the binding to a part of a buffer with access MW_BIND; returns its wr_id. Length 0 unbinds type 1."""
        posted: int = self._invoke("mw.bind", buffer.handle, *buffer.range(offset, length), int(access), signaled)
        return posted

    @property
    def remote(self) -> RemoteMemory:
        """What a peer needs to reach the memory that the window was last bound to."""
        memory: RemoteMemory = self._invoke("mw.memory")
        return memory

    def close(self) -> None:
        self._invoke_close("mw.close")


Target = Union[RemoteMemory, Buffer, MemoryWindow, None]


class Endpoint(Handle):
    """One QP with its CQ, PD and buffer. `caps` holds what the driver granted, `record` what the peer is told."""

    kind: ClassVar[str] = "qp"
    qp_num: int
    device: str
    port: int
    caps: EndpointCaps
    record: ExchangeRecord
    buffer: Buffer
    pd: PD
    cq: CQ
    remote: RemoteMemory | None = None
    pair: Pair | None = None

    @property
    def label(self) -> str:
        return f"QP {self.qp_num:#x}"

    # -- checked posts

    def post_recv(
        self,
        buffer: Buffer | None = None,
        offset: int = 0,
        length: int | None = None,
        *,
        sges: Sequence[Sge] | None = None,
        wr_id: int | None = None,
    ) -> int:
        """Post one receive, by default of the whole own buffer; returns its wr_id."""
        request = RecvWR(self._sges(buffer, offset, length, sges), wr_id or 0)
        return self._post_recvs([request], number=wr_id is None)[0]

    def send(
        self,
        buffer: Buffer | None = None,
        offset: int = 0,
        length: int | None = None,
        *,
        sges: Sequence[Sge] | None = None,
        imm: int | None = None,
        invalidate: int | None = None,
        wr_id: int | None = None,
        **flags: bool,
    ) -> int:
        """Post one Send; `flags` are `inline`, `signaled` (default True), `fence`, `solicited`. Returns its wr_id.

        `invalidate` is a key of the peer's, of a memory window of type 2, that stops to work as the message arrives.
        """
        opcode = Opcode.SEND if imm is None else Opcode.SEND_WITH_IMM
        request = SendWR(opcode, self._sges(buffer, offset, length, sges), imm=imm, **flags)
        if invalidate is not None:
            request = replace(request, opcode=Opcode.SEND_WITH_INV, invalidate_rkey=invalidate)
        return self._post(request, wr_id)

    def write(
        self,
        buffer: Buffer | None = None,
        offset: int = 0,
        length: int | None = None,
        *,
        to: Target = None,
        remote_offset: int = 0,
        sges: Sequence[Sge] | None = None,
        imm: int | None = None,
        wr_id: int | None = None,
        **flags: bool,
    ) -> int:
        """Post one RDMA Write to `to`, by default the peer's buffer, from byte `remote_offset` of it on."""
        opcode = Opcode.RDMA_WRITE if imm is None else Opcode.RDMA_WRITE_WITH_IMM
        request = SendWR(opcode, self._sges(buffer, offset, length, sges), imm=imm, **flags)
        return self._post(self._aimed(request, to, remote_offset), wr_id)

    def read(
        self,
        buffer: Buffer | None = None,
        offset: int = 0,
        length: int | None = None,
        *,
        source: Target = None,
        remote_offset: int = 0,
        sges: Sequence[Sge] | None = None,
        wr_id: int | None = None,
        **flags: bool,
    ) -> int:
        """Post one RDMA Read from `source`, by default the peer's buffer, from byte `remote_offset` of it on."""
        request = SendWR(Opcode.RDMA_READ, self._sges(buffer, offset, length, sges), **flags)
        return self._post(self._aimed(request, source, remote_offset), wr_id)

    def compare_swap(
        self,
        expected: int,
        swap: int,
        buffer: Buffer | None = None,
        offset: int = 0,
        *,
        to: Target = None,
        remote_offset: int = 0,
        wr_id: int | None = None,
        **flags: bool,
    ) -> int:
        """Post one 8-byte compare-and-swap; the old value arrives at `offset` of the buffer."""
        request = SendWR(
            Opcode.ATOMIC_CMP_AND_SWP, self._sges(buffer, offset, 8, None), compare_add=expected, swap=swap, **flags
        )
        return self._post(self._aimed(request, to, remote_offset), wr_id)

    def fetch_add(
        self,
        add: int,
        buffer: Buffer | None = None,
        offset: int = 0,
        *,
        to: Target = None,
        remote_offset: int = 0,
        wr_id: int | None = None,
        **flags: bool,
    ) -> int:
        """Post one 8-byte fetch-and-add; the old value arrives at `offset` of the buffer."""
        request = SendWR(Opcode.ATOMIC_FETCH_AND_ADD, self._sges(buffer, offset, 8, None), compare_add=add, **flags)
        return self._post(self._aimed(request, to, remote_offset), wr_id)

    def invalidate(self, rkey: int, *, wr_id: int | None = None, signaled: bool = True, fence: bool = False) -> int:
        """Post one local invalidation of a key, of a memory window of type 2; returns its wr_id."""
        request = SendWR(Opcode.LOCAL_INV, invalidate_rkey=rkey, signaled=signaled, fence=fence)
        return self._post(request, wr_id)

    def memory_window(self, type: int = 2) -> MemoryWindow:
        """Return a new memory window, unbound; it is closed with the endpoint."""
        made: MemoryWindow = self._invoke("mw.create", type)
        return made

    def post(self, requests: Sequence[SendWR]) -> list[int]:
        """Post many send requests in one list, all checked first; returns their wr_ids."""
        return self._post_sends(list(requests), number=False)

    def post_recvs(self, requests: Sequence[RecvWR]) -> list[int]:
        """Post many receives in one list, all checked first; returns their wr_ids."""
        return self._post_recvs(list(requests), number=False)

    def post_raw(self, requests: SendWR | RecvWR | Sequence[SendWR | RecvWR]) -> None:
        """Hand requests, all of one kind, to the driver unchecked; PostError holds errno and bad_index."""
        wrs = [requests] if isinstance(requests, (SendWR, RecvWR)) else list(requests)
        self._invoke("qp.post_raw", wrs)

    # -- completions

    def poll(self, count: int = 1, timeout_s: float = 5.0, *, exactly: bool = True) -> list[Completion]:
        """Return `count` completions of any status, in the order they came.

        With `exactly` False, return what there is, up to `count`, once the first came or the time is up.
        """
        found: list[Completion] = self._invoke("qp.poll", count, exactly, timeout_s=timeout_s)
        return found

    def wait(self, *wr_ids: int, timeout_s: float = 5.0) -> list[Completion]:
        """Return the completions of these requests, in the order asked; CompletionError when one has failed.

        Others that come meanwhile are kept for later `wait` and `poll`.
        """
        found: list[Completion] = self._invoke("qp.wait", list(wr_ids), timeout_s=timeout_s)
        return found

    def arm(self, *, solicited_only: bool = False) -> None:
        """Ask for an event at the next completion (caps.events)."""
        self._invoke("qp.arm", solicited_only)

    def wait_event(self, timeout_s: float = 5.0) -> None:
        """Wait for the event asked for by `arm`, and acknowledge it."""
        self._invoke("qp.wait_event", timeout_s=timeout_s)

    def async_events(self, timeout_s: float = 0.0) -> list[AsyncEvent]:
        """Return the asynchronous events of the device's context that came; waits up to `timeout_s` for the first."""
        found: list[AsyncEvent] = self._invoke("qp.async_events", timeout_s=timeout_s)
        return found

    # -- traffic

    def run(self, *specs: Spec, others: Sequence[Endpoint] = (), timeout_s: float = 60.0) -> TrafficResult:
        """Run a Pipeline, a RecvDrain, both, or a PingPong, on this QP and `others` of the same host.

        Whatever ends it early is an error: CompletionError with the first status that is not a flush, DeadlineError
        with what was done, RefusedError before anything was posted.
        """
        call = self.submit_run(*specs, others=others, timeout_s=timeout_s)
        try:
            result: TrafficResult = call.result()
        except BaseException:
            call.cancel()
            raise
        return result

    def submit_run(self, *specs: Spec, others: Sequence[Endpoint] = (), timeout_s: float = 60.0) -> Call:
        """Start what `run` runs."""
        from pytest_rdma.traffic_pair import submit  # it needs this module

        return submit("traffic.run_now", (self, *others), specs, timeout_s)

    # -- state

    @property
    def state(self) -> QPState:
        """The state that the driver reports now."""
        return QPState(self._invoke("qp.state"))

    def query(self) -> dict[str, Any]:
        """Return what ibv_query_qp(3) tells, by the names there."""
        found: dict[str, Any] = self._invoke("qp.query")
        return found

    def modify(self, state: QPState | None = None, **attributes: Any) -> None:
        """Call ibv_modify_qp(3) with exactly these attributes, nothing added and nothing checked.

        Names are those of `struct ibv_qp_attr`; the address vector is given by `dgid`, `sgid_index`, `dlid`, `sl`,
        `traffic_class`, `hop_limit`, `ah_port`; MTUs in bytes.
        """
        self._invoke("qp.modify", None if state is None else int(state), attributes)

    def to_error(self) -> None:
        self.modify(QPState.ERR)

    def reset(self) -> None:
        """Move to RESET and on to INIT: nothing is outstanding any more and no completion is kept."""
        self._invoke("qp.reset")
        self.remote = None

    @property
    def raw(self) -> Any:
        """The pyverbs objects (`.context .pd .cq .qp .mr`), where the endpoint lives in this process."""
        self.check_usable()
        return self.host.raw("qp", self.handle)

    def mark_closed(self) -> None:
        super().mark_closed()
        self.buffer.mark_closed()

    def close(self) -> None:
        """Destroy QP, then the CQ, buffer and PD that were made for it; idempotent."""
        self._invoke_close("qp.close")

    # -- how requests are made

    def _sges(
        self, buffer: Buffer | None, offset: int, length: int | None, sges: Sequence[Sge] | None
    ) -> tuple[Sge, ...]:
        if sges is not None:
            return tuple(sges)
        if buffer is not None and not isinstance(buffer, Buffer):
            raise RdmaUsageError(f"a request takes a Buffer, not {buffer!r:.40}: write the data into one first")
        return ((buffer or self.buffer).sge(offset, length),)

    def _aimed(self, request: SendWR, target: Target, remote_offset: int) -> SendWR:
        memory = target.remote if isinstance(target, (Buffer, MemoryWindow)) else target or self.remote
        if memory is None:
            raise RefusedError(
                f"{self.label} on {self.host.name} has no peer yet: connect the pair, or name the target"
            )
        length = sum(sge.length for sge in request.sges)
        if remote_offset < 0 or remote_offset + length > memory.length:
            raise RefusedError(
                f"bytes {remote_offset} to {remote_offset + length} are not within the peer's {memory.length} bytes "
                f"at {memory.addr:#x}"
            )
        return replace(request, remote_addr=memory.addr + remote_offset, rkey=memory.rkey)

    def _post(self, request: SendWR, wr_id: int | None) -> int:
        if wr_id is not None:
            request = replace(request, wr_id=wr_id)
        return self._post_sends([request], number=wr_id is None)[0]

    def _post_sends(self, requests: list[SendWR], number: bool) -> list[int]:
        posted: list[int] = self._invoke("qp.post_send", requests, number)
        return posted

    def _post_recvs(self, requests: list[RecvWR], number: bool) -> list[int]:
        posted: list[int] = self._invoke("qp.post_recv", requests, number)
        return posted


def check_success(completions: list[Completion], where: str, **fields: Any) -> None:
    """Raise CompletionError, with `fields`, when one of the completions has another status than success."""
    from pytest_rdma.status import describe

    failed = [completion for completion in completions if completion.status]
    if failed:
        text = "; ".join(f"wr_id {one.wr_id:#x}: {describe(one.status)}" for one in failed)
        raise CompletionError(f"{where}: {text}", completions=completions, **fields)
