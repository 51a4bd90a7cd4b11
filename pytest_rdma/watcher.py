"""The process that watches a controller; a file of its own, run with nothing but the standard library.

Its standard input is a pipe that the controller holds: it ends with that, when the controller closes it or is gone.

Its clock is CLOCK_MONOTONIC, which both processes share and which stands still while the machine sleeps. What it
counts are its own looks, not time that went by: a controller that was stopped, or is held by a debugger, is not late.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import select
import signal
import struct
import sys
import time

TICK_S = 0.5
SLOTS = 64
NAME_BYTES = 48
HEAD = "q?"
SLOT = f"qq{NAME_BYTES}s"
HEAD_BYTES = 64
PAGE_BYTES = HEAD_BYTES + SLOTS * 64
PATIENT = 12
"""How many times the grace is given while Python runs beside the op: nothing says that the kernel holds it.

A thread other than the main one is then left alone: who waits for it has a deadline.
"""

END_S = 3.0


def slot_offset(slot: int) -> int:
    return HEAD_BYTES + slot * 64


def main(pid: int, memory: int, grace_s: float) -> None:
    page = mmap.mmap(memory, PAGE_BYTES, prot=mmap.PROT_READ)
    late: dict[tuple[int, int], float] = {}
    while not over(pid, TICK_S):
        beat_ns, debugged = struct.unpack_from(HEAD, page)
        if debugged or held(pid):
            late.clear()
            continue
        now = time.monotonic_ns()
        running = [struct.unpack_from(SLOT, page, slot_offset(slot)) for slot in range(SLOTS)]
        overdue = {(at_ns, thread): name for at_ns, thread, name in running if 0 < at_ns < now}
        late = {key: late.get(key, 0.0) + TICK_S for key in overdue}
        for key, waited_s in late.items():
            main_thread = key[1] == pid
            stuck = now - beat_ns > grace_s * 1e9 or (main_thread and state_of(pid, pid) == "D")
            if waited_s > grace_s * (1 if stuck else PATIENT) and (stuck or main_thread):
                end(pid, key[1], overdue[key].rstrip(b"\0").decode(), (now - key[0]) / 1e9)
                return


def over(pid: int, within_s: float) -> bool:
    """Wait for the controller to end; a child that it forked may hold its end of the pipe still."""
    pipe = select.poll()
    pipe.register(0, select.POLLIN)
    return bool(pipe.poll(within_s * 1e3)) or os.getppid() != pid


def held(pid: int) -> bool:
    """Whether the process is stopped or traced, or gone."""
    status = read(f"/proc/{pid}/status")
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    return fields.get("State", "T")[:1] in "TtZX" or fields.get("TracerPid", "0") != "0"


def state_of(pid: int, thread: int) -> str:
    return read(f"/proc/{pid}/task/{thread}/stat").rpartition(") ")[2][:1]


def read(path: str) -> str:
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""


def where(pid: int, thread: int) -> str:
    folder = f"/proc/{pid}/task/{thread}"
    wchan = read(f"{folder}/wchan").strip("0\n")
    return f"state {state_of(pid, thread) or 'unknown'}{f' in {wchan}' if wchan else ''}"


def end(pid: int, thread: int, name: str, late_s: float) -> None:
    """Say what the controller is in, have it print its stacks, and end it."""
    what = f"{name} in this process has not returned {late_s:.0f} s after its deadline ({where(pid, thread)})"
    say(what, *read(f"/proc/{pid}/task/{thread}/stack").splitlines())
    for number in (signal.SIGABRT, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
        if over(pid, END_S):
            say(f"the run was ended by {signal.Signals(number).name}: {what}")
            return
    say(f"the run cannot be ended, for not even SIGKILL ends process {pid}: {what}")


def say(*lines: str) -> None:
    for line in lines:
        os.write(2, f"rdma: {line}\n".encode())


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
