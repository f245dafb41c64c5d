"""By which interface a packet would leave. Runs on a host: Python 3.8, standard library."""

from __future__ import annotations

import os
import socket
import struct

from mnt.remote.common.netlink import ask, attributes

# linux/rtnetlink.h
_RTM_GETROUTE = 26
_RTA_DST, _RTA_OIF = 1, 4


def leaves_by(address: str) -> str:
    """The interface of the route to an IPv4 address, as `ip route get` tells it.

    No source address is given: NCCL and gloo give none when they connect. Raises OSError where no route is.
    """
    packed = socket.inet_aton(address)
    message = struct.pack("=BBBBBBBBI", socket.AF_INET, 32, 0, 0, 0, 0, 0, 0, 0)  # struct rtmsg
    (answer,) = ask(_RTM_GETROUTE, message + struct.pack("=HH", 4 + len(packed), _RTA_DST) + packed)
    found = dict(attributes(answer[len(message) :]))
    if _RTA_OIF not in found:  # a blackhole, say
        raise OSError("the route leads to no interface")
    index: int = struct.unpack("=I", found[_RTA_OIF])[0]
    return socket.if_indextoname(index)


def reason(error: OSError) -> str:
    """Why there is no route, in the kernel's words; empty where it gives no reason."""
    return os.strerror(error.errno) if error.errno else str(error)
