"""The bridge to pytest-benchmark: rounds timed natively, recorded as they are, and a table of our own after the run.

pytest-benchmark reads a clock that each round moves on by its seconds a message, so its OPS are messages a second.
"""

from __future__ import annotations

import statistics
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import pytest

from pytest_rdma import plugin
from pytest_rdma.reference import Beside, Compared, reference_of
from pytest_rdma.traffic import Latency, PingPong, Pipeline, RecvDrain, Spec, TrafficResult
from pytest_rdma.traffic_pair import Specs, run_pairs

if TYPE_CHECKING:
    from pytest_rdma.pairing import Pair

INSTALL_HINT = "rdma_benchmark needs pytest-benchmark, not switched off: pip install 'pytest-rdma[benchmark]'"
XDIST_REASON = "benchmarks need the hosts for themselves, and pytest-xdist runs tests side by side: run them with -n0"
SHORT_S = 0.01
COLUMNS = ("test", "size", "Gb/s", "Mmsg/s", "p50 us", "p99 us", "p99.9 us", "spread", "rounds")


@dataclass(frozen=True)
class Measurement:
    """What the rounds of one benchmark gave; `latency` is that of all rounds together."""

    name: str
    spec: Spec
    rounds: tuple[TrafficResult, ...]
    latency: Latency | None
    warnings: tuple[str, ...] = ()
    reference: Compared | str | None = None
    """The tool of --rdma-reference beside it, or why there is none; None where it was not asked for."""

    @property
    def messages_per_second(self) -> float:
        """The median of the rounds."""
        return statistics.median(one.messages_per_second for one in self.rounds)

    @property
    def bytes_per_second(self) -> float:
        return statistics.median(one.bytes_per_second for one in self.rounds)

    @property
    def spread(self) -> float:
        """The largest less the smallest round, as a part of the median; 0 for a single round."""
        rates = [one.messages_per_second for one in self.rounds]
        return (max(rates) - min(rates)) / self.messages_per_second

    def row(self) -> tuple[str, ...]:
        """Return its cells of the table; an empty one has no samples enough."""
        found = self.latency.percentiles_ns if self.latency else {}
        times = (f"{found[name] / 1e3:.1f}" if name in found else "" for name in ("p50", "p99", "p99.9"))
        rates: tuple[str, ...] = ("", "")
        if self.latency is None:
            rates = f"{self.bytes_per_second * 8e-9:.3g}", f"{self.messages_per_second / 1e6:.3g}"
        return (
            self.name,
            str(self.spec.size_bytes),
            *rates,
            *times,
            f"{100 * self.spread:.0f}%",
            str(len(self.rounds)),
        )


MEASURED = pytest.StashKey[list[Measurement]]()


