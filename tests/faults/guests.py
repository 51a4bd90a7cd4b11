"""The outer tests' own way into the guests: what a run has left there, and setting right what it broke."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import on_guest

from pytest_rdma.host import Host
from pytest_rdma.lab import Lab
from pytest_rdma.remote import RemoteHost
from pytest_rdma.session import lab_target

LEFT_S = 5.0


class Guests:
    """Both guests of a lab, mended, watched over a connection of their own."""

    def __init__(self, hosts: list[Host]) -> None:
        self._hosts = hosts
        self.mend()
        self._before = [set(host.call(on_guest.look)) for host in hosts]

    def left(self) -> list[str]:
        """Return what there is that was not at the beginning, once nothing is or the time for it is up."""
        end = time.monotonic() + LEFT_S * self._hosts[0].timeout_scale
        while True:
            found = [
                f"{host.name}: {line}"
                for host, before in zip(self._hosts, self._before)
                for line in sorted(set(host.call(on_guest.look)) - before)
            ]
            if not found or time.monotonic() > end:
                return found
            time.sleep(0.2)

    def have_device(self, index: int) -> bool:
        found: bool = self._hosts[index].call(on_guest.has_device)
        return found

    def mend(self) -> None:
        """Undo all that a fault may have done to the guests; what is whole stays as it is."""
        for number, host in enumerate(self._hosts, 1):
            host.call(on_guest.mend, number)


@contextmanager
def watched(lab: Lab) -> Iterator[Guests]:
    """Watch both guests of a lab as they are now, whole, for as long as the block lasts."""
    hosts = [RemoteHost(lab_target(host), timeout_scale=lab.timeout_scale) for host in lab.hosts]
    try:
        for host in hosts:
            host.open()
        yield Guests(list(hosts))
    finally:
        for host in hosts:
            host.close()
