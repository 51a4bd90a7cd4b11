"""Work completion statuses: what they are called, what they mean, what most often causes them."""

from __future__ import annotations

import enum


class WCStatus(enum.IntEnum):
    """`ibv_wc_status`."""

    SUCCESS = 0
    LOC_LEN_ERR = 1
    LOC_QP_OP_ERR = 2
    LOC_EEC_OP_ERR = 3
    LOC_PROT_ERR = 4
    WR_FLUSH_ERR = 5
    MW_BIND_ERR = 6
    BAD_RESP_ERR = 7
    LOC_ACCESS_ERR = 8
    REM_INV_REQ_ERR = 9
    REM_ACCESS_ERR = 10
    REM_OP_ERR = 11
    RETRY_EXC_ERR = 12
    RNR_RETRY_EXC_ERR = 13
    LOC_RDD_VIOL_ERR = 14
    REM_INV_RD_REQ_ERR = 15
    REM_ABORT_ERR = 16
    INV_EECN_ERR = 17
    INV_EEC_STATE_ERR = 18
    FATAL_ERR = 19
    RESP_TIMEOUT_ERR = 20
    GENERAL_ERR = 21
    TM_ERR = 22
    TM_RNDV_INCOMPLETE = 23


MEANINGS: dict[int, tuple[str, str]] = {
    WCStatus.SUCCESS: ("the operation is complete", ""),
    WCStatus.LOC_LEN_ERR: (
        "a message does not fit its local buffers",
        "the receive is shorter than the message, or the request longer than the port's largest message",
    ),
    WCStatus.LOC_QP_OP_ERR: (
        "the local QP could not do what the request asks",
        "an SGE, a key or an operation that this QP does not allow; on Soft-RoCE a receive that is too short, or whose "
        "memory is bad",
    ),
    WCStatus.LOC_EEC_OP_ERR: ("the local EE context could not do what the request asks", ""),
    WCStatus.LOC_PROT_ERR: (
        "an SGE of the request is not within registered memory",
        "a wrong lkey, a range beyond the MR, another PD, or no LOCAL_WRITE where data must be written",
    ),
    WCStatus.WR_FLUSH_ERR: (
        "the request was not carried out: the QP was in ERR",
        "an earlier request failed, look at the first completion that was no success; or the QP was moved to ERR; on "
        "Soft-RoCE also a request whose own memory is bad, or packets larger than the netdev carries",
    ),
    WCStatus.MW_BIND_ERR: ("a memory window could not be bound", "the MR lacks MW_BIND, or the range is not within it"),
    WCStatus.BAD_RESP_ERR: ("a response had an opcode that was not expected", "peer's QP is connected to another one"),
    WCStatus.LOC_ACCESS_ERR: (
        "incoming data could not be written here",
        "the memory of a receive, or of a write with immediate, lacks the access",
    ),
    WCStatus.REM_INV_REQ_ERR: (
        "the peer found the request invalid",
        "its QP lacks REMOTE_WRITE or REMOTE_READ, its receive is too short, or more reads are open than it allows",
    ),
    WCStatus.REM_ACCESS_ERR: (
        "the peer refused access to its memory",
        "a wrong rkey or address, a range beyond the MR, an MR without the access, or one of another PD",
    ),
    WCStatus.REM_OP_ERR: (
        "the peer failed while it carried the request out",
        "a bad receive at the peer; on Soft-RoCE also one that is too short",
    ),
    WCStatus.RETRY_EXC_ERR: (
        "the peer did not acknowledge in time, in all retries",
        "the peer's QP is gone or not in RTR, a wrong GID row, QP number or PSN, UDP port 4791 blocked, or an MTU that "
        "the path does not carry",
    ),
    WCStatus.RNR_RETRY_EXC_ERR: (
        "the peer had no receive posted, in all retries",
        "the peer posts its receives too late or too few",
    ),
    WCStatus.LOC_RDD_VIOL_ERR: ("the RDDs of QP and EE context differ", ""),
    WCStatus.REM_INV_RD_REQ_ERR: ("the peer found an RD request invalid", ""),
    WCStatus.REM_ABORT_ERR: ("the peer aborted the operation", ""),
    WCStatus.INV_EECN_ERR: ("the EE context number is invalid", ""),
    WCStatus.INV_EEC_STATE_ERR: ("the EE context is in a wrong state", ""),
    WCStatus.FATAL_ERR: ("the device failed", ""),
    WCStatus.RESP_TIMEOUT_ERR: ("the response came too late", "the peer is overloaded or gone"),
    WCStatus.GENERAL_ERR: ("another error of the transport", ""),
    WCStatus.TM_ERR: ("tag matching failed", ""),
    WCStatus.TM_RNDV_INCOMPLETE: ("a tag-matching rendezvous is not complete", ""),
}


def name_of(status: int) -> str:
    """Return the name and number of a status: `RETRY_EXC_ERR (12)`."""
    try:
        return f"{WCStatus(status).name} ({status})"
    except ValueError:
        return f"unknown status ({status})"


def describe(status: int) -> str:
    """Return name, number, meaning and likely causes of a status, in one line."""
    meaning, causes = MEANINGS.get(status, ("", ""))
    text = f"{name_of(status)}: {meaning}" if meaning else name_of(status)
    return f"{text}; likely: {causes}" if causes else text
