"""The table of options: one row drives the command line, the ini key, the environment variable and the README.

It is imported by every pytest run, also by those that have nothing to do with RDMA: only cheap things belong here.
"""

from __future__ import annotations

import math
import os
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

MTUS = (256, 512, 1024, 2048, 4096)
LARGEST_SCALE = 1000
"""A time-out of a minute is most of a day with it."""
_TRUE = ("1", "true", "yes", "on")
_FALSE = ("0", "false", "no", "off")


class Option:
    """One row of the table. `parse` turns text into the value, or raises ValueError with what is allowed.

    `flags` are the spellings, the one with the prefix first: the ini key and the variable are made from it. `selects`
    is true when it names a host or a device.
    """

    def __init__(
        self,
        name: str,
        flags: tuple[str, ...],
        metavar: str | None,
        parse: Callable[[str], Any],
        help: str,
        default: str,
        selects: bool = False,
    ) -> None:
        self.name = name
        self.flags = flags
        self.metavar = metavar
        self.parse = parse
        self.help = help
        self.default = default
        self.selects = selects
        self.ini = flags[0].lstrip("-").replace("-", "_")
        self.variable = self.ini.upper()

    @property
    def flag(self) -> str:
        """The spelling to show: the shortest, where an option has two."""
        return self.flags[-1]

    def parsed(self, text: str, origin: str) -> Any:
        """Return the value of `text`; RdmaUsageError names the `origin`."""
        try:
            return self.parse(text)
        except ValueError as error:
            from pytest_rdma.errors import RdmaUsageError

            raise RdmaUsageError(f"{origin}: {text!r} is not {error}") from None


def _device(text: str) -> str:
    match = re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.:-]*(?:/([0-9]{1,3}))?", text)
    if match is None or (match[1] is not None and not 1 <= int(match[1]) <= 255):
        raise ValueError("a device; write NAME or NAME/PORT, such as mlx5_0 or mlx5_0/1 (ports count from 1)")
    return text


def _host(text: str) -> str:
    if not text or text.startswith("-") or re.search(r"\s", text):
        raise ValueError("a host; write [USER@]HOST[:PORT], an IPv6 address with a port in brackets")
    return text


def _command(text: str) -> str:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ValueError(f"a command ({error})") from None
    if not words:
        raise ValueError("a command; give one that runs on the peer the words that follow it, such as 'ssh host2'")
    return text


def _program(text: str) -> str:
    if not text.strip() or text.startswith("-"):
        raise ValueError("an interpreter; give a name or a path, such as python3.11 or /usr/bin/python3")
    return text


