"""Logging in to one SSH server, phase by phase."""

from __future__ import annotations

import contextlib
import errno
import os
import queue
import random
import shlex
import socket
import threading
import time
from collections.abc import Sequence
from typing import Any

import paramiko

from mnt.fleet.endpoint import Endpoint
from mnt.fleet.hostkeys import HostKey, HostKeyRefused, KnownHosts, KnownKey, judge
from mnt.fleet.identities import Identities, Identity, Unusable
from mnt.fleet.timeouts import Timeouts
from mnt.fleet.transport import HostTransport

Address = tuple[int, Any]  # address family, and a socket address of it

_ATTEMPTS = 5  # at a login that is cut off before authentication: what sshd does when MaxStartups is reached
_LIVENESS = (5, 3, 3)  # seconds before TCP's first probe, between probes, and how many: 14 s in all
_CUT_OFF = (EOFError, ConnectionResetError, BrokenPipeError)


class Failure(Exception):
    """A login failed, in a phase of mnt.errors.HostError."""

    def __init__(self, phase: str, message: str, *, fix: str | None = None, again: bool = False) -> None:
        super().__init__(message)
        self.phase = phase
        self.message = message
        self.fix = fix
        self.again = again  # the server cut the connection before authentication: worth another try

    def at_gateway(self, name: str) -> Failure:
        """The failure as the hosts behind a gateway see it."""
        return Failure(self.phase, f"gateway {name}: {self.message}", fix=self.fix)


class Cancelled(Exception):
    """The connection was closed while it was being opened."""


