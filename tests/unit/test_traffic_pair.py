"""However a run ends, all that works for it is waited for."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any, NoReturn

import pytest

from pytest_rdma.deadline import Deadline
from pytest_rdma.errors import StoppedError
from pytest_rdma.host import OPS, Call, LocalHost
from pytest_rdma.traffic import Pipeline, RecvDrain
from pytest_rdma.traffic_pair import Traffic, _both

LATE_S = 0.3
FOR_LONG = Pipeline(duration_s=100.0)
BOTH_WAYS = [(FOR_LONG, RecvDrain(64))] * 2
ONE_WAY = [(FOR_LONG,), (RecvDrain(64, messages=1),)]


class Run(Call):
    """A run that ends a while after it was told to."""

    def __init__(self, late_s: float) -> None:
        self.ended = threading.Event()
        self._late_s = late_s

    def result(self) -> NoReturn:
        self.ended.wait(10)
        raise StoppedError("stopped")

    def cancel(self) -> None:
        threading.Timer(self._late_s, self.ended.set).start()


class Prepared(Traffic):
    def __init__(self, late_s: float = LATE_S) -> None:
        super().__init__(LocalHost(), 1, {})
        self.made = Run(late_s)

    def start(self, timeout_s: float) -> Run:
        return self.made


def test_after_ctrl_c_an_op_of_this_process_is_waited_for(heeds_ctrl_c: None, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()

    def runs(host: LocalHost, deadline: Deadline) -> None:
        while not deadline.stop and not deadline.passed:
            time.sleep(0.01)
        time.sleep(LATE_S)
        ended.set()

    monkeypatch.setitem(OPS, "test.runs", runs)
    call = LocalHost().submit("test.runs")
    threading.Timer(LATE_S, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        call.result()
    assert ended.is_set()


@pytest.mark.parametrize("specs", [BOTH_WAYS, ONE_WAY], ids=["both ways", "one way"])
def test_after_ctrl_c_both_ends_are_waited_for(heeds_ctrl_c: None, specs: list[Any]) -> None:
    runs = [Prepared(), Prepared(late_s=0.0)]
    threading.Timer(LATE_S, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        _both(runs, specs, 10.0)
    assert all(run.made.ended.is_set() for run in runs)


def test_what_fails_while_an_end_waits_to_be_told_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: Any, **options: Any) -> NoReturn:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(LocalHost, "submit", fails)
    runs = [Prepared(), Prepared()]
    with pytest.raises(RuntimeError, match="new thread"):
        _both(runs, BOTH_WAYS, 10.0)
    assert all(run.made.ended.is_set() for run in runs)
