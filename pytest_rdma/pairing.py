"""The pair of endpoints that a rail and a test's capabilities make, and how it is connected."""

from __future__ import annotations

import contextlib
import importlib
import secrets
import time
import weakref
from dataclasses import fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Callable, TypeVar

from pytest_rdma.endpoint import Endpoint
from pytest_rdma.errors import RdmaError, RdmaUsageError
from pytest_rdma.host import Call, Handle, Host, LocalHost, close_all
from pytest_rdma.model import PSN_BITS, ConnectionAttributes, EndpointCaps, ExchangeRecord
from pytest_rdma.rail import Rail, RailEnd, check_mtu

if TYPE_CHECKING:
    from pytest_rdma.diagnosis import Cause

PairT = TypeVar("PairT", bound="Pair")
Overrides = dict[str, dict[str, Any]]
Shared = dict[str, dict[str, Handle]]
SIDES = ("local", "peer")
ATTRIBUTE_NAMES = {one.name for one in fields(ConnectionAttributes)}
RECORD_NAMES = {one.name for one in fields(ExchangeRecord)}

MADE: weakref.WeakSet[Pair] = weakref.WeakSet()
"""All pairs there are, for who explains a failure."""


class Pair:
    """Two endpoints and how they connect. Each step is one round trip to each host, both at once."""

    def __init__(self, local: Endpoint, peer: Endpoint, rail: Rail, attributes: ConnectionAttributes) -> None:
        self.local = local
        self.peer = peer
        self.rail = rail
        self.attributes = attributes
        local.pair = peer.pair = self
        self.made_s = time.monotonic()
        MADE.add(self)

    @classmethod
    def create(
        cls: type[PairT],
        local: Host,
        peer: Host,
        rail: Rail,
        caps: EndpointCaps | None = None,
        shared: Shared | None = None,
        **attributes: Any,
    ) -> PairT:
        """Make both endpoints, in INIT; `attributes` override those that the rail gives, by their names.

        `shared={"peer": {"srq": srq}}` gives an end a PD, CQ or SRQ that there is already.
        """
        unknown = sorted(set(attributes) - ATTRIBUTE_NAMES)
        if unknown:
            raise RdmaUsageError(
                f"no connection attribute {', '.join(unknown)}; there are {', '.join(ATTRIBUTE_NAMES)}"
            )
        chosen = replace(ConnectionAttributes(rail.mtu, rd_atomic=rail.rd_atomic), **attributes)
        shares = [(shared or {}).get(side, {}) for side in SIDES]
        args = [
            _creation(end, caps or EndpointCaps(), chosen.pkey_index, share)
            for end, share in zip((rail.local, rail.peer), shares)
        ]
        made = both((local, peer), "qp.create", args, undo=lambda endpoint: endpoint.close())
        pair = cls(made[0], made[1], rail, chosen)
        try:  # the MTUs may have changed since the rail was chosen
            places = [f"{end.device}/{end.port} on {end.host.name}" for end in pair.ends]
            check_mtu(chosen.mtu, [end.record.active_mtu for end in pair.ends], places)
        except RdmaUsageError:
            pair.close()
            raise
        return pair

    @property
    def ends(self) -> tuple[Endpoint, Endpoint]:
        return self.local, self.peer

    def connect(self, overrides: Overrides | None = None) -> None:
        """Move both ends to RTR and on to RTS.

        One end may be in RTS while the other is not yet in RTR: nothing is sent before both are, because no test can
        post before this returns.

        `overrides={"local": {...}}` forges: fields of ExchangeRecord are what the local end tells the peer, fields of
        ConnectionAttributes are how the local end itself is set; `"peer"` likewise.
        """
        records, attributes = self._forged(overrides or {})
        hosts, handles = [end.host for end in self.ends], [end.handle for end in self.ends]
        for end in self.ends:
            end.check_usable()
        towards = [(handles[0], records[1], attributes[0]), (handles[1], records[0], attributes[1])]
        both(hosts, "qp.connect", towards)
        self.local.remote, self.peer.remote = records[1].memory, records[0].memory

    def _forged(self, overrides: Overrides) -> tuple[list[ExchangeRecord], list[ConnectionAttributes]]:
        unknown = set(overrides) - set(SIDES)
        if unknown:
            raise RdmaUsageError(f"overrides are for 'local' and 'peer', not for {', '.join(sorted(unknown))}")
        records, attributes = [], []
        for side, end in zip(SIDES, self.ends):
            changes = overrides.get(side, {})
            wrong = set(changes) - ATTRIBUTE_NAMES - RECORD_NAMES
            if wrong:
                names = ", ".join(sorted(ATTRIBUTE_NAMES | RECORD_NAMES))
                raise RdmaUsageError(f"cannot override {', '.join(sorted(wrong))}; what can be: {names}")
            records.append(replace(end.record, **{k: v for k, v in changes.items() if k in RECORD_NAMES}))
            attributes.append(replace(self.attributes, **{k: v for k, v in changes.items() if k in ATTRIBUTE_NAMES}))
        return records, attributes

    def reset(self) -> None:
        """Move both ends to RESET and on to INIT; `connect` then connects them anew.

        Packet numbers begin elsewhere, so that a late packet of before is none of the new connection.
        """
        psns = [secrets.randbits(PSN_BITS) for _ in self.ends]
        args = [(end.handle, psn) for end, psn in zip(self.ends, psns)]
        both([end.host for end in self.ends], "qp.reset", args)
        for end, psn in zip(self.ends, psns):
            end.record, end.remote = replace(end.record, psn=psn), None

    def reconnect(self, overrides: Overrides | None = None) -> None:
        self.reset()
        self.connect(overrides)

    def diagnose(self) -> list[Cause]:
        """Return what is wrong with the pair now, the likeliest cause first; [] where nothing shows.

        Both hosts are asked. A failing test is explained so by itself: this is for tests that go on.
        """
        causes: list[Cause] = importlib.import_module("pytest_rdma.gathering").diagnose_pair(self)
        return causes

    def close(self) -> None:
        """Close both ends, both at once; idempotent; an error of one does not keep the other open."""
        live = [end for end in self.ends if not end.closed]
        for end in live:
            end.mark_closed()
        live = [end for end in live if end.generation == end.host.generation]
        both([end.host for end in live], "qp.close", [(end.handle,) for end in live])


