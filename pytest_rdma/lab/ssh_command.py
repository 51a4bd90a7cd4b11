"""The `ssh` command line that reaches a host of the lab, whatever the user's own configuration says."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_rdma.lab import LabHost


def ssh_command(host: LabHost, user: str | None = None) -> list[str]:
    """Return the words of an `ssh` to `host`; a remote command may follow them."""
    options = {
        "IdentityFile": host.identity_file,
        "IdentitiesOnly": "yes",
        "UserKnownHostsFile": host.known_hosts_file,
        "GlobalKnownHostsFile": "/dev/null",
        "StrictHostKeyChecking": "yes",
        "BatchMode": "yes",
        "LogLevel": "ERROR",
    }
    words = ["ssh", "-F", "none", "-p", str(host.port)]
    for name, value in options.items():
        words += ["-o", f"{name}={value}"]
    return [*words, f"{user or host.user}@{host.address}"]
