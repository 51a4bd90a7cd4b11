"""Protection domains and memory regions of a LocalHost."""

from __future__ import annotations

import ctypes
import errno
import mmap
import resource
from functools import partial
from typing import Any, ClassVar

from pytest_rdma import native
from pytest_rdma.deadline import Deadline
from pytest_rdma.endpoint import PD, Buffer
from pytest_rdma.errors import DataMismatchError, RdmaUsageError, RefusedError, VerbsError, errno_text
from pytest_rdma.host import Handle, InUse, LocalHost, Resource, close_all, op
from pytest_rdma.model import Access
from pytest_rdma.verbs_device import OpenDevice, open_device
from pytest_rdma.verbs_library import error_number, pyverbs, verbs_error

SHOWN_BYTES = 16


class PDEntry(Resource):
    """A PD; `lent` says whether pyverbs objects of it were handed out: what is registered with them is in no table."""

    close_rank: ClassVar[int] = 40
    front: PD
    lent = False

    def __init__(self, host: LocalHost, device: OpenDevice) -> None:
        self.host = host
        self.device = device
        try:
            self.raw = pyverbs().pd.PD(device.context)
        except pyverbs().pyverbs_error.PyverbsError as error:
            raise verbs_error(f"cannot make a PD on {host.name} {device.name}", error) from error
        self.users: dict[int, Handle] = {}

    def close(self) -> None:
        self.raw.close()


