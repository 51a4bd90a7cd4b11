"""The kernel log since a position (Documentation/ABI/testing/dev-kmsg), and which of its lines mean harm."""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections import deque
from collections.abc import Iterable
from functools import cache
from pathlib import Path

KMSG = "/dev/kmsg"
RECORD_BYTES = 8192  # the kernel refuses a smaller buffer for its longest record with EINVAL
KEPT_LINES = 400
OURS = "pytest-rdma: "
MARK_CHARS = 200
MARK_PRIORITY = "<6>"

HARM = re.compile(
    r"""
    \bOops\b | \bkernel\ BUG\ at\b | ^BUG:\s | ^WARNING:\s | \bKernel\ panic\b | \blockup\b
    | \bgeneral\ protection\ fault\b | \bUnable\ to\ handle\ kernel\b | ^divide\ error: | ^invalid\ opcode:
    | \brefcount_t: | \buse[- ]after[- ]free\b | \bdouble[- ]free\b | \bK[AMC]SAN: | \bKFENCE: | \bUBSAN:
    | \blist_(?:add|del)\ corruption\b | \bwaiting\ for\ \S+\ to\ become\ free\b
    | \bINFO:\ task\ .*\ blocked\ for\ more\ than\b | \bdetected\ stalls?\b | \bself-detected\ stall\b
    """,
    re.VERBOSE,
)
BY_SLOW_CLOCK = re.compile(r"\bsoft lockup\b|\bworkqueue lockup\b|\bdetected stalls?\b|\bself-detected stall\b")
"""What an emulated processor brings about by itself: it runs in slices of the host's time, and its clock does not."""


class KernelLog:
    """A position in the kernel log. PermissionError and other OSErrors where it cannot be read."""

    def __init__(self) -> None:
        self._fd = os.open(KMSG, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        os.lseek(self._fd, 0, os.SEEK_END)
        self._lines: deque[str] = deque(maxlen=KEPT_LINES)
        self._suspects: list[str] = []

    def close(self) -> None:
        os.close(self._fd)

    def mark(self, test: str) -> None:
        """Write the name of a test into the log, where that is permitted.

        Of one descriptor the kernel takes ten lines in 5 s (`printk_devkmsg=ratelimit`), so each line gets its own.
        """
        # a record without an end is shown to nobody before the next one comes
        line = f"{MARK_PRIORITY}{OURS}{test[:MARK_CHARS]}".replace("\n", " ") + "\n"
        with contextlib.suppress(OSError):
            log = os.open(KMSG, os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.write(log, line.encode(errors="replace"))
            finally:
                os.close(log)

    def forget(self) -> None:
        """Begin anew: what there is by now is of no test that follows."""
        self.lines()
        self._lines.clear()
        self._suspects.clear()

    def lines(self) -> tuple[str, ...]:
        """Return the lines since the log was last begun anew, without our own: the last 400, in order."""
        while True:
            try:
                line = parse_record(os.read(self._fd, RECORD_BYTES))
            except BlockingIOError:
                return tuple(self._lines)
            except OSError as error:
                if (
                    error.errno != errno.EPIPE
                ):  # EPIPE: records were overwritten before they were read; the next is there
                    raise
                continue
            if line.startswith(OURS):
                continue
            self._lines.append(line)
            if len(self._suspects) < KEPT_LINES and HARM.search(line):
                self._suspects.append(line)

    def harm(self) -> list[str]:
        """Return the first lines that mean harm, however many others have followed them."""
        self.lines()
        return harmful(self._suspects, emulated=is_emulated())


def parse_record(record: bytes) -> str:
    """Return the text of a record, without its prefix and its dictionary: `6,1234,5678,-;text`."""
    return record.partition(b";")[2].partition(b"\n")[0].decode(errors="replace")


def harmful(lines: Iterable[str], *, emulated: bool) -> list[str]:
    """Return those lines that mean harm, less what an emulated processor brings about by itself."""
    return [line for line in lines if HARM.search(line) and not (emulated and BY_SLOW_CLOCK.search(line))]


@cache
def is_emulated() -> bool:
    """Whether this machine's processor is emulated in software, by what the machine says of itself.

    QEMU names the processor that it translates "QEMU TCG CPU", unless it was told to be another; KVM brings a clock.
    """
    if "QEMU TCG" in _read("/proc/cpuinfo"):
        return True
    clocks = _read("/sys/devices/system/clocksource/clocksource0/available_clocksource")
    return _read("/sys/class/dmi/id/sys_vendor").strip() == "QEMU" and "kvm" not in clocks


def _read(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""
