"""The evidence of both ends: which pair an error is about, and what both hosts know, asked at once within a time."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pytest_rdma.diagnosis import Cause, diagnose
from pytest_rdma.diagnosis_ping import pinged
from pytest_rdma.endpoint import Endpoint
from pytest_rdma.errors import RdmaError
from pytest_rdma.evidence import Evidence, HostEvidence, QPEvidence
from pytest_rdma.host import Host
from pytest_rdma.model import DeviceInfo, HostInfo, QPState
from pytest_rdma.pairing import MADE, Pair

COLLECT_S = 3.0
GRACE_S = 1.0
BROKEN = (QPState.ERR, QPState.SQE)
UNKNOWN = HostInfo("", "", "", "", "", "", "", 0, 0, -1, -1)


@dataclass(frozen=True)
class Place:
    """Where to look on a host: device, port and GID row; `known` is what the device was when it was last asked."""

    host: Host
    device: str
    port: int
    gid_index: int | None
    known: DeviceInfo | None = None


Places = tuple[Place, Place]


def evidence_of(
    places: Places, pairs: Sequence[Pair], error: BaseException | None, age_s: float, named: Pair | None = None
) -> Evidence:
    """Return what both hosts know, and which of the pairs the error is about.

    Without an error that names a QP it is the first pair in trouble, or the only one there is.
    """
    root = next((one for one in chain(error) if hasattr(one, "qp_num")), error)
    named = named or next((pair for pair in pairs if _end_named(pair, root)), None)
    if named is not None:
        places = _places_of(named)
    # an agent that was reached by a command was started before the name of its host was known
    local, peer = (replace(one, name=place.host.name) for one, place in zip(_collect(places, age_s), places))
    chosen = named or next((pair for pair in pairs if _in_trouble(pair, local, peer)), None)
    if chosen is None and len(pairs) == 1 and isinstance(error, RdmaError):
        chosen = pairs[0]
    numbers = (chosen.local.qp_num, chosen.peer.qp_num) if chosen else _by_number(root, local, peer)
    found = Evidence(
        local=local,
        peer=peer,
        local_qp=numbers[0],
        peer_qp=numbers[1],
        failed_side=_failed_side(chosen, root, local, peer),
        error_type=type(root).__name__ if root is not None else "",
        error=str(root) if root is not None else "",
        error_qp=getattr(root, "qp_num", None),
    )
    return pinged(found, places[0].host, places[1].host)


def diagnose_pair(pair: Pair) -> list[Cause]:
    """Return the causes of what is wrong with a pair now."""
    return diagnose(evidence_of(_places_of(pair), [pair], None, time.monotonic() - pair.made_s, pair))


def chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield the error and those that it was raised from or while handling."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def pairs_since(began_s: float) -> list[Pair]:
    """Return the pairs that were made since then, or are still open, the newest first."""
    found = [pair for pair in MADE if pair.made_s >= began_s or not all(end.closed for end in pair.ends)]
    return sorted(found, key=lambda pair: -pair.made_s)


def qp_of(host: HostEvidence, number: int | None) -> QPEvidence | None:
    """Return the QP of that number; one that is open before one that was closed."""
    found = sorted((qp for qp in host.qps if qp.qp_num == number), key=lambda qp: qp.closed)
    return found[0] if found else None


def troubled(qp: QPEvidence | None) -> bool:
    """Whether anything is wrong with the QP, or something is still awaited of it."""
    return qp is not None and bool(qp.failure or qp.first_flush or qp.state in BROKEN or qp.awaits or qp.error)


def _end_named(pair: Pair, error: BaseException | None) -> Endpoint | None:
    for end in pair.ends:
        about = (end.qp_num, end.device, end.host.name)
        if about == tuple(getattr(error, name, None) for name in ("qp_num", "device", "host")):
            return end
    return None


def _places_of(pair: Pair) -> Places:
    one, two = (
        Place(end.host, end.device, end.port, end.record.gid_index, rail_end.device)
        for end, rail_end in zip(pair.ends, (pair.rail.local, pair.rail.peer))
    )
    return one, two


def _in_trouble(pair: Pair, local: HostEvidence, peer: HostEvidence) -> bool:
    return troubled(qp_of(local, pair.local.qp_num)) or troubled(qp_of(peer, pair.peer.qp_num))


def _by_number(error: BaseException | None, local: HostEvidence, peer: HostEvidence) -> tuple[int | None, int | None]:
    """Return the numbers of a QP that is named but of no known pair, and of the one that it was connected with."""
    number, host = getattr(error, "qp_num", None), getattr(error, "host", None)
    for mine, swap in ((local, False), (peer, True)):
        qp = qp_of(mine, number) if host == mine.name else None
        if qp is not None:
            other = qp.peer.qp_num if qp.peer else None
            return (other, number) if swap else (number, other)
    return None, None


def _failed_side(pair: Pair | None, error: BaseException | None, local: HostEvidence, peer: HostEvidence) -> str:
    if pair is not None:
        end = _end_named(pair, error)
        if end is not None:
            return "peer" if end is pair.peer else "local"
        sides = qp_of(local, pair.local.qp_num), qp_of(peer, pair.peer.qp_num)
        if troubled(sides[1]) and not troubled(sides[0]):
            return "peer"
    host = getattr(error, "host", None)
    return "peer" if host == peer.name != local.name or (peer.lost and not local.lost) else "local"


# -- asking the hosts


def _collect(places: Places, age_s: float) -> tuple[HostEvidence, HostEvidence]:
    """Ask both at once. A host that does not answer in time is described by what is known of it here."""
    answers: list[HostEvidence | None] = [None, None]
    reasons = ["no answer in time", "no answer in time"]

    def ask(index: int) -> None:
        place = places[index]
        args = (place.device, place.port, place.gid_index, age_s)
        try:
            answers[index] = place.host.invoke("evidence.collect", *args, timeout_s=COLLECT_S)
        except Exception as error:  # why there is nothing to show is shown
            reasons[index] = str(error) if isinstance(error, RdmaError) else f"{type(error).__name__}: {error}"

    same = places[0].host is places[1].host
    threads = [
        threading.Thread(target=ask, args=(index,), name="rdma evidence", daemon=True) for index in range(2 - same)
    ]
    for thread in threads:
        thread.start()
    scale = max(place.host.timeout_scale for place in places)
    until = time.monotonic() + (COLLECT_S + GRACE_S) * scale
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    one = answers[0] or _unanswered(places[0], reasons[0])
    return one, one if same else answers[1] or _unanswered(places[1], reasons[1])


def _unanswered(place: Place, reason: str) -> HostEvidence:
    host = place.host
    info: Any = getattr(host, "info", UNKNOWN)
    return HostEvidence(
        name=host.name,
        info=info,
        device=place.known,
        port=place.port,
        gid_index=place.gid_index,
        qps=(),
        regions=(),
        async_events=(),
        counters={},
        kernel_log=(),
        lost=host.loss or "",
        unread={"everything": reason},
    )


def with_stderr(evidence: Evidence, words: dict[str, str]) -> Evidence:
    """Return the evidence with what the agents have on their standard error, by the names of the hosts."""
    local, peer = (replace(one, stderr=words.get(one.name, "")) for one in (evidence.local, evidence.peer))
    return replace(evidence, local=local, peer=peer)
