"""Options of the command line, the environment and the ini file become one frozen RdmaConfig.

One table (`OPTIONS`) drives the command line, the ini keys, the environment variables and the table in the README. Each
value knows where it came from, so that the header and the errors can say so.
"""

from __future__ import annotations

import enum
import math
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Callable, Generic, TypeVar

from pytest_rdma.errors import RdmaUsageError

T = TypeVar("T")

MTUS = (256, 512, 1024, 2048, 4096)
_TRUE = ("1", "true", "yes", "on")
_FALSE = ("0", "false", "no", "off")


class Source(enum.IntEnum):
    """Where a value came from; the higher wins."""

    DEFAULT = 0
    FOUND = 1
    INI = 2
    ENVIRONMENT = 3
    OPTION = 4
    FIXTURE = 5


@dataclass(frozen=True)
class Setting(Generic[T]):
    """A value and where it came from; `origin` is what the user wrote it into: `--rdma-mtu`, `RDMA_MTU`, an ini key."""

    value: T
    source: Source = Source.DEFAULT
    origin: str = ""

    @property
    def word(self) -> str:
        """The word for the header: `option`, the environment variable, `ini`, `found`, `default` or `fixture`."""
        return self.origin if self.source is Source.ENVIRONMENT else self.source.name.lower()

    @property
    def given(self) -> bool:
        return self.source > Source.FOUND


@dataclass(frozen=True)
class RdmaConfig:
    """What the user asked for. Where a value is None, what is right is found out on the hosts."""

    device: Setting[str | None] = Setting(None)
    host: Setting[str | None] = Setting(None)
    peer: Setting[str | None] = Setting(None)
    peer_device: Setting[str | None] = Setting(None)
    peer_exec: Setting[str | None] = Setting(None)
    python: Setting[str | None] = Setting(None)
    peer_python: Setting[str | None] = Setting(None)
    gid_index: Setting[int | None] = Setting(None)
    peer_gid_index: Setting[int | None] = Setting(None)
    mtu: Setting[int | None] = Setting(None)
    sl: Setting[int] = Setting(0)
    traffic_class: Setting[int] = Setting(0)
    pkey_index: Setting[int] = Setting(0)
    retry_count: Setting[int] = Setting(6)
    rnr_retry: Setting[int] = Setting(6)
    ack_timeout: Setting[int] = Setting(14)
    lab: Setting[bool] = Setting(False)
    strict: Setting[bool] = Setting(False)
    timeout_scale: Setting[float] = Setting(1.0)

    @property
    def asked(self) -> bool:
        """True when a host or a device was named, by whatever source: then the run connects before its first test."""
        return any(getattr(self, option.name).given for option in OPTIONS if option.selects)

    def with_(self, **values: Any) -> RdmaConfig:
        """Return a copy with plain `values`, marked as coming from a fixture: for an `rdma_config` of your own.

        The values are checked as those of the options are.
        """
        changed: dict[str, Any] = {}
        for name, value in values.items():
            option = _OPTION_OF.get(name)
            if option is None:
                raise RdmaUsageError(f"rdma_config has no {name!r}; it has {', '.join(_OPTION_OF)}")
            parsed = value if value is None else option.parsed(str(value), f"{name} in rdma_config")
            changed[name] = Setting(parsed, Source.FIXTURE, f"{name} in rdma_config")
        return _without_contradictions(replace(self, **changed))


@dataclass(frozen=True)
class Option:
    """One row of the table. `parse` turns text into the value, or raises ValueError with what is allowed.

    `flags` are the spellings, the one with the prefix first: the ini key and the variable are made from it. `selects`
    is true when it names a host or a device.
    """

    name: str
    flags: tuple[str, ...]
    metavar: str | None
    parse: Callable[[str], Any]
    help: str
    default: str
    selects: bool = False

    @property
    def ini(self) -> str:
        return self.flags[0].lstrip("-").replace("-", "_")

    @property
    def variable(self) -> str:
        return self.ini.upper()

    @property
    def flag(self) -> str:
        """The spelling to show: the shortest, where an option has two."""
        return self.flags[-1]

    def parsed(self, text: str, origin: str) -> Any:
        """Return the value of `text`; RdmaUsageError names the `origin`."""
        try:
            return self.parse(text)
        except ValueError as error:
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


