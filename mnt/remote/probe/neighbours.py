"""The kernel's table of IPv4 neighbours, over netlink. Runs on a host: Python 3.8, standard library.

One table serves all network namespaces of a kernel. /proc/sys shows its size in the first one only.
"""

from __future__ import annotations

import socket
import struct

from mnt.remote.common.netlink import ask, attributes

# linux/rtnetlink.h, linux/neighbour.h
_RTM_GETNEIGHTBL = 66
_NDTA_THRESH3, _NDTA_CONFIG, _NDTA_STATS = 4, 5, 7
_ENTRIES = struct.Struct("=4xI")  # in struct ndt_config
_TABLE_FULLS = struct.Struct("=80xQ")  # in struct ndt_stats; older kernels have a shorter one


def neighbours() -> dict[str, int | None] | None:
    """As `mnt.facts.system.Neighbours`; None if netlink is forbidden."""
    try:
        tables = ask(_RTM_GETNEIGHTBL, struct.pack("=B3x", socket.AF_INET), dump=True)
    except OSError:
        return None
    for found in (dict(attributes(table[4:])) for table in tables):
        if {_NDTA_THRESH3, _NDTA_CONFIG} <= set(found):
            stats = found.get(_NDTA_STATS, b"")
            return {
                "limit": struct.unpack("=I", found[_NDTA_THRESH3])[0],
                "entries": _ENTRIES.unpack_from(found[_NDTA_CONFIG])[0],
                "overflows": _TABLE_FULLS.unpack_from(stats)[0] if len(stats) >= _TABLE_FULLS.size else None,
            }
    return None
