"""What happens when a host or a device is lost: blocked tests, their first cause, the exit code."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Callable, NoReturn

import pytest
from _pytest.outcomes import Skipped

from pytest_rdma.errors import BlockedError, RdmaError

if TYPE_CHECKING:
    from pytest_rdma.host import Host

EXIT_CODE = 6
"""What pytest ends with when tests were blocked: its own codes end at 5."""

RECONNECT_S = 30.0
SOUND_S = 1.0
"""How long the answer of a device that it is well is good for, unless a test fails."""

PROPERTY = "rdma_blocked"
OVERRULED = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)


class Blocked(Skipped):
    """The skip of each test that cannot run because a host or a device was lost before it."""


def block(item: pytest.Item, error: BlockedError) -> NoReturn:
    """Skip the test; the first cause goes along to whoever reports."""
    item.user_properties.append((PROPERTY, str(error)))
    raise Blocked(f"blocked: {error}") from None


class Losses:
    """What a run lost and has not got back. `first` is the first loss of the run, whether or not it was mended."""

    def __init__(self) -> None:
        self.first: str | None = None
        self._spent_s = 0.0
        self._errors: dict[str, str] = {}
        self._device: str | None = None
        self._sound_until = 0.0

    def doubt(self) -> None:
        """Have the devices asked for their state before the next test: one has failed."""
        self._sound_until = 0.0

    @property
    def in_doubt(self) -> bool:
        """Whether it is time to ask: after a failure, and now and then, for each answer costs a round trip."""
        return time.monotonic() >= self._sound_until

    def judge(self, troubles: list[str | None], last_test: str | None) -> None:
        """Take what the hosts say of their devices; BlockedError tells the first of it for as long as there is any."""
        found = next((trouble for trouble in troubles if trouble), None)
        if found is None:
            self._device, self._sound_until = None, time.monotonic() + SOUND_S
            return
        self._device = self._device or (f"{found} (found after {last_test})" if last_test else found)
        self.first = self.first or self._device
        raise BlockedError(self._device)

    def mend(self, host: Host, bring_back: Callable[[], None], scale: float, *, reconnect: bool) -> None:
        """Bring the host back if it was lost; BlockedError says why it was and why that does not succeed.

        It is tried once before each test, until what did not succeed has taken `RECONNECT_S`: a host that drops
        packets must not cost each test that follows the time to find that out.
        """
        loss = host.loss
        self.first = self.first or loss
        if self.first and not reconnect:
            raise BlockedError(f"{self.first} (--rdma-on-peer-loss=stop)")
        if host.name in self._errors and self._spent_s > RECONNECT_S * scale:
            raise BlockedError(self._errors[host.name])
        started = time.monotonic()
        try:
            bring_back()
        except RdmaError as error:
            self._spent_s += time.monotonic() - started
            self._errors.setdefault(host.name, str(error))
            raise BlockedError(self._errors[host.name]) from None
        self._errors.pop(host.name, None)


class Tally:
    """Counts blocked tests by cause, also in the controller of pytest-xdist, where no test runs."""

    def __init__(self) -> None:
        self.causes: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped:
            self.causes.update(str(value) for name, value in report.user_properties if name == PROPERTY)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Say by the exit code that tests were blocked, unless the run itself was broken off."""
        if self.causes and session.exitstatus in OVERRULED:
            session.exitstatus = EXIT_CODE

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.causes:
            terminalreporter.section("rdma blocked", sep="-")
        for cause, count in self.causes.items():
            terminalreporter.write_line(f"{count} test{'s' if count > 1 else ''} blocked: {cause}")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Tally(), "rdma-tally")
