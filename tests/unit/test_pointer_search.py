"""The search for the verbs pointer in an object's words, on made-up objects and structures."""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from pytest_rdma import native
from pytest_rdma.errors import RdmaEnvironmentError

QP_NUM_AT, QP_TYPE_AT = 52, 60
CONTEXT_BYTES = 400


class Memory:
    """Made-up structures of libibverbs; `address` of each by name."""

    def __init__(self, cmd_fd: int = 7) -> None:
        self._kept: list[Any] = []
        self.context = self.block(CONTEXT_BYTES)
        native_abi = native.load().abi
        self.put(self.context, native_abi.context_head - 8, 4, cmd_fd)
        self.pd = self.block(64)
        self.put(self.pd, 0, 8, self.context)
        self.put(self.pd, 8, 4, 31)

    def block(self, size: int) -> int:
        block = ctypes.create_string_buffer(size + 8)
        self._kept.append(block)
        return (ctypes.addressof(block) + 7) & ~7

    def put(self, address: int, offset: int, size: int, value: int) -> None:
        ctypes.memmove(address + offset, value.to_bytes(size, "little"), size)

    def qp(self, qp_num: int = 0x11, qp_type: int = 2, context: int | None = None, pd: int | None = None) -> int:
        address = self.block(200)
        self.put(address, 0, 8, self.context if context is None else context)
        self.put(address, 16, 8, self.pd if pd is None else pd)
        self.put(address, QP_NUM_AT, 4, qp_num)
        self.put(address, QP_TYPE_AT, 4, qp_type)
        return address

    def cq(self, cqe: int = 255, channel: int = 0) -> int:
        address = self.block(200)
        self.put(address, 0, 8, self.context)
        self.put(address, 8, 8, channel)
        self.put(address, 28, 4, cqe)
        return address


class Words(ctypes.Structure):
    """An object that, like a Cython one, holds raw words in itself: ctypes keeps 16 bytes inside the object."""

    _fields_ = [("first", ctypes.c_uint64), ("second", ctypes.c_uint64)]


class Context:
    """A Context before 61."""

    cmd_fd = 7

    @property
    def context(self) -> object:
        raise AssertionError("touching Context.context corrupts memory below pyverbs 61")


class PD:
    """A PD before 60."""

    handle = 31

    @property
    def pd(self) -> object:
        raise AssertionError("touching PD.pd corrupts memory below pyverbs 60")


class OldQP(Words):
    """A QP before 61."""

    qp_num = 0x11
    qp_type = 2


class OldCQ(Words):
    """A CQ of 54 to 60."""

    cqe = 255

    @property
    def cq(self) -> object:
        raise AssertionError("touching CQ.cq corrupts memory from pyverbs 54 to 60")


@pytest.fixture
def memory() -> Memory:
    return Memory()


