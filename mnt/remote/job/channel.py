"""Messages between the supervisors of one job: signed lines of JSON over TCP.

A line is `<HMAC-SHA256> <JSON>`. The key is derived from the job's secret and a nonce of each side. Direction
and line number are signed too, so that nothing can be forged, replayed or reordered. peers.py lists the
messages.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
import socket
from dataclasses import dataclass
from typing import Any

from mnt.remote.common.files import parse_json, strerror

LINE_BYTES = 64 * 1024
GREETING_BYTES = 1024  # of a line of a peer that is not authenticated
_NONCE = re.compile("[0-9a-f]{32}")
_KINDS = ("finished", "failed", "stopped", "ended", "lost")


@dataclass(frozen=True)
class Event:
    """The end of one node's part of the job."""

    host: str
    kind: str  # finished | failed | stopped (by request) | ended (because another node ended) | lost
    failure: dict[str, Any] | None = None
    message: str | None = None  # of "lost": over which address, and for how long

    @property
    def ends_the_job(self) -> bool:
        return self.kind in ("failed", "stopped", "lost")

    @staticmethod
    def parse(document: Any) -> Event:
        """Raises Broken."""
        if not isinstance(document, dict):
            raise Broken("not an event")
        host, kind, failure, message = map(document.get, ("host", "kind", "failure", "message"))
        if not isinstance(host, str) or kind not in _KINDS:
            raise Broken("not an event")
        if not isinstance(failure, (dict, type(None))) or not isinstance(message, (str, type(None))):
            raise Broken("not an event")
        return Event(host, str(kind), failure, message)


class Broken(Exception):
    """The connection is closed, or the other side violates the protocol."""


class Channel:
    """Signed lines of JSON over a non-blocking TCP connection."""

    def __init__(self, connection: socket.socket, *, hub: bool, address: str = "") -> None:
        connection.setblocking(False)
        self.socket = connection
        self.address = address  # of the other end
        self.peer = ""  # the host at the other end, once authenticated
        self.nonce = os.urandom(16).hex()
        self._mine, self._theirs = (b"hub", b"spoke") if hub else (b"spoke", b"hub")
        self._key = b""
        self._sent = self._received = 0
        self._incoming = self._outgoing = b""

    @property
    def agreed(self) -> bool:
        return bool(self._key)

    def agree(self, secret: str, job: str, hub_nonce: Any, spoke_nonce: Any) -> None:
        """Sign lines from now on, with the key of this connection. Raises Broken for a bad nonce."""
        for nonce in (hub_nonce, spoke_nonce):
            if not isinstance(nonce, str) or not _NONCE.fullmatch(nonce):
                raise Broken("a bad nonce")
        text = "\0".join((job, hub_nonce, spoke_nonce)).encode("utf-8", "surrogateescape")
        self._key = hmac.new(secret.encode("utf-8", "surrogateescape"), text, hashlib.sha256).digest()

    def send(self, message: dict[str, Any]) -> None:
        """Raises Broken."""
        payload = json.dumps(message).encode()
        self.send_line(self._sign(self._mine, self._sent, payload) + b" " + payload)
        self._sent += 1

    def send_line(self, line: bytes) -> None:
        """Raises Broken, also if the peer does not read."""
        self._outgoing += line + b"\n"
        if len(self._outgoing) > 4 * LINE_BYTES:
            raise Broken("it does not read")
        self.flush()

    def flush(self) -> None:
        """Raises Broken."""
        try:
            while self._outgoing:
                self._outgoing = self._outgoing[self.socket.send(self._outgoing) :]
        except BlockingIOError:
            pass
        except OSError as error:
            raise Broken(strerror(error)) from error

    def lines(self) -> list[bytes]:
        """The complete lines that have arrived. Raises Broken at the end of the stream."""
        try:
            data = self.socket.recv(LINE_BYTES)
        except BlockingIOError:
            return []
        except OSError as error:
            raise Broken(strerror(error)) from error
        if not data:
            raise Broken("connection closed")
        *lines, self._incoming = (self._incoming + data).split(b"\n")
        if max(map(len, (*lines, self._incoming))) > (LINE_BYTES if self.agreed else GREETING_BYTES):
            raise Broken("a line that is too long")
        return lines

    def open(self, line: bytes) -> dict[str, Any]:
        """The message in a signed line. Raises Broken."""
        signature, _, payload = line.partition(b" ")
        if not hmac.compare_digest(signature, self._sign(self._theirs, self._received, payload)):
            raise Broken("a signature of another job")
        self._received += 1
        return parse_line(payload)

    def _sign(self, sender: bytes, number: int, payload: bytes) -> bytes:
        text = b"%s %d %s" % (sender, number, payload)
        return hmac.new(self._key, text, hashlib.sha256).hexdigest().encode()


def parse_line(payload: bytes) -> dict[str, Any]:
    """Raises Broken unless it is a JSON object."""
    try:
        message = parse_json(payload)
    except ValueError as error:
        raise Broken("not JSON") from error
    if not isinstance(message, dict):
        raise Broken("not an object")
    return message