class MREntry(Resource):
    """Zeroed anonymous pages and their registration. The pages go after the registration."""

    close_rank: ClassVar[int] = 30
    front: Buffer

    def __init__(self, pd: PDEntry, length: int, access: Access) -> None:
        if length < 1:
            raise RdmaUsageError(f"a buffer has at least 1 byte, not {length}")
        self.pd = pd
        self.length = length
        self.access = access
        try:
            self.pages = mmap.mmap(-1, length, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except (OSError, OverflowError) as error:
            number = getattr(error, "errno", None) or errno.ENOMEM
            text = f"cannot map {length} bytes on {pd.host.name}: {errno_text(number)}"
            raise VerbsError(text, errno=number) from error
        self._export: Any = ctypes.c_char.from_buffer(self.pages)
        self.addr = ctypes.addressof(self._export)
        try:
            self.raw = pyverbs().mr.MR(pd.raw, length, int(access), address=self.addr)
        except pyverbs().pyverbs_error.PyverbsError as error:
            self._unmap()
            attempt = f"cannot register {length} bytes with {access.text} on {pd.host.name} {pd.device.name}"
            raise verbs_error(attempt, error, explain_registration(pd, length, access, error_number(error))) from error
        self.lkey: int = self.raw.lkey
        self.rkey: int = self.raw.rkey
        self.in_use = InUse(f"a buffer on {pd.host.name} {pd.device.name}")

    def _unmap(self) -> None:
        self._export = None
        self.pages.close()

    def close(self) -> None:
        self.in_use.end()
        self.raw.close()
        self.pd.device.note_closed(self)
        self.pd.users.pop(self.front.handle, None)
        self._unmap()


def explain_registration(pd: PDEntry, length: int, access: Access, number: int) -> str:
    largest = pd.device.info.limits["max_mr_size"]
    if length > largest:
        return f"the device's max_mr_size is {largest}"
    if number == errno.ENOMEM:
        soft, hard = (_limit_text(value) for value in resource.getrlimit(resource.RLIMIT_MEMLOCK))
        return (
            f"{length} bytes were asked for, and RLIMIT_MEMLOCK of this process on {pd.host.name} is {soft} "
            f"(hard {hard}): raise it where that process is started, for instance in limits.conf"
        )
    if access & (Access.REMOTE_WRITE | Access.REMOTE_ATOMIC) and not access & Access.LOCAL_WRITE:
        return "REMOTE_WRITE and REMOTE_ATOMIC need LOCAL_WRITE beside them"
    if number == errno.EFAULT:
        return "part of the range is not mapped, or is mapped read-only and the access wants to write"
    return ""


def _limit_text(value: int) -> str:
    return "unlimited" if value == resource.RLIM_INFINITY else f"{value} bytes"


def make_pd(host: LocalHost, device: OpenDevice) -> PDEntry:
    entry = PDEntry(host, device)
    host.add(entry, PD, {"device": device.name})
    return entry


def make_mr(pd: PDEntry, length: int, access: Access) -> MREntry:
    entry = MREntry(pd, length, access)
    facts = {"addr": entry.addr, "length": length, "lkey": entry.lkey, "rkey": entry.rkey, "access": access}
    front = pd.host.add(entry, Buffer, facts)
    pd.users[front.handle] = front
    return entry


@op("pd.create")
def op_pd_create(host: LocalHost, deadline: Deadline, device: str) -> PD:
    return make_pd(host, open_device(host, device)).front


@op("pd.close")
def op_pd_close(host: LocalHost, deadline: Deadline, handle: int) -> None:
    entry = host.entry("pd", handle)
    if entry.users:
        users = ", ".join(front.label for front in entry.users.values())
        raise RefusedError(f"PD {handle} on {host.name} is still used by {users}: close those first")
    host.discard(handle)


@op("mr.create")
def op_mr_create(host: LocalHost, deadline: Deadline, pd: int, length: int, access: int) -> Buffer:
    return make_mr(host.entry("pd", pd), length, Access(access)).front


@op("mr.close")
def op_mr_close(host: LocalHost, deadline: Deadline, handle: int) -> None:
    host.discard(handle)


@op("mr.write")
def op_mr_write(host: LocalHost, deadline: Deadline, handle: int, data: bytes, offset: int) -> None:
    host.entry("mr", handle).pages[offset : offset + len(data)] = data


@op("mr.read")
def op_mr_read(host: LocalHost, deadline: Deadline, handle: int, offset: int, length: int) -> bytes:
    return bytes(host.entry("mr", handle).pages[offset : offset + length])


@op("mr.memset")
def op_mr_memset(host: LocalHost, deadline: Deadline, handle: int, byte: int, offset: int, length: int) -> None:
    entry: MREntry = host.entry("mr", handle)
    with entry.in_use:
        ctypes.memset(entry.addr + offset, byte, length)


@op("mr.fill")
def op_mr_fill(
    host: LocalHost, deadline: Deadline, handle: int, seed: int, offset: int, length: int, pattern_offset: int
) -> None:
    entry: MREntry = host.entry("mr", handle)
    with entry.in_use:
        native.load().fill(entry.addr + offset, length, seed, pattern_offset)


@op("mr.verify")
def op_mr_verify(
    host: LocalHost, deadline: Deadline, handle: int, seed: int, offset: int, length: int, pattern_offset: int
) -> None:
    entry: MREntry = host.entry("mr", handle)
    with entry.in_use:
        wrong = native.load().verify(entry.addr + offset, length, seed, pattern_offset)
    if wrong is not None:
        size = min(SHOWN_BYTES, length - wrong)
        want = native.pattern(seed, size, pattern_offset + wrong)
        raise mismatch(host, entry, offset + wrong, want, f"{length} bytes of pattern {seed} at {offset}")


@op("mr.check_untouched")
def op_mr_check_untouched(
    host: LocalHost, deadline: Deadline, handle: int, byte: int, offset: int, length: int
) -> None:
    entry: MREntry = host.entry("mr", handle)
    with entry.in_use:
        wrong = native.load().find_not(entry.addr + offset, length, byte)
    if wrong is not None:
        want = bytes([byte]) * min(SHOWN_BYTES, length - wrong)
        raise mismatch(host, entry, offset + wrong, want, f"{length} untouched bytes {byte:#04x} at {offset}")


def mismatch(host: LocalHost, entry: MREntry, offset: int, want: bytes, what: str) -> DataMismatchError:
    got = bytes(entry.pages[offset : offset + len(want)])
    text = f"{entry.front.label} on {host.name} does not hold {what}: from byte {offset} on there is"
    return DataMismatchError(f"{text} {got.hex(' ')}, not {want.hex(' ')}", offset=offset)


def undo(made: list[Resource], host: LocalHost) -> None:
    """Take back what was made before a later step failed, in the order given; never raises over the first cause."""
    try:
        close_all([partial(host.discard, entry.front.handle) for entry in made])
    except Exception:  # the failure that led here is what the user must see
        return
