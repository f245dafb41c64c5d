"""Gateways: one transport to each, shared by every host of a fleet that lies behind it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from mnt.fleet.login.destination import Destination
from mnt.fleet.login.failures import LoginCancelled, LoginFailure

Hops = tuple[Destination, ...]

_FAILURE_HOLDS = 5.0  # seconds during which hosts that wait for the same gateway get the failure of one login


class Transport(Protocol):
    """A connection to a gateway, which carries other connections."""

    def is_active(self) -> bool: ...

    def close(self) -> None: ...


T = TypeVar("T", bound=Transport)


class GatewayLogin(Protocol[T]):
    """Like mnt.fleet.login.login.Login."""

    def run(self, via: T | None) -> T: ...

    def cancel(self) -> None: ...


class Gateways(Generic[T]):
    """Logs in to gateways, once to each hop. Safe to use from several threads.

    Args:
        login: makes the login for one hop.
        for_good: nothing can be opened after `close`.
    """

    def __init__(self, login: Callable[[Destination], GatewayLogin[T]], *, for_good: bool = False) -> None:
        self._login = login
        self._for_good = for_good
        self._closed = False
        self._lock = threading.Lock()
        self._open: dict[Hops, _Gateway[T]] = {}

    def through(self, hops: Hops) -> T | None:
        """The transport of the last of `hops`; None if there are none. Raises LoginFailure."""
        if not hops:
            return None
        with self._lock:
            if self._closed and self._for_good:
                raise LoginCancelled("connect")
            gateway = self._open.setdefault(hops, _Gateway(self._login(hops[-1]), hops[-1].name))
        return gateway.get(lambda: self.through(hops[:-1]))

    def close(self) -> None:
        """Close all transports; logins under way end with LoginCancelled."""
        with self._lock:
            self._closed = True
            gateways = list(self._open.values())
            self._open.clear()
        for gateway in reversed(gateways):  # the farther ones first
            gateway.close()


class _Gateway(Generic[T]):
    """One hop: its login, and the connection that this has made."""

    def __init__(self, login: GatewayLogin[T], name: str) -> None:
        self._login = login
        self._name = name
        self._lock = threading.Lock()
        self._transport: T | None = None
        self._failure: LoginFailure | None = None
        self._failed_at = 0.0

    def get(self, before: Callable[[], T | None]) -> T:
        """The open transport; `before` returns that of the hop before. Raises LoginFailure."""
        with self._lock:
            if self._transport is not None and self._transport.is_active():
                return self._transport
            if self._failure is not None and time.monotonic() - self._failed_at < _FAILURE_HOLDS:
                raise self._failure
            via = before()
            try:
                self._transport = self._login.run(via)
            except LoginCancelled:
                raise
            except LoginFailure as failure:
                self._failure = failure.at_gateway(self._name)
                self._failed_at = time.monotonic()
                raise self._failure from None
            return self._transport

    def close(self) -> None:
        self._login.cancel()
        if self._transport is not None:
            self._transport.close()