def _factor(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise ValueError("a number above 0")
    return value


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
        "14 (67 ms)",
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
        "Fail each RDMA test that would be skipped for want of a device or a capability.",
        "off",
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
_OPTION_OF = {option.name: option for option in OPTIONS}
assert list(_OPTION_OF) == [field.name for field in fields(RdmaConfig)]


def resolve(
    options: Mapping[str, Any], environment: Mapping[str, str], ini: Callable[[str], str], ini_file: str = "ini file"
) -> RdmaConfig:
    """Return the configuration: the command line wins over the environment, that over the ini file.

    `options` maps `rdma_<name>` to what the command line gave, None for nothing; `ini` returns the text of a key. An
    empty variable or ini key counts as not given. RdmaUsageError names the option, variable or key that is wrong.
    """
    settings: dict[str, Setting[Any]] = {}
    for option in OPTIONS:
        given = options.get(f"rdma_{option.name}")
        if given is True:
            settings[option.name] = Setting(True, Source.OPTION, option.flag)
        elif given is not None:
            settings[option.name] = Setting(option.parsed(given, option.flag), Source.OPTION, option.flag)
        elif text := environment.get(option.variable, ""):
            settings[option.name] = Setting(option.parsed(text, option.variable), Source.ENVIRONMENT, option.variable)
        elif text := ini(option.ini):
            origin = f"{option.ini} in {ini_file}"
            settings[option.name] = Setting(option.parsed(text, origin), Source.INI, origin)
    return _without_contradictions(RdmaConfig(**settings))


def _without_contradictions(config: RdmaConfig) -> RdmaConfig:
    """Refuse options that exclude each other; from unequal sources the higher sets the lower aside."""
    pairs = (("peer", "peer_exec"), ("lab", "host"), ("lab", "peer"), ("lab", "peer_exec"))
    for first, second in pairs:
        one, other = getattr(config, first), getattr(config, second)
        if not one.value or not other.value:
            continue
        if one.source == other.source:
            raise RdmaUsageError(f"{one.origin} and {other.origin} exclude each other: {_EXCLUDES[first]}")
        set_aside = first if one.source < other.source else second
        config = replace(config, **{set_aside: Setting(_DEFAULTS[set_aside])})
    _check_interpreters(config)
    return config


_EXCLUDES = {
    "peer": "one reaches the peer over SSH, the other by a command",
    "lab": "the lab brings both of its hosts",
}
_DEFAULTS: dict[str, Any] = {"peer": None, "peer_exec": None, "host": None, "lab": False}


def _check_interpreters(config: RdmaConfig) -> None:
    """Refuse an interpreter for a host that is not remote, where both were typed; an ini file may hold it in store."""
    if config.python.source is Source.OPTION and config.host.value is None:
        raise RdmaUsageError(
            "--rdma-python is the interpreter on --rdma-host, which is not given; the local host is this process"
        )
    if config.peer_python.source is Source.OPTION and config.peer.value is None and config.peer_exec.value is None:
        raise RdmaUsageError("--peer-python is the interpreter on the peer: it needs --peer or --peer-exec")


def options_table() -> str:
    """Return the table of options for the README, in Markdown."""
    lines = ["| option | ini key | environment | default | |", "|---|---|---|---|---|"]
    for option in OPTIONS:
        flags = ", ".join(f"`{flag}{' ' + option.metavar if option.metavar else ''}`" for flag in option.flags[::-1])
        lines.append(f"| {flags} | `{option.ini}` | `{option.variable}` | {option.default} | {option.help} |")
    return "\n".join(lines)
