"""Network interfaces, over netlink. Runs on a host: Python 3.8, standard library.

Not from /sys/class/net, which shows the network namespace in which sysfs was mounted; and not by `ip`, which
is not everywhere, nor on a non-interactive PATH.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

from mnt.remote.files import read

# linux/netlink.h, linux/rtnetlink.h
RTM_GETLINK, RTM_GETADDR = 18, 22
NLMSG_ERROR, NLMSG_DONE = 2, 3
NLM_F_REQUEST, NLM_F_DUMP = 0x1, 0x300
NLA_TYPE_MASK = 0x3FFF
# linux/if_link.h, linux/if_addr.h, linux/if.h
IFLA_ADDRESS, IFLA_IFNAME, IFLA_MTU, IFLA_CARRIER, IFLA_PROP_LIST, IFLA_ALT_IFNAME = 1, 3, 4, 33, 52, 53
IFA_ADDRESS, IFA_LOCAL = 1, 2
IFF_UP, IFF_LOOPBACK = 0x1, 0x8


def interfaces() -> list[dict[str, object]]:
    """All interfaces of this network namespace, in the kernel's order; none where netlink is forbidden."""
    try:
        links = _dump(RTM_GETLINK, struct.pack("=B15x", socket.AF_UNSPEC))
        addresses = [
            payload
            for family in (socket.AF_INET, socket.AF_INET6)
            for payload in _dump(RTM_GETADDR, struct.pack("=B7x", family))
        ]
    except OSError:
        return []
    by_interface: dict[tuple[int, int], list[str]] = {}
    for index, family, address in map(_address, addresses):
        by_interface.setdefault((index, family), []).append(address)
    return [_link(payload, by_interface) for payload in links]


def _link(payload: bytes, addresses: dict[tuple[int, int], list[str]]) -> dict[str, object]:
    """The interface of a struct ifinfomsg and its attributes; `addresses` by index and family."""
    index, flags = struct.unpack_from("=4xiI", payload)
    attributes = dict(_attributes(payload[16:]))
    name = _text(attributes[IFLA_IFNAME])
    up = bool(flags & IFF_UP)
    properties = _attributes(attributes.get(IFLA_PROP_LIST, b""))
    return {
        "name": name,
        "up": up,
        # It has no meaning on an interface that is down.
        "carrier": bool(attributes[IFLA_CARRIER][0]) if up and IFLA_CARRIER in attributes else None,
        "mtu": struct.unpack("=I", attributes[IFLA_MTU])[0],
        "ipv4": addresses.get((index, socket.AF_INET), []),
        "ipv6": addresses.get((index, socket.AF_INET6), []),
        "altnames": [_text(value) for kind, value in properties if kind == IFLA_ALT_IFNAME],
        "mac": attributes[IFLA_ADDRESS].hex(":") if IFLA_ADDRESS in attributes else None,
        "speed": _speed(name, index),
        "loopback": bool(flags & IFF_LOOPBACK),
    }


def _address(payload: bytes) -> tuple[int, int, str]:
    """(interface index, family, "10.0.0.1/24") of a struct ifaddrmsg and its attributes."""
    family, prefix, index = struct.unpack_from("=BBxxI", payload)
    attributes = dict(_attributes(payload[8:]))
    # On a point-to-point link IFA_ADDRESS is the other end; IPv6 may have no IFA_LOCAL.
    packed = attributes.get(IFA_LOCAL) or attributes[IFA_ADDRESS]
    return index, family, f"{socket.inet_ntop(family, packed)}/{prefix}"


def _dump(request: int, body: bytes) -> list[bytes]:
    """The payloads of a dump's messages, without their headers."""
    payloads: list[bytes] = []
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW) as link:
        link.settimeout(5)
        header = struct.pack("=IHHII", 16 + len(body), request, NLM_F_REQUEST | NLM_F_DUMP, 1, 0)
        link.send(header + body)
        while True:
            data = link.recv(1 << 17)
            while data:
                length, kind = struct.unpack_from("=IH", data)
                if kind == NLMSG_DONE:
                    return payloads
                if kind == NLMSG_ERROR:
                    raise OSError(-struct.unpack_from("=i", data, 16)[0], "netlink refused")
                payloads.append(data[16:length])
                data = data[(length + 3) & ~3 :]


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    """(type, value) of each attribute."""
    while len(data) >= 4:
        length, kind = struct.unpack_from("=HH", data)
        if length < 4:
            return
        yield kind & NLA_TYPE_MASK, data[4:length]
        data = data[(length + 3) & ~3 :]


def _text(value: bytes) -> str:
    return value.rstrip(b"\0").decode("utf-8", "replace")


def _speed(name: str, index: int) -> int | None:
    """Mbit/s; None for virtual links, and where sysfs shows another network namespace than ours."""
    directory = f"/sys/class/net/{name}/"
    if read(directory + "ifindex").strip() != str(index):
        return None
    text = read(directory + "speed").strip()
    return int(text) if text.isdigit() else None
