"""The life of an RC QP, transition by transition: what each needs, which are none, what may be posted in which state.

InfiniBand specification 1.4, volume 1: 10.3.1 (QP states), 11.2.5.2 (modify QP: required and optional attributes).
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from typing import Any

import pytest
from qp_attributes import init_attributes, rtr_attributes, rts_attributes

from pytest_rdma import Endpoint, QPState, VerbsError
from pytest_rdma.model import ConnectionAttributes

RESET, INIT, RTR, RTS, SQD, ERR = (
    QPState.RESET, QPState.INIT, QPState.RTR, QPState.RTS, QPState.SQD, QPState.ERR,
)  # fmt: skip
DRAIN_TIMEOUT_S = 10
WAYS = {
    RESET: (RESET,),
    INIT: (INIT,),
    RTR: (INIT, RTR),
    RTS: (INIT, RTR, RTS),
    SQD: (INIT, RTR, RTS, SQD),
    ERR: (INIT, ERR),
}
LEGAL = [
    (RESET, INIT),
    (INIT, INIT),
    (INIT, RTR),
    (RTR, RTS),
    (RTS, RTS),
    (RTS, SQD),
    (SQD, RTS),
    (SQD, SQD),
    *((state, RESET) for state in WAYS),
    *((state, ERR) for state in WAYS if state != RESET),  # Linux refuses RESET to ERR for every provider
]
ILLEGAL = [(before, after) for before in WAYS for after in WAYS if (before, after) not in LEGAL]
NAMES_OF = {
    INIT: ("pkey_index", "port_num", "qp_access_flags"),
    RTR: ("AV", "path_mtu", "dest_qp_num", "rq_psn", "max_dest_rd_atomic", "min_rnr_timer"),
    RTS: ("timeout", "retry_cnt", "rnr_retry", "sq_psn", "max_rd_atomic"),
}
STEP_BEFORE = {INIT: RESET, RTR: INIT, RTS: RTR}
AV = ("dgid", "sgid_index", "hop_limit", "dlid", "ah_port")


def text(step: object) -> str:
    return "-to-".join(state.name for state in step) if isinstance(step, tuple) else str(getattr(step, "name", step))


class Walker:
    """A QP that is its own peer, and the attributes that take it from state to state."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        mtu = endpoint.record.active_mtu
        attributes = ConnectionAttributes(mtu)
        self.attributes: dict[QPState, dict[str, Any]] = {
            INIT: init_attributes(endpoint.port),
            RTR: rtr_attributes(endpoint, endpoint.record, attributes),
            RTS: rts_attributes(endpoint.record, attributes),
        }

    def to(self, state: QPState) -> None:
        self.endpoint.modify(RESET)
        for step in WAYS[state]:
            self.step(step)
        assert self.endpoint.state == state

    def step(self, state: QPState) -> None:
        # INIT to INIT and RTS to RTS change nothing, so that they need nothing
        given = self.attributes.get(state, {}) if STEP_BEFORE.get(state) == self.endpoint.state else {}
        self.endpoint.modify(state, **given)
        if state == SQD:
            self.wait_drained()

    def wait_drained(self) -> None:
        """RTS follows only on a queue that has drained, be it empty (InfiniBand specification, 10.3.1.5)."""
        end = time.monotonic() + DRAIN_TIMEOUT_S
        while self.endpoint.query()["sq_draining"]:
            assert time.monotonic() < end, f"the send queue has not drained within {DRAIN_TIMEOUT_S} s"


@pytest.fixture
def walker(rdma_qp: Callable[..., Endpoint]) -> Walker:
    return Walker(rdma_qp())


@pytest.mark.parametrize("step", LEGAL, ids=text)
def test_legal_transition(walker: Walker, step: tuple[QPState, QPState]) -> None:
    """With exactly the attributes required, the QP is in the new state."""
    walker.to(step[0])
    walker.step(step[1])
    assert walker.endpoint.state == step[1]


@pytest.mark.parametrize("step", ILLEGAL, ids=text)
def test_illegal_transition_is_refused_by_name(walker: Walker, step: tuple[QPState, QPState]) -> None:
    """Even with all attributes of the new state; the QP stays where it was."""
    before, after = step
    walker.to(before)
    with pytest.raises(VerbsError, match=f"{before.name} to {after.name} is no legal transition") as refused:
        walker.endpoint.modify(after, **walker.attributes.get(after, {}))
    assert refused.value.errno == errno.EINVAL
    assert walker.endpoint.state == before


@pytest.mark.parametrize(
    ("state", "missing"), [(state, name) for state, names in NAMES_OF.items() for name in names], ids=text
)
def test_missing_attribute_is_named(walker: Walker, state: QPState, missing: str) -> None:
    """One attribute less than required: refused, and the message says which."""
    walker.to(STEP_BEFORE[state])
    left_out = AV if missing == "AV" else (missing,)
    given = {name: value for name, value in walker.attributes[state].items() if name not in left_out}
    with pytest.raises(VerbsError, match=f"needs {', '.join(NAMES_OF[state])}; missing: {missing}$") as refused:
        walker.endpoint.modify(state, **given)
    assert refused.value.errno == errno.EINVAL
    assert walker.endpoint.state == STEP_BEFORE[state]


def test_attribute_that_the_transition_does_not_take_is_named(walker: Walker) -> None:
    walker.to(INIT)
    with pytest.raises(VerbsError, match="INIT to RTR does not take sq_psn"):
        walker.endpoint.modify(RTR, **walker.attributes[RTR], sq_psn=1)
    assert walker.endpoint.state == INIT


def test_query_tells_what_was_set(walker: Walker) -> None:
    """The driver gives back every attribute of the way to RTS."""
    walker.to(RTS)
    found = walker.endpoint.query()
    assert found["qp_state"] == RTS
    for given in walker.attributes.values():
        for name, value in given.items():
            if name not in ("dlid", "hop_limit"):
                assert (name, found[name]) == (name, value)
