"""Whether anything answers at an address: one attempt after the other to connect, in a supervisor's loop."""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import socket
from collections.abc import Mapping
from typing import Any

EVERY = 5.0  # seconds between two attempts, and at most for each


def begin_connection(endpoint: Mapping[str, Any]) -> socket.socket:
    """A non-blocking socket that connects to an address, `{"addr", "port"}`.

    Raises OSError, ValueError and others, for an address that cannot be used.
    """
    family, kind, _, _, where = socket.getaddrinfo(
        endpoint["addr"],
        endpoint["port"],
        type=socket.SOCK_STREAM,
        flags=socket.AI_NUMERICHOST,  # no question to a name server, which could take long
    )[0]
    made = socket.socket(family, kind)
    made.setblocking(False)
    problem = made.connect_ex(where)
    if problem not in (0, errno.EINPROGRESS):
        made.close()
        raise OSError(problem, os.strerror(problem))
    return made


class Knock:
    """Connects to an address again and again, and closes the connection at once.

    It registers its socket with `selector`; the data of its key is a function of the time, monotonic seconds.
    """

    def __init__(self, selector: selectors.BaseSelector, endpoint: Mapping[str, Any], now: float) -> None:
        self.heard = now  # when it was last answered; at first, when the knocking began
        self._selector, self._endpoint = selector, endpoint
        self._socket: socket.socket | None = None
        self._next = now

    def tick(self, now: float) -> None:
        """Begin the next attempt when it is time."""
        if now < self._next:
            return
        self._next = now + EVERY
        self.close()
        with contextlib.suppress(Exception):  # an address that cannot be used ends this attempt only
            self._socket = begin_connection(self._endpoint)
            self._selector.register(self._socket, selectors.EVENT_WRITE, self._answered)

    def close(self) -> None:
        if self._socket is not None:
            with contextlib.suppress(KeyError, ValueError):  # it is not registered
                self._selector.unregister(self._socket)
            self._socket.close()
            self._socket = None

    def _answered(self, now: float) -> None:
        if self._socket is not None and not self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self.heard = now
        self.close()
