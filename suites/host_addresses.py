"""What addresses a host has; it travels there."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from socket import if_nameindex

from pytest_rdma import netlink


def address_without_rdma() -> str | None:
    """Return an address of a netdev that no RDMA device sits on, None when there is none."""
    with_rdma = {file.read_text().strip() for file in Path("/sys/class/infiniband").glob("*/ports/*/gid_attrs/ndevs/0")}
    names = dict(if_nameindex())
    for index, addresses in netlink.addresses().items():
        for one in addresses:
            address = ipaddress.ip_address(one[0])
            if names.get(index) not in with_rdma and not (address.is_loopback or address.is_link_local):
                return str(address)
    return None
