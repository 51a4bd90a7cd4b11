"""Runs a file of faults as a user would, in a pytest of its own, and reads what it says: JUnit file and report."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import ModuleType

from pytest_rdma.lab import Lab

TREE = Path(__file__).parents[2]
INNER = Path(__file__).with_name("inner")
START_S = 100.0
EACH_S = 10.0
"""What a run may take beyond the bounds of its faults: for all of it, and for each of them."""

REPORT_S = 60.0
HEADING = re.compile(r"^_{3,} (?:ERROR at \w+ of )?(\S+) _{3,}$", re.MULTILINE)
END = re.compile(r"^=+ .* =+$", re.MULTILINE)


@dataclass(frozen=True)
class Fault:
    """A test that must fail: with which cause, with what in its first line, within how many seconds (unscaled)."""

    file: str
    test: str
    cause: str
    words: str = ""
    bound_s: float = 10.0
    full: bool = False


@dataclass(frozen=True)
class Case:
    """What became of one inner test.

    `message` is what JUnit shows of its failure, `cause` the name of the likeliest cause, `report` its section of the
    terminal.
    """

    name: str
    outcome: str
    seconds: float
    message: str
    report: str
    cause: str

    @property
    def first_line(self) -> str:
        return self.message.splitlines()[0] if self.message else ""


@dataclass(frozen=True)
class Ran:
    """One inner run."""

    returncode: int
    text: str
    seconds: float
    cases: dict[str, Case] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)


@cache
def modules() -> dict[str, ModuleType]:
    """Return the files with faults by their names; importing one needs no device."""
    sys.path.insert(0, str(INNER))
    try:
        paths = [path for path in sorted(INNER.glob("*.py")) if path.stem not in HELPERS]
        return {path.stem: _load(path) for path in paths}
    finally:
        sys.path.remove(str(INNER))


HELPERS = ("conftest", "green", "on_host")


def _load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"faults_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def all_faults() -> list[Fault]:
    """Return the faults of all files, as their marks describe them."""
    found = []
    for file, module in modules().items():
        for name, test in vars(module).items():
            marks = [mark for mark in getattr(test, "pytestmark", []) if mark.name == "fault"]
            found += [Fault(file, name, *mark.args, **mark.kwargs) for mark in marks]
    return found


@dataclass(frozen=True)
class Way:
    """How an inner run reaches the two guests of a lab: over SSH, as a user reaches two hosts."""

    options: tuple[str, ...]
    environment: dict[str, str]
    ssh_config: Path
    timeout_scale: float = 1.0

    @classmethod
    def to(cls, lab: Lab, home: Path) -> Way:
        """Write the ssh_config of a home that knows the guests as host1 and host2."""
        file = home / ".ssh" / "config"
        file.parent.mkdir(mode=0o700, exist_ok=True)
        file.write_text(
            "".join(
                f"Host {host.name}\n HostName {host.address}\n Port {host.port}\n User {host.user}\n"
                f" IdentityFile {host.identity_file}\n IdentitiesOnly yes\n"
                f" UserKnownHostsFile {host.known_hosts_file}\n"
                for host in lab.hosts
            )
        )
        cache = os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache"))
        plain = {name: value for name, value in os.environ.items() if not name.startswith(("RDMA_", "PYTEST_"))}
        options = ("--rdma-host=host1", "--peer=host2", f"--rdma-timeout-scale={lab.timeout_scale:g}")
        return cls(options, {**plain, "HOME": str(home), "XDG_CACHE_HOME": cache}, file, lab.timeout_scale)

    def for_file(self, file: str) -> list[str]:
        """Return the options for a file of faults, which may reach its peer otherwise."""
        peer_exec = getattr(modules()[file], "PEER_EXEC", None)
        if peer_exec is None:
            return list(self.options)
        reached = f"--peer-exec={peer_exec.format(ssh_config=self.ssh_config)}"
        return [reached if option.startswith("--peer=") else option for option in self.options]


def run_faults(way: Way, folder: Path, faults: Sequence[Fault]) -> Ran:
    """Run these faults, all of one file, and the tests behind them that must pass."""
    (file,) = {fault.file for fault in faults}
    names = [name for fault in faults for name in (fault.test, f"test_green[{fault.test}]")]
    limit_s = START_S + sum(EACH_S + fault.bound_s for fault in faults)
    return run_file(way, folder, file, names, limit_s)


def run_file(way: Way, folder: Path, file: str, names: Sequence[str] = (), limit_s: float = START_S) -> Ran:
    """Run these tests of a file, all of them unless some are named; `limit_s` is unscaled."""
    path = INNER / f"{file}.py"
    chosen = [f"{path}::{name}" for name in names] or [str(path)]
    junit = folder / f"{file}.xml"
    junit.unlink(missing_ok=True)
    started = time.monotonic()
    command = [sys.executable, "-m", "pytest", *chosen, *way.for_file(file), f"--junitxml={junit}", *RUNNING]
    returncode, text = run_within(limit_s * way.timeout_scale, command, folder, way.environment)
    seconds = time.monotonic() - started
    if not junit.exists():
        return Ran(returncode, text, seconds)
    reports = sections(text)
    cases = [_case(one, reports) for one in ElementTree.parse(junit).iter("testcase")]
    return Ran(returncode, text, seconds, {case.name: case for case in cases})


def run_and_mend(way: Way, folder: Path, file: str, mend: Callable[[], None], limit_s: float) -> Ran:
    """Run the tests of a file; when one of them waits for that, `mend` what they have broken."""
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run_file, way, folder, file, limit_s=limit_s)
        while not running.done() and not (folder / "broken").exists():
            time.sleep(0.1)
        mend()
        (folder / "mended").touch()
        return running.result()


def run_within(limit_s: float, command: list[str], folder: Path, environment: dict[str, str]) -> tuple[int, str]:
    """Run the command to its end, or interrupt it, so that it reports what it has, and at last kill it.

    Its output goes to a file: a pipe would be waited for as long as any child holds it.
    """
    output = folder / "output"
    with output.open("wb") as file:
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=file
        )
        try:
            process.wait(limit_s)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(REPORT_S)
            file.write(f"\ninterrupted: it took longer than {limit_s:g} s\n".encode())
        finally:
            process.kill()
            process.wait()
    return process.returncode, output.read_text(errors="replace")


RUNNING = ("-p", "no:cacheprovider", f"--rootdir={INNER}", f"--confcutdir={INNER}", "--tb=short")


def sections(text: str) -> dict[str, str]:
    """Return the report of each failed test by its name."""
    parts = HEADING.split(text)
    return {name: END.split(body)[0] for name, body in zip(parts[1::2], parts[2::2])}


def _case(element: ElementTree.Element, reports: dict[str, str]) -> Case:
    name = element.get("name", "")
    ended = [child for child in element if child.tag in ("failure", "error", "skipped")]
    return Case(
        name,
        ended[0].tag if ended else "passed",
        float(element.get("time", "0")),
        ended[0].get("message", "") if ended else "",
        reports.get(name, ""),
        next((one.get("value", "") for one in element.iter("property") if one.get("name") == "rdma_cause"), ""),
    )
