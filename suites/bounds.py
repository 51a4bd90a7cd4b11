"""What tests of limits run on a host: giving up privileges, registering what is not mapped, ending a process."""

from __future__ import annotations

import ctypes
import mmap
import os
import pwd
import resource
import select
import signal

from pytest_rdma import Endpoint

UNPRIVILEGED = ("rdma", "nobody")


def become_unprivileged(memlock_bytes: int) -> None:
    """Lower the memory lock limit of this process, and make it a user whom the limit binds."""
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (memlock_bytes, memlock_bytes))
    if os.getuid() == 0:
        known = {user.pw_name: user for user in pwd.getpwall()}
        user = next(known[name] for name in UNPRIVILEGED if name in known)
        os.setgroups([])
        os.setresgid(user.pw_gid, user.pw_gid, user.pw_gid)
        os.setresuid(user.pw_uid, user.pw_uid, user.pw_uid)


def register_beyond_the_mapping(endpoint: Endpoint) -> int:
    """Register two pages of which the second is not mapped; returns the errno, 0 when it was taken."""
    from pyverbs.mr import MR
    from pyverbs.pyverbs_error import PyverbsRDMAError

    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    page = mmap.PAGESIZE
    protection, flags = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    start = libc.mmap(None, 2 * page, protection, flags, -1, 0)
    libc.munmap(start + page, page)
    try:
        MR(endpoint.raw.pd, 2 * page, 1, address=start).close()
    except PyverbsRDMAError as error:
        return int(error.error_code)
    finally:
        libc.munmap(start, page)
    return 0


def kill_and_see_dead(pid: int, timeout_s: float) -> bool:
    """Kill a process; True once all that it had open is closed, False when that did not happen in time."""
    process = os.pidfd_open(pid)
    try:
        os.kill(pid, signal.SIGKILL)
        return bool(select.select([process], [], [], timeout_s)[0])
    finally:
        os.close(process)
