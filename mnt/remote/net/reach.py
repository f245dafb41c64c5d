"""Which hosts can be reached from here over the training network, and on which ports.

Runs on a host: standard library only, Python 3.8 and newer. All hosts run it at the same time:

1. It listens on `address`: on the master port, unless another process does so already, and on `samples`
   ports of the range from which the kernel takes local ports, because NCCL and gloo use those. It emits
   {"listening": {"ports": [int, ..], "master": bool}}; `master` is false if another process holds that port.
2. It reads one line of standard input, {"targets": [`mnt.tasks.reach.Target`, ..]}, connects to all of them,
   and emits {"reached": {NAME: result}}.
3. It serves its peers until its standard input ends, or the connection to the head.

A host counts as reached if it answers with `proof`: whoever claims its address on the network cannot. The
head gives each target its own token, and its peers the answers that they must get.

Arguments:
    address: str     the training address, IPv4
    token: str       what only this host and the head know, in hex
    master: int      the master port
    samples: int     ports of the range to listen on
    timeout: float   seconds for each connection; default 2
    at_once: int     connections at the same time; default 64

A result has the shape of `mnt.facts.reach.Reached`. The latency is what the kernel measured in the TCP
handshake.
"""

from __future__ import annotations

import errno
import hmac
import json
import os
import random
import resource
import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, BinaryIO, NamedTuple

from mnt.remote.common.files import read, strerror
from mnt.remote.common.netlink import ask, attributes

# Strangers may connect too. A connection is of use only until a packet of full size is answered, so beyond
# a number the oldest are closed: of one address, and in all.
_MOST_OF_ONE = 128  # connections; a peer has `at_once` at most
_FILES = 4096  # descriptors of this program at most
_SPARE = 160  # descriptors for all else: listeners, our own connections (`at_once`), what Python has open
_BACKLOG = 1024  # the kernel reduces it to net.core.somaxconn
_TRIES = 20  # some ports of the range may be in use
_RANGE = "32768 60999"  # the kernel's default (Documentation/networking/ip-sysctl.rst)
_IP_MTU = 14  # linux/in.h
_TCPI_RTT = 68  # offset of the round-trip time, in microseconds, in struct tcp_info of linux/tcp.h
_RTM_GETROUTE = 26  # linux/rtnetlink.h, as the next two
_RTA_DST, _RTA_OIF = 1, 4
_HEADER = struct.Struct("!I16s")  # the bytes that are sent, with the header, and the nonce
_TRIES_IF_CLOSED = 3
_CLOSED = os.strerror(errno.ECONNRESET)
_STRANGER = "another host answers"  # `mnt.preflight.reachability` knows it
_NO_FILES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_OUTCOMES = {
    errno.ECONNREFUSED: "refused",
    errno.ETIMEDOUT: "timeout",
    errno.EHOSTUNREACH: "unreachable",
    errno.ENETUNREACH: "unreachable",
    errno.EACCES: "denied",
    errno.EPERM: "denied",
}


def main(args: dict[str, Any], emit: Callable[[dict[str, Any]], None], stdin: BinaryIO) -> dict[str, Any]:
    """Listen, connect, and end when all hosts have connected."""
    address, timeout = args["address"], float(args.get("timeout", 2.0))
    at_once = int(args.get("at_once", 64))
    most = max(16, _raise_files() - _SPARE - at_once)
    sampled = [_listen(address, ports) for ports in _samples(args["samples"])]
    master = _listen(address, [args["master"]])
    listeners = [listener for listener in (*sampled, master) if listener is not None]
    token = bytes.fromhex(args["token"])
    threading.Thread(target=_serve, args=(listeners, most, token), daemon=True).start()
    ports = [listener.getsockname()[1] for listener in sampled if listener is not None]
    emit({"listening": {"ports": ports, "master": master is not None}})
    line = stdin.readline()
    if line:
        targets = json.loads(line)["targets"]
        emit({"reached": _reach(targets, address, timeout, at_once)})
        stdin.read()
    return {}


