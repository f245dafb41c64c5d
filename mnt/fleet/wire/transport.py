"""Paramiko's transport, with separate phases, a check that the peer is alive, and exit signals."""

from __future__ import annotations

import contextlib
import logging
import signal
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import paramiko
from paramiko import common
from paramiko.packet import Packetizer

from mnt.fleet.wire.timeouts import Timeouts

# Paramiko logs each failure with a traceback, which Python prints if there is no handler.
logging.getLogger("paramiko").addHandler(logging.NullHandler())

_UNANSWERED = 3  # questions without an answer, after which the host counts as lost
# A host that ignores what we allow it must not fill our memory; paramiko checks none of these.
_PACKET_LIMIT = 1 << 18  # bytes of an SSH packet; OpenSSH's own limit (PACKET_MAX_SIZE)
_BANNER_LIMIT = 1 << 16  # bytes of all lines before the key exchange
_WINDOW = 1 << 19  # bytes of a channel's output that are not yet read
_HEADER = 8  # bytes before the data of a channel, at most
_STALL = (
    14.0  # seconds without progress, of writing or of a new key exchange; as for a dead host (timeouts.py)
)
_NO_TURN = 30.0  # seconds in which nobody could send a whole message
_QUESTIONS, _QUESTIONS_SECONDS = 1000, 10.0  # of the host, which we answer
_WANT_ANSWERS = (common.MSG_GLOBAL_REQUEST, common.MSG_CHANNEL_OPEN, common.MSG_CHANNEL_REQUEST)
_LOOK_EVERY = 1.0  # seconds between looks whether it was closed; paramiko looks ten times a second


