"""Limits on the messages of a peer, and on the patience with it: paramiko has none of them.

A host that ignores what we allow it must not fill our memory, and one that stops reading must not stop us.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any

import paramiko
from paramiko import common
from paramiko.packet import Packetizer

# Seconds without progress, of writing or of a new key exchange; as for a dead host (timeouts.py).
STALL = 14.0
_NO_TURN = 30.0  # seconds in which nobody could send a whole message
_PACKET_LIMIT = 1 << 18  # bytes of an SSH packet; OpenSSH's own limit (PACKET_MAX_SIZE)
_BANNER_LIMIT = 1 << 16  # bytes of all lines before the key exchange
_QUESTIONS, _QUESTIONS_SECONDS = 1000, 10.0  # of the host, which we answer
# New key exchanges that the host begins: sshd does so after 1 GB or more, and after a time only if RekeyLimit
# has one (sshd_config(5)). One that comes after much data does not count: it costs less than the data.
_EXCHANGES, _EXCHANGES_SECONDS = 5, 60.0
_MUCH = 1 << 25  # bytes in both directions, since the last exchange that the host began
_WANT_ANSWERS = (common.MSG_GLOBAL_REQUEST, common.MSG_CHANNEL_OPEN, common.MSG_CHANNEL_REQUEST)


class _Allowance:
    """At most so many deeds of the host in a time, in seconds."""

    def __init__(self, most: int, seconds: float, excess: str) -> None:
        self._most, self._seconds, self._excess = most, seconds, excess
        self._began, self._count = 0.0, 0

    def take(self) -> None:
        """Count one. Raises SSHException with `excess` if it is too many."""
        now = time.monotonic()
        if now - self._began > self._seconds:
            self._began, self._count = now, 0
        self._count += 1
        if self._count > self._most:
            raise paramiko.SSHException(self._excess)


class CheckedMessage(paramiko.Message):
    """A message of a host, of which no more is read than it has.

    Paramiko's own goes on with zeros behind the end. So if a host announces 2**32 - 1 entries, paramiko reads
    so many. It also takes a negative number for the prime of a key exchange, and then searches without end.
    """

    def get_bytes(self, n: int) -> bytes:
        """Raises SSHException if the message has fewer bytes left."""
        data: bytes = self.packet.read(n)
        if len(data) < n:
            raise paramiko.SSHException(f"a message of {len(self.asbytes())} bytes is too short")
        return data

    def get_mpint(self) -> int:
        """Raises SSHException for a negative number, which SSH never sends (RFC 4253, 6.6 and 8)."""
        number = super().get_mpint()
        if number < 0:
            raise paramiko.SSHException("a negative number in a key exchange")
        return number


class _Watched:
    """A socket, or a channel through a gateway, for a packetizer.

    Args:
        look: called before each piece is received; what it raises ends the connection.
        on_stall: called when the peer has taken nothing for `STALL`.
    """

    def __init__(self, sock: Any, look: Callable[[], None], on_stall: Callable[[], None]) -> None:
        self._sock = sock
        self._look = look
        self._on_stall = on_stall
        self._stalled_at: float | None = None

    def recv(self, size: int) -> bytes:
        self._look()
        data: bytes = self._sock.recv(size)
        return data

    def send(self, data: bytes) -> int:
        try:
            sent: int = self._sock.send(data)
        except (TimeoutError, BlockingIOError):  # its own timeout, a second at most: paramiko tries again
            now = time.monotonic()
            self._stalled_at = self._stalled_at or now
            if now - self._stalled_at > STALL:
                self._on_stall()
            raise
        self._stalled_at = None
        return sent

    def close(self) -> None:
        self._sock.close()


class Turn:
    """A reentrant lock of those who send. If nobody sends anything meanwhile, waiting for it has an end."""

    def __init__(self, packetizer: GuardedPacketizer) -> None:
        self._packetizer = packetizer
        self._lock = threading.RLock()

    def acquire(self, blocking: bool = True) -> bool:
        """Raises SSHException, and ends the connection, after `_NO_TURN`."""
        if not blocking:
            return self._lock.acquire(blocking=False)
        while True:
            before = self._packetizer.sent
            if self._lock.acquire(timeout=_NO_TURN):
                return True
            if self._packetizer.sent == before:
                raise self._packetizer.lose(f"nothing could be sent for {_NO_TURN:g} s")

    def release(self) -> None:
        self._lock.release()


class ClearToSend(threading.Event):
    """Replaces `Transport.clear_to_send`, to know since when a key exchange lasts."""

    since: float | None = None  # on time.monotonic()'s clock

    def clear(self) -> None:
        self.since = self.since or time.monotonic()
        super().clear()

    def set(self) -> None:
        self.since = None
        super().set()


class GuardedPacketizer(Packetizer):
    """Paramiko's, for a host that may send anything, or stop reading."""

    unanswered = 0  # questions since the last sign of life
    banner_size = 0  # bytes
    sent = 0  # messages
    passed = 0  # bytes in both directions since the host last began a key exchange
    lost: paramiko.SSHException | None = None  # why the connection was given up

    def __init__(self, sock: Any) -> None:
        super().__init__(_Watched(sock, lambda: self.look(), self._on_stall))  # type: ignore[arg-type]
        self.look: Callable[[], None] = lambda: None
        self._questions = _Allowance(
            _QUESTIONS, _QUESTIONS_SECONDS, f"the host asks more than {_QUESTIONS} questions at once"
        )
        self._exchanges = _Allowance(
            _EXCHANGES,
            _EXCHANGES_SECONDS,
            f"the host begins more than {_EXCHANGES} key exchanges in {_EXCHANGES_SECONDS:g} s",
        )
        # Paramiko's own has no limit. The name is that of `__write_lock` in its class Packetizer.
        self._Packetizer__write_lock = Turn(self)

    def lose(self, why: str) -> paramiko.SSHException:
        """Give the connection up; returns the error."""
        self.lost = self.lost or paramiko.SSHException(why)
        self.close()
        return self.lost

    def _on_stall(self) -> None:
        self.lose(f"no sign of life: the host has read nothing for {STALL:g} s")

    def read_all(self, n: int, check_rekey: bool = False) -> bytes:
        if n > _PACKET_LIMIT:
            raise paramiko.SSHException(f"a packet of {n} bytes; at most {_PACKET_LIMIT} are allowed")
        data: bytes = super().read_all(n, check_rekey)
        self.passed += n
        return data

    def write_all(self, out: Any) -> None:
        try:
            super().write_all(out)
        except EOFError:
            if self.lost is not None:
                raise self.lost from None
            raise

    def send_message(self, data: paramiko.Message) -> None:
        super().send_message(data)
        self.sent += 1
        self.passed += len(data.asbytes())

    def _read_timeout(self, timeout: float) -> bytes:  # of the banner only
        data: bytes = super()._read_timeout(timeout)  # type: ignore[misc]  # missing in the stubs
        self.banner_size += len(data)
        if self.banner_size > _BANNER_LIMIT:
            raise paramiko.SSHException(f"no SSH banner in the first {_BANNER_LIMIT} bytes")
        return data

    def read_message(self) -> tuple[int, paramiko.Message]:
        try:
            message = super().read_message()
        except (EOFError, OSError):
            if self.lost is not None:
                raise self.lost from None
            raise
        self.unanswered = 0  # any message is a sign of life
        if message[0] in _WANT_ANSWERS:
            self._questions.take()
        checked = CheckedMessage(message[1].asbytes())
        checked.seqno = message[1].seqno
        return message[0], checked

    def count_exchange(self) -> None:
        """The host begins a key exchange. Raises SSHException if it does so too often for so little data."""
        much, self.passed = self.passed >= _MUCH, 0
        if not much:
            self._exchanges.take()

    def close(self) -> None:
        # Closing a channel sends a message to the gateway, which may be gone: this must not end the thread.
        with contextlib.suppress(EOFError, OSError, paramiko.SSHException):
            super().close()