def proof(token: bytes, nonce: bytes, port: int) -> bytes:
    """The answer of the host with this token to a nonce that arrived at its port."""
    return hmac.digest(token, nonce + port.to_bytes(2, "big"), "sha256")


# --- being reached ---------------------------------------------------------------------------------------


def _samples(count: int) -> list[list[int]]:
    """For each sample, the ports to try, from its part of the range, which is divided into equal parts."""
    first, last = map(int, (read("/proc/sys/net/ipv4/ip_local_port_range") or _RANGE).split())
    size = max(1, (last - first + 1) // count)
    starts = range(first, last + 1, size)[:count]
    return [[random.randrange(start, min(start + size, last + 1)) for _ in range(_TRIES)] for start in starts]  # noqa: S311 - any free port will do


def _listen(address: str, ports: Iterable[int]) -> socket.socket | None:
    """A socket that listens on the first free port. Raises OSError if this host lacks the address."""
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


def _raise_files() -> int:
    """Allow this process as many open files as possible, at most `_FILES`; returns how many it may have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError):
            return soft
    return wanted


class _Asked(NamedTuple):
    """What a peer has sent."""

    left: int  # bytes that have not arrived yet
    answer: bytes  # to its nonce


def _serve(listeners: list[socket.socket], most: int, token: bytes) -> None:
    """Accept all connections, and keep the newest `most`; answer a packet once all of it is here.

    Nothing that a peer does ends more than connections.
    """
    addresses: dict[socket.socket, str] = {}
    of_one: dict[str, dict[socket.socket, None]] = {}  # by address, oldest first
    asked: dict[socket.socket, _Asked | None] = {}  # None: the header has not arrived yet; oldest first
    with selectors.DefaultSelector() as selector:

        def end(peer: socket.socket) -> None:
            selector.unregister(peer)
            del asked[peer]
            address = addresses.pop(peer)
            del of_one[address][peer]
            if not of_one[address]:
                del of_one[address]
            peer.close()

        def begin(peer: socket.socket, address: str) -> None:
            peer.setblocking(False)
            selector.register(peer, selectors.EVENT_READ)
            asked[peer] = None
            addresses[peer] = address
            mine = of_one.setdefault(address, {})
            mine[peer] = None
            if len(mine) > _MOST_OF_ONE:
                end(next(iter(mine)))

        for listener in listeners:
            selector.register(listener, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                peer: Any = key.fileobj
                if peer in listeners:
                    while len(asked) >= most:
                        end(next(iter(asked)))
                    try:
                        new, (address, _) = peer.accept()
                    except OSError as error:  # it has closed already, or too many files are open
                        if error.errno in _NO_FILES and asked:
                            end(next(iter(asked)))
                        else:
                            time.sleep(0.01)
                    else:
                        try:
                            begin(new, address)
                        except OSError:  # the kernel watches no more
                            new.close()
                elif peer in asked and not _receive(peer, asked, token):
                    end(peer)


def _receive(peer: socket.socket, asked: dict[socket.socket, _Asked | None], token: bytes) -> bool:
    """Receive from a peer; False if it has closed the connection, or asks nothing."""
    try:
        data = peer.recv(1 << 17)
        if not data:
            return False
        found = asked[peer]
        if found is None:  # the first packet contains the header, which is smaller than any packet
            size, nonce = _HEADER.unpack_from(data)
            found = _Asked(size, proof(token, nonce, peer.getsockname()[1]))
        found = asked[peer] = found._replace(left=found.left - len(data))
        if found.left == 0:
            peer.sendall(found.answer)
    except BlockingIOError:
        return True
    except (OSError, struct.error):
        return False
    return True


# --- reaching others -------------------------------------------------------------------------------------


def _reach(targets: list[dict[str, Any]], address: str, timeout: float, at_once: int) -> dict[str, Any]:
    """Results by name. The targets are tried in the given order, which differs from host to host."""
    results = {target["name"]: _about_route(target["address"]) for target in targets}
    attempts = [
        (target, port)
        for target in targets
        for port in (*target["ports"], target["master"])
        if port is not None
    ]
    with ThreadPoolExecutor(max_workers=at_once) as pool:
        found = pool.map(lambda attempt: _connect(attempt[0], attempt[1], address, timeout), attempts)
        for (target, port), (outcome, measured) in zip(attempts, found):
            result = results[target["name"]]
            if "latency" in result and measured:
                measured["latency"] = min(measured["latency"], result["latency"])
            result.update(measured)
            if port == target["master"]:
                result["master"] = outcome
            else:
                result["ports"][port] = outcome
    return results


def _connect(target: dict[str, Any], port: int, address: str, timeout: float) -> tuple[str, dict[str, Any]]:
    """The outcome of connecting to a port, and what it measured.

    A connection that the target closes before it answers is tried again: strangers may crowd it out.
    """
    until = time.monotonic() + timeout
    for _ in range(_TRIES_IF_CLOSED):
        outcome, measured = _try(target, port, address, timeout)
        if outcome != _CLOSED or time.monotonic() > until:
            break
    return outcome, measured


def _try(target: dict[str, Any], port: int, address: str, timeout: float) -> tuple[str, dict[str, Any]]:
    """The outcome of one connection, and what it measured.

    To the first port of a target it sends a packet of full size.
    """
    try:
        connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    except OSError as error:
        return strerror(error), {}
    with connection:
        connection.settimeout(timeout)
        # Close by RST: thousands of connections in TIME_WAIT would take ports away from jobs.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 18)  # the largest packet fits in
        try:
            connection.bind((address, 0))
            connection.connect((target["address"], port))
        except socket.timeout:
            return "timeout", {}
        except OSError as error:
            return _OUTCOMES.get(error.errno or 0) or strerror(error), {}
        information = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCPI_RTT + 4)
        measured = {
            "latency": struct.unpack_from("=I", information, _TCPI_RTT)[0] / 1e6,
            "mtu": connection.getsockopt(socket.IPPROTO_IP, _IP_MTU),
        }
        full = port in target["ports"][:1]
        size = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG) if full else _HEADER.size
        connection.settimeout(2 * timeout)  # the peer's program has to answer
        nonce, expected = bytes.fromhex(target["nonce"]), bytes.fromhex(target["answers"][str(port)])
        outcome = _ask(connection, size, nonce, expected)
        if full:
            measured["full"] = {"ok": True, "timeout": False}.get(outcome)
            if outcome == "timeout":  # of the packet; the connection was made
                outcome = "ok"
        return outcome, measured


def _ask(connection: socket.socket, size: int, nonce: bytes, expected: bytes) -> str:
    """The outcome of a packet of that many bytes: `ok` if the target itself answers."""
    try:
        connection.sendall(_HEADER.pack(size, nonce) + bytes(size - _HEADER.size))
        answer = connection.recv(len(expected))
    except socket.timeout:
        return "timeout"
    except OSError:
        return _CLOSED
    if not answer:
        return _CLOSED
    return "ok" if hmac.compare_digest(answer, expected) else _STRANGER


def _about_route(address: str) -> dict[str, Any]:
    try:
        return {"route": interface_to(address), "ports": {}}
    except OSError as error:
        return {"no_route": strerror(error), "ports": {}}


def interface_to(address: str) -> str:
    """The interface of the route to an IPv4 address, as in `ip route get`.

    Without a source address, because NCCL and gloo connect without one. Raises OSError if there is no route.
    """
    packed = socket.inet_aton(address)
    message = struct.pack("=BBBBBBBBI", socket.AF_INET, 32, 0, 0, 0, 0, 0, 0, 0)  # struct rtmsg
    (answer,) = ask(_RTM_GETROUTE, message + struct.pack("=HH", 4 + len(packed), _RTA_DST) + packed)
    found = dict(attributes(answer[len(message) :]))
    if _RTA_OIF not in found:  # for example a blackhole
        raise OSError("the route leads to no interface")
    index: int = struct.unpack("=I", found[_RTA_OIF])[0]
    return socket.if_indextoname(index)
