"""Which GID of a RoCE port names an IPv4 address, and how NCCL is told to take it. Pure.

A GID's index depends on the order in which addresses came to the interface: it differs from device to device
and from node to node, and moves when an address does. InfiniBand needs none of this.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Iterable, Mapping, Sequence

from mnt.facts.rdma import Gid

# The first that finds the GID by address range, family and RoCE version; before, only a fixed index (NCCL's
# release notes and user guide, 2.21).
FINDS_GIDS = (2, 21)

EVERYWHERE = "0.0.0.0/0"  # as an address range: none

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def candidates(gids: Iterable[Gid], addresses: Mapping[str, Collection[str]]) -> list[Gid]:
    """The GIDs of RoCE v2 that are an IPv4 address of their own interface, by index.

    Args:
        gids: of one port.
        addresses: by interface, the IPv4 addresses (no prefix length) that may be taken.
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

    It asks for family AF_INET and RoCE version 2. It begins with index 0, moves on to the first GID of the
    family, and from that to the first one of the family and the version. GIDs outside of the range do not
    count; with none inside it stays at 0 without a word.
    """
    table = {gid.index: gid for gid in gids}
    network = ipaddress.ip_network(address_range, strict=False)
    taken = 0
    for index in sorted(table.keys() - {0}):
        held, gid = table.get(taken), table[index]
        if gid.ipv4 is None or ipaddress.ip_address(gid.ipv4) not in network:
            continue
        first_of_family = held is None or held.ipv4 is None
        first_of_version = held is not None and held.type != gid.type and gid.roce_v2
        if first_of_family or first_of_version:
            taken = index
    return taken


def address_range(wanted: Sequence[tuple[Sequence[Gid], Gid]], preferred: Sequence[str] = ()) -> str | None:
    """The network by which NCCL finds the wanted GID on every port of every node.

    Args:
        wanted: for each port its table, and the GID to be found in it.
        preferred: networks to try first, in CIDR form.

    Returns:
        CIDR; EVERYWHERE where NCCL finds them all without a range, None where no range does it.
    """
    addresses = [ipaddress.ip_address(gid.ipv4) for _, gid in wanted if gid.ipv4]
    for network in (*preferred, *_covering(addresses), EVERYWHERE):
        if all(index_nccl_takes(table, network) == gid.index for table, gid in wanted):
            return network
    return None


def _covering(addresses: Sequence[Address]) -> list[str]:
    """The smallest network that holds all addresses."""
    numbers = [int(address) for address in addresses]
    prefix = 32 - (max(numbers) ^ min(numbers)).bit_length()
    return [str(ipaddress.ip_network((min(numbers), prefix), strict=False))]