class Login:
    """A login, which another thread may cancel; `phase` is what it is at.

    Args:
        endpoint: where and how.
        known_hosts, identities: shared by the whole fleet.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        timeouts: Timeouts,
        known_hosts: KnownHosts,
        identities: Identities,
    ) -> None:
        self._endpoint = endpoint
        self._timeouts = timeouts
        self._known_hosts = known_hosts
        self._identities = identities
        self.phase = "resolve"
        self._cancelled = threading.Event()
        self._socket: socket.socket | None = None
        self._transport: HostTransport | None = None

    def cancel(self) -> None:
        """Make `run` end soon, with Cancelled."""
        self._cancelled.set()
        if self._transport is not None:
            self._transport.close()
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)  # wakes a connect(); close() would not

    def run(self, via: HostTransport | None) -> HostTransport:
        """An authenticated transport, through a gateway's if there is one. Raises Failure, Cancelled."""
        for attempt in range(_ATTEMPTS):
            try:
                return self._once(via)
            except Failure as failure:
                if self._cancelled.is_set():
                    raise Cancelled from None
                if not failure.again or attempt == _ATTEMPTS - 1:
                    raise
            if self._cancelled.wait(random.uniform(0.1, 0.3) * 2**attempt):
                raise Cancelled
        raise AssertionError("unreachable")

    def _once(self, via: HostTransport | None) -> HostTransport:
        connected = self._connect() if via is None else self._tunnel(via)
        transport = self._transport = HostTransport(connected, self._timeouts)
        try:
            known = self._known_keys()
            self._exchange_keys(transport, known)
            self._check_host_key(transport, known)
            self._authenticate(transport)
        except BaseException:
            transport.close()
            connected.close()
            raise
        if self._cancelled.is_set():
            transport.close()
            raise Cancelled
        transport.watch_life()
        return transport

    def _enter(self, phase: str) -> None:
        if self._cancelled.is_set():
            raise Cancelled
        self.phase = phase

    # -- resolve, connect

    def _connect(self) -> socket.socket:
        self._enter("resolve")
        addresses = resolve(self._endpoint.hostname, self._endpoint.port, self._timeouts.resolve)
        self._enter("connect")
        deadline = time.monotonic() + self._timeouts.connect
        errors: list[OSError] = []
        for index, (family, address) in enumerate(addresses):
            # A dead first address leaves the others their share of the time.
            share = max(0.1, deadline - time.monotonic()) / (len(addresses) - index)
            connection = self._socket = socket.socket(family, socket.SOCK_STREAM)
            try:
                connection.settimeout(share)
                connection.connect(address)
            except OSError as error:
                connection.close()
                errors.append(error)
                self._enter("connect")
            else:
                _set_options(connection)
                return connection
        raise self._unconnected(errors)

    def _unconnected(self, errors: Sequence[OSError]) -> Failure:
        where = f"{self._endpoint.hostname} port {self._endpoint.port}"
        first = errors[0]
        if any(error.errno == errno.ECONNREFUSED for error in errors):
            fix = "is sshd running there, on that port?"
            return Failure("connect", f"refused by {where}", fix=fix)
        if isinstance(first, TimeoutError):
            limit = f"{self._timeouts.connect:g} s"
            fix = "is the host up, and does a firewall let SSH through?"
            return Failure("connect", f"no answer from {where} within {limit}", fix=fix)
        reason = (first.strerror or str(first)).lower()
        return Failure("connect", f"{reason}: {where}", fix="is the address right, and the host up?")

    def _tunnel(self, via: HostTransport) -> Any:
        """A channel through the gateway, which serves as a socket."""
        self._enter("connect")
        where = f"{self._endpoint.hostname} port {self._endpoint.port}"
        try:
            return via.open_channel(
                "direct-tcpip",
                dest_addr=(self._endpoint.hostname, self._endpoint.port),
                src_addr=("", 0),
                timeout=self._timeouts.connect,
            )
        except paramiko.ChannelException as error:
            if error.code == paramiko.common.OPEN_FAILED_ADMINISTRATIVELY_PROHIBITED:
                fix = "AllowTcpForwarding yes in the gateway's sshd_config"
                raise Failure("connect", f"the gateway forwards nothing to {where}", fix=fix) from None
            raise Failure("connect", f"the gateway cannot reach {where}: {error.text.lower()}") from None
        except (paramiko.SSHException, EOFError, OSError) as error:
            raise Failure("connect", f"no way through the gateway to {where}: {error}") from None

    # -- banner, key exchange, host key

    def _known_keys(self) -> list[KnownKey]:
        endpoint = self._endpoint
        files = (*endpoint.known_hosts, *endpoint.known_hosts_global)
        known = self._known_hosts.lines_for(endpoint.key_name, files)
        if not known and endpoint.key_name == f"[{endpoint.hostname}]:{endpoint.port}":
            # As ssh does: a key known for the host without a port is good for any port of it.
            known = self._known_hosts.lines_for(endpoint.hostname, files)
        return known

    def _exchange_keys(self, transport: HostTransport, known: Sequence[KnownKey]) -> None:
        """Up to the moment when the host has shown a key and proved that it has it."""
        options = transport.get_security_options()
        options.key_types = prefer(options.key_types, {line.key.type for line in known if not line.revoked})
        self._enter("banner")
        done = threading.Event()
        transport.start_client(event=done)
        in_time = transport.banner_read.wait(self._timeouts.banner)
        if not transport.remote_version:
            raise self._no_banner(transport, in_time)
        self._enter("key exchange")
        if not done.wait(self._timeouts.key_exchange):
            limit = f"{self._timeouts.key_exchange:g} s"
            raise Failure("key exchange", f"not done within {limit}")
        if not transport.is_active() or not transport.initial_kex_done:
            error = transport.get_exception()
            if error is None or isinstance(error, _CUT_OFF):
                raise Failure("key exchange", "the host closed the connection", again=True)
            raise Failure("key exchange", str(error) or type(error).__name__)

    def _no_banner(self, transport: HostTransport, in_time: bool) -> Failure:
        error = transport.banner_error
        fix = f"is it an SSH server that listens on port {self._endpoint.port}?"
        if not in_time or isinstance(error, TimeoutError):
            return Failure("banner", f"no SSH banner within {self._timeouts.banner:g} s", fix=fix)
        if error is None or isinstance(error, _CUT_OFF):
            message = "the connection was closed before any SSH banner"
            return Failure("banner", message, fix="sshd may be over its MaxStartups", again=True)
        return Failure("banner", str(error), fix=fix)

    def _check_host_key(self, transport: HostTransport, known: Sequence[KnownKey]) -> None:
        self._enter("host key")
        endpoint = self._endpoint
        shown = transport.get_remote_server_key()
        key = HostKey(shown.get_name(), shown.asbytes())
        file = next((line.file for line in known if not line.revoked), endpoint.known_hosts[0])
        old = f"-f {shlex.quote(os.path.expanduser(file))} -R {shlex.quote(endpoint.key_name)}"
        forget = f"if the host was installed anew: ssh-keygen {old}"
        try:
            new = judge(known, key, strict=endpoint.strict, fix=forget)
        except HostKeyRefused as refusal:
            raise Failure("host key", refusal.message, fix=refusal.fix) from None
        if new and endpoint.known_hosts[0] != "/dev/null":
            try:
                self._known_hosts.record(
                    endpoint.key_name, key, endpoint.known_hosts[0], hashed=endpoint.hash_names
                )
            except OSError as error:
                message = f"it is new, and cannot be recorded in {endpoint.known_hosts[0]}: {error.strerror}"
                fix = "name a file that can be written: ssh: {known_hosts: ..}"
                raise Failure("host key", message, fix=fix) from None

    # -- authentication

    def _authenticate(self, transport: HostTransport) -> None:
        self._enter("authentication")
        tried: list[str] = []
        unusable: list[Unusable] = []
        for candidate in self._identities.candidates(self._endpoint):
            if isinstance(candidate, Unusable):
                unusable.append(candidate)
                continue
            tried.append(candidate.label)
            if self._try(transport, candidate, tried):
                return
            self._enter("authentication")
        message = f"no key accepted; tried {', '.join(tried) or 'none'}"
        for file in unusable:
            message += f"; {file.label}: {file.reason}"
        locked = [shlex.quote(os.path.expanduser(file.label)) for file in unusable if file.locked]
        fix = f"ssh-add {' '.join(locked)}" if locked else self._how_to_authorize(tried)
        raise Failure("authentication", message, fix=fix)

    def _how_to_authorize(self, tried: Sequence[str]) -> str:
        endpoint = self._endpoint
        files = [label for label in tried if not label.startswith("agent: ")]
        key = f"-i {files[0]} " if files else ""
        return f"ssh-copy-id {key}-p {endpoint.port} {endpoint.login}"

    def _try(self, transport: HostTransport, identity: Identity, tried: Sequence[str]) -> bool:
        """Whether the host lets us in with that key."""
        user = self._endpoint.user
        try:
            more = transport.auth_publickey(user, identity.key)
        except paramiko.BadAuthenticationType as error:
            allowed = ", ".join(error.allowed_types)
            message = f"the host takes no keys of {user}, only {allowed}"
            raise Failure(
                "authentication", message, fix="PubkeyAuthentication yes in its sshd_config"
            ) from None
        except paramiko.AuthenticationException as error:
            if transport.is_active() and "timeout" not in str(error).lower():
                return False
            raise self._cut_short(transport, error, tried) from None
        except (paramiko.SSHException, EOFError, OSError) as error:
            if transport.is_active():  # an agent that would not sign, a key that is no good for this server
                return False
            raise self._cut_short(transport, error, tried) from None
        if more:
            message = f"{identity.label} is accepted, but the host wants more: {', '.join(more)}"
            raise Failure("authentication", message)
        return True

    def _cut_short(self, transport: HostTransport, error: Exception, tried: Sequence[str]) -> Failure:
        if transport.is_active():
            limit = f"{self._timeouts.authentication:g} s"
            return Failure("authentication", f"no answer within {limit}; tried {', '.join(tried)}")
        message = f"the host closed the connection after {len(tried)} keys: {', '.join(tried)}"
        fix = "name the right one in the inventory, for sshd allows few tries: ssh: {identity: ..}"
        return Failure("authentication", message, fix=fix if len(tried) > 1 else None)