def _number(low: int, high: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not re.fullmatch(r"\s*[0-9]{1,9}\s*", text) or not low <= int(text) <= high:
            raise ValueError(f"a whole number from {low} to {high}")
        return int(text)

    return parse


def _mtu(text: str) -> int:
    if text.strip() not in map(str, MTUS):
        raise ValueError(f"a path MTU; allowed are {', '.join(map(str, MTUS[:-1]))} and {MTUS[-1]} bytes")
    return int(text)


def _limits(text: str) -> tuple[tuple[str, int], ...]:
    found: dict[str, int] = {}
    for part in text.split(","):
        match = re.fullmatch(r"\s*([A-Za-z0-9_]+)\s*=\s*([0-9]{1,18})\s*", part)
        if match is None or match[1] in found:
            raise ValueError("a list of counters; write NAME=MAX,... with each name once, such as rnr_naks=0")
        found[match[1]] = int(match[2])
    return tuple(found.items())


def _factor(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value <= LARGEST_SCALE:
        raise ValueError(f"a number above 0, at most {LARGEST_SCALE}")
    return value


def _one_of(*words: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text.strip() not in words:
            raise ValueError(f"one of {', '.join(words)}")
        return text.strip()

    return parse


def _folder(text: str) -> str:
    """Refuse what can be known to take no files, before hours of tests have found something to keep."""
    path = there = Path(text).expanduser().absolute()
    while not there.exists() and there != there.parent:
        there = there.parent
    if not there.is_dir():
        raise ValueError(f"a directory: {there} is in the way")
    if not os.access(there, os.W_OK | os.X_OK):
        raise ValueError(f"a directory to write to: {there} does not let this user")
    return str(path)


def _switch(text: str) -> bool:
    word = text.strip().lower()
    if word not in _TRUE + _FALSE:
        raise ValueError(f"a switch; allowed are {', '.join(_TRUE)} and {', '.join(_FALSE)}")
    return word in _TRUE


OPTIONS: tuple[Option, ...] = (
    Option(
        "device",
        ("--rdma-device",),
        "NAME[/PORT]",
        _device,
        "RDMA device of the local host, and its port.",
        "the first that opens and has an ACTIVE port",
        selects=True,
    ),
    Option(
        "host",
        ("--rdma-host",),
        "HOST",
        _host,
        "[USER@]HOST[:PORT] to reach over SSH and to use as the local host: this machine then needs no RDMA. "
        "Without a peer, both ends are there.",
        "this machine",
        selects=True,
    ),
    Option(
        "peer",
        ("--rdma-peer", "--peer"),
        "HOST",
        _host,
        "[USER@]HOST[:PORT] of the peer, to reach over SSH.",
        "the local host itself, looped back",
        selects=True,
    ),
    Option(
        "peer_device",
        ("--rdma-peer-device", "--peer-device"),
        "NAME[/PORT]",
        _device,
        "RDMA device of the peer, and its port. Without a peer, a second device of the local host.",
        "the same name if it is ACTIVE there, else the only one that fits",
        selects=True,
    ),
    Option(
        "peer_exec",
        ("--rdma-peer-exec", "--peer-exec"),
        "CMD",
        _command,
        "Command that runs on the peer the words that follow it, instead of --peer: 'ssh -J gate host2', "
        "'podman exec -i b', 'kubectl exec -i pod --'.",
        "none",
        selects=True,
    ),
    Option(
        "python",
        ("--rdma-python",),
        "PYTHON",
        _program,
        "Python interpreter on --rdma-host.",
        "python3, then /usr/bin/python3: the first that imports pyverbs",
    ),
    Option(
        "peer_python",
        ("--rdma-peer-python", "--peer-python"),
        "PYTHON",
        _program,
        "Python interpreter on the peer.",
        "python3, then /usr/bin/python3: the first that imports pyverbs",
    ),
    Option(
        "gid_index",
        ("--rdma-gid-index",),
        "N",
        _number(0, 65535),
        "Row of the GID table of the local port.",
        "the best row that both ends have; the header at -v says why",
        selects=True,
    ),
    Option(
        "peer_gid_index",
        ("--rdma-peer-gid-index", "--peer-gid-index"),
        "N",
        _number(0, 65535),
        "Row of the GID table of the peer's port.",
        "the best row that both ends have; the header at -v says why",
        selects=True,
    ),
    Option(
        "mtu",
        ("--rdma-mtu",),
        "BYTES",
        _mtu,
        "Path MTU: 256, 512, 1024, 2048 or 4096.",
        "the smaller of both active MTUs",
    ),
    Option("sl", ("--rdma-sl",), "N", _number(0, 15), "Service level, 0 to 15.", "0"),
    Option(
        "traffic_class",
        ("--rdma-traffic-class",),
        "N",
        _number(0, 255),
        "Traffic class of the GRH, 0 to 255; its upper six bits are the DSCP.",
        "0",
    ),
    Option("pkey_index", ("--rdma-pkey-index",), "N", _number(0, 65535), "Row of the P_Key table.", "0"),
    Option(
        "retry_count",
        ("--rdma-retry-count",),
        "N",
        _number(0, 7),
        "How often a request without an answer is sent again, 0 to 7 (7 is for ever on Soft-RoCE).",
        "6",
    ),
    Option(
        "rnr_retry",
        ("--rdma-rnr-retry",),
        "N",
        _number(0, 7),
        "How often a request is sent again to a receiver that was not ready, 0 to 7 (7 is for ever).",
        "6",
    ),
    Option(
        "ack_timeout",
        ("--rdma-ack-timeout",),
        "N",
        _number(0, 31),
        "Time to wait for an acknowledgement, 0 to 31: 4.096 us times 2 to the N (0 is for ever).",
        "14 (67 ms), times the time-out scale",
    ),
    Option(
        "lab",
        ("--rdma-lab",),
        None,
        _switch,
        "Run in the Soft-RoCE lab: boot two virtual machines, or use those that are up, as the two hosts.",
        "off",
        selects=True,
    ),
    Option(
        "strict",
        ("--rdma-strict",),
        None,
        _switch,
        "Fail each RDMA test that would be skipped for want of a device or a capability, or whose leaks, counters or "
        "kernel log cannot be read.",
        "off",
    ),
    Option(
        "full",
        ("--rdma-full",),
        None,
        _switch,
        "Run the whole product of parameters in suites that by default run a pairwise cover.",
        "off",
    ),
    Option(
        "on_peer_loss",
        ("--rdma-on-peer-loss",),
        "reconnect|stop",
        _one_of("reconnect", "stop"),
        "What becomes of the tests after a host was lost: reconnect tries to get it back before each and blocks those "
        "that it is not back for; stop blocks all.",
        "reconnect",
    ),
    Option(
        "reference",
        ("--rdma-reference",),
        "TOOL",
        _one_of("perftest"),
        "Run this in turn with each benchmark, between the same devices, and put its number beside ours: perftest.",
        "none",
    ),
    Option(
        "counters",
        ("--rdma-counters",),
        "NAME=MAX,...",
        _limits,
        "Fail a passing test during which a counter of either device grew by more than MAX: retransmissions, "
        "out_of_sequence, sequence_errors, rnr_naks, drops, or any that the device has. They count for the whole "
        "device, which must be idle but for the tests.",
        "none",
    ),
    Option(
        "artifacts",
        ("--rdma-artifacts",),
        "DIR",
        _folder,
        "Keep of each failed test a folder there: evidence.json, the diagnosis, both hosts, their kernel logs.",
        "none",
    ),
    Option(
        "timeout_scale",
        ("--rdma-timeout-scale",),
        "FACTOR",
        _factor,
        "Multiply every time-out by this number.",
        "1; more in a lab under software emulation",
    ),
)


def options_table() -> str:
    """Return the table of options for the README, in Markdown."""
    lines = ["| option | ini key | environment | default | |", "|---|---|---|---|---|"]
    for option in OPTIONS:
        value = f" {option.metavar}".replace("|", "\\|") if option.metavar else ""
        flags = ", ".join(f"`{flag}{value}`" for flag in option.flags[::-1])
        lines.append(f"| {flags} | `{option.ini}` | `{option.variable}` | {option.default} | {option.help} |")
    return "\n".join(lines)
