"""Network interfaces, over netlink. Runs on a host: Python 3.8, standard library.

Not from /sys/class/net, which shows the network namespace in which sysfs was mounted; and not with `ip`,
which may be missing, or not on a non-interactive PATH.
"""

from __future__ import annotations

import socket
import struct

from mnt.remote.common.files import read
from mnt.remote.common.forms import ADDRESSES, NICS
from mnt.remote.common.netlink import ask, attributes

# linux/rtnetlink.h
RTM_GETLINK, RTM_GETADDR = 18, 22
# linux/if_link.h, linux/if_addr.h, linux/if.h
IFLA_IFNAME, IFLA_MTU, IFLA_STATS64, IFLA_CARRIER = 3, 4, 23, 33
IFLA_PROP_LIST, IFLA_ALT_IFNAME = 52, 53
IFA_ADDRESS, IFA_LOCAL = 1, 2
IFF_UP, IFF_LOOPBACK = 0x1, 0x8


def interfaces() -> list[dict[str, object]]:
    """The interfaces of this network namespace, in the kernel's order; none if netlink is forbidden.

    The first NICS of them, each with the first ADDRESSES of a family: kube-proxy gives a dummy interface an
    address for each service, and a container's link comes after the NICs of the machine.
    """
    try:
        links = ask(RTM_GETLINK, struct.pack("=B15x", socket.AF_UNSPEC), dump=True)
        addresses = [
            payload
            for family in (socket.AF_INET, socket.AF_INET6)
            for payload in ask(RTM_GETADDR, struct.pack("=B7x", family), dump=True)
        ]
    except OSError:
        return []
    by_interface: dict[tuple[int, int], list[str]] = {}
    for index, family, address in map(_address, addresses):
        by_interface.setdefault((index, family), []).append(address)
    return [_link(payload, by_interface) for payload in links[:NICS]]


def _link(payload: bytes, addresses: dict[tuple[int, int], list[str]]) -> dict[str, object]:
    """The interface of a struct ifinfomsg and its attributes; `addresses` by index and family."""
    index, flags = struct.unpack_from("=4xiI", payload)
    found = dict(attributes(payload[16:]))
    name = _text(found[IFLA_IFNAME])
    up = bool(flags & IFF_UP)
    properties = attributes(found.get(IFLA_PROP_LIST, b""))
    return {
        "name": name,
        "up": up,
        # It is meaningless on an interface that is down.
        "carrier": bool(found[IFLA_CARRIER][0]) if up and IFLA_CARRIER in found else None,
        "mtu": struct.unpack("=I", found[IFLA_MTU])[0],
        "ipv4": addresses.get((index, socket.AF_INET), [])[:ADDRESSES],
        "ipv6": addresses.get((index, socket.AF_INET6), [])[:ADDRESSES],
        "altnames": [_text(value) for kind, value in properties if kind == IFLA_ALT_IFNAME],
        "speed": _speed(name, index),
        "loopback": bool(flags & IFF_LOOPBACK),
        "traffic": _traffic(found[IFLA_STATS64]) if IFLA_STATS64 in found else None,
    }


def _address(payload: bytes) -> tuple[int, int, str]:
    """(interface index, family, "10.0.0.1/24") of a struct ifaddrmsg and its attributes."""
    family, prefix, index = struct.unpack_from("=BBxxI", payload)
    found = dict(attributes(payload[8:]))
    # On a point-to-point link IFA_ADDRESS is the other end; IPv6 may have no IFA_LOCAL.
    packed = found.get(IFA_LOCAL) or found[IFA_ADDRESS]
    return index, family, f"{socket.inet_ntop(family, packed)}/{prefix}"


def _traffic(data: bytes) -> dict[str, int]:
    """Packets since the interface came up: the head of struct rtnl_link_stats64."""
    names = ("received", "sent", "", "", "receive_errors", "send_errors", "receive_drops", "send_drops")
    return {name: value for name, value in zip(names, struct.unpack_from("=8Q", data)) if name}


def _text(value: bytes) -> str:
    return value.rstrip(b"\0").decode("utf-8", "replace")


def _speed(name: str, index: int) -> int | None:
    """Mbit/s; None for virtual links, and if sysfs shows another network namespace than ours."""
    directory = f"/sys/class/net/{name}/"
    if read(directory + "ifindex").strip() != str(index):
        return None
    text = read(directory + "speed").strip()
    return int(text) if text.isdigit() else None
