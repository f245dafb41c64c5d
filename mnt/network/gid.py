"""The GID of a RoCE port that stands for an IPv4 address, and the settings that make NCCL use it. Pure.

The index of a GID depends on the order in which addresses were added to the interface. So it differs between
devices and between nodes, and changes when an address changes. InfiniBand needs none of this.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Iterable, Mapping, Sequence

from mnt.facts.rdma import Gid

# The first NCCL that finds the GID by address range, family and RoCE version. Older versions take only a
# fixed index (NCCL's release notes and user guide, 2.21).
FINDS_GIDS = (2, 21)

EVERYWHERE = "0.0.0.0/0"  # the address range that excludes nothing


def candidates(gids: Iterable[Gid], addresses: Mapping[str, Collection[str]]) -> list[Gid]:
    """The RoCE v2 GIDs that stand for an IPv4 address of their own interface, in order of their indices.

    Args:
        gids: of one port.
        addresses: by interface, the allowed IPv4 addresses, without prefix length.
    """
    return sorted(
        (
            gid
            for gid in gids
            if gid.roce_v2 and gid.netdev is not None and gid.ipv4 in addresses.get(gid.netdev, ())
        ),
        key=lambda gid: gid.index,
    )


def index_nccl_takes(gids: Iterable[Gid], address_range: str = EVERYWHERE) -> int:
    """The index that NCCL (2.21 to 2.30, `ncclIbGetGidIndex`) chooses on a RoCE port by itself.

    It wants family AF_INET and RoCE version 2. It starts with index 0, goes to the first GID of that family,
    and then to the first GID of that family and version. It skips GIDs outside the range. If no GID is inside
    the range, it keeps index 0 without a warning.
    """
    table = {gid.index: gid for gid in gids}
    network = ipaddress.ip_network(address_range, strict=False)
    taken = 0
    for index in sorted(table.keys() - {0}):
        current, gid = table.get(taken), table[index]
        if gid.ipv4 is None or ipaddress.ip_address(gid.ipv4) not in network:
            continue
        first_of_family = current is None or current.ipv4 is None
        first_of_version = current is not None and current.type != gid.type and gid.roce_v2
        if first_of_family or first_of_version:
            taken = index
    return taken


def address_range(ports: Sequence[tuple[Sequence[Gid], Gid]], preferred: Sequence[str] = ()) -> str | None:
    """The address range with which NCCL finds the right GID on every port of every node.

    Args:
        ports: for each port its GID table, and the GID that NCCL must find in it.
        preferred: networks to try first, in CIDR form.

    Returns:
        The range in CIDR form; EVERYWHERE if NCCL finds all GIDs without a range; None if no range works.
    """
    addresses = [int(ipaddress.ip_address(gid.ipv4)) for _, gid in ports if gid.ipv4]
    prefix = 32 - (max(addresses) ^ min(addresses)).bit_length()
    covering = ipaddress.ip_network((min(addresses), prefix), strict=False)  # the smallest with all addresses
    for network in (*preferred, str(covering), EVERYWHERE):
        if all(index_nccl_takes(table, network) == gid.index for table, gid in ports):
            return network
    return None