class _Watched:
    """A socket, or a channel through a gateway, for a packetizer.

    Args:
        look: called before each piece is received; what it raises ends the connection.
        on_stall: called when the peer has taken nothing for `_STALL`.
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
        except (TimeoutError, BlockingIOError):  # its own timeout, at most _LOOK_EVERY: paramiko tries again
            now = time.monotonic()
            self._stalled_at = self._stalled_at or now
            if now - self._stalled_at > _STALL:
                self._on_stall()
            raise
        self._stalled_at = None
        return sent

    def close(self) -> None:
        self._sock.close()


class _Turn:
    """A reentrant lock of those who send. If nobody sends anything meanwhile, waiting for it has an end."""

    def __init__(self, packetizer: _Packetizer) -> None:
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


class _ClearToSend(threading.Event):
    """Replaces `Transport.clear_to_send`, to know since when a key exchange lasts."""

    since: float | None = None  # on time.monotonic()'s clock

    def clear(self) -> None:
        self.since = self.since or time.monotonic()
        super().clear()

    def set(self) -> None:
        self.since = None
        super().set()


class _Packetizer(Packetizer):
    unanswered = 0  # questions since the last sign of life
    banner_size = 0  # bytes
    sent = 0  # messages
    lost: paramiko.SSHException | None = None  # why the connection was given up

    def __init__(self, sock: Any) -> None:
        super().__init__(_Watched(sock, lambda: self.look(), self._on_stall))  # type: ignore[arg-type]
        self.look: Callable[[], None] = lambda: None
        self._asked_at, self._asked = 0.0, 0
        # Paramiko's own has no limit. The name is that of `__write_lock` in its class Packetizer.
        self._Packetizer__write_lock = _Turn(self)

    def lose(self, why: str) -> paramiko.SSHException:
        """Give the connection up; returns the error."""
        self.lost = self.lost or paramiko.SSHException(why)
        self.close()
        return self.lost

    def _on_stall(self) -> None:
        self.lose(f"no sign of life: the host has read nothing for {_STALL:g} s")

    def read_all(self, n: int, check_rekey: bool = False) -> bytes:
        if n > _PACKET_LIMIT:
            raise paramiko.SSHException(f"a packet of {n} bytes; at most {_PACKET_LIMIT} are allowed")
        return super().read_all(n, check_rekey)

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
            self._count_question()
        return message

    def _count_question(self) -> None:
        now = time.monotonic()
        if now - self._asked_at > _QUESTIONS_SECONDS:
            self._asked_at, self._asked = now, 0
        self._asked += 1
        if self._asked > _QUESTIONS:
            raise paramiko.SSHException(f"the host asks more than {_QUESTIONS} questions at once")

    def close(self) -> None:
        # Closing a channel sends a message to the gateway, which may be gone: this must not end the thread.
        with contextlib.suppress(EOFError, OSError, paramiko.SSHException):
            super().close()


class HostTransport(paramiko.Transport):
    """An SSH transport over a connected socket, or a channel through a gateway.

    Paramiko does banner, key exchange and everything later in one thread; `banner_read` is set after the
    first. Paramiko's keepalive does not ask for an answer, so it cannot notice a dead peer: this one does.
    """

    packetizer: _Packetizer
    clear_to_send: _ClearToSend

    def __init__(self, sock: socket.socket | paramiko.Channel, timeouts: Timeouts) -> None:
        super().__init__(sock, default_window_size=_WINDOW, packetizer_class=_Packetizer)
        self.banner_read = threading.Event()
        self.banner_error: BaseException | None = None
        self._keepalive = timeouts.keepalive
        self.banner_timeout = timeouts.banner
        self.handshake_timeout = timeouts.key_exchange
        self.auth_timeout = timeouts.authentication
        self.channel_timeout = timeouts.channel
        self.clear_to_send = _ClearToSend()
        self.clear_to_send_lock: Any = _Turn(self.packetizer)
        self.clear_to_send_timeout = _STALL
        # One pass over the data instead of a cipher and an HMAC: twice the throughput.
        options = self.get_security_options()
        options.ciphers = sorted(options.ciphers, key=lambda name: "-gcm@" not in name)

    def run(self) -> None:
        try:
            super().run()
        finally:
            self.banner_read.set()  # also if the connection was lost before our banner was sent

    def _check_banner(self) -> None:
        try:
            super()._check_banner()  # type: ignore[misc]  # missing in the stubs
        except paramiko.SSHException as error:
            self.banner_error = error.__context__ or error
            raise
        self.banner_read.set()

    def watch_life(self) -> None:
        """From now on, ask for a sign of life whenever the connection is silent."""
        self.packetizer.set_keepalive(self._keepalive, self._ask_for_life)
        self.packetizer.look = self._check_exchange
        self.sock.settimeout(_LOOK_EVERY)

    def is_active(self) -> bool:
        """Also False as soon as another thread has given it up."""
        return self.packetizer.lost is None and super().is_active()

    def _check_exchange(self) -> None:
        """A peer must finish a new key exchange: nothing else can be sent meanwhile."""
        since = self.clear_to_send.since
        if since is not None and time.monotonic() - since > _STALL:
            raise paramiko.SSHException(f"no sign of life: a new key exchange takes more than {_STALL:g} s")

    def _ask_for_life(self) -> None:
        # In the transport's own thread: an exception here ends the connection.
        if self.packetizer.unanswered >= _UNANSWERED:
            silent = self._keepalive * (_UNANSWERED + 1)
            raise paramiko.SSHException(f"no sign of life for {silent:g} s")
        self.packetizer.unanswered += 1
        if not self.clear_to_send_lock.acquire(blocking=False):
            return  # another thread is sending, which is as good; waiting for it would stop this check
        try:
            if self.clear_to_send.is_set():  # not during a new key exchange
                self._send_message(_question())  # type: ignore[attr-defined]
        finally:
            self.clear_to_send_lock.release()

    def close(self) -> None:
        if isinstance(self.sock, socket.socket):
            with contextlib.suppress(
                OSError
            ):  # first, so that no thread still writes or waits for those who do
                self.sock.shutdown(socket.SHUT_RDWR)
        super().close()
        # Ends the handshake timer, a thread that would keep the process from ending.
        self.packetizer.complete_handshake()


def _question() -> paramiko.Message:
    """A request that every server answers, if only with a refusal (RFC 4254, 4)."""
    question = paramiko.Message()
    question.add_byte(common.cMSG_GLOBAL_REQUEST)
    question.add_string("keepalive@openssh.com")
    question.add_boolean(True)
    return question


def _on_channel_request(channel: Any, message: paramiko.Message) -> None:
    """Read `exit-signal` (RFC 4254, 6.10), which paramiko ignores: a killed command would have no status."""
    start = message.packet.tell()
    if message.get_text() == "exit-signal":
        message.get_boolean()
        number = signal.Signals.__members__.get("SIG" + message.get_text())
        channel.exit_status = 128 + (0 if number is None else number.value)
        channel.status_event.set()
        return
    message.packet.seek(start)
    channel._handle_request(message)


def _on_data(channel: Any, message: paramiko.Message) -> None:
    channel._feed(_within_window(channel, message))


def _on_extended_data(channel: Any, message: paramiko.Message) -> None:
    channel._feed_extended(_within_window(channel, message))


def _within_window(channel: Any, message: paramiko.Message) -> paramiko.Message:
    """The message, if its data fits the window (RFC 4254, 5.2). Otherwise the connection ends."""
    unread = len(channel.in_buffer) + len(channel.in_stderr_buffer)
    if unread + len(message.get_remainder()) > channel.in_window_size + _HEADER:
        raise paramiko.SSHException("the host sends more than it is allowed to")
    return message


HostTransport._channel_handler_table = {  # type: ignore[attr-defined]
    **paramiko.Transport._channel_handler_table,  # type: ignore[attr-defined]
    common.MSG_CHANNEL_DATA: _on_data,
    common.MSG_CHANNEL_EXTENDED_DATA: _on_extended_data,
    common.MSG_CHANNEL_REQUEST: _on_channel_request,
}
