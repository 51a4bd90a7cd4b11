"""What is remembered of a loss, and how often a host is asked to come back."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pytest_rdma import losses
from pytest_rdma.config import RdmaConfig
from pytest_rdma.errors import BlockedError, HostLostError, HostUnreachableError
from pytest_rdma.losses import Losses
from pytest_rdma.session import RdmaSession

FIRST = "host2 was lost in test_x: killed by SIGKILL"


def lost_host(loss: str | None = FIRST) -> Any:
    return SimpleNamespace(name="host2", loss=loss)


def test_a_host_that_comes_back_blocks_nothing() -> None:
    tries: list[int] = []
    found = Losses()
    found.mend(lost_host(), lambda: tries.append(1), 1.0, reconnect=True)
    assert (tries, found.first) == ([1], FIRST)


def test_stop_blocks_all_that_follows_the_first_loss() -> None:
    found = Losses()
    for host in (lost_host(), lost_host(None)):
        with pytest.raises(BlockedError, match=FIRST):
            found.mend(host, pytest.fail, 1.0, reconnect=False)


def refuse(tries: list[int]) -> None:
    tries.append(1)
    raise HostUnreachableError(f"{FIRST}; it does not come back: connection refused {len(tries)}")


def test_a_host_that_stays_away_is_asked_before_each_test_and_the_first_cause_stays() -> None:
    tries: list[int] = []
    found = Losses()
    for _ in range(3):
        with pytest.raises(BlockedError, match=f"{FIRST}; it does not come back: connection refused 1"):
            found.mend(lost_host(), lambda: refuse(tries), 1.0, reconnect=True)
    assert len(tries) == 3
    found.mend(lost_host(), lambda: None, 1.0, reconnect=True)
    with pytest.raises(BlockedError, match="refused 4"):
        found.mend(lost_host(), lambda: refuse(tries), 1.0, reconnect=True)


def test_a_host_that_takes_long_to_stay_away_is_not_asked_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(losses, "RECONNECT_S", 0.0)
    tries: list[int] = []
    found = Losses()
    for _ in range(3):
        with pytest.raises(BlockedError, match=FIRST):
            found.mend(lost_host(), lambda: refuse(tries), 1.0, reconnect=True)
    assert len(tries) == 1


def test_a_device_that_is_down_blocks_until_it_is_back() -> None:
    found = Losses()
    assert found.in_doubt
    for trouble in ("rxe0/1 on host2 is DOWN", "rxe0 on host2 is gone"):
        with pytest.raises(BlockedError, match=r"^rxe0/1 on host2 is DOWN \(found after test_x\)$"):
            found.judge([None, trouble], "test_x")
        assert found.in_doubt
    found.judge([None, None], "test_y")
    assert not found.in_doubt
    found.doubt()
    assert found.in_doubt


@pytest.mark.parametrize("comes_back", [True, False])
def test_a_loss_that_only_the_question_for_the_devices_reveals_is_mended_or_blocks(
    monkeypatch: pytest.MonkeyPatch, comes_back: bool
) -> None:
    session = RdmaSession(RdmaConfig())
    host = SimpleNamespace(name="host2", loss=None, current_test=None)
    monkeypatch.setattr(session, "rail", lambda: None)
    monkeypatch.setattr(session, "hosts", lambda: (host, host))

    def troubles() -> list[None]:
        if host.loss is None and not session.losses.first:
            host.loss = FIRST
            raise HostLostError(FIRST)
        return [None, None]

    def bring_back(index: int) -> None:
        if host.loss and not comes_back:
            raise HostUnreachableError(f"{FIRST}; it does not come back")
        host.loss = None

    monkeypatch.setattr(session, "_troubles", troubles)
    monkeypatch.setattr(session, "_bring_back", bring_back)
    if comes_back:
        session.prepare("test_y")
        assert (session.losses.first, host.current_test) == (FIRST, "test_y")
    else:
        with pytest.raises(BlockedError, match=FIRST):
            session.prepare("test_y")
