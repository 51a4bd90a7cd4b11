"""The public fixtures. Override one in your own conftest.py to change what the options are too coarse for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from pytest_rdma import plugin

if TYPE_CHECKING:
    from pytest_rdma.benchmark import Benchmark
    from pytest_rdma.cm import CMPair
    from pytest_rdma.config import RdmaConfig
    from pytest_rdma.deviations import Deviation, Expectation
    from pytest_rdma.endpoint import CQ, PD, Buffer, Endpoint
    from pytest_rdma.host import Host
    from pytest_rdma.model import Access, DeviceInfo, EndpointCaps
    from pytest_rdma.pairing import Pair
    from pytest_rdma.session import DeviceContext, RdmaSession


@pytest.fixture(scope="session")
def rdma_config(pytestconfig: pytest.Config) -> RdmaConfig:
    """The frozen RDMA configuration; each value knows where it came from.

    Override it to change what a run uses: ``return rdma_config.with_(mtu=1024)``.
    """
    return plugin.configuration(pytestconfig)


@pytest.fixture
def _rdma_session(pytestconfig: pytest.Config, rdma_config: RdmaConfig) -> RdmaSession:
    """The run's hosts and the rail for this test's configuration, opened; what the other fixtures stand on."""
    from pytest_rdma import running

    return running.open_session(pytestconfig, rdma_config)


@pytest.fixture
def _rdma_ready(request: pytest.FixtureRequest, _rdma_session: RdmaSession) -> None:
    """Make the hosts ready for this test, or skip it; set up before all else in each test that needs them."""
    from pytest_rdma import running

    running.prepare(request.node, _rdma_session)


@pytest.fixture(scope="session")
def rdma_local(pytestconfig: pytest.Config, rdma_config: RdmaConfig) -> Host:
    """The local host: this machine, or the one of --rdma-host. It survives a restart of its agent."""
    from pytest_rdma import running

    return running.open_session(pytestconfig, rdma_config).local


@pytest.fixture(scope="session")
def rdma_peer(pytestconfig: pytest.Config, rdma_config: RdmaConfig) -> Host:
    """The peer host: the one of --peer, or the local one again, looped back. It survives a restart of its agent."""
    from pytest_rdma import running

    return running.open_session(pytestconfig, rdma_config).peer


@pytest.fixture
def rdma_device(_rdma_session: RdmaSession, _rdma_ready: None) -> DeviceInfo:
    """The RDMA device chosen on the local host: name, firmware, limits, ports."""
    return _rdma_session.rail().local.device


@pytest.fixture
def rdma_context(_rdma_session: RdmaSession, rdma_local: Host, _rdma_ready: None) -> DeviceContext:
    """The device, port and GID row chosen on the local host, and what can be made on them."""
    from pytest_rdma.session import DeviceContext

    return DeviceContext(rdma_local, _rdma_session.rail().local)


@pytest.fixture
def rdma_pd(_rdma_session: RdmaSession, _rdma_ready: None) -> PD:
    """A protection domain on the local device; kept from test to test, made anew when its host was restarted."""
    return _rdma_session.pd()


@pytest.fixture
def _rdma_made(request: pytest.FixtureRequest, _rdma_ready: None) -> Iterator[list[Any]]:
    """A list of verbs objects that are destroyed after the test, the last one first."""
    made: list[Any] = []
    yield made
    from pytest_rdma import running

    close_made(made, running.has_failed(request.node))


@pytest.fixture
def rdma_mr(rdma_local: Host, rdma_pd: PD, _rdma_made: list[Any]) -> Callable[..., Buffer]:
    """Factory: ``rdma_mr(length, access=..., pd=...)`` registers zeroed, page-aligned memory on the local host."""

    def make(length: int, access: Access | None = None, pd: PD | None = None) -> Buffer:
        options = {} if access is None else {"access": access}
        _rdma_made.append(rdma_local.mr(pd or rdma_pd, length, **options))
        made: Buffer = _rdma_made[-1]
        return made

    return make


@pytest.fixture
def rdma_cq(rdma_context: DeviceContext, _rdma_made: list[Any]) -> Callable[..., CQ]:
    """Factory: ``rdma_cq(depth=256, events=False)`` makes a completion queue on the local device."""

    def make(depth: int = 256, *, events: bool = False) -> CQ:
        _rdma_made.append(rdma_context.cq(depth, events=events))
        made: CQ = _rdma_made[-1]
        return made

    return make


@pytest.fixture
def rdma_qp(
    request: pytest.FixtureRequest, rdma_context: DeviceContext, _rdma_made: list[Any]
) -> Callable[..., Endpoint]:
    """Factory: ``rdma_qp(caps=None, pd=None, cq=None, **caps_changes)`` makes an unconnected RC QP in INIT on the
    local device; its capabilities are those of the marker rdma_caps unless given.
    """

    from pytest_rdma.running import marked_caps

    def make(
        caps: EndpointCaps | None = None, *, pd: PD | None = None, cq: CQ | None = None, **changes: Any
    ) -> Endpoint:
        caps = (caps or marked_caps(request.node)).with_(**changes)
        _rdma_made.append(rdma_context.endpoint(caps, pd=pd, cq=cq))
        made: Endpoint = _rdma_made[-1]
        return made

    return make


@pytest.fixture
def rdma_pairs(
    request: pytest.FixtureRequest, _rdma_session: RdmaSession, rdma_local: Host, rdma_peer: Host, _rdma_made: list[Any]
) -> Callable[..., Pair]:
    """Factory: ``rdma_pairs(caps=None, connect=True, overrides=None, shared=None, **caps_changes)`` makes another pair.

    ``caps`` are those of the marker rdma_caps unless given; ``overrides`` forge what one end presents to the other;
    ``shared={"peer": {"cq": cq, "srq": srq}}`` gives an end a PD, CQ or SRQ that there is already.
    """

    from pytest_rdma.running import marked_caps

    def make(
        caps: EndpointCaps | None = None,
        *,
        connect: bool = True,
        overrides: dict[str, dict[str, Any]] | None = None,
        shared: dict[str, dict[str, Any]] | None = None,
        **changes: Any,
    ) -> Pair:
        caps = (caps or marked_caps(request.node)).with_(**changes)
        pair = _rdma_session.pair(rdma_local, rdma_peer, caps, shared)
        _rdma_made.append(pair)
        if connect:
            pair.connect(overrides)
        return pair

    return make


@pytest.fixture
def rdma_pair(rdma_pairs: Callable[..., Pair]) -> Pair:
    """A connected RC pair: ``.local`` and ``.peer`` are its endpoints; capabilities by the marker rdma_caps."""
    return rdma_pairs()


@pytest.fixture
def rdma_cm_pair(
    request: pytest.FixtureRequest, _rdma_session: RdmaSession, rdma_local: Host, rdma_peer: Host, _rdma_made: list[Any]
) -> CMPair:
    """A pair as rdma_pair gives, connected by rdma_cm: the peer listens on the address of its GID row, the local end
    dials, and private data carries the keys of both buffers.
    """
    from pytest_rdma.running import marked_caps

    pair = _rdma_session.cm_pair(rdma_local, rdma_peer, marked_caps(request.node))
    _rdma_made.append(pair)
    pair.connect()
    return pair


@pytest.fixture
def rdma_benchmark(request: pytest.FixtureRequest, rdma_local: Host, _rdma_ready: None) -> Benchmark:
    """Measure traffic under pytest-benchmark: ``rdma_benchmark(pair, spec, rounds=5)`` runs warm-up and rounds of a
    Pipeline or a PingPong between the two ends. Times are taken natively; OPS are messages a second.
    """
    from pytest_rdma.benchmark import Benchmark

    return Benchmark(request)


@pytest.fixture
def rdma_expect(request: pytest.FixtureRequest, _rdma_ready: None) -> Expectation:
    """Judge: ``rdma_expect(case, active=(probe, EndOutcome(...)), passive=(probe, EndOutcome(...)))`` compares what
    came of a fault at both ends with what must come. The report names the rows of the table of deviations used.
    """
    from pytest_rdma.deviations import Expectation

    def note(row: Deviation) -> None:
        used = ("rdma_deviation", row.text)
        if used not in request.node.user_properties:
            request.node.user_properties.append(used)

    return Expectation(note)


def close_made(made: list[Any], test_failed: bool) -> None:
    """Close all, the last made first; whatever fails, the others are closed too, and one error tells of all.

    A host that was lost in a test that failed is not reported again.
    """
    from pytest_rdma.errors import HostLostError
    from pytest_rdma.host import close_all

    def closer(one: Any) -> Callable[[], None]:
        def close() -> None:
            try:
                one.close()
            except HostLostError:
                if not test_failed:
                    raise

        return close

    close_all([closer(one) for one in reversed(made)])
