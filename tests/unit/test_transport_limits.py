"""SSH servers that ignore the limits of the protocol: the connection ends; the head's memory stays small."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import paramiko
import pytest
from liars import peak_memory
from paramiko.kex_group14 import KexGroup14SHA256
from rogue_sshd import KEY, RogueServer
from waiting import PATIENCE, wait_for

from mnt.errors import HostError
from mnt.fleet.login.destination import resolve
from mnt.fleet.login.sshconfig import SshConfig
from mnt.fleet.shell import over_sftp
from mnt.fleet.startup import Found
from mnt.fleet.wire.channel import RemoteCommand, open_session
from mnt.fleet.wire.timeouts import Timeouts
from mnt.fleet.wire.transport import HostTransport
from mnt.inventory.model import Host

MIB = 1 << 20
GROUP_EXCHANGE = ("diffie-hellman-group-exchange-sha256",)


@pytest.fixture(autouse=True)
def new_peak() -> None:
    """From now on, `peak_memory` is that of the test (proc(5), clear_refs)."""
    Path("/proc/self/clear_refs").write_text("5")


@contextmanager
def served(behaviour: Callable[[paramiko.Transport], RogueServer]) -> Iterator[HostTransport]:
    """A transport to a server of that behaviour, not yet started."""
    ours, theirs = socket.socketpair()
    server = paramiko.Transport(theirs)
    server.add_server_key(KEY)
    server.start_server(event=threading.Event(), server=behaviour(server))
    transport = HostTransport(ours, Timeouts())
    try:
        yield transport
    finally:
        transport.close()
        server.close()


@contextmanager
def connected(deed: Callable[[Any], None]) -> Iterator[HostTransport]:
    """A connection to a server that does this when a command starts."""
    with served(lambda server: RogueServer(deed)) as transport:
        transport.start_client(timeout=PATIENCE)
        transport.auth_publickey("me", KEY)
        yield transport


def flood(channel: Any, *, stderr: bool = False, most: int = 64 * MIB) -> None:
    """Send without regard to the window."""
    message_type = paramiko.common.cMSG_CHANNEL_EXTENDED_DATA if stderr else paramiko.common.cMSG_CHANNEL_DATA
    for _ in range(most // 32_000):
        message = paramiko.Message()
        message.add_byte(message_type)
        message.add_int(channel.remote_chanid)
        if stderr:
            message.add_int(1)
        message.add_string(b"x" * 32_000)
        channel.transport._send_user_message(message)


@pytest.mark.parametrize("stderr", [False, True])
def test_a_host_that_sends_more_than_its_window(stderr: bool) -> None:
    """Nobody reads meanwhile: a slow terminal."""
    with connected(lambda channel: flood(channel, stderr=stderr)) as transport:
        before = peak_memory()
        session = open_session(transport, PATIENCE)
        with suppress(paramiko.SSHException):  # the flood may begin before the answer to the request
            session.exec_command("x")
        wait_for(lambda: not transport.is_active())
        assert "more than it is allowed" in str(transport.saved_exception)
        assert len(session.in_buffer) + len(session.in_stderr_buffer) <= 1 << 19
        assert peak_memory() - before < 30_000


def test_a_command_says_what_happened() -> None:
    with connected(flood) as transport:
        session = open_session(transport, PATIENCE)
        # The flood may begin before the answer to the request, so that also raises.
        expected = pytest.raises(HostError, match=r"^node1: channel: .*more than it is allowed")
        with expected, closing(RemoteCommand("node1", session, "x")) as command:
            wait_for(lambda: not transport.is_active())
            list(iter(lambda: command.read(PATIENCE), b""))


def test_a_host_that_keeps_to_its_window_is_read_to_the_end() -> None:
    def deed(channel: paramiko.Channel) -> None:
        for _ in range(200):
            channel.sendall(b"x" * 32_000)
            channel.sendall_stderr(b"e" * 32_000)
        channel.send_exit_status(7)
        channel.close()

    errors = 0

    def count(data: bytes) -> None:
        nonlocal errors
        errors += len(data)

    with connected(deed) as transport:
        command = RemoteCommand("node1", open_session(transport, PATIENCE), "x", on_stderr=count)
        with closing(command):
            size = 0
            while data := command.read(PATIENCE):
                size += len(data)
            assert (size, errors, command.exit_code) == (6_400_000, 6_400_000, 7)


@contextmanager
def raw_server(talk: Callable[[socket.socket], None]) -> Iterator[HostTransport]:
    """A transport to a server that is no SSH server."""
    ours, theirs = socket.socketpair()

    def serve() -> None:
        with suppress(OSError):
            talk(theirs)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    transport = HostTransport(ours, Timeouts())
    try:
        yield transport
    finally:
        transport.close()
        theirs.close()
        thread.join(PATIENCE)


def pour(sock: socket.socket, most: int = 64 * MIB) -> None:
    for _ in range(most // 65_536):
        sock.sendall(b"x" * 65_536)


@pytest.mark.parametrize(
    ("opening", "message"),
    [
        (b"SSH-2.0-x\r\n" + struct.pack(">I", 0x7FFFFFFC) + b"\0" * 4, "a packet of"),
        (b"SSH-2.0-x\r\n" + struct.pack(">I", (1 << 18) + 1004) + b"\0" * 4, "a packet of"),
        (b"", "no SSH banner in the first 65536 bytes"),
        (b"hello\r\n" * 3, "no SSH banner in the first 65536 bytes"),
    ],
)
def test_a_server_that_never_ends_what_it_announces(opening: bytes, message: str) -> None:
    def talk(sock: socket.socket) -> None:
        sock.sendall(opening)
        pour(sock)

    before = peak_memory()
    with raw_server(talk) as transport:
        with pytest.raises(paramiko.SSHException) as ended:
            transport.start_client(timeout=PATIENCE)
        assert message in str(transport.banner_error or ended.value)
    assert peak_memory() - before < 30_000


MANY = 0xFFFFFFFF  # entries that a message announces and does not have


def announced(kind: bytes, *texts: str) -> paramiko.Message:
    message = paramiko.Message()
    message.add_byte(kind)
    for text in texts:
        message.add_string(text)
    message.add_int(MANY)
    return message


def test_a_message_that_announces_more_than_it_has() -> None:
    """After the login. Paramiko's thread must end too."""
    before = peak_memory()
    extensions = announced(b"\x07")  # MSG_EXT_INFO
    with connected(lambda channel: channel.get_transport()._send_message(extensions)) as transport:
        session = open_session(transport, PATIENCE)
        with suppress(paramiko.SSHException):  # the message may come before the answer to the request
            session.exec_command("x")
        wait_for(lambda: not transport.is_alive())
    assert peak_memory() - before < 30_000


