"""Messages between the supervisors of one job: signed lines of JSON over TCP.

A line is `<HMAC-SHA256> <JSON>`. The key is derived from the secret that node 0 and one other node share, and
a nonce of each side. Direction and line number are signed too, so that nothing can be forged, replayed or
reordered. peers.py lists the messages.

The other side may be a host that lies: what does not fit is `Broken`, and ends that connection only.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
import socket
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from mnt.remote.common.files import parse_json, strerror
from mnt.remote.job.entry import as_failure
from mnt.remote.job.failures import MESSAGE_CHARACTERS

LINE_BYTES = 64 * 1024
GREETING_BYTES = 1024  # of a line of a peer that is not authenticated
_NONCE = re.compile("[0-9a-f]{32}")
_KINDS = ("finished", "failed", "stopped", "ended", "lost")
_SIGNAL_CHARACTERS = 64


def node_secret(secret: str, host: str) -> str:
    """What node 0 and this other node of a job share, derived from the job's secret, which only node 0 has.

    So no node can speak as another one to node 0, or as node 0 to another one.
    """
    key, text = (each.encode("utf-8", "surrogateescape") for each in (secret, host))
    return hmac.new(key, text, hashlib.sha256).hexdigest()


@dataclass(frozen=True)
class Event:
    """The end of one node's part of the job."""

    host: str
    kind: str  # finished | failed | stopped (by request) | ended (because another node ended) | lost
    failure: dict[str, Any] | None = None  # mnt.remote.job.failures.Failure
    message: str | None = None  # of "lost": over which address, and for how long

    @property
    def ends_the_job(self) -> bool:
        return self.kind in ("failed", "stopped", "lost")

    def document(self) -> dict[str, Any]:
        """The event as JSON, of less than LINE_BYTES whatever its texts are."""
        message = None if self.message is None else _short(self.message)
        return {
            "host": self.host,
            "kind": self.kind,
            "failure": _short_failure(self.failure),
            "message": message,
        }

    @staticmethod
    def parse(document: Any, hosts: Collection[str]) -> Event:
        """An event of one of the `hosts`. What is too long of it is cut. Raises Broken."""
        if not isinstance(document, dict):
            raise Broken("not an event")
        host, kind, failure, message = map(document.get, ("host", "kind", "failure", "message"))
        if not isinstance(host, str) or host not in hosts:
            raise Broken("an event of a host that is not meant")
        if kind not in _KINDS or not isinstance(message, (str, type(None))):
            raise Broken("not an event")
        if (message is not None) != (kind == "lost") or (kind == "lost" and failure is not None):
            raise Broken("what does not belong to such an event")
        event = Event(host, str(kind), _short_failure(failure), message and _short(message))
        if (event.failure is None) != (failure is None):
            raise Broken("not a failure")
        try:
            json.dumps(event.document(), ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise Broken("a text that is no Unicode") from None
        return event


def _short_failure(failure: Any) -> dict[str, Any] | None:
    """A failure as it is told to other nodes: cut, and without the traceback. None if it is no failure."""
    fields = as_failure(failure)
    if fields is None:
        return None
    signal = fields["signal"]
    return {
        **fields,
        "message": _short(fields["message"]),
        "signal": signal and signal[:_SIGNAL_CHARACTERS],
        "traceback": None,
    }


def _short(text: str) -> str:
    return text[:MESSAGE_CHARACTERS]


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
        """Sign lines from now on, with the key of this connection. Raises Broken for a bad nonce.

        Args:
            secret: `node_secret` of the spoke.
        """
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