def _creation(end: RailEnd, caps: EndpointCaps, pkey_index: int, share: dict[str, Handle]) -> tuple[Any, ...]:
    gid_index = end.gid.index if end.gid else None
    handles = (share[kind].handle if kind in share else None for kind in ("pd", "cq", "srq"))
    return end.device.name, end.port.number, gid_index, caps, pkey_index, *handles


def both(
    hosts: tuple[Host, ...] | list[Host],
    op: str,
    args: list[tuple[Any, ...]],
    undo: Callable[[Any], Any] | None = None,
) -> list[Any]:
    """Run an op on all hosts at once and return the results in order.

    When one fails, what the others made is undone and the first failure raised. An op on a LocalHost runs here while
    the other host works.
    """
    remote = [index for index, host in enumerate(hosts) if not isinstance(host, LocalHost)]
    local = [index for index in range(len(hosts)) if index not in remote]
    calls: dict[int, Call] = {}
    results: list[Any] = [None] * len(hosts)

    def start(index: int) -> None:
        calls[index] = hosts[index].submit(op, *args[index])

    def run(index: int) -> None:
        results[index] = hosts[index].invoke(op, *args[index])

    def finish(index: int) -> None:
        if index in calls:
            results[index] = calls[index].result()

    steps = [(start, remote), (run, local), (finish, remote)]
    try:
        close_all([partial(step, index) for step, indices in steps for index in indices])
    except BaseException:
        if undo is not None:
            with contextlib.suppress(RdmaError):  # the first failure is what the user must see
                close_all([partial(undo, result) for result in results if result is not None])
        raise
    return results
