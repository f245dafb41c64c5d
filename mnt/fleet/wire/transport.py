"""Paramiko's transport, with separate phases, a check that the peer is alive, and exit signals."""

from __future__ import annotations

import contextlib
import logging
import signal
import socket
import threading
import time
from typing import Any

import paramiko
from paramiko import common
from paramiko.ssh_exception import PartialAuthentication

from mnt.fleet.wire.algorithms import Lack, lacking
from mnt.fleet.wire.packets import STALL, ClearToSend, GuardedPacketizer, Turn
from mnt.fleet.wire.timeouts import Timeouts

# Paramiko logs each failure with a traceback, which Python prints if there is no handler.
logging.getLogger("paramiko").addHandler(logging.NullHandler())

_UNANSWERED = 3  # questions without an answer, after which the host counts as lost
# A host must not fill our memory with output that nobody reads; paramiko does not check that it obeys.
_WINDOW = 1 << 19  # bytes of a channel's output that are not yet read
_HEADER = 8  # bytes before the data of a channel, at most
# RFC 4252, 4256 and 4462. A server may name any text as a method.
_METHODS = {"publickey", "password", "hostbased", "keyboard-interactive", "gssapi-with-mic", "gssapi-keyex"}
_LOOK_EVERY = 1.0  # seconds between looks whether it was closed; paramiko looks ten times a second


class HostTransport(paramiko.Transport):
    """An SSH transport over a connected socket, or a channel through a gateway.

    Paramiko does banner, key exchange and everything later in one thread; `banner_read` is set after the
    first. Paramiko's keepalive does not ask for an answer, so it cannot notice a dead peer: this one does.
    """

    packetizer: GuardedPacketizer
    clear_to_send: ClearToSend

    def __init__(self, sock: socket.socket | paramiko.Channel, timeouts: Timeouts) -> None:
        super().__init__(sock, default_window_size=_WINDOW, packetizer_class=GuardedPacketizer)
        self.banner_read = threading.Event()
        self.banner_error: BaseException | None = None
        self._offered: dict[str, list[str]] = {}  # the lists of the server's last KEXINIT
        self._keepalive = timeouts.keepalive
        self.banner_timeout = timeouts.banner
        self.handshake_timeout = timeouts.key_exchange
        self.auth_timeout = timeouts.authentication
        self.channel_timeout = timeouts.channel
        self.clear_to_send = ClearToSend()
        self.clear_to_send_lock: Any = Turn(self.packetizer)
        self.clear_to_send_timeout = STALL
        # One pass over the data instead of a cipher and an HMAC: twice the throughput.
        options = self.get_security_options()
        options.ciphers = sorted(options.ciphers, key=lambda name: "-gcm@" not in name)
        # No other thread runs while Python raises a large number to a power. A server chooses the group of a
        # group exchange: 1.2 s with 8,192 bits, each time, in which the logins to honest hosts time out.
        quick = (name for name in options.kex if "group-exchange" not in name)
        options.kex = sorted(quick, key=lambda name: "-group16-" in name)

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

    def _negotiate_keys(self, message: paramiko.Message) -> None:
        if self.local_kex_init is None:  # else we have begun it
            self.packetizer.count_exchange()
        super()._negotiate_keys(message)  # type: ignore[misc]

    def _parse_kex_init(self, message: paramiko.Message) -> None:
        start = message.packet.tell()
        self._offered = self._really_parse_kex_init(message)  # type: ignore[attr-defined]
        message.packet.seek(start)
        super()._parse_kex_init(message)  # type: ignore[misc]

    def get_exception(self) -> Exception | None:
        error = super().get_exception()
        if isinstance(error, paramiko.BadAuthenticationType | PartialAuthentication):
            named = error.allowed_types
            methods = (name if name in _METHODS else "an unknown method" for name in named)
            error.allowed_types = list(dict.fromkeys(methods))
        return error

    def lacks(self) -> list[Lack]:
        """The kinds of algorithms of which the server has offered none that we have."""
        have = self.get_security_options()
        return lacking(self._offered, (have.kex, have.key_types, have.ciphers, have.digests))

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
        if since is not None and time.monotonic() - since > STALL:
            raise paramiko.SSHException(f"no sign of life: a new key exchange takes more than {STALL:g} s")

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
            # First, so that no thread still writes, or waits for those who do.
            with contextlib.suppress(OSError):
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
