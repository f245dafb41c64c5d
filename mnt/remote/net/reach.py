"""Who can be reached from here over the training network, and is reachable there?

Runs on a host: standard library only, Python 3.8 and newer. All hosts run it at the same time:

1. It listens on `address`: on the master port, unless somebody else does already, and on `samples` ports of
   the range that the kernel takes local ports from, for those are the ports of NCCL and gloo. It emits
   {"listening": {"ports": [int, ..], "master": bool}}; `master` is false where the master port could not be
   bound, and what came of it is left to whoever holds it.
2. It reads one line of standard input, {"targets": [{"name", "address", "master": int | None,
   "ports": [int, ..]}, ..]}, connects to all of them, and emits {"reached": {NAME: result}}.
3. It serves its peers until its standard input ends. The end of the connection ends it, too.

Arguments:
    address: str     the training address, IPv4
    master: int      the master port
    samples: int     ports of the range to listen on
    timeout: float   seconds for each connection; default 2
    at_once: int     connections in the making at the same time; default 64

A result is {"route": interface | None, "no_route": why | None, "latency": seconds | None,
"mtu": bytes | None, "full": bool | None, "master": outcome | None, "ports": {PORT: outcome}}. An outcome is
`ok`, `refused`, `timeout`, `unreachable`, `denied` (by this host itself) or what the kernel says.
`full` tells whether a packet of full size gets through, `latency` is what the kernel measured in the TCP
handshake, `mtu` that of the path.
"""

from __future__ import annotations

import errno
import json
import random
import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, BinaryIO

from mnt.remote.common.files import read
from mnt.remote.net.routes import leaves_by, reason

_BACKLOG = 1024  # the kernel cuts it to net.core.somaxconn
_TRIES = 20  # ports of the range may be in use
_RANGE = "32768 60999"  # the kernel's default (Documentation/networking/ip-sysctl.rst)
_IP_MTU = 14  # linux/in.h
_TCPI_RTT = 68  # where struct tcp_info of linux/tcp.h has the round-trip time, in microseconds
_HEADER = struct.Struct("!I")
_ANSWER = b"all"
_OUTCOMES = {
    errno.ECONNREFUSED: "refused",
    errno.ETIMEDOUT: "timeout",
    errno.EHOSTUNREACH: "unreachable",
    errno.ENETUNREACH: "unreachable",
    errno.EACCES: "denied",
    errno.EPERM: "denied",
}


def main(args: dict[str, Any], emit: Callable[[dict[str, Any]], None], stdin: BinaryIO) -> dict[str, Any]:
    """Listen, connect, and go when all have."""
    address, timeout = args["address"], float(args.get("timeout", 2.0))
    sampled = [_listen(address, ports) for ports in _samples(args["samples"])]
    master = _listen(address, [args["master"]])
    listeners = [listener for listener in (*sampled, master) if listener is not None]
    threading.Thread(target=_serve, args=(listeners,), daemon=True).start()
    ports = [listener.getsockname()[1] for listener in sampled if listener is not None]
    emit({"listening": {"ports": ports, "master": master is not None}})
    line = stdin.readline()
    if line:
        targets = json.loads(line)["targets"]
        emit({"reached": _reach(targets, address, timeout, int(args.get("at_once", 64)))})
        stdin.read()
    return {}


# --- being reached ---------------------------------------------------------------------------------------


