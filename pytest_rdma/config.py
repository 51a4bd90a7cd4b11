"""Options of the command line, the environment and the ini file become one frozen RdmaConfig.

Each value knows where it came from, so that the header and the errors can say so.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Callable, Generic, TypeVar

from pytest_rdma.errors import RdmaUsageError
from pytest_rdma.options import OPTIONS

T = TypeVar("T")


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
    full: Setting[bool] = Setting(False)
    on_peer_loss: Setting[str] = Setting("reconnect")
    reference: Setting[str | None] = Setting(None)
    counters: Setting[tuple[tuple[str, int], ...]] = Setting(())
    artifacts: Setting[str | None] = Setting(None)
    timeout_scale: Setting[float] = Setting(1.0)

    @property
    def asked(self) -> bool:
        """True when a host or a device was named, by whatever source: then the run connects before its first test."""
        return any(getattr(self, option.name).given for option in OPTIONS if option.selects)

    @property
    def hosts(self) -> tuple[Any, ...]:
        """What decides which hosts there are and how they are reached."""
        names = ("host", "peer", "peer_exec", "python", "peer_python", "lab", "timeout_scale")
        return tuple(getattr(self, name).value for name in names)

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
