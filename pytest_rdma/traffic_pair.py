"""Traffic between the two ends of one or more pairs: a start both are ready for, and an end both hear of.

The passive end has posted its receives before the active one starts, and stays until it is told. When one end fails the
other is stopped, and what is reported is the first failure that is not a consequence.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Union

from pytest_rdma.endpoint import Endpoint
from pytest_rdma.errors import CompletionError, DeadlineError, RdmaError, RefusedError, StoppedError
from pytest_rdma.host import Call, Handle, Host
from pytest_rdma.traffic import (
    PingPong,
    Pipeline,
    RecvDrain,
    Spec,
    TrafficResult,
    check_match,
    check_timeout,
    partner_of,
)

if TYPE_CHECKING:
    from pytest_rdma.pairing import Pair

Specs = Union[Spec, Sequence[Spec]]
WR_FLUSH_ERR = 5
STOP_GRACE_S = 1.0


class Traffic(Handle):
    """A run of one end that is built and has posted its receives."""

    kind: ClassVar[str] = "traffic"

    def start(self, timeout_s: float) -> Call:
        self.check_usable()
        return self.host.submit("traffic.run", self.handle, timeout_s=timeout_s)

    def close(self) -> None:
        self._invoke_close("traffic.close")


@dataclass(frozen=True)
class PairResult:
    """What both ends did; `passive` is None where that end had nothing to do."""

    active: TrafficResult
    passive: TrafficResult | None


def run_pairs(
    pairs: Pair | Sequence[Pair],
    active: Specs,
    passive: Specs | None = None,
    *,
    reverse: bool = False,
    timeout_s: float = 60.0,
) -> PairResult:
    """Run traffic from the local ends to the peers', or with `reverse` the other way, on all pairs at once.

    Without `passive` the other end runs what the active one needs: a RecvDrain, the answers of a PingPong, or nothing.
    """
    sides, specs = resolve(pairs, active, passive, reverse)
    check_match(*specs)
    with _prepared(sides, specs, timeout_s) as runs:
        if len(runs) == 1:
            return PairResult(_alone(runs[0].start(timeout_s)), None)
        return _both(runs, specs, timeout_s)


Sides = tuple[list[Endpoint], list[Endpoint]]


def resolve(
    pairs: Pair | Sequence[Pair], active: Specs, passive: Specs | None, reverse: bool
) -> tuple[Sides, tuple[tuple[Spec, ...], tuple[Spec, ...]]]:
    """Return the endpoints of the active and of the passive end, and what each runs."""
    sides = _sides(pairs, reverse)
    return sides, (_as_tuple(active), _as_tuple(passive) if passive else _partner(_as_tuple(active), sides[1]))


def _as_tuple(specs: Specs) -> tuple[Spec, ...]:
    return (specs,) if isinstance(specs, (Pipeline, RecvDrain, PingPong)) else tuple(specs)


def _sides(pairs: Pair | Sequence[Pair], reverse: bool) -> Sides:
    chosen = list(pairs) if isinstance(pairs, (list, tuple)) else [pairs]
    if not chosen:
        raise RefusedError("a run takes at least one pair, and none was given")
    ends = [pair.ends[::-1] if reverse else pair.ends for pair in chosen]  # type: ignore[union-attr]
    return [one[0] for one in ends], [one[1] for one in ends]


def _partner(specs: tuple[Spec, ...], other: list[Endpoint]) -> tuple[Spec, ...]:
    if len(specs) > 1:
        raise RefusedError("an end that sends and receives needs to be told what the other end runs")
    made = partner_of(specs[0], min(endpoint.caps.recv_depth for endpoint in other), len(other))
    return (made,) if made else ()


def _is_told(specs: tuple[Spec, ...]) -> bool:
    """Whether an end with these stays until it is told how many messages arrive."""
    return any(
        not spec.messages if isinstance(spec, RecvDrain) else isinstance(spec, PingPong) and _answers_by_time(spec)
        for spec in specs
    )


def _answers_by_time(spec: PingPong) -> bool:
    return spec.answers and not spec.iterations


@contextlib.contextmanager
def _prepared(sides: Sides, specs: tuple[tuple[Spec, ...], ...], timeout_s: float) -> Iterator[list[Traffic]]:
    """Both ends at once, the passive one first in line; what is refused at one end undoes the other."""
    runs: list[Traffic] = []
    calls = [_prepare(ends, wanted, timeout_s) for ends, wanted in zip(sides, specs) if wanted]
    errors: list[BaseException] = []
    for call in calls:
        try:
            runs.append(call.result())
        except RdmaError as error:
            errors.append(error)
    try:
        if errors:
            raise errors[0]
        yield runs
    finally:
        for run in runs:
            with contextlib.suppress(RdmaError):
                run.close()


def _prepare(ends: list[Endpoint], specs: tuple[Spec, ...], timeout_s: float) -> Call:
    return submit("traffic.prepare", ends, specs, timeout_s)


def submit(name: str, ends: Sequence[Endpoint], specs: Sequence[Spec], timeout_s: float) -> Call:
    """Start an op on these ends, which are open and different, and of one host."""
    check_timeout(timeout_s)
    host: Host = ends[0].host
    for endpoint in ends:
        endpoint.check_usable()
        if endpoint.host is not host:
            raise RefusedError(
                f"a run is on one host, and {endpoint.label} is on {endpoint.host.name}, not {host.name}"
            )
    handles = [endpoint.handle for endpoint in ends]
    if len(set(handles)) < len(handles):
        raise RefusedError("a run takes each QP once, and one was given twice")
    return host.submit(name, handles, list(specs), timeout_s=timeout_s)


def _alone(call: Call) -> TrafficResult:
    try:
        result: TrafficResult = call.result()
    except BaseException:
        call.cancel()
        raise
    return result


class _End(threading.Thread):
    """Waits for the run of one end; its failure stops the other."""

    def __init__(self, run: Traffic, timeout_s: float) -> None:
        super().__init__(name="rdma end of a pair", daemon=True)
        self.traffic = run
        self.call = run.start(timeout_s)
        self.other: _End
        self.value: Any = None
        self.errors: list[Exception] = []
        self.over = threading.Event()  # a join that Ctrl-C interrupts says ever after that the thread has ended

    def run(self) -> None:
        try:
            self.value = self.call.result()
        except Exception as error:  # crosses to the waiting thread whatever it is
            self.errors.append(error)
            self.other.stop()
        finally:
            self.over.set()

    def sent(self, timeout_s: float) -> int | None:
        """Wait until it has sent all, and return how many receives that takes; None when it has failed."""
        host, handle = self.traffic.host, self.traffic.handle
        try:
            found: int | None = host.submit("traffic.sent", handle, timeout_s=timeout_s).result()
        except RdmaError:
            return None  # its run tells why
        return found

    def tell_when_sent(self, timeout_s: float) -> None:
        """Wait until the other end has sent all, and tell this one how much that is."""
        try:
            arriving = self.other.sent(timeout_s)
            if arriving is not None:
                self.tell(arriving)
        except Exception as error:  # as in `run`
            self.errors.append(error)
            self.stop()
            self.other.stop()

    def tell(self, arriving: int) -> None:
        """Let it end when so many messages have arrived in all; its result comes after that, so nothing is awaited."""
        with contextlib.suppress(RdmaError):  # as above
            self.traffic.check_usable()
            self.traffic.host.submit("traffic.tell", self.traffic.handle, arriving)

    def stop(self) -> None:
        with contextlib.suppress(RdmaError):
            self.call.cancel()


def _both(runs: Sequence[Traffic], specs: Sequence[tuple[Spec, ...]], timeout_s: float) -> PairResult:
    passive = _End(runs[1], timeout_s)
    active = _End(runs[0], timeout_s)
    active.other, passive.other = passive, active
    for end in (passive, active):
        end.start()
    try:
        late = _end_both(active, passive, specs, timeout_s)
    except BaseException:  # both at once, then wait for both
        for end in (active, passive):
            end.stop()
        for end in (active, passive):
            end.over.wait(STOP_GRACE_S)
        raise
    if late and passive.errors:
        raise DeadlineError(f"the active end is done, and the passive one waits for more: {passive.errors[0]}")
    errors = active.errors + passive.errors
    if errors:
        raise min(errors, key=_consequence)
    return PairResult(active.value, passive.value)


def _end_both(active: _End, passive: _End, specs: Sequence[tuple[Spec, ...]], timeout_s: float) -> bool:
    """Wait for both, tell those that wait for it how many messages arrive; whether the passive end had to be stopped.

    What has completed at a sender arrives, at the latest a moment later; until then its receiver posts receives.
    """
    if _is_told(specs[0]):  # in a thread: Ctrl-C in that call would end the call first, and the runs after it
        threading.Thread(target=active.tell_when_sent, args=(timeout_s,), name="rdma end is told", daemon=True).start()
    active.over.wait()
    told, sends = _is_told(specs[1]), any(isinstance(spec, Pipeline) for spec in specs[1])
    if told and not active.errors:
        ponged = isinstance(specs[0][0], PingPong)
        passive.tell(active.value.messages if ponged else active.value.consumed)
    late = not (told or sends or passive.over.wait(STOP_GRACE_S * passive.traffic.host.timeout_scale))
    if late:
        passive.stop()
    passive.over.wait()
    return late and not active.errors


def _consequence(error: Exception) -> int:
    """Rank the failures of two ends: a cause before its effects at the other end."""
    if isinstance(error, StoppedError):
        return 3
    if isinstance(error, CompletionError) and all(one.status == WR_FLUSH_ERR for one in error.completions):
        return 2
    return 0 if isinstance(error, CompletionError) else 1