def _samples(count: int) -> list[list[int]]:
    """For each sample, ports to try: the range is cut into equal parts, and each gives one sample."""
    first, last = map(int, (read("/proc/sys/net/ipv4/ip_local_port_range") or _RANGE).split())
    size = max(1, (last - first + 1) // count)
    starts = range(first, last + 1, size)[:count]
    return [[random.randrange(start, min(start + size, last + 1)) for _ in range(_TRIES)] for start in starts]


def _listen(address: str, ports: Iterable[int]) -> socket.socket | None:
    """A socket that listens on the first of the ports that is free. OSError: the address is not here."""
    for port in ports:
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # TIME_WAIT holds no port
        try:
            listener.bind((address, port))
            listener.listen(_BACKLOG)
            return listener
        except OSError as error:
            listener.close()
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise
    return None


def _serve(listeners: list[socket.socket]) -> None:
    """Take whoever comes; answer those who send a full packet once all of it is here."""
    missing: dict[socket.socket, int | None] = {}  # bytes; None: not yet told how many there are
    with selectors.DefaultSelector() as selector:
        for listener in listeners:
            selector.register(listener, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                peer: Any = key.fileobj
                if peer in listeners:
                    _take(peer, selector, missing)
                elif not _receive(peer, missing):
                    selector.unregister(peer)
                    del missing[peer]
                    peer.close()


def _take(
    listener: socket.socket, selector: selectors.BaseSelector, missing: dict[socket.socket, int | None]
) -> None:
    try:
        peer, _ = listener.accept()
    except OSError:  # it has gone already, or there are too many open files: it waits in the backlog
        time.sleep(0.01)
        return
    missing[peer] = None
    selector.register(peer, selectors.EVENT_READ)


def _receive(peer: socket.socket, missing: dict[socket.socket, int | None]) -> bool:
    """Whether the peer is still there."""
    try:
        data = peer.recv(1 << 17)
        if not data:
            return False
        left = missing[peer]
        # The first packet holds the header: it is smaller than any.
        left = (_HEADER.unpack_from(data)[0] if left is None else left) - len(data)
        missing[peer] = left
        if left == 0:
            peer.sendall(_ANSWER)
    except (OSError, struct.error):
        return False
    return True


# --- reaching others -------------------------------------------------------------------------------------


class _Attempt:
    """One connection. A target's first also sends a packet of full size, and waits for the answer."""

    def __init__(self, target: dict[str, Any], port: int, result: dict[str, Any], full: bool) -> None:
        self.target = (target["address"], port)
        self.port = port
        self.is_master = port == target["master"]
        self.result = result
        self.full = full
        self.connected = False
        self.deadline = 0.0
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)

    def start(self, address: str, timeout: float) -> None:
        """Raises OSError where it has failed already."""
        self.deadline = time.monotonic() + timeout
        self.socket.setblocking(False)
        # Closed by RST: thousands of connections in TIME_WAIT would take ports away from jobs.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 18)  # the largest packet fits in
        self.socket.bind((address, 0))
        code = self.socket.connect_ex(self.target)
        if code not in (0, errno.EINPROGRESS):
            raise OSError(code, "")

    def go_on(self, timeout: float) -> bool:
        """Whether there is more to wait for. Raises OSError: not connected."""
        if not self.connected:
            code = self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code:
                raise OSError(code, "")
            self._note()
            if self.full:
                self.result["full"] = False
                self.deadline = time.monotonic() + 2 * timeout  # the peer's program has to answer
                size = self.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG)
                self.socket.send(_HEADER.pack(size) + bytes(size - _HEADER.size))
            return self.full
        try:
            self.result["full"] = self.socket.recv(len(_ANSWER)) == _ANSWER
        except OSError:  # closed by the peer: nobody knows whether the packet came
            self.result["full"] = None
        return False

    def _note(self) -> None:
        self.connected = True
        self.end("ok")
        information = self.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCPI_RTT + 4)
        latency = struct.unpack_from("=I", information, _TCPI_RTT)[0] / 1e6
        known = self.result["latency"]
        self.result["latency"] = latency if known is None else min(known, latency)
        self.result["mtu"] = self.socket.getsockopt(socket.IPPROTO_IP, _IP_MTU)

    def end(self, outcome: str) -> None:
        if self.connected and outcome != "ok":
            return  # it is the full packet that did not come through
        if self.is_master:
            self.result["master"] = outcome
        else:
            self.result["ports"][self.port] = outcome


def _reach(targets: list[dict[str, Any]], address: str, timeout: float, at_once: int) -> dict[str, Any]:
    """Results by name. The targets are tried in the order given, which differs from host to host."""
    results = {target["name"]: _about_route(target["address"]) for target in targets}
    waiting = [
        (target, port, results[target["name"]], port in target["ports"][:1])
        for target in reversed(targets)
        for port in (*target["ports"], target["master"])
        if port is not None
    ]
    selector = selectors.DefaultSelector()
    active: set[_Attempt] = set()

    def finish(attempt: _Attempt) -> None:
        active.remove(attempt)
        selector.unregister(attempt.socket)
        attempt.socket.close()

    while waiting or active:
        while waiting and len(active) < at_once:
            attempt = _Attempt(*waiting.pop())
            try:
                attempt.start(address, timeout)
            except OSError as error:
                attempt.end(_outcome(error))
                attempt.socket.close()
            else:
                active.add(attempt)
                selector.register(attempt.socket, selectors.EVENT_WRITE, attempt)
        now = time.monotonic()
        next_deadline = min((attempt.deadline for attempt in active), default=now)
        for key, _ in selector.select(max(0.0, next_deadline - now)):
            attempt = key.data
            try:
                if attempt.go_on(timeout):
                    selector.modify(attempt.socket, selectors.EVENT_READ, attempt)
                    continue
            except OSError as error:
                attempt.end(_outcome(error))
            finish(attempt)
        # By the time before the look: on a busy host what is late may have come by now.
        for attempt in [attempt for attempt in active if attempt.deadline <= now]:
            attempt.end("timeout")
            finish(attempt)
    return results


def _about_route(address: str) -> dict[str, Any]:
    route, no_route = None, None
    try:
        route = leaves_by(address)
    except OSError as error:
        no_route = reason(error)
    return {
        "route": route,
        "no_route": no_route,
        "latency": None,
        "mtu": None,
        "full": None,
        "master": None,
        "ports": {},
    }


def _outcome(error: OSError) -> str:
    return _OUTCOMES.get(error.errno or 0) or reason(error)