class Benchmark:
    """What the fixture rdma_benchmark gives: call it with a pair, or several, and a specification."""

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self._request = request
        self._now_s = 0.0
        if plugin.is_worker(request.config):
            pytest.skip(XDIST_REASON)
        if not request.config.pluginmanager.hasplugin("benchmark"):
            pytest.fail(INSTALL_HINT, pytrace=False)
        if not request.config.pluginmanager.hasplugin("rdma-benchmark"):
            request.config.pluginmanager.register(sys.modules[__name__], "rdma-benchmark")

    def _use_our_clock(self) -> None:
        def rdma_native_clock() -> float:
            return self._now_s

        node = self._request.node
        marker = node.get_closest_marker("benchmark")
        given = marker.kwargs if marker else {}
        node.add_marker(pytest.mark.benchmark(**{**given, "timer": rdma_native_clock}), append=False)

    def __call__(
        self,
        pairs: Pair | Sequence[Pair],
        spec: Specs,
        passive: Specs | None = None,
        *,
        rounds: int = 5,
        warmup_rounds: int = 1,
        reverse: bool = False,
        timeout_s: float = 60.0,
    ) -> Measurement:
        """Run warm-up and rounds, record them, and return them.

        What is measured is the active end, by the first of its specifications. Arguments are those of `run_pairs`.
        """

        def once() -> TrafficResult:
            return run_pairs(pairs, spec, passive, reverse=reverse, timeout_s=timeout_s).active

        beside = None
        if plugin.configuration(self._request.config).reference.value:
            beside = Beside(lambda: reference_of(pairs, spec, passive, reverse=reverse))
        results = self._measure(once, rounds, warmup_rounds, beside, timeout_s)
        first = pairs[0] if isinstance(pairs, (list, tuple)) else pairs
        facts = machine_facts(first)  # type: ignore[arg-type]
        measured = measurement(self._request.node.name, spec, results, facts, beside)
        self._request.getfixturevalue("benchmark").extra_info.update(extra_info(measured, facts))
        self._request.config.stash.setdefault(MEASURED, []).append(measured)
        return measured

    def _measure(
        self,
        once: Callable[[], TrafficResult],
        rounds: int,
        warmup_rounds: int,
        beside: Beside | None,
        timeout_s: float,
    ) -> list[TrafficResult]:
        """Let pytest-benchmark run the rounds; the reference goes in turn with them, the first of two in turn, too."""
        results: list[TrafficResult] = []

        def ours() -> None:
            if not results and not recorder.disabled:
                for _ in range(warmup_rounds):
                    once()
            results.append(once())
            self._now_s += seconds_a_message(results[-1])

        def theirs() -> None:
            if beside is not None:
                beside.run(results[-1].messages, timeout_s)

        def target() -> None:
            for step in (theirs, ours) if len(results) % 2 else (ours, theirs):
                step()

        # not before, and the warm-up within: a fixture of pytest-benchmark's that is not used is a warning
        self._use_our_clock()
        recorder = self._request.getfixturevalue("benchmark")
        recorder.pedantic(target, rounds=rounds, iterations=1)
        return results


def measurement(
    name: str, spec: Specs, results: Sequence[TrafficResult], facts: dict[str, Any], beside: Beside | None
) -> Measurement:
    """Return what the rounds and the runs of the reference come to."""
    latency = merged([one.latency for one in results if one.latency])
    first = spec if isinstance(spec, (Pipeline, RecvDrain, PingPong)) else spec[0]
    found = Measurement(name, first, tuple(results), latency, tuple(warnings_of(results, facts)))
    if beside is None:
        return found
    ours = (latency.percentile(50) or latency.mean_ns) if latency else found.messages_per_second
    return replace(found, reference=beside.compared(ours))


def seconds_a_message(result: TrafficResult) -> float:
    """Return the mean time of a message: of a ping-pong what its latency measures, else the inverse of the rate."""
    if result.latency is not None:
        return result.latency.mean_ns / 1e9
    return 1.0 / result.messages_per_second


def merged(latencies: Sequence[Latency]) -> Latency | None:
    """Return the latency of all rounds together."""
    if not latencies:
        return None
    counts: dict[float, int] = {}
    for one in latencies:
        for value, count in zip(one.values_ns, one.counts):
            counts[value] = counts.get(value, 0) + count
    total = sum(one.count for one in latencies)
    ordered = sorted(counts.items())
    return Latency(
        latencies[0].measures,
        total,
        sum(one.mean_ns * one.count for one in latencies) / total,
        min(one.min_ns for one in latencies),
        max(one.max_ns for one in latencies),
        tuple(value for value, _ in ordered),
        tuple(count for _, count in ordered),
    )


# -- facts about the machines


def machine_facts(pair: Pair) -> dict[str, Any]:
    """Return what a number depends on beside the specification: devices, MTU, GID rows, both machines."""
    rail = pair.rail
    facts: dict[str, Any] = {"mtu": pair.attributes.mtu, "rd_atomic": pair.attributes.rd_atomic}
    for side, end, endpoint in (("local", rail.local, pair.local), ("peer", rail.peer, pair.peer)):
        host = endpoint.host
        machine = host.invoke("traffic.machine", end.device.name)
        facts[side] = {
            "host": host.info.hostname,
            "kernel": host.info.kernel,
            "rdma_core": host.info.rdma_core,
            "device": end.device.name,
            "port": end.port.number,
            "provider": end.device.provider,
            "firmware": end.device.firmware,
            "numa_node": end.device.numa_node,
            "max_mtu": end.port.max_mtu,
            "gid_index": end.gid.index if end.gid else None,
            "gid": end.gid.gid if end.gid else None,
            **machine,
        }
    return facts