class _Asking(RogueServer):
    """Wants a password, by a dialogue with very many questions."""

    def __init__(self, transport: Any) -> None:
        super().__init__(lambda channel: None)
        self._transport = transport

    def get_allowed_auths(self, username: str) -> str:
        return "publickey,keyboard-interactive"

    def check_auth_interactive(self, username: str, submethods: str) -> int:
        kind = paramiko.common.cMSG_USERAUTH_INFO_REQUEST
        self._transport._send_message(announced(kind, "x", "y", ""))
        return paramiko.AUTH_FAILED


def test_a_dialogue_with_more_questions_than_it_has() -> None:
    before = peak_memory()
    with served(_Asking) as transport:
        transport.start_client(timeout=PATIENCE)
        with pytest.raises(paramiko.SSHException):
            transport.auth_password("me", "secret")
        wait_for(lambda: not transport.is_alive())
    assert peak_memory() - before < 30_000


GROUP = KexGroup14SHA256.P


@pytest.mark.parametrize(("prime", "ends"), [(GROUP, None), (-GROUP, "negative")], ids=["one", "negative"])
def test_a_prime_that_is_none(prime: int, ends: str | None) -> None:
    """Before the host has proved its key: anybody on the way could send it."""

    def with_prime(transport: Any) -> RogueServer:
        pack = SimpleNamespace(get_modulus=lambda *bits: (2, prime))
        transport._modulus_pack = pack
        transport._preferred_kex = GROUP_EXCHANGE
        return RogueServer(lambda channel: None)

    with served(with_prime) as transport:
        transport.get_security_options().kex = GROUP_EXCHANGE
        if ends is None:
            transport.start_client(timeout=PATIENCE)
            return
        with pytest.raises(paramiko.SSHException, match=ends):
            transport.start_client(timeout=PATIENCE)
        wait_for(lambda: not transport.is_alive())


