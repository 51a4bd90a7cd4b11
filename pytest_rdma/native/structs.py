"""The structures of prdma.h as ctypes sees them."""

from __future__ import annotations

import ctypes
from ctypes import c_int32, c_int64, c_uint8, c_uint16, c_uint32, c_uint64

ABI_VERSION = 1


class SgeStruct(ctypes.Structure):
    """`struct prdma_sge`."""

    _fields_ = [("addr", c_uint64), ("length", c_uint32), ("lkey", c_uint32)]


class SendWRStruct(ctypes.Structure):
    """`struct prdma_send_wr`; `ah`, `mw` and `mw_mr` are pointers of libibverbs."""

    _fields_ = [
        ("wr_id", c_uint64),
        ("sge", c_uint64),
        ("num_sge", c_int32),
        ("opcode", c_uint32),
        ("send_flags", c_uint32),
        ("imm", c_uint32),
        ("remote_addr", c_uint64),
        ("compare_add", c_uint64),
        ("swap", c_uint64),
        ("rkey", c_uint32),
        ("invalidate_rkey", c_uint32),
        ("ah", c_uint64),
        ("remote_qpn", c_uint32),
        ("remote_qkey", c_uint32),
        ("mw", c_uint64),
        ("mw_mr", c_uint64),
        ("mw_addr", c_uint64),
        ("mw_length", c_uint64),
        ("mw_access", c_uint64),
    ]


class RecvWRStruct(ctypes.Structure):
    """`struct prdma_recv_wr`."""

    _fields_ = [("wr_id", c_uint64), ("sge", c_uint64), ("num_sge", c_int32), ("reserved", c_uint32)]


class WCStruct(ctypes.Structure):
    """`struct prdma_wc`."""

    _fields_ = [
        ("wr_id", c_uint64),
        ("status", c_uint32),
        ("opcode", c_uint32),
        ("vendor_err", c_uint32),
        ("byte_len", c_uint32),
        ("imm", c_uint32),
        ("qp_num", c_uint32),
        ("src_qp", c_uint32),
        ("wc_flags", c_uint32),
        ("pkey_index", c_uint16),
        ("slid", c_uint16),
        ("sl", c_uint8),
        ("dlid_path_bits", c_uint8),
        ("reserved", c_uint16),
    ]


class VerbsStruct(ctypes.Structure):
    """`struct prdma_verbs`: addresses of functions of libibverbs."""

    _fields_ = [
        ("get_cq_event", ctypes.c_void_p),
        ("ack_cq_events", ctypes.c_void_p),
        ("get_async_event", ctypes.c_void_p),
        ("ack_async_event", ctypes.c_void_p),
    ]


class AsyncEventStruct(ctypes.Structure):
    """`struct prdma_async_event`."""

    _fields_ = [("event_type", c_uint32), ("number", c_uint32), ("element", c_uint64)]


class PollStruct(ctypes.Structure):
    """`struct prdma_poll`."""

    _fields_ = [
        ("cq", c_uint64),
        ("wc", c_uint64),
        ("max", c_int32),
        ("want", c_int32),
        ("deadline_ns", c_int64),
        ("stop", c_uint64),
    ]


class QPViewStruct(ctypes.Structure):
    """`struct prdma_qp_view`."""

    _fields_ = [
        ("context", c_uint64),
        ("pd", c_uint64),
        ("send_cq", c_uint64),
        ("recv_cq", c_uint64),
        ("srq", c_uint64),
        ("handle", c_uint32),
        ("qp_num", c_uint32),
        ("state", c_uint32),
        ("qp_type", c_uint32),
        ("cmd_fd", c_int32),
        ("async_fd", c_int32),
        ("pd_handle", c_uint32),
        ("reserved", c_uint32),
        ("pd_context", c_uint64),
    ]


class CQViewStruct(ctypes.Structure):
    """`struct prdma_cq_view`."""

    _fields_ = [
        ("context", c_uint64),
        ("channel", c_uint64),
        ("channel_context", c_uint64),
        ("handle", c_uint32),
        ("cqe", c_int32),
        ("cmd_fd", c_int32),
        ("async_fd", c_int32),
        ("channel_fd", c_int32),
        ("reserved", c_uint32),
    ]


class SlotStruct(ctypes.Structure):
    """`struct prdma_slot`."""

    _fields_ = [("id", c_uint64), ("start_ns", c_int64)]


class WriterStruct(ctypes.Structure):
    """`struct prdma_writer`; everything but `fd` and `broken` belongs to C."""

    _fields_ = [
        ("fd", c_int32),
        ("broken", c_int32),
        ("lock", c_int32),
        ("stop", c_int32),
        ("interval_ms", c_int32),
        ("orphan_s", c_int32),
        ("beating", c_int32),
        ("thread", c_uint64),
        ("beats", c_uint64),
        ("slots", SlotStruct * 64),
    ]


class AbiStruct(ctypes.Structure):
    """`struct prdma_abi`."""

    _fields_ = [
        ("version", c_uint32),
        ("sizeof_sge", c_uint32),
        ("sizeof_send_wr", c_uint32),
        ("sizeof_recv_wr", c_uint32),
        ("sizeof_wc", c_uint32),
        ("sizeof_poll", c_uint32),
        ("sizeof_verbs", c_uint32),
        ("sizeof_async_event", c_uint32),
        ("sizeof_qp_view", c_uint32),
        ("sizeof_cq_view", c_uint32),
        ("sizeof_writer", c_uint32),
        ("qp_num_offset", c_uint32),
        ("qp_type_offset", c_uint32),
        ("qp_head", c_uint32),
        ("context_head", c_uint32),
    ]


MIRRORS = {
    "sizeof_sge": SgeStruct,
    "sizeof_send_wr": SendWRStruct,
    "sizeof_recv_wr": RecvWRStruct,
    "sizeof_wc": WCStruct,
    "sizeof_poll": PollStruct,
    "sizeof_verbs": VerbsStruct,
    "sizeof_async_event": AsyncEventStruct,
    "sizeof_qp_view": QPViewStruct,
    "sizeof_cq_view": CQViewStruct,
    "sizeof_writer": WriterStruct,
}
