"""What is wrong with a transition of a QP is said by name."""

from __future__ import annotations

import pytest

from pytest_rdma.model import QPState
from pytest_rdma.transitions import AV_NAMES, OPTIONAL, REQUIRED, fault_of

RTR = ("dgid", "path_mtu", "dest_qp_num", "rq_psn", "max_dest_rd_atomic", "min_rnr_timer")


def test_all_that_is_required_is_enough() -> None:
    for (before, after), names in REQUIRED.items():
        assert fault_of(before, after, ["dgid" if name == "AV" else name for name in names]) == ""


def test_missing_attributes_are_named_in_order() -> None:
    assert fault_of(QPState.INIT, QPState.RTR, ["path_mtu", "rq_psn", "max_dest_rd_atomic"]) == (
        "INIT to RTR needs AV, path_mtu, dest_qp_num, rq_psn, max_dest_rd_atomic, min_rnr_timer; "
        "missing: AV, dest_qp_num, min_rnr_timer"
    )


def test_any_part_of_an_address_vector_counts_as_one() -> None:
    for name in AV_NAMES:
        assert fault_of(QPState.INIT, QPState.RTR, (*RTR[1:], name)) == ""


def test_what_a_transition_does_not_take_is_named() -> None:
    assert fault_of(QPState.INIT, QPState.RTR, (*RTR, "timeout", "sq_psn")) == (
        "INIT to RTR does not take sq_psn, timeout"
    )
    for step, names in OPTIONAL.items():
        required = ["dgid" if name == "AV" else name for name in REQUIRED[step]]
        assert fault_of(*step, [*required, *("dgid" if name == "AV" else name for name in names)]) == ""


def test_no_transition_is_told_with_those_there_are() -> None:
    assert fault_of(QPState.RESET, QPState.RTS, []) == (
        "RESET to RTS is no legal transition; from RESET a QP moves to INIT, RESET"
    )


@pytest.mark.parametrize("state", QPState)
def test_each_state_can_be_left_for_reset(state: QPState) -> None:
    assert fault_of(state, QPState.RESET, []) == ""


def test_without_a_state_the_qp_stays_where_it_is() -> None:
    assert fault_of(QPState.RTS, None, ["min_rnr_timer"]) == ""
    assert fault_of(QPState.RTS, None, ["dest_qp_num"]) == "RTS to RTS does not take dest_qp_num"
