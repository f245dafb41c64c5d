"""SSH servers that stop reading, never end a key exchange, or ask without end: no command waits for them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import paramiko
import pytest
from test_transport_limits import connected
from waiting import PATIENCE, at_most

from mnt.errors import HostError
from mnt.fleet.wire.channel import RemoteCommand, open_session
from mnt.fleet.wire.transport import HostTransport

pytestmark = pytest.mark.one_python

LOST = 14.0  # seconds, docs/architecture.md
MORE = 8.0  # seconds for looking, and a busy machine


def deaf(channel: Any) -> Any:
    """The server's transport, which reads no more."""
    transport = channel.get_transport()
    transport.packetizer.read_message = lambda: time.sleep(PATIENCE)  # the attack itself
    return transport


def question(kind: bytes = paramiko.common.cMSG_GLOBAL_REQUEST) -> paramiko.Message:
    message = paramiko.Message()
    message.add_byte(kind)
    message.add_string("keepalive@openssh.com")
    message.add_boolean(True)
    return message


def asks(channel: Any) -> None:
    """A flood of questions, whose answers nobody reads."""
    transport = deaf(channel)
    while True:
        transport._send_message(question())


def asks_for_channels(channel: Any) -> None:
    transport = deaf(channel)  # paramiko's server would look for the channels that were refused
    while True:
        message = question(paramiko.common.cMSG_CHANNEL_OPEN)
        for _ in range(3):
            message.add_int(1)
        transport._send_message(message)


def asks_on_the_channel(channel: Any) -> None:
    transport = deaf(channel)  # paramiko's server would close the channel at the first answer
    while True:
        message = paramiko.Message()
        message.add_byte(paramiko.common.cMSG_CHANNEL_REQUEST)
        message.add_int(channel.remote_chanid)
        message.add_string("keepalive@openssh.com")
        message.add_boolean(True)
        transport._send_message(message)


def never_ends_the_exchange(channel: Any) -> None:
    """A key exchange begins, and signs of life go on."""
    transport = deaf(channel)
    transport._send_kex_init()
    while True:
        message = paramiko.Message()
        message.add_byte(paramiko.common.cMSG_IGNORE)
        message.add_string("x")
        transport._send_message(message)
        time.sleep(0.5)  # the attack itself


def reads_no_more(channel: Any) -> None:
    """It does show signs of life."""
    transport = deaf(channel)
    while True:
        message = paramiko.Message()
        message.add_byte(paramiko.common.cMSG_IGNORE)
        message.add_string("x")
        transport._send_message(message)
        time.sleep(0.5)  # the attack itself


@contextmanager
def use(transport: HostTransport) -> Iterator[None]:
    with closing(RemoteCommand("node1", open_session(transport, PATIENCE), "x")) as command:
        command.write(b"x" * 65_536 for _ in range(1000))
        while command.read(PATIENCE):
            pass
    yield


@pytest.mark.parametrize(
    "deed", [asks, asks_for_channels, asks_on_the_channel, never_ends_the_exchange, reads_no_more]
)
def test_the_connection_is_lost_in_time(deed: Callable[[Any], None]) -> None:
    """Standard input has much to write meanwhile; closing waits for nobody."""
    with connected(deed) as transport:
        transport.watch_life()
        expected = pytest.raises(HostError, match=r"connection lost: (no sign of life|the host asks)")
        with at_most(LOST + MORE), expected, use(transport):
            pass
        with at_most(MORE):
            transport.close()
