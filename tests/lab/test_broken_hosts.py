"""What a real host says when a part of its RDMA is missing: memory limit, device file, provider, link, address."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from pytest_rdma.errors import NoDeviceError, RdmaError, RdmaUsageError, VerbsError
from pytest_rdma.lab import Lab
from pytest_rdma.rail import choose_rail
from pytest_rdma.remote import RemoteHost
from pytest_rdma.ssh import SshTarget

pytestmark = pytest.mark.lab

OnGuest = Callable[..., str]


@contextmanager
def broken(on_guest: OnGuest, breaking: str, mending: str) -> Iterator[None]:
    on_guest(breaking)
    try:
        yield
    finally:
        on_guest(mending)


@contextmanager
def opened(lab: Lab, user: str = "root") -> Iterator[RemoteHost]:
    """A fresh agent: what libibverbs has looked up once it does not look up again."""
    guest = lab.hosts[0]
    files = (guest.identity_file,), (guest.known_hosts_file,)
    target = SshTarget(guest.name, guest.address, guest.port, user, *files, identities_only=True)
    host = RemoteHost(target, timeout_scale=lab.timeout_scale)
    host.open()
    try:
        yield host
    finally:
        host.close()


def why_not(lab: Lab, user: str = "root") -> str:
    with opened(lab, user) as host:
        return next(device.error for device in host.devices() if device.name == "rxe0")


def test_memory_over_the_limit_of_an_unprivileged_user_is_explained(lab: Lab) -> None:
    with opened(lab, "rdma") as host:
        limit = host.info.memlock_soft
        assert (host.info.uid != 0, limit > 0) == (True, True)
        with pytest.raises(VerbsError) as refused:
            host.mr(host.pd("rxe0"), limit + 4096)
    text = str(refused.value)
    assert f"cannot register {limit + 4096} bytes" in text
    assert f"ENOMEM (12): Cannot allocate memory; {limit + 4096} bytes were asked for" in text
    assert f"RLIMIT_MEMLOCK of this process on host1 is {limit} bytes (hard {host.info.memlock_hard} bytes)" in text


def test_a_device_file_without_permission(lab: Lab, on_guest: OnGuest) -> None:
    with broken(on_guest, "chmod 600 /dev/infiniband/uverbs*", "chmod 666 /dev/infiniband/uverbs*"):
        assert "no permission for /dev/infiniband/uverbs0: run as root" in why_not(lab, "rdma")


def test_a_device_file_that_is_not_there(lab: Lab, on_guest: OnGuest) -> None:
    with broken(on_guest, "mv /dev/infiniband /dev/hidden", "mv /dev/hidden /dev/infiniband"):
        assert "/dev/infiniband/uverbs0 is not here; in a container, pass --device=/dev/infiniband" in why_not(lab)


def test_a_provider_that_is_not_installed(lab: Lab, on_guest: OnGuest) -> None:
    with broken(on_guest, "mv /etc/libibverbs.d /etc/hidden", "mv /etc/hidden /etc/libibverbs.d"):
        assert "the kernel has rxe0 but libibverbs has no provider for it" in why_not(lab)


MAKE_LINK = "ip link add nic9 type dummy && ip link set nic9 up && rdma link add rxe9 type rxe netdev nic9"


@pytest.mark.parametrize(
    ("breaking", "error", "words"),
    [
        ("ip link set nic9 down", NoDeviceError, "rxe9/1 on host1 is DOWN, not ACTIVE: see that its netdev nic9 is up"),
        ("ip addr flush dev nic9", RdmaUsageError, "netdev nic9 of rxe9/1 on host1 has no address: `ip address add"),
    ],
    ids=["down", "no address"],
)
def test_a_link_that_cannot_be_used(
    lab: Lab, on_guest: OnGuest, breaking: str, error: type[RdmaError], words: str
) -> None:
    with broken(on_guest, f"{MAKE_LINK} && {breaking}", "ip link del nic9"), opened(lab) as host:
        devices = host.devices()
        with pytest.raises(error, match=words):
            choose_rail(devices, devices, local_device="rxe9", same_host=True, names=("host1", "host1"))
