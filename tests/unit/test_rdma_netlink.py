"""Answers of the kernel's RDMA netlink, as a Soft-RoCE device of 6.12 gave them, become objects and counters."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pytest_rdma import rdma_netlink
from pytest_rdma.rdma_netlink import KINDS, KernelObject, parse_counters, parse_objects

HEADER = "0800010000000000090002007278653000000000"
PID = 277
ANSWERS = {
    "context": HEADER + "1800560014005700080040000400000008001c0015010000",
    "PD": HEADER + "60002e002c002f0008003000d30100000c002600010000000000000008003c00000000000c001d0069625f636f726500"
    "30002f0008003000000000000c002600020000000000000008003c0013000000080040000400000008001c0015010000",
    "MR": HEADER + "3c0028003800290008002a005f13000008002b005f1300000c002d00002000000000000008003e001100000008003c00"
    "1300000008001c0015010000",
    "QP": HEADER + "880013004c001400080015002100000008003c001300000008001c001501000008001600000000000800170000000000"
    "0800180000000000050019000000000005001a000200000005001b000000000038001400080003000100000008001500010000000c001d00"
    "69625f636f726500080018000600000005001a000100000005001b0003000000",
    "cm_id": "",
}
COUNTERS = (
    HEADER + "0800030001000000480050802000518010005200" + "73656e745f706b74730000000c0053000d00000000000000"
    "240051801100520072637664" + "5f726e725f657272000000000c0053000700000000000000"
)


def objects(kind: str) -> list[KernelObject]:
    (one,) = (one for one in KINDS if one.name == kind)
    return list(parse_objects("rxe0", one, bytes.fromhex(ANSWERS[kind])))


def test_an_object_tells_its_number_who_made_it_and_what_it_hangs_on() -> None:
    assert objects("context") == [KernelObject("rxe0", "context", 4, PID, None, 0, 0)]
    assert objects("MR") == [KernelObject("rxe0", "MR", 17, PID, 19, 4959, 8192)]
    assert objects("cm_id") == []


def test_the_kernels_own_objects_have_no_maker() -> None:
    assert [(one.number, one.pid, one.parent) for one in objects("PD")] == [(0, 0, None), (19, PID, 4)]
    assert [(one.number, one.pid, one.parent) for one in objects("QP")] == [(33, PID, 19), (1, 0, None)]


@pytest.mark.parametrize(
    ("kind", "text"),
    [("QP", "QP 0x21 on rxe0"), ("MR", "MR 17 of 8192 bytes on rxe0"), ("context", "context 4 on rxe0")],
)
def test_words_name_the_kind_the_number_and_the_device(kind: str, text: str) -> None:
    assert objects(kind)[0].text == text


def test_counters_come_by_name() -> None:
    assert parse_counters(bytes.fromhex(COUNTERS)) == {"sent_pkts": 13, "rcvd_rnr_err": 7}
    assert parse_counters(b"") == {}


def test_the_numbers_are_those_of_the_kernels_header() -> None:
    header = Path("/usr/include/rdma/rdma_netlink.h")
    if not header.exists():
        pytest.skip("no rdma/rdma_netlink.h here (linux-libc-dev)")
    names = enumerators(header.read_text(), "rdma_nldev_attr")
    for ours, theirs in {"PDN": "RES_PDN", "CM_IDN": "RES_CM_IDN", "CTXN": "RES_CTXN", "SRQN": "RES_SRQN"}.items():
        assert getattr(rdma_netlink, ours) == names[f"RDMA_NLDEV_ATTR_{theirs}"], ours
    for ours, theirs in {"LQPN": "RES_LQPN", "RES_PID": "RES_PID", "LKEY": "RES_LKEY", "MR_BYTES": "RES_MRLEN"}.items():
        assert getattr(rdma_netlink, ours) == names[f"RDMA_NLDEV_ATTR_{theirs}"], ours
    commands = enumerators(header.read_text(), "rdma_nldev_command")
    for kind in KINDS:
        called = {"context": "CTX", "cm_id": "CM_ID"}.get(kind.name, kind.name)
        assert kind.command == commands[f"RDMA_NLDEV_CMD_RES_{called}_GET"], kind
        assert kind.table == names[f"RDMA_NLDEV_ATTR_RES_{called}"], kind


def enumerators(text: str, name: str) -> dict[str, int]:
    body = re.sub(r"/\*.*?\*/", "", text.partition(f"enum {name} {{")[2].partition("};")[0], flags=re.DOTALL)
    found: dict[str, int] = {}
    value = -1
    for entry in re.findall(r"(\w+)\s*(?:=\s*(\w+))?\s*,", body):
        value = value + 1 if not entry[1] else found[entry[1]] if entry[1] in found else int(entry[1], 0)
        found[entry[0]] = value
    return found