def prefer(offered: Sequence[str], known: set[str]) -> tuple[str, ...]:
    """Host key algorithms in the order in which to ask for them: first those of keys that are known."""
    first = [name for name in offered if ("ssh-rsa" if name.startswith("rsa-") else name) in known]
    return (*first, *(name for name in offered if name not in first))


def resolve(hostname: str, port: int, timeout: float) -> list[Address]:
    """The addresses of a host, at least one. Raises Failure.

    getaddrinfo has no timeout, so it gets a thread, which is left alone with a name server that is silent.
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
        raise Failure("resolve", f"no answer about {hostname!r} within {timeout:g} s") from None
    if isinstance(found, OSError):
        reason = (found.strerror or str(found)).lower()
        fix = "is the name right? `address:` in the inventory can name an IP address"
        raise Failure("resolve", f"{hostname!r}: {reason}", fix=fix)
    return found


def _addresses(hostname: str, port: int, flags: int) -> list[Address]:
    try:
        found = socket.getaddrinfo(hostname, port, type=socket.SOCK_STREAM, flags=flags)
    except UnicodeError:  # a label of more than 63 characters
        raise socket.gaierror(socket.EAI_NONAME, "not a host name") from None
    return [(family, address) for family, _, _, _, address in found]


def _set_options(connection: socket.socket) -> None:
    """No delay for small packets; and the kernel ends a connection whose peer is gone."""
    idle, interval, count = _LIVENESS
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, idle)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, interval)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, count)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, (idle + interval * count) * 1000)