@pytest.fixture(autouse=True)
def old_pyverbs(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A pyverbs of another version than what may be installed; its QP class tells the regime."""
    package, qp_module = ModuleType("pyverbs"), ModuleType("pyverbs.qp")
    package.__version__ = "56.1"  # type: ignore[attr-defined]
    qp_module.QP = OldQP  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pyverbs", package)
    monkeypatch.setitem(sys.modules, "pyverbs.qp", qp_module)
    return qp_module


def find(qp: Any) -> int:
    return native.qp_pointer(qp, pd=PD(), context=Context())


def test_the_words_lie_inside_the_made_up_object() -> None:
    words = Words(0x1122334455667788, 2)
    assert (0x1122334455667788).to_bytes(8, "little") in ctypes.string_at(id(words), Words.__basicsize__)


def test_the_one_word_that_agrees_is_found(memory: Memory) -> None:
    address = memory.qp()
    assert find(OldQP(address, 0)) == address
    assert find(OldQP(0xDEAD, address)) == address


def test_no_word_that_agrees_is_an_error_that_names_the_version(memory: Memory) -> None:
    with pytest.raises(RdmaEnvironmentError, match=r"verbs pointer behind a OldQP of pyverbs 56\.1: 0 words"):
        find(OldQP(0, 0))


def test_two_words_that_agree_are_refused(memory: Memory) -> None:
    with pytest.raises(RdmaEnvironmentError, match="2 words"):
        find(OldQP(memory.qp(), memory.qp()))


def test_the_same_word_twice_is_one(memory: Memory) -> None:
    address = memory.qp()
    assert find(OldQP(address, address)) == address


@pytest.fixture
def unreadable() -> Iterator[int]:
    """An address of memory that was given back."""
    with mmap.mmap(-1, 4096) as page:
        anchor = ctypes.c_char.from_buffer(page)
        address = ctypes.addressof(anchor)
        del anchor
    yield address


def test_addresses_that_cannot_be_read_are_passed_over(memory: Memory, unreadable: int) -> None:
    address = memory.qp()
    for bad in (8, unreadable, 2**63, 2**64 - 8, 2**47):
        assert find(OldQP(bad, address)) == address
        with pytest.raises(RdmaEnvironmentError, match="0 words"):
            find(OldQP(bad, bad))


def test_a_structure_that_ends_in_unreadable_memory_is_passed_over(memory: Memory, unreadable: int) -> None:
    with pytest.raises(RdmaEnvironmentError, match="0 words"):
        find(OldQP(memory.qp(context=unreadable), memory.qp(pd=unreadable)))


@pytest.mark.parametrize("differing", [{"qp_num": 0x12}, {"qp_type": 3}])
def test_a_structure_that_disagrees_is_not_taken(memory: Memory, differing: dict[str, int]) -> None:
    with pytest.raises(RdmaEnvironmentError, match="0 words"):
        find(OldQP(memory.qp(**differing), 0))


def test_another_device_or_pd_is_not_taken(memory: Memory) -> None:
    other_device = Memory(cmd_fd=8)
    with pytest.raises(RdmaEnvironmentError, match="0 words"):
        find(OldQP(other_device.qp(), 0))
    memory.put(memory.pd, 8, 4, 32)
    with pytest.raises(RdmaEnvironmentError, match="0 words"):
        find(OldQP(memory.qp(), 0))


def test_a_pd_of_another_context_is_not_taken(memory: Memory) -> None:
    other = Memory()
    with pytest.raises(RdmaEnvironmentError, match="0 words"):
        find(OldQP(memory.qp(pd=other.pd), 0))


class HeldPD(PD):
    """A PD that, as in pyverbs, holds its Context where no attribute shows it."""

    __slots__ = ("_hidden",)

    def __init__(self, hidden: object) -> None:
        self._hidden = hidden


class HoldingQP(OldQP):
    """A QP that holds its PD."""

    __slots__ = ("_hidden",)

    def __init__(self, *words: int, hidden: object) -> None:
        super().__init__(*words)
        self._hidden = hidden


def test_pd_and_context_are_found_in_the_object(memory: Memory) -> None:
    address = memory.qp()
    assert native.qp_pointer(HoldingQP(address, 0, hidden=HeldPD(Context()))) == address


def test_an_object_that_holds_no_context_is_refused(memory: Memory) -> None:
    with pytest.raises(RdmaEnvironmentError, match="its Context was not found"):
        native.qp_pointer(HoldingQP(memory.qp(), 0, hidden=HeldPD(None)))


def test_from_61_on_pyverbs_is_asked() -> None:
    class QP:
        qp = 0x7F00_1234_5678

    assert native.qp_pointer(QP()) == 0x7F00_1234_5678


def test_a_cq_without_a_qp_is_found_and_its_attribute_never_touched(memory: Memory) -> None:
    address = memory.cq()
    assert native.cq_pointer(OldCQ(address, 0), context=Context()) == address
    with pytest.raises(RdmaEnvironmentError, match="0 words"):
        native.cq_pointer(OldCQ(memory.cq(cqe=256), 0), context=Context())
    with pytest.raises(RdmaEnvironmentError, match="2 words"):
        native.cq_pointer(OldCQ(memory.cq(), memory.cq()), context=Context())


def test_a_cq_with_a_channel_that_pyverbs_knows_nothing_of_is_not_taken(memory: Memory) -> None:
    channel = memory.block(64)
    memory.put(channel, 0, 8, memory.context)
    with pytest.raises(RdmaEnvironmentError, match="0 words"):
        native.cq_pointer(OldCQ(memory.cq(channel=channel), 0), context=Context())


def test_a_cq_of_61_is_asked(old_pyverbs: ModuleType) -> None:
    class QP:
        qp = 1

    class CQ:
        cq = 0x7F00_0000_1000

    old_pyverbs.QP = QP  # type: ignore[attr-defined]
    assert native.cq_pointer(CQ()) == 0x7F00_0000_1000
