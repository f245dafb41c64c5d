"""Logging in to one SSH server, phase by phase."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import paramiko
from paramiko.ssh_exception import IncompatiblePeer

from mnt.errors import OutputError, Phase, UsageError
from mnt.fleet.login import tcp
from mnt.fleet.login.advice import way_in, with_agent
from mnt.fleet.login.destination import Destination
from mnt.fleet.login.failures import LoginCancelled, LoginFailure
from mnt.fleet.login.hostkeys import HostKey, KnownHosts, KnownKey, judge
from mnt.fleet.login.identities import Identities, Identity, Unusable
from mnt.fleet.wire.algorithms import HOST_KEY, way_out
from mnt.fleet.wire.timeouts import Timeouts
from mnt.fleet.wire.transport import HostTransport
from mnt.remote.common.files import strerror

T = TypeVar("T")

_PROXY_FIX = (
    "use ProxyJump in ssh_config, or `gateway:` in the inventory: "
    "only `mnt run --worker ssh` follows the ProxyCommand that ssh_config has for this host"
)
_ATTEMPTS = 5  # at a login that is cut off before authentication, as sshd does when MaxStartups is reached
_CUT_OFF = (EOFError, ConnectionResetError, BrokenPipeError)


class Login:
    """A login, which another thread may cancel. `phase` is the current one.

    Args:
        destination: where and how to log in.
        known_hosts, identities: shared by the whole fleet.
    """

    def __init__(
        self,
        destination: Destination,
        timeouts: Timeouts,
        known_hosts: KnownHosts,
        identities: Identities,
    ) -> None:
        self._destination = destination
        self._timeouts = timeouts
        self._known_hosts = known_hosts
        self._identities = identities
        self.phase: Phase = "resolve"
        self._cancelled = threading.Event()
        self._socket: socket.socket | None = None
        self._transport: HostTransport | None = None

    def cancel(self) -> None:
        """Make `run` end soon, with LoginCancelled."""
        self._cancelled.set()
        if self._transport is not None:
            self._transport.close()
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)  # wakes a connect(); close() would not

    def run(self, via: HostTransport | None, password: str | None = None) -> HostTransport:
        """An authenticated transport, through a gateway's if there is one. Raises LoginFailure, OutputError.

        Args:
            password: to log in with, in place of keys; it is sent to no host whose key is not known.
        """
        return self._persist(lambda: self._log_in(via, password))

    def scan(self, via: HostTransport | None, algorithms: Sequence[str]) -> HostKey | None:
        """The server's key of one of these algorithms, with proof that it has it; None: it has none.

        The key is not checked or recorded, and there is no login. Raises LoginFailure.
        """
        return self._persist(lambda: self._show(via, algorithms))

    def _persist(self, step: Callable[[], T]) -> T:
        """What `step` returns; it is repeated if the server cuts it off before authentication."""
        for attempt in range(_ATTEMPTS):
            try:
                return step()
            except LoginFailure as failure:
                if self._cancelled.is_set():
                    raise LoginCancelled(self.phase) from None
                if not failure.again or attempt == _ATTEMPTS - 1:
                    raise
            if self._cancelled.wait(random.uniform(0.1, 0.3) * 2**attempt):  # noqa: S311 - a pause
                raise LoginCancelled(self.phase)
        raise AssertionError("unreachable")

    def _log_in(self, via: HostTransport | None, password: str | None) -> HostTransport:
        with self._transport_to(via) as transport:
            try:
                known = self._known_hosts.about(self._destination)
            except UsageError as error:
                raise LoginFailure("host key", error.message, fix=error.fix) from None
            algorithms = transport.get_security_options().key_types
            types = {line.key.type for line in known if not line.revoked}
            self._exchange_keys(transport, prefer(algorithms, types))
            self._check_host_key(transport, known, strict=self._destination.strict or password is not None)
            if password is None:
                self._authenticate(transport)
            else:
                self._authenticate_by_password(transport, password)
        if self._cancelled.is_set():
            transport.close()
            raise LoginCancelled(self.phase)
        transport.watch_life()
        return transport

    def _show(self, via: HostTransport | None, algorithms: Sequence[str]) -> HostKey | None:
        with self._transport_to(via) as transport, contextlib.closing(transport):
            try:
                self._exchange_keys(transport, algorithms)
            except LoginFailure:
                if [lack.kind for lack in transport.lacks()] == [HOST_KEY]:
                    return None
                raise
            return _shown(transport)

    @contextlib.contextmanager
    def _transport_to(self, via: HostTransport | None) -> Iterator[HostTransport]:
        """A transport over a new connection; both are closed where the block fails."""
        connected = self._connect() if via is None else self._tunnel(via)
        transport = self._transport = HostTransport(connected, self._timeouts)
        try:
            yield transport
        except BaseException:
            transport.close()
            connected.close()
            raise

    def _enter(self, phase: Phase) -> None:
        if self._cancelled.is_set():
            raise LoginCancelled(self.phase)
        self.phase = phase

    def _failure(self, message: str, *, fix: str | None = None, again: bool = False) -> LoginFailure:
        return LoginFailure(self.phase, message, fix=fix, again=again)

    # -- resolve, connect

    def _connect(self) -> socket.socket:
        try:
            return self._connect_directly()
        except LoginFailure as failure:
            if self._destination.proxied:
                failure.fix = _PROXY_FIX
            raise

    def _connect_directly(self) -> socket.socket:
        destination, timeouts = self._destination, self._timeouts
        self._enter("resolve")
        addresses = tcp.resolve(destination.hostname, destination.port, timeouts.resolve)
        self._enter("connect")
        deadline = time.monotonic() + timeouts.connect
        errors: list[OSError] = []
        for index, (family, address) in enumerate(addresses):
            # Each address gets its share of the time, so a dead one does not take that of the others.
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
                tcp.set_options(connection)
                return connection
        raise tcp.unconnected(f"{destination.hostname} port {destination.port}", errors, timeouts.connect)

    def _tunnel(self, via: HostTransport) -> paramiko.Channel:
        """A channel through the gateway, used as a socket."""
        self._enter("connect")
        where = f"{self._destination.hostname} port {self._destination.port}"
        try:
            return via.open_channel(
                "direct-tcpip",
                dest_addr=(self._destination.hostname, self._destination.port),
                src_addr=("", 0),
                timeout=self._timeouts.connect,
            )
        except paramiko.ChannelException as error:
            if error.code == paramiko.common.OPEN_FAILED_ADMINISTRATIVELY_PROHIBITED:
                fix = "set AllowTcpForwarding yes in the gateway's sshd_config"
                raise self._failure(f"the gateway forwards nothing to {where}", fix=fix) from None
            raise self._failure(f"the gateway cannot reach {where}: {error.text.lower()}") from None
        except (paramiko.SSHException, EOFError, OSError) as error:
            raise self._failure(f"no way through the gateway to {where}: {error}") from None

    # -- banner, key exchange, host key

    def _exchange_keys(self, transport: HostTransport, algorithms: Sequence[str]) -> None:
        """Go on until the host has presented a key, and proved that it has it.

        Args:
            algorithms: of host keys, in the order in which to ask for them.
        """
        transport.get_security_options().key_types = algorithms
        done = threading.Event()
        transport.start_client(event=done)
        self._enter("banner")  # only now: `cancel` can close only what was started
        in_time = transport.banner_read.wait(self._timeouts.banner)
        if not transport.remote_version:
            raise self._no_banner(transport, in_time)
        self._enter("key exchange")
        if not done.wait(self._timeouts.key_exchange):
            limit = f"{self._timeouts.key_exchange:g} s"
            fix = "check the host's load, and the network; ssh -vv shows where it stops"
            raise self._failure(f"not done within {limit}", fix=fix)
        if not transport.is_active() or not transport.initial_kex_done:
            error = transport.get_exception()
            if error is None or isinstance(error, _CUT_OFF):
                fix = "read sshd's log on the host: it may have reached MaxStartups, or refuse this address"
                raise self._failure("the host closed the connection", fix=fix, again=True)
            lacks = transport.lacks() if isinstance(error, IncompatiblePeer) else []
            if lacks:
                offers = "; ".join(map(str, lacks))
                message = f"the host offers nothing that mnt's SSH client, paramiko, has: {offers}"
                raise self._failure(message, fix=way_out(lacks)) from None
            raise self._failure(strerror(error)) from error

    def _no_banner(self, transport: HostTransport, in_time: bool) -> LoginFailure:
        error = transport.banner_error
        fix = f"check that an SSH server listens on port {self._destination.port}"
        if not in_time or isinstance(error, TimeoutError):
            return self._failure(f"no SSH banner within {self._timeouts.banner:g} s", fix=fix)
        if error is None or isinstance(error, _CUT_OFF):
            fix = "read sshd's log on the host: it may have reached MaxStartups"
            return self._failure("the connection was closed before any SSH banner", fix=fix, again=True)
        return self._failure(str(error), fix=fix)

    def _check_host_key(self, transport: HostTransport, known: Sequence[KnownKey], *, strict: bool) -> None:
        self._enter("host key")
        destination = self._destination
        key = _shown(transport)
        file = destination.known_hosts[0]
        if judge(known, key, strict=strict) and file != "/dev/null":
            try:
                self._known_hosts.record(destination.key_name, key, file, hashed=destination.hash_names)
            except OSError as error:
                message = f"{file}: the host key of {destination.name} is new, and cannot be recorded: "
                fix = "name a file that you can write to: ssh: {known_hosts: ..}"
                raise OutputError(message + strerror(error), fix=fix) from None

    # -- authentication

    def _authenticate(self, transport: HostTransport) -> None:
        self._enter("authentication")
        tried: list[str] = []
        unusable: list[Unusable] = []
        for candidate in self._identities.candidates(self._destination):
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
        offered = self._offered(transport)
        if offered and "publickey" not in offered:
            message += f"; the host accepts only {', '.join(offered)} of {self._destination.user}"
        fix = way_in(self._destination, tried, unusable, offered)
        agent = self._identities.silent_agent(self._destination)
        if agent is not None:
            message += f"; no SSH agent answers at {agent}"
            fix = with_agent(self._destination, fix)
        raise self._failure(message, fix=fix)

    def _offered(self, transport: HostTransport) -> list[str]:
        """The methods of authentication that the host offers; empty: it does not say."""
        try:
            transport.auth_none(self._destination.user)
        except paramiko.BadAuthenticationType as error:
            return list(error.allowed_types)
        except (paramiko.SSHException, EOFError, OSError):
            pass
        return []

    def _authenticate_by_password(self, transport: HostTransport, password: str) -> None:
        """Use `password` or `keyboard-interactive`, whichever the host offers."""
        self._enter("authentication")
        user = self._destination.user
        try:
            more = transport.auth_password(user, password)
        except paramiko.BadAuthenticationType as error:
            message = f"the host accepts no passwords of {user}, only {', '.join(error.allowed_types)}"
            fix = "ask an administrator of the host to add the key to ~/.ssh/authorized_keys there"
            raise self._failure(message, fix=fix) from None
        except (paramiko.SSHException, EOFError, OSError) as error:
            if transport.is_active() and "timeout" not in str(error).lower():
                raise self._failure(f"the password of {user} is not accepted") from None
            raise self._failure("no answer about the password") from None
        if more:
            raise self._failure(f"the host wants more than a password: {', '.join(more)}")

    def _try(self, transport: HostTransport, identity: Identity, tried: Sequence[str]) -> bool:
        """Whether the host accepts that key."""
        user = self._destination.user
        try:
            more = transport.auth_publickey(user, identity.key)
        except paramiko.BadAuthenticationType as error:
            allowed = ", ".join(error.allowed_types)
            message = f"the host accepts no keys of {user}, only {allowed}"
            raise self._failure(message, fix="set PubkeyAuthentication yes in its sshd_config") from None
        except (paramiko.SSHException, EOFError, OSError) as error:
            late = isinstance(error, paramiko.AuthenticationException) and "timeout" in str(error).lower()
            if transport.is_active() and not late:  # refused; or the agent or the server cannot use the key
                return False
            raise self._cut_short(transport, tried) from None
        if more:
            message = f"{identity.label} is accepted, but the host wants more: {', '.join(more)}"
            raise self._failure(message)
        return True

    def _cut_short(self, transport: HostTransport, tried: Sequence[str]) -> LoginFailure:
        if transport.is_active():
            limit = f"{self._timeouts.authentication:g} s"
            return self._failure(f"no answer within {limit}; tried {', '.join(tried)}")
        message = f"the host closed the connection after {len(tried)} keys: {', '.join(tried)}"
        fix = "name the right key in the inventory, because sshd allows few tries: ssh: {identity: ..}"
        return self._failure(message, fix=fix if len(tried) > 1 else None)


def _shown(transport: HostTransport) -> HostKey:
    shown = transport.get_remote_server_key()
    return HostKey(shown.get_name(), shown.asbytes())


def prefer(offered: Sequence[str], known: set[str]) -> tuple[str, ...]:
    """Host key algorithms in the order in which to ask for them: first those of keys that are known."""
    first = [name for name in offered if ("ssh-rsa" if name.startswith("rsa-") else name) in known]
    return (*first, *(name for name in offered if name not in first))
