"""Gateways: one transport to each, shared by every host of a fleet that lies behind it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from mnt.fleet.endpoint import Endpoint
from mnt.fleet.failures import Failure
from mnt.fleet.login import Login
from mnt.fleet.transport import HostTransport

Hops = tuple[Endpoint, ...]

_FAILURE_HOLDS = 5.0  # seconds for which a failed login stands for the hosts that wait for the same gateway


class Gateways:
    """Opens the way through gateways, each hop once. Safe to use from several threads.

    Args:
        login: makes the login of one hop.
    """

    def __init__(self, login: Callable[[Endpoint], Login]) -> None:
        self._login = login
        self._lock = threading.Lock()
        self._open: dict[Hops, _Gateway] = {}

    def through(self, hops: Hops) -> HostTransport | None:
        """The transport of the last of `hops`; None if there are none. Raises Failure, Cancelled."""
        if not hops:
            return None
        with self._lock:
            gateway = self._open.setdefault(hops, _Gateway(self._login(hops[-1]), hops[-1].name))
        return gateway.get(lambda: self.through(hops[:-1]))

    def close(self) -> None:
        """Close all transports; logins under way end with Cancelled."""
        with self._lock:
            gateways = list(self._open.values())
            self._open.clear()
        for gateway in reversed(gateways):  # the farther ones first
            gateway.close()


class _Gateway:
    def __init__(self, login: Login, name: str) -> None:
        self._login = login
        self._name = name
        self._lock = threading.Lock()
        self._transport: HostTransport | None = None
        self._failure: Failure | None = None
        self._failed_at = 0.0

    def get(self, before: Callable[[], HostTransport | None]) -> HostTransport:
        """The open transport; `before` gives that of the hop before. Raises Failure, Cancelled."""
        with self._lock:
            if self._transport is not None and self._transport.is_active():
                return self._transport
            if self._failure is not None and time.monotonic() - self._failed_at < _FAILURE_HOLDS:
                raise self._failure
            via = before()
            try:
                self._transport = self._login.run(via)
            except Failure as failure:
                self._failure = failure.at_gateway(self._name)
                self._failed_at = time.monotonic()
                raise self._failure from None
            return self._transport

    def close(self) -> None:
        self._login.cancel()
        if self._transport is not None:
            self._transport.close()
