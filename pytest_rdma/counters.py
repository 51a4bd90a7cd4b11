"""Limits on counters: what users call them, what drivers call them, and which of a device's counters exceeds one."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from pytest_rdma.errors import RdmaUsageError

if TYPE_CHECKING:
    import pytest

NAMES: dict[str, tuple[str, ...]] = {
    "retransmissions": (
        "completer_retry_err", "local_ack_timeout_err", "to_retransmits", "tcpRetransSegs", "retrans_pkts",
    ),
    "out_of_sequence": ("out_of_seq_request", "out_of_sequence", "oos_drop_count", "res_oos_drop_count"),
    "sequence_errors": ("rcvd_seq_err", "packet_seq_err", "seq_err_naks_rcvd"),
    "rnr_naks": ("rcvd_rnr_err", "rnr_nak_retry_err", "rnr_naks_rcvd"),
    "drops": (
        "out_of_buffer", "rx_roce_discards", "tx_roce_discards", "rx_roce_discard_pkts", "ip4InDiscards",
        "ip6InDiscards", "port_xmit_discards", "rx_drops",
    ),
}  # fmt: skip
"""What each is called by rxe, mlx5, bnxt_re, irdma and efa (each driver's hw_counters, and the port's counters)."""


def marked_limits(item: pytest.Item) -> dict[str, int]:
    """Return the limits of the test's `rdma_counters` markers; the closest marker wins, name by name."""
    limits: dict[str, int] = {}
    for marker in item.iter_markers("rdma_counters"):
        if marker.args:
            raise RdmaUsageError(f"rdma_counters takes keywords only, not {marker.args[0]!r}")
        for name, limit in marker.kwargs.items():
            if type(limit) is not int or limit < 0:
                raise RdmaUsageError(f"rdma_counters({name}={limit!r}): a limit is a whole number from 0 on")
        limits = {**marker.kwargs, **limits}
    return limits


def counters_of(name: str, there: Collection[str]) -> tuple[str, ...]:
    """Return the counters of a device that a name means: a name of any driver means those of its kind."""
    for kind, names in NAMES.items():
        if name == kind or name in names:
            return tuple(one for one in names if one in there)
    return (name,) if name in there else ()


def check_limits(limits: Mapping[str, int], there: Mapping[str, Collection[str]]) -> None:
    """Refuse a name that means no counter of a device; `there` are the counters by what messages call the device.

    A name of one driver's own may be missing at one end, where the other end has it.
    """
    for name in limits:
        meant = {place: counters_of(name, names) for place, names in there.items()}
        general = any(name == kind or name in names for kind, names in NAMES.items())
        missing = [place for place, found in meant.items() if not found]
        if missing and (general or len(missing) == len(meant)):
            kinds = [kind for kind in NAMES if counters_of(kind, there[missing[0]])]
            known = ", ".join([*kinds, *sorted(there[missing[0]])]) or "none"
            raise RdmaUsageError(f"{missing[0]} counts no {name!r}; it counts {known}")


def exceeded(limits: Mapping[str, int], counted: Mapping[str, int], place: str) -> list[str]:
    """Return in words the counters that grew by more than their limits."""
    found = []
    for name, limit in limits.items():
        for counter in counters_of(name, counted):
            if counted[counter] > limit:
                called = "" if counter == name else f" ({name})"
                found.append(f"{counter}{called} of {place} grew by {counted[counter]}, and {limit} is allowed")
    return found
