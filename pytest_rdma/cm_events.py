"""The events of rdma_cm, and what the ones that end an attempt say to a user."""

from __future__ import annotations

import errno

from pytest_rdma.errors import errno_text

EVENTS = (
    "ADDR_RESOLVED", "ADDR_ERROR", "ROUTE_RESOLVED", "ROUTE_ERROR", "CONNECT_REQUEST", "CONNECT_RESPONSE",
    "CONNECT_ERROR", "UNREACHABLE", "REJECTED", "ESTABLISHED", "DISCONNECTED", "DEVICE_REMOVAL", "MULTICAST_JOIN",
    "MULTICAST_ERROR", "ADDR_CHANGE", "TIMEWAIT_EXIT",
)  # fmt: skip
ERRORS = frozenset({"ADDR_ERROR", "ROUTE_ERROR", "CONNECT_ERROR", "UNREACHABLE", "REJECTED", "DEVICE_REMOVAL"})

CONSUMER_DEFINED = 28
REASONS = {
    1: "no QP available",
    3: "no resources available",
    4: "it timed out there",
    5: "the request is not supported",
    8: "nobody listens on that port",
    10: "stale connection: that end still holds a connection of this QP number, wait for the end of its time wait",
    12: "invalid GID",
    26: "invalid path MTU",
    27: "too few responder resources",
    CONSUMER_DEFINED: "the program there refused, or its kernel found no way back to this address over its device",
    29: "invalid RNR retry count",
}
HINTS = {
    errno.ENODEV: "no RDMA device for that IP: take the address of a GID row, not one of a management network",
    errno.EADDRINUSE: "the port is taken: ask for port 0, and the kernel chooses one",
    errno.EADDRNOTAVAIL: "it is no address of this host",
    errno.ETIMEDOUT: "nothing answers for that address: see that the netdevs of both GID rows reach each other (ping); "
    "with two devices of one host on one subnet, see the sysctls arp_ignore and accept_local",
    errno.EHOSTUNREACH: "no route to that address, or nothing answers for it",
    errno.ENETUNREACH: "no route to that address",
    errno.ENOENT: "there is no /dev/infiniband/rdma_cm: `modprobe rdma_ucm`",
    errno.EACCES: "no permission for /dev/infiniband/rdma_cm",
}


def hint_of_errno(number: int) -> str:
    return HINTS.get(abs(number), "")


def describe_event(name: str, status: int) -> str:
    """Return an event that ends an attempt, its status in words, and what to do about it."""
    if name == "REJECTED" and status >= 0:
        return f"REJECTED, reason {status}: {REASONS.get(status, 'see enum ib_cm_rej_reason')}"
    if status == 0:
        return name
    hint = hint_of_errno(status)
    return f"{name} ({-abs(status)}), {errno_text(status)}" + (f"; {hint}" if hint else "")
