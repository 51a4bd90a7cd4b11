"""What a run tells of its hosts: header lines, JUnit properties, skip reasons, sections of a failed test."""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from pytest_rdma.capabilities import lacking as lacking_on
from pytest_rdma.config import Setting
from pytest_rdma.errors import RemoteError
from pytest_rdma.session import LOCAL_NAME

if TYPE_CHECKING:
    from pytest_rdma.host import Host
    from pytest_rdma.rail import RailEnd
    from pytest_rdma.session import RdmaSession

PACKAGE = "pytest_rdma"
FRAME = re.compile(r'^ *File "(.*)"', re.MULTILINE)


def header(session: RdmaSession, *, verbose: bool) -> list[str]:
    """Return the header lines: both ends and where they come from; with `verbose` also why, and all versions."""
    config = session.config
    local, peer = session.hosts()
    rail = session.rail()
    chosen = {
        "local": (config.device, config.gid_index, config.host, config.lab),
        "peer": (config.peer_device, config.peer_gid_index, config.peer, config.peer_exec, config.lab),
    }
    told = [
        f"{_end(local, rail.local)} ({_word(chosen['local'])})",
        f"{_end(peer, rail.peer)} ({_word(chosen['peer'])})",
    ]
    lines = [f"rdma: {told[0]}; peer {told[1]}"]
    if verbose:
        scale = session.timeout_scale
        lines.append(
            f"rdma: MTU {rail.mtu} ({config.mtu.word if config.mtu.given else 'found'}), "
            f"rd_atomic {rail.rd_atomic}, timeout scale {scale.value:g} ({scale.word})"
        )
        lines += [f"rdma: {reason}" for reason in rail.reasons]
        for host in (local,) if session.one_process else (local, peer):
            lines += [f"rdma: {text}" for text in (_host(host), *getattr(host, "notes", ()))]
        if config.lab.value:
            lines.append(f"rdma: lab {session.lab().description}")
    return lines


def _end(host: Host, end: RailEnd) -> str:
    return end.label if host.name == LOCAL_NAME else f"{host.name} {end.label}"


def _word(settings: tuple[Setting[Any], ...]) -> str:
    """Return the word for where a choice came from: of the first setting that was given."""
    return next((setting.word for setting in settings if setting.given), "found")


def _host(host: Host) -> str:
    info = host.info
    name = host.name if host.name == info.hostname else f"{host.name}: {info.hostname}"
    return (
        f"{name}: kernel {info.kernel} {info.machine}, rdma-core {info.rdma_core}, "
        f"pyverbs {info.pyverbs}, Python {info.python} {info.executable}"
    )


def properties(session: RdmaSession) -> list[tuple[str, object]]:
    """Return the JUnit properties of a test: what it ran on, both ends."""
    rail = session.rail()
    found: list[tuple[str, object]] = [("rdma_mtu", str(rail.mtu))]
    for role, host, end in zip(("local", "peer"), session.hosts(), (rail.local, rail.peer)):
        gid = end.gid
        found += [
            (f"rdma_{role}_host", host.info.hostname),
            (f"rdma_{role}_device", f"{end.device.name}/{end.port.number}"),
            (f"rdma_{role}_firmware", end.device.firmware),
            (f"rdma_{role}_gid", f"{gid.index} {gid.type} {gid.address}" if gid else "none"),
            (f"rdma_{role}_active_mtu", str(end.port.active_mtu)),
            (f"rdma_{role}_kernel", host.info.kernel),
            (f"rdma_{role}_rdma_core", host.info.rdma_core),
        ]
    return found


def lacking(session: RdmaSession, names: tuple[str, ...], minimums: dict[str, int]) -> str | None:
    """Return why the test cannot run on these devices, None when it can."""
    rail = session.rail()
    for host, end in zip(session.hosts(), (rail.local, rail.peer)):
        reason = lacking_on(names, minimums, host.name, end.device, end.port)
        if reason:
            return reason
    return None


def sections(session: RdmaSession, error: BaseException, *, whole: bool) -> list[tuple[str, str]]:
    """Return what a failed test shows beside its evidence: both ends, and the traceback on the host where it failed.

    One of an error of ours in frames of ours says nothing of the test: it is shown with `whole` only.
    """
    if session.rail.made is None:
        return []
    found = [("rdma", "\n".join(header(session, verbose=False)))]
    seen = getattr(error, "seen", "")
    if seen:
        found.append(("what was seen of the agent", seen))
    there = getattr(error, "remote_traceback", None)
    folders = {PurePath(file).parent.name for file in FRAME.findall(there or "")}  # an agent has us in a zip
    if there and (whole or isinstance(error, RemoteError) or folders != {PACKAGE}):
        found.append((f"traceback on {getattr(error, 'host', None) or 'the host'}", there))
    return found
