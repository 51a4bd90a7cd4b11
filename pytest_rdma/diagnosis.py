"""Why a test failed: from the evidence of both ends to causes in words, the likeliest first.

`diagnose` is pure. Its rules stand in the order in which they speak: what ends everything (a host, a device), what the
failed status proves with both ends known, what a path without answers shows, what a wait cannot get, and last what the
status alone means. docs/diagnosis.md lists every cause by its name, which is stable: artifacts and tests carry it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pytest_rdma import diagnosis_hosts, diagnosis_memory, diagnosis_path, diagnosis_queue
from pytest_rdma.diagnosis_view import Cause, Causes, View, views
from pytest_rdma.evidence import Evidence

__all__ = ["Cause", "diagnose"]

Rule = Callable[[View], Causes]

RULES: tuple[Rule, ...] = (
    diagnosis_hosts.process_gone,
    diagnosis_hosts.device_gone,
    diagnosis_hosts.disk_full,
    diagnosis_hosts.memlock,
    diagnosis_queue.queue_full,
    diagnosis_memory.peer_memory,
    diagnosis_queue.receive_too_short,
    diagnosis_memory.own_memory,
    diagnosis_memory.peer_qp_access,
    diagnosis_queue.read_rd_atomic,
    diagnosis_queue.cq_overrun,
    diagnosis_queue.own_queue,
    diagnosis_queue.not_ready,
    diagnosis_path.port_down,
    diagnosis_path.link_layers,
    diagnosis_path.gid_rows,
    diagnosis_path.peer_qp,
    diagnosis_path.packet_numbers,
    diagnosis_queue.unsignaled,
    diagnosis_path.way,
    diagnosis_queue.no_receive,
    diagnosis_path.mtu,
    diagnosis_path.packets,
    diagnosis_path.retries,
    diagnosis_queue.flushed,
    diagnosis_queue.awaits_nothing,
    diagnosis_queue.data_read_early,
)
FLUSH = "qp-in-error"
"""What is said first only where no other pair has a status."""
LAST: tuple[Rule, ...] = (diagnosis_path.no_answer, diagnosis_hosts.status_alone)
"""What is said only where no rule knows better."""


def diagnose(evidence: Evidence) -> list[Cause]:
    """Return the causes that fit, best first; [] where nothing is wrong that the evidence shows."""
    flushes: list[Cause] = []
    for view in views(evidence):
        causes = _distinct(cause for rule in RULES for cause in rule(view))
        causes = causes or _distinct(cause for rule in LAST for cause in rule(view))[:1]
        if causes and causes[0].name != FLUSH:
            said = {(one.name, one.headline) for one in causes}
            return [*causes, *(one for one in flushes if (one.name, one.headline) not in said)]
        flushes = flushes or causes
    return flushes


def _distinct(causes: Iterable[Cause]) -> list[Cause]:
    """Each cause once, as it was said first: one host may be both ends, and two rules may see the same.

    What is only likely is left out behind what is proven.
    """
    found: dict[tuple[str, str], Cause] = {}
    for cause in causes:
        if cause.certain or not any(one.certain for one in found.values()):
            found.setdefault((cause.name, cause.headline), cause)
    return list(found.values())
