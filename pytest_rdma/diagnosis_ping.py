"""What a diagnosis asks for besides what was collected: a ping between the ends of a request that got no answer."""

from __future__ import annotations

from dataclasses import replace

from pytest_rdma.diagnosis_view import View, views
from pytest_rdma.errors import DeadlineError, RdmaError
from pytest_rdma.evidence import Evidence, HostEvidence
from pytest_rdma.host import Host

PING_S = 1.0


def pinged(evidence: Evidence, local: Host, peer: Host) -> Evidence:
    """Return the evidence with a ping from the active end to the passive one, where it could tell something.

    It takes up to a second, times the scale of the host, and never raises an error of ours.
    """
    view = next((one for one in views(evidence) if one.unanswered), None)
    if view is None or not _may_tell(view):
        return evidence
    at_local = view.active.host is evidence.local
    answered = _ping(view, local if at_local else peer)
    return replace(evidence, local=answered) if at_local else replace(evidence, peer=answered)


def _ping(view: View, host: Host) -> HostEvidence:
    source, target, known = view.active.row, view.passive.row, view.active.host
    assert source is not None
    assert target is not None
    try:
        took_s = host.invoke("evidence.ping", str(target.address), source.netdev, timeout_s=PING_S)
    except DeadlineError:
        return replace(known, ping_error=f"no answer within {PING_S * host.timeout_scale:g} s")
    except RdmaError as error:
        return replace(known, unread={**known.unread, "ping": str(error)})
    return replace(known, ping_s=took_s)


def _may_tell(view: View) -> bool:
    rows = view.active.row, view.passive.row
    hosts = view.active.host, view.passive.host
    return not view.one_host and not any(host.lost for host in hosts) and all(row and row.netdev for row in rows)
