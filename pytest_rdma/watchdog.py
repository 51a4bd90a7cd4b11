"""Looks at an agent that answers no more, over a second channel of the same way, and ends it.

What looks is a script for `/bin/sh` that reads /proc and sends signals: it needs nothing of what may be stuck. It first
says all it sees; then it lets the process go on where it was stopped, asks it for its stack (faulthandler, on the
agent's own standard error), asks it to end, and at last kills it. A stopped parent that carries it, as sshd does, goes
on after that: it then finds its connection closed, and ends.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from pytest_rdma.bootstrap import new_marker
from pytest_rdma.deadline import Deadline
from pytest_rdma.errors import RdmaError
from pytest_rdma.streams import Stream, read_until

REACH_S = 6.0
LOOK_S = 10.0
PATIENCE_S = 3
"""How long it is looked, by the clock of the host, whether a signal has ended the process.

After SIGKILL it is scaled as time-outs are, since what is left then blocks its host.
"""

KILLED_S = 2
"""The same where SIGKILL has been in vain before: it is whole seconds of the clock that are counted."""

# Only `sleep` is not built into the shell. A whole block, so that it is read before it runs. A signal is sent again and
# again: one that comes while another is pending goes to another thread, and does not wake the main one from its read.
# A process lives as long as any thread of it does: where one sleeps in the kernel the main thread may be a zombie,
# which has no command line.
SCRIPT = """\
{ exec 2>/dev/null
p=/proc/@PID
tell() { printf '@ONE%s %s\\n' @TWO "$*"; }
look() {
    for t in $p/task/*; do
        s=; w=; read -r s <$t/stat; read -r w <$t/wchan
        [ -n "$s" ] || continue
        tell "$1 ${w:-0} $s"
        case ${s##*) } in D*) while read -r l; do tell "stack $l"; done <$t/stack;; esac
    done
}
lives() {
    for t in $p/task/*; do
        s=; read -r s <$t/stat
        case ${s##*) } in ''|Z*|X*) ;; *) return 0;; esac
    done
    return 1
}
now() { read -r up rest </proc/uptime; up=${up%.*}; }
ended_by() {
    now; end=$((up + $2))
    while lives; do
        [ "$up" -lt $end ] || return 1
        kill -$1 @PID; sleep 0.1 || sleep 1; now
    done
    release; tell "ended SIG$1"
}
release() { [ $held ] && kill -CONT $held; }
read -r up rest </proc/uptime; tell "uptime $up"
lives || { tell gone; exit; }
look task
s=; read -r s <$p/stat; set -- ${s##*) }; w=; read -r w </proc/$2/wchan; s=; read -r s </proc/$2/stat
[ -n "$s" ] && tell "carrier ${w:-0} $s"
held=; case ${s##*) } in T*) held=$2;; esac
ours=
for t in $p/task/*; do
    [ $ours ] || while read -r l || [ -n "$l" ]; do case $l in *@AGENT*) ours=1;; esac; done <$t/cmdline
done
[ $ours ] || { tell gone; exit; }
kill -CONT @PID; kill -USR1 @PID
ended_by TERM @ASKED || ended_by KILL @PATIENCE || { look left; release; tell stands; }
exit; }
"""


@dataclass(frozen=True)
class Task:
    """One thread as /proc shows it; `wchan` is the kernel function that it waits in, where that may be read."""

    number: int
    name: str
    state: str
    wchan: str
    stack: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        where = f" in {self.wchan}" if self.wchan else ""
        return "\n".join((f"{self.number} {self.name}: state {self.state}{where}", *self.stack))

    @property
    def plight(self) -> str:
        """What keeps the thread from going on, as part of a sentence; empty when nothing does."""
        if self.state == "D":
            return f"is in uninterruptible sleep in {self.wchan or 'the kernel'}"
        if self.state in ("T", "t"):
            return f"was {'stopped' if self.state == 'T' else 'held by a tracer'} (state {self.state})"
        return ""


@dataclass(frozen=True)
class Suspect:
    """The agent that is looked for: `marker` is in its command line; its host was up `age_s` ago.

    One that was `killed` before, in vain, is not waited for again.
    """

    pid: int
    marker: str
    host: str
    age_s: float = 0.0
    killed: bool = False


@dataclass(frozen=True)
class Seen:
    """What was seen of an agent. `end` is `gone`, `SIGTERM`, `SIGKILL` or `stands`; empty where it was not seen."""

    suspect: Suspect
    error: str = ""
    uptime_s: float = 0.0
    tasks: list[Task] = field(default_factory=list)
    carrier: Task | None = None
    left: list[Task] = field(default_factory=list)
    end: str = ""

    @property
    def stands(self) -> bool:
        """Whether a process is left that not even SIGKILL ends."""
        return self.end == "stands"

    @property
    def headline(self) -> str:
        """Return one line on what holds it up and what became of it."""
        host = self.suspect.host
        name = f"agent {self.pid} on {host}"
        if self.error:
            return f"a second channel to {host} does not open: {self.error}"
        if self.end == "gone" and self.uptime_s < self.suspect.age_s:
            return f"{host} was booted anew {self.uptime_s:.0f} s ago"
        if self.end == "gone":
            return f"{host} answers on another channel, but its agent {self.pid} is gone"
        said = [f"{name} {next((task.plight for task in self.tasks if task.plight), self._alive)}"]
        if self.carrier is not None and self.carrier.plight:
            said.append(f"{self.carrier.name} {self.carrier.number}, which carries it, {self.carrier.plight}")
        if self.stands:
            said.append(f"SIGKILL does not end it: {self.left_in}")
        elif self.end:
            said.append(f"{self.end} ended it")
        return "; ".join(said)

    @property
    def pid(self) -> int:
        return self.suspect.pid

    @property
    def left_in(self) -> str:
        """What is left of it, and where."""
        stuck = next((task for task in self.left if task.plight), None)
        return f"thread {stuck.number} {stuck.plight}" if stuck else "it is neither stopped nor asleep in the kernel"

    @property
    def _alive(self) -> str:
        if not self.tasks:
            return "was not seen"
        busy = [task for task in self.tasks[1:] if "futex" not in task.wchan]  # the others wait for work
        one = busy[-1] if busy else self.tasks[0]
        return f"was alive (thread {one.number}: state {one.state}{f' in {one.wchan}' if one.wchan else ''})"

    @property
    def text(self) -> str:
        """Return all that was seen, a thread a line and its kernel stack where it may be read."""
        lines = [self.headline, *(task.text for task in self.tasks)]
        if self.carrier is not None:
            lines.append(f"carried by {self.carrier.text}")
        return "\n".join([*lines, *(f"left: {task.text}" for task in self.left)])


def look(open_shell: Callable[[bytes, Deadline], Stream], suspect: Suspect, timeout_scale: float) -> Seen:
    """Look at the agent, and end it. Its errors are in what it returns; it keeps deadlines of its own."""
    one, two = new_marker()
    marks = {"@ONE": one, "@TWO": two, "@AGENT": suspect.marker}
    values = {
        "@PID": str(suspect.pid),
        "@ASKED": "0" if suspect.killed else str(PATIENCE_S),
        "@PATIENCE": str(KILLED_S if suspect.killed else math.ceil(PATIENCE_S * timeout_scale)),
        **marks,
    }
    script = SCRIPT
    for name, value in values.items():
        script = script.replace(name, value)
    try:
        stream = open_shell(script.encode(), Deadline(REACH_S * timeout_scale))
    except (RdmaError, OSError) as error:
        return Seen(suspect, error=str(error))
    try:
        lines = list(_lines(stream, (one + two).encode(), Deadline(LOOK_S * timeout_scale)))
        if not lines:
            return Seen(suspect, error=f"`{stream.description}` ran no shell: {stream.exit_text(1.0)}")
    except (RdmaError, OSError) as error:
        return Seen(suspect, error=str(error))
    finally:
        stream.close(0.0)
        stream.release()
    return seen(suspect, lines)


LAST = ("gone", "ended", "stands")


def _lines(stream: Stream, mark: bytes, deadline: Deadline) -> Iterator[str]:
    """Yield what the script says, up to its last word, the end of the stream, or the deadline."""
    buffer = bytearray()
    while read_until(stream, buffer, mark, deadline) >= 0:
        del buffer[: buffer.find(mark) + len(mark)]
        end = read_until(stream, buffer, b"\n", deadline)
        line = bytes(buffer[: max(end, 0)]).decode(errors="replace").strip()
        yield line
        if end < 0 or line.partition(" ")[0] in LAST:
            return


def seen(suspect: Suspect, lines: list[str]) -> Seen:
    """Return what the lines of the script say."""
    tasks: dict[str, list[Task]] = {"task": [], "left": [], "carrier": []}
    latest = tasks["task"]
    uptime_s, end = 0.0, ""
    for line in lines:
        word, _, rest = line.partition(" ")
        if word in tasks:
            latest = tasks[word]
            latest.append(_task(rest))
        elif word == "stack" and latest:
            was = latest.pop()
            latest.append(Task(was.number, was.name, was.state, was.wchan, (*was.stack, rest)))
        elif word == "uptime":
            uptime_s = float(rest or 0)
        elif word in LAST:
            end = rest or word
    carrier = tasks["carrier"][0] if tasks["carrier"] else None
    return Seen(suspect, "", uptime_s, tasks["task"], carrier, tasks["left"], end)


def _task(text: str) -> Task:
    """Take apart `wchan` and a line of /proc/PID/stat, whose name may hold spaces and brackets."""
    wchan, _, stat = text.partition(" ")
    number, _, rest = stat.partition(" (")
    name, _, fields = rest.rpartition(") ")
    return Task(int(number), name, fields[:1], "" if wchan == "0" else wchan)
