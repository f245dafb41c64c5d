"""What comes before SSH: the addresses of a server, and the options of a TCP connection."""

from __future__ import annotations

import errno
import queue
import socket
import threading
from collections.abc import Sequence
from typing import Any

from mnt.fleet.login.failures import LoginFailure
from mnt.remote.common.files import strerror

Address = tuple[int, Any]  # address family, and a socket address of it

_LIVENESS = (5, 3, 3)  # seconds before TCP's first probe, between probes, and how many: 14 s in all


def resolve(hostname: str, port: int, timeout: float) -> list[Address]:
    """The addresses of a host, at least one. Raises LoginFailure.

    getaddrinfo has no timeout, so it runs in a thread, which is abandoned if no name server answers.
    """
    try:
        return _addresses(hostname, port, socket.AI_NUMERICHOST)
    except socket.gaierror:
        pass  # a name
    answer: queue.SimpleQueue[list[Address] | OSError] = queue.SimpleQueue()

    def ask() -> None:
        try:
            answer.put(_addresses(hostname, port, 0))
        except OSError as error:
            answer.put(error)

    threading.Thread(target=ask, daemon=True, name="mnt-resolve").start()
    try:
        found = answer.get(timeout=timeout)
    except queue.Empty:
        raise LoginFailure("resolve", f"no answer about {hostname!r} within {timeout:g} s") from None
    if isinstance(found, OSError):
        fix = "check the name; `address:` in the inventory can be an IP address"
        raise LoginFailure("resolve", f"{hostname!r}: {strerror(found)}", fix=fix)
    return found


def _addresses(hostname: str, port: int, flags: int) -> list[Address]:
    try:
        found = socket.getaddrinfo(hostname, port, type=socket.SOCK_STREAM, flags=flags)
    except UnicodeError:  # a label of more than 63 characters
        raise socket.gaierror(socket.EAI_NONAME, "not a host name") from None
    return [(family, address) for family, _, _, _, address in found]


def set_options(connection: socket.socket) -> None:
    """Send small packets without delay, and let the kernel end a connection whose peer is gone."""
    idle, interval, count = _LIVENESS
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, idle)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, interval)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, count)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, (idle + interval * count) * 1000)


def unconnected(where: str, errors: Sequence[OSError], timeout: float) -> LoginFailure:
    """The failure for a server, `where`, if no connection to any of its addresses was possible."""
    first = errors[0]
    if any(error.errno == errno.ECONNREFUSED for error in errors):
        return LoginFailure("connect", f"refused by {where}", fix="check that sshd runs there, on that port")
    if isinstance(first, TimeoutError):
        fix = "check that the host is up, and that no firewall blocks SSH"
        return LoginFailure("connect", f"no answer from {where} within {timeout:g} s", fix=fix)
    fix = "check the address, and that the host is up"
    return LoginFailure("connect", f"{strerror(first)}: {where}", fix=fix)
