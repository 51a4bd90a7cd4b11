"""The transitions of an RC QP and the attributes of each: ibv_modify_qp(3), InfiniBand specification 11.2.5.2."""

from __future__ import annotations

from collections.abc import Collection

from pytest_rdma.model import QPState

AV = "AV"
AV_NAMES = ("dgid", "sgid_index", "flow_label", "hop_limit", "traffic_class", "dlid", "sl", "ah_port")

_S = QPState
_FREE = ("cur_qp_state", "qp_access_flags", "min_rnr_timer", "path_mig_state")
REQUIRED: dict[tuple[QPState, QPState], tuple[str, ...]] = {
    (_S.RESET, _S.INIT): ("pkey_index", "port_num", "qp_access_flags"),
    (_S.INIT, _S.INIT): (),
    (_S.INIT, _S.RTR): (AV, "path_mtu", "dest_qp_num", "rq_psn", "max_dest_rd_atomic", "min_rnr_timer"),
    (_S.RTR, _S.RTS): ("timeout", "retry_cnt", "rnr_retry", "sq_psn", "max_rd_atomic"),
    (_S.RTS, _S.RTS): (),
    (_S.RTS, _S.SQD): (),
    (_S.SQD, _S.RTS): (),
    (_S.SQD, _S.SQD): (),
    **{(state, _S.ERR): () for state in (_S.INIT, _S.RTR, _S.RTS, _S.SQD, _S.SQE, _S.ERR)},
    **{(state, _S.RESET): () for state in _S},
}
OPTIONAL: dict[tuple[QPState, QPState], tuple[str, ...]] = {
    (_S.INIT, _S.INIT): ("pkey_index", "port_num", "qp_access_flags"),
    (_S.INIT, _S.RTR): ("pkey_index", "qp_access_flags"),
    (_S.RTR, _S.RTS): _FREE,
    (_S.RTS, _S.RTS): (*_FREE, "rate_limit"),
    (_S.RTS, _S.SQD): ("en_sqd_async_notify",),
    (_S.SQD, _S.RTS): _FREE,
    (_S.SQD, _S.SQD): (
        *_FREE, AV, "pkey_index", "port_num", "timeout", "retry_cnt", "rnr_retry", "max_rd_atomic",
        "max_dest_rd_atomic",
    ),
}  # fmt: skip


def fault_of(state: QPState, target: QPState | None, given: Collection[str]) -> str:
    """Return what is wrong with moving a QP from `state` to `target` (None: it stays) with these attributes.

    "" when the transition is legal, has all that it requires and nothing that it does not take.
    """
    step = (state, state if target is None else target)
    if step not in REQUIRED:
        legal = ", ".join(after.name for before, after in REQUIRED if before == state)
        return f"{state.name} to {step[1].name} is no legal transition; from {state.name} a QP moves to {legal}"
    names = {AV if name in AV_NAMES else name for name in given}
    required = REQUIRED[step]
    missing = [name for name in required if name not in names]
    if missing:
        return f"{state.name} to {step[1].name} needs {', '.join(required)}; missing: {', '.join(missing)}"
    excess = sorted(names - set(required) - set(OPTIONAL.get(step, ())))
    return f"{state.name} to {step[1].name} does not take {', '.join(excess)}" if excess else ""
