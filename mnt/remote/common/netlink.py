"""Requests to the kernel over routing netlink. Runs on a host: Python 3.8, standard library."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator

# linux/netlink.h
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_NLM_F_REQUEST, _NLM_F_MULTI, _NLM_F_DUMP = 0x1, 0x2, 0x300
_NLA_TYPE_MASK = 0x3FFF


def ask(kind: int, body: bytes, *, dump: bool = False) -> list[bytes]:
    """The payloads of the answer, without their headers: of one message, or of all messages of a dump.

    Raises OSError, with the kernel's errno.
    """
    payloads: list[bytes] = []
    flags = _NLM_F_REQUEST | (_NLM_F_DUMP if dump else 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as link:
        link.settimeout(5)
        link.send(struct.pack("=IHHII", 16 + len(body), kind, flags, 1, 0) + body)
        while True:
            data = link.recv(1 << 17)
            while data:
                length, answer, flags = struct.unpack_from("=IHH", data)
                if answer == _NLMSG_DONE:
                    return payloads
                if answer == _NLMSG_ERROR:
                    code = -struct.unpack_from("=i", data, 16)[0]
                    raise OSError(code, os.strerror(code))
                payloads.append(data[16:length])
                if not flags & _NLM_F_MULTI:
                    return payloads
                data = data[(length + 3) & ~3 :]


def attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    """(type, value) of each attribute."""
    while len(data) >= 4:
        length, kind = struct.unpack_from("=HH", data)
        if length < 4:
            return
        yield kind & _NLA_TYPE_MASK, data[4:length]
        data = data[(length + 3) & ~3 :]
