"""Requests that the peer's QP does not serve, whatever the memory allows.

The responder says NAK with Invalid Request. InfiniBand specification 1.4, volume 1: 9.7.4.1.5 (responder resources),
9.7.5.2.4 (NAK codes), 9.4.5 (atomics: the address is a multiple of 8), 9.9.3 (error behaviour).
"""

from __future__ import annotations

import pytest
from trials import FAILED, TrialFactory, failed

from pytest_rdma import Access, Opcode, WCStatus

OPERATIONS = {
    "write": (Opcode.RDMA_WRITE, Access.REMOTE_WRITE),
    "write-imm": (Opcode.RDMA_WRITE_WITH_IMM, Access.REMOTE_WRITE),
    "read": (Opcode.RDMA_READ, Access.REMOTE_READ),
    "compare-swap": (Opcode.ATOMIC_CMP_AND_SWP, Access.REMOTE_ATOMIC),
    "fetch-add": (Opcode.ATOMIC_FETCH_AND_ADD, Access.REMOTE_ATOMIC),
}
REFUSED = failed(WCStatus.REM_INV_REQ_ERR)
INVALID = FAILED.with_(events=("QP_REQ_ERR",))


@pytest.mark.combined(operation=tuple(OPERATIONS))
def test_qp_without_the_access(trial: TrialFactory, operation: str) -> None:
    """The peer's QP allows everything but this operation; its MR allows all."""
    opcode, needed = OPERATIONS[operation]
    made = trial(access=Access.ALL, qp_access=Access.ALL & ~needed)
    made.break_with(made.one_sided(opcode))
    made.expect(f"peer-qp-without-access.{operation}", REFUSED, INVALID)


@pytest.mark.combined(operation=("read", "compare-swap", "fetch-add"))
@pytest.mark.rdma_caps(access=Access.ALL)
def test_no_responder_resources(trial: TrialFactory, operation: str) -> None:
    """The peer was connected with max_dest_rd_atomic 0 and is asked all the same."""
    made = trial(passive={"rd_atomic": 0})
    made.break_with(made.one_sided(OPERATIONS[operation][0]))
    made.expect(f"no-responder-resources.{operation}", REFUSED, INVALID)


@pytest.mark.combined(operation=("compare-swap", "fetch-add"), offset=(1, 4, 7))
@pytest.mark.rdma_requires("atomics")
@pytest.mark.rdma_caps(access=Access.ALL)
def test_misaligned_atomic(trial: TrialFactory, operation: str, offset: int) -> None:
    """The word at the peer does not begin at a multiple of 8."""
    made = trial()
    addr = made.responder.buffer.addr + offset
    made.break_with(made.one_sided(OPERATIONS[operation][0], addr=addr, compare_add=1))
    made.expect(f"misaligned-atomic.{operation}", REFUSED, INVALID)