def warnings_of(results: Sequence[TrafficResult], facts: dict[str, Any]) -> list[str]:
    """Return what makes the numbers less than they seem; each only where a fact calls for it."""
    shortest = min(one.seconds for one in results)
    found = []
    if shortest < SHORT_S:
        found.append(f"a round took {shortest * 1e3:.2f} ms: too short to be steady, ask for more iterations")
    for side in ("local", "peer"):
        machine = facts[side]
        if machine["governor"] == "powersave":
            found.append(f"{machine['host']} runs its CPUs with the powersave governor")
        if machine["emulated"]:
            found.append(f"{machine['host']} has an emulated CPU: numbers compare only among themselves")
        if machine["numa_node"] >= 0 and machine["numa_node"] not in machine["cpu_numa_nodes"]:
            nodes = ", ".join(map(str, machine["cpu_numa_nodes"]))
            place = f"{machine['device']} of {machine['host']} is on NUMA node {machine['numa_node']}"
            found.append(f"{place}, the process on {nodes}")
    if facts["mtu"] == 1024 and min(facts["local"]["max_mtu"], facts["peer"]["max_mtu"]) >= 4096:
        found.append("the path MTU is 1024, and both ports can do 4096")
    return found


def extra_info(measured: Measurement, facts: dict[str, Any]) -> dict[str, Any]:
    """Return what goes into pytest-benchmark's JSON; no value is missing or not a number."""
    spec = measured.spec
    info: dict[str, Any] = {
        "bytes_per_second": measured.bytes_per_second,
        "messages_per_second": measured.messages_per_second,
        "spread": measured.spread,
        "parameters": {"kind": type(spec).__name__, **_plain(spec)},
        "clock": measured.rounds[0].clock,
        "clock_cost_ns": measured.rounds[0].clock_cost_ns,
        "cpus": sorted({one.cpu for one in measured.rounds}),
        "warnings": list(measured.warnings),
        **facts,
    }
    if measured.latency is not None:
        info["latency"] = {
            "measures": measured.latency.measures,
            "count": measured.latency.count,
            "min_ns": measured.latency.min_ns,
            "max_ns": measured.latency.max_ns,
            **{f"{name}_ns": value for name, value in measured.latency.percentiles_ns.items()},
        }
    if measured.reference is not None:
        compared = measured.reference
        info["reference"] = {"skipped": compared} if isinstance(compared, str) else compared.info()
    if measured.rounds[0].outstanding_reads is not None:
        info["outstanding_reads"] = measured.rounds[0].outstanding_reads
    return info


def _plain(spec: Spec) -> dict[str, Any]:
    values = asdict(spec)
    values["requests"] = len(values.get("requests", ()))
    if hasattr(spec, "op"):
        values["op"] = spec.op.name
    return values


# -- the table


def table(measured: Sequence[Measurement]) -> list[str]:
    """Return the lines of the table, and below it each warning once with the tests it is about."""
    rows = [COLUMNS, *(one.row() for one in measured)]
    if any(one.reference is not None for one in measured):
        beside = [("perftest", "ratio"), *(reference_cells(one) for one in measured)]
        rows = [(*row, *cells) for row, cells in zip(rows, beside)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:]))]
        lines.append("  ".join(cells).rstrip())
    notes = Counter(f"warning: {text}" for one in measured for text in one.warnings)
    notes.update(f"no reference: {one.reference}" for one in measured if isinstance(one.reference, str))
    lines += [f"{text} ({count} of {len(measured)} tests)" for text, count in notes.items()]
    if any(isinstance(one.reference, Compared) for one in measured):
        lines.append("a ratio above 1 is in our favour")
    halves = any(isinstance(one.spec, PingPong) and one.spec.measures.startswith("half") for one in measured)
    if halves:
        lines.append("times of Send and Write are half of a round trip, of Read and atomics the whole")
    return lines


def reference_cells(measured: Measurement) -> tuple[str, str]:
    """Return the reference's two cells; why they are empty is said below the table."""
    found = measured.reference
    return (found.cell, f"{found.ratio:.2f}") if isinstance(found, Compared) else ("", "")


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    measured = config.stash.get(MEASURED, [])
    if measured:
        terminalreporter.section("rdma benchmarks (medians of the rounds)")
        for line in table(measured):
            terminalreporter.write_line(line)
