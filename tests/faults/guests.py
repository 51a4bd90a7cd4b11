"""The outer tests' own way into the guests: what a run has left there, and setting right what it broke."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from pytest_rdma.host import Host
from pytest_rdma.lab import Lab
from pytest_rdma.remote import RemoteHost
from pytest_rdma.session import lab_target

LEFT_S = 10.0
LOOK = r"""
for stat in /proc/[0-9]*/stat; do
    read -r line < "$stat" 2>/dev/null || continue
    pid=${line%% *}
    [ -s "/proc/$pid/cmdline" ] || continue
    [ "$pid" = $$ ] && continue
    line=${line##*) }
    state=${line%% *}
    line=${line#* }
    parent=${line%% *}
    [ "$parent" = $$ ] || echo "process $pid $state $(tr '\0' ' ' < "/proc/$pid/cmdline" | cut -c 1-80)"
done
for what in qp cq mr pd; do
    rdma resource show $what | sed "s/^/$what /"
done
tc qdisc show dev fabric | grep netem
nft list tables
rdma link show | grep -v "rxe0/1 state ACTIVE" | sed "s/^/device /"
ls -d /tmp/pytest-rdma-* 2>/dev/null | sed "s/^/files /"
true
"""
MEND = r"""
exec 2>/dev/null
for stat in /proc/[0-9]*/stat; do
    read -r line < "$stat" || continue
    pid=${line%% *}
    line=${line##*) }
    case $line in T*) kill -KILL "$pid"; kill -CONT "$pid" ;; esac
done
umount /tmp
tc qdisc del dev fabric root
nft delete table inet pytest_rdma_fault
ip link set dev fabric mtu 9000 up
for address in 10.99.0.NUMBER/24 "fd99::NUMBER/64 nodad"; do ip address add $address dev fabric; done
rdma link show rxe0/1 | grep -q rxe0 || rdma link add rxe0 type rxe netdev fabric
true
"""


class Guests:
    """Both guests of a lab, watched over a connection of their own."""

    def __init__(self, hosts: list[Host]) -> None:
        self._hosts = hosts
        self._before = [self._look(host) for host in hosts]

    def left(self) -> list[str]:
        """Return what there is that was not at the beginning, once nothing is or the time for it is up."""
        end = time.monotonic() + LEFT_S * self._hosts[0].timeout_scale
        while True:
            found = [
                f"{host.name}: {line}"
                for host, before in zip(self._hosts, self._before)
                for line in sorted(self._look(host) - before)
            ]
            if not found or time.monotonic() > end:
                return found
            time.sleep(0.2)

    def mend(self) -> None:
        """Undo all that a fault may have done to the guests; what is whole stays as it is."""
        for number, host in enumerate(self._hosts, 1):
            host.run(["sh", "-s"], input=MEND.replace("NUMBER", str(number)).encode())

    @staticmethod
    def _look(host: Host) -> set[str]:
        done = host.run(["sh", "-s"], input=LOOK.encode())
        assert done.returncode == 0, done.stderr
        return set(done.stdout.decode().splitlines())


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