def test_no_group_that_the_server_chooses() -> None:
    """With 8,192 bits, 16 such servers kept the logins to all others from ending in time."""
    with served(lambda transport: RogueServer(lambda channel: None)) as transport:
        kex = list(transport.get_security_options().kex)
    assert kex
    assert not [name for name in kex if "group-exchange" in name]
    assert kex.index("diffie-hellman-group16-sha512") == len(kex) - 1


def exchange_keys(channel: Any, times: int, after: int) -> None:
    """Begin new key exchanges, each after so many MiB, and then do what a command does."""
    channel.recv(1)  # the answer to the request has been sent
    for _ in range(times):
        for _ in range(after):
            channel.sendall(b"x" * MIB)
        channel.transport.renegotiate_keys()
    channel.send_exit_status(0)
    channel.close()


@pytest.mark.parametrize(("times", "after", "lost"), [(6, 1, True), (5, 1, False), (6, 33, False)])
def test_key_exchanges_that_the_host_begins(times: int, after: int, lost: bool) -> None:
    """Each takes up to 0.3 s of the head's processor, in which no other thread runs."""
    with connected(lambda channel: exchange_keys(channel, times, after)) as transport:
        too_many = pytest.raises(HostError, match="lost: the host begins more than 5 key exchanges in 60 s")
        with closing(RemoteCommand("node1", open_session(transport, PATIENCE), "x")) as command:
            command.write([b"x"])
            with too_many if lost else nullcontext():
                while command.read(PATIENCE):
                    pass
        assert transport.is_active() != lost


def test_key_exchanges_that_we_begin() -> None:
    """As paramiko does after much data: they are not the host's."""
    with connected(lambda channel: None) as transport:
        for _ in range(12):
            transport.renegotiate_keys()
        assert transport.is_active()


class _Connection:
    """As much of a HostConnection as `over_sftp` needs."""

    def __init__(self, transport: HostTransport) -> None:
        self._transport = transport
        self.timeouts = Timeouts(channel=1.0)
        self.destination = resolve(Host("liar", "liar"), SshConfig(None))

    def open_session(self) -> paramiko.Channel:
        return open_session(self._transport, PATIENCE)


def sftp_of_16_mib(channel: paramiko.Channel) -> None:
    channel.sendall(struct.pack(">I", (1 << 24) - 1) + b"\x02")
    for _ in range(600):
        channel.sendall(b"x" * 32_000)


def sftp_that_dribbles(channel: paramiko.Channel) -> None:
    channel.sendall(struct.pack(">I", 200_000))
    for _ in range(200):
        channel.sendall(b"x")
        time.sleep(0.1)  # the attack itself: never silent for a second, never done


def sftp_that_is_text(channel: paramiko.Channel) -> None:
    channel.sendall(b"This account runs backups only.\n" * 10)
    channel.close()


@pytest.mark.parametrize("deed", [sftp_of_16_mib, sftp_that_dribbles, sftp_that_is_text])
def test_the_search_for_the_login_shell_has_limits(deed: Callable[[Any], None]) -> None:
    before, start = peak_memory(), time.monotonic()
    with connected(deed) as transport:
        assert over_sftp(_Connection(transport)) == Found()  # type: ignore[arg-type]
    assert time.monotonic() - start < 10
    assert peak_memory() - before < 30_000
