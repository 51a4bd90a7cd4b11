"""The lock of a device: flock(2) on a file that names the holder. The kernel lets go of it however the holder ends."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from pathlib import Path
from typing import Any

from pytest_rdma.deadline import Deadline
from pytest_rdma.errors import DeviceBusyError, StoppedError
from pytest_rdma.host import LocalHost, op

FOLDERS = ("/run/lock", "/tmp")
RETRY_S = 0.05


@op("host.lock")
def op_lock(host: LocalHost, deadline: Deadline, device: str, run_id: str, wait_s: float) -> None:
    """Hold the device for `run_id` until the host is closed; other processes of the same run may hold it too."""
    if device in host.device_locks:
        return
    give_up = Deadline(wait_s)
    descriptor = open_lock_file(device)
    try:
        while not _take(descriptor, run_id):
            if deadline.stop:
                raise StoppedError(f"stopped while waiting for the lock of {device}")
            if give_up.passed:
                holder = _holder(descriptor)
                raise DeviceBusyError(
                    f"{device} on {host.name} is in use by run {holder.get('run', 'unknown')} "
                    f"(pid {holder.get('pid', '?')} there): wait for it, or take another device"
                )
            time.sleep(RETRY_S)  # flock has no form with a time-out
    except BaseException:
        os.close(descriptor)
        raise
    host.device_locks[device] = descriptor


def open_lock_file(device: str) -> int:
    folder = next(folder for folder in FOLDERS if os.access(folder, os.W_OK))
    path = Path(folder, f"pytest-rdma-{device}.lock")
    flags = os.O_CLOEXEC | os.O_NOFOLLOW
    with contextlib.suppress(FileExistsError):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | flags)
        os.fchmod(descriptor, 0o666)  # another user who locks it next must be able to say so in it
        return descriptor
    # without O_CREAT, for which the kernel refuses another user's file in a sticky folder (fs.protected_regular)
    try:
        return os.open(path, os.O_RDWR | flags)
    except OSError as error:
        raise DeviceBusyError(
            f"whether {device} is in use cannot be told: {path}: {error.strerror}; remove that file when nobody does"
        ) from None


def _take(descriptor: int, run_id: str) -> bool:
    """Take the lock for the run, or join the processes of the run that have it: it is held until the last one ends."""
    if _try_lock(descriptor, fcntl.LOCK_EX):
        _write_holder(descriptor, run_id)
    elif _holder(descriptor).get("run") != run_id:
        return False
    return _try_lock(descriptor, fcntl.LOCK_SH)


def _try_lock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _holder(descriptor: int) -> dict[str, Any]:
    try:
        found = json.loads(os.pread(descriptor, 4096, 0))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _write_holder(descriptor: int, run_id: str) -> None:
    text = json.dumps({"run": run_id, "pid": os.getpid()})
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, text.encode(), 0)
