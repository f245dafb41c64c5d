"""The link between the supervisors of a job: if one node's part ends, all end, even without the head.

Node 0 is the hub; the other nodes are spokes that connect to it over the training network. Both sides send a
beat every `BEAT` seconds. A node that is silent for `LOST_AFTER` seconds after it was heard is lost, which
also ends the job. A spoke that never reaches the hub may be behind a firewall: then the job goes on as long
as the rendezvous on node 0 can be reached; without it, no job can. A job without a rendezvous goes on.

    hub    {"mnt": 1, "nonce": N1}                       the only line without a signature
    spoke  {"host": H, "nonce": N2}
    both   {"beat": true}
    spoke  {"news": Event}       hub   {"ack": true}     how its part of the job ended
    hub    {"end": Event}        spoke {"ack": true}     end your part, and why

A line has exactly one of these. Each node decides only what it knows: a spoke tells its own end, the hub that
a spoke is lost, and a spoke, for itself, that the hub is. What the hub passes on about others is believed.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import socket
from collections.abc import Callable, Iterable
from typing import Any

from mnt.remote.common.files import strerror
from mnt.remote.common.forms import CONNECTED
from mnt.remote.job.channel import Broken, Channel, Event, node_secret, parse_line
from mnt.remote.job.knock import Knock, begin_connection

BEAT = 2.0
LOST_AFTER = 20.0
FIRST_CONTACT = 30.0  # a node that has not connected by then is assumed to be behind a firewall
ATTEMPT = 5.0  # to connect and be greeted
RETRY = 1.0
PATIENCE = 2 * LOST_AFTER  # with a node that is heard, but does not say that it knows the end
STRANGERS = 64  # connections that are not authenticated yet
OF_ONE_ADDRESS = 8  # of these; a node makes one at a time


class Hub:
    """Node 0's side: receives how each node ends, and tells the others.

    It registers its sockets with `selector`; the data of such a key is a function of the time (monotonic
    seconds). `on_event` is called with each event of another node that ends the job.
    """

    def __init__(
        self,
        selector: selectors.BaseSelector,
        address: str,
        job: str,
        secret: str,
        hosts: Iterable[str],
        on_event: Callable[[Event], None],
    ) -> None:
        """Listen on a free port of `address`. Raises OSError if this host does not have that address.

        Args:
            secret: of the job; each host has only its `node_secret`.
        """
        family, kind, _, _, where = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)[0]
        self._listener = socket.socket(family, kind)
        try:
            self._listener.bind(where)
            self._listener.listen(STRANGERS)
        except OSError:
            self._listener.close()
            raise
        self._listener.setblocking(False)
        self.endpoint = {"addr": address, "port": self._listener.getsockname()[1]}
        self._selector, self._job, self._secret, self._on_event = selector, job, secret, on_event
        self._hosts = set(hosts)  # without this one
        self._strangers: dict[Channel, float] = {}  # since when
        self._channels: dict[str, Channel] = {}
        self._contact: dict[str, float] = {}  # host: when it was last heard
        self._done: set[str] = set()  # hosts that reported their end, know of the end, or are lost
        self._verdict: Event | None = None
        self._told: float | None = None  # since when the others are told the verdict
        self._own_end: float | None = None
        self._next_beat = 0.0
        selector.register(self._listener, selectors.EVENT_READ, self._accept)

    @property
    def status(self) -> str:
        return f"{len(self._contact)} of {len(self._hosts)} other nodes got through"

    @property
    def heard(self) -> bool:
        """Whether any other node has got through."""
        return bool(self._contact)

    def report(self, event: Event, now: float) -> None:
        """Take in how node 0's own part ended."""
        self._own_end = now
        if event.ends_the_job:
            self._end_all(event, now)

    def settled(self, now: float) -> bool:
        """Whether there are no more messages to wait for.

        That the job is over, a node has to confirm in time, whatever else it says. Without such a verdict,
        the part of a node that is heard still runs.
        """
        if self._told is not None and now - self._told > PATIENCE:
            return True
        waiting = self._hosts - self._done
        if self._own_end is not None and now - self._own_end > FIRST_CONTACT:
            waiting &= set(self._contact)
        return not waiting

    def tick(self, now: float) -> None:
        """Send a beat, and check which nodes are silent."""
        for channel, since in list(self._strangers.items()):
            if now - since > ATTEMPT:
                self._drop(channel)
        for host, heard in self._contact.items():
            if host not in self._done and now - heard > LOST_AFTER:
                self._done.add(host)
                self._learn(Event(host, "lost", message=lost(host, self.endpoint["addr"])), now)
        if now >= self._next_beat:
            self._next_beat = now + BEAT
            for channel in list(self._channels.values()):
                self._send(channel, {"beat": True})

    def close(self) -> None:
        for channel in [*self._channels.values(), *self._strangers]:
            self._drop(channel)
        self._selector.unregister(self._listener)
        self._listener.close()

    def _accept(self, now: float) -> None:
        try:
            connection, (address, *_) = self._listener.accept()
        except OSError:  # it has closed already
            return
        # The oldest makes room: whoever only holds connections open keeps nobody out.
        alike = [stranger for stranger in self._strangers if stranger.address == address]
        if len(alike) >= OF_ONE_ADDRESS:
            self._drop(alike[0])
        elif len(self._strangers) >= STRANGERS:
            self._drop(next(iter(self._strangers)))
        channel = Channel(connection, hub=True, address=address)
        self._strangers[channel] = now
        self._selector.register(connection, selectors.EVENT_READ, lambda now: self._read(channel, now))
        with contextlib.suppress(Broken):  # reading will report it
            channel.send_line(json.dumps({"mnt": 1, "nonce": channel.nonce}).encode())

    def _read(self, channel: Channel, now: float) -> None:
        try:
            for line in channel.lines():
                if channel in self._strangers:
                    self._welcome(channel, line, now)
                else:
                    self._obey(channel, channel.open(line), now)
        except Exception:  # noqa: BLE001 - nothing that a peer sends may end the job here
            self._drop(channel)

    def _welcome(self, channel: Channel, line: bytes, now: float) -> None:
        hello = parse_line(line.partition(b" ")[2])
        host = hello.get("host")
        if not isinstance(host, str) or host not in self._hosts:
            raise Broken("a host that is not in this job")
        channel.agree(node_secret(self._secret, host), self._job, channel.nonce, hello.get("nonce"))
        channel.open(line)
        channel.peer = host
        del self._strangers[channel]
        if channel.peer in self._channels:
            self._drop(self._channels[channel.peer])
        self._channels[channel.peer] = channel
        self._contact[channel.peer] = now
        self._send(channel, {"beat": True} if self._verdict is None else {"end": self._verdict.document()})

    def _obey(self, channel: Channel, message: dict[str, Any], now: float) -> None:
        kind, content = _only(message)
        if kind == "news":
            event = Event.parse(content, {channel.peer})
            if event.kind == "lost":
                raise Broken("a host that says that it is lost")
        elif kind not in ("beat", "ack"):
            raise Broken("no message of a spoke")
        self._contact[channel.peer] = now
        if kind == "ack":
            self._done.add(channel.peer)
        if kind == "news":
            self._done.add(channel.peer)
            self._send(channel, {"ack": True})
            self._learn(event, now)

    def _learn(self, event: Event, now: float) -> None:
        if event.ends_the_job:
            self._on_event(event)
            self._end_all(event, now)

    def _end_all(self, event: Event, now: float) -> None:
        """Tell every node except the event's own. Only the first such event counts."""
        if self._verdict is None:
            self._verdict, self._told = event, now
            for host in self._hosts - self._done:
                if host in self._channels:
                    self._send(self._channels[host], {"end": event.document()})

    def _send(self, channel: Channel, message: dict[str, Any]) -> None:
        try:
            channel.send(message)
        except Broken:
            self._drop(channel)

    def _drop(self, channel: Channel) -> None:
        self._strangers.pop(channel, None)
        if self._channels.get(channel.peer) is channel:
            del self._channels[channel.peer]
        _forget(self._selector, channel)


class Spoke:
    """The side of every other node: tells the hub how its part ended, and learns when to end. See `Hub`."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        hub_host: str,
        endpoint: dict[str, Any],
        rendezvous: dict[str, Any] | None,
        job: str,
        secret: str,
        host: str,
        on_event: Callable[[Event], None],
        now: float,
        others: Iterable[str],
    ) -> None:
        """Connect to the hub, which is node 0, at `endpoint`.

        Args:
            rendezvous: the job's master address and port; None: nobody needs to listen there.
            secret: the `node_secret` of `host`, which is this node.
            others: the hosts of all other nodes of which the hub may pass on the end.
        """
        self._selector, self._hub_host, self._endpoint = selector, hub_host, endpoint
        self._job, self._secret, self._host, self._on_event = job, secret, host, on_event
        self._hosts = {hub_host, host, *others}
        self._knock = None if rendezvous is None else Knock(selector, rendezvous, now)
        self._channel: Channel | None = None
        self._welcome = False  # the hub is authenticated
        self._started = self._attempt = self._retry_at = now
        self._contact: float | None = None  # when the hub was last heard
        self._reason = "no answer"
        self._news: Event | None = None
        self._reported = now  # when that was
        self._over = False  # the hub knows of our end, has told us to end, or is lost
        self._next_beat = 0.0

    @property
    def status(self) -> str:
        if self._welcome:
            return CONNECTED
        if self._contact is not None:
            return f"interrupted: {self._reason}"
        if self._attempt - self._started < FIRST_CONTACT:
            return "connecting"
        return f"unreachable: {self._endpoint['addr']}:{self._endpoint['port']}: {self._reason}"

    def report(self, event: Event, now: float) -> None:
        """Take in how this node's own part ended. The hub is told as soon as it can be reached."""
        self._news, self._reported = event, now
        if self._welcome and not self._over:
            self._send({"news": event.document()}, now)

    def settled(self, now: float) -> bool:
        """Whether the hub knows, cannot be reached, or is heard but does not say that it knows."""
        patience = ATTEMPT if self._contact is None else PATIENCE
        return self._over or now - self._reported > patience

    def tick(self, now: float) -> None:
        """Connect, send a beat, and check whether the hub is silent."""
        if self._channel is None and now >= self._retry_at:
            self._connect(now)
        elif self._channel is not None and not self._welcome and now - self._attempt > ATTEMPT:
            self._break("no answer", now)
        if self._welcome and now >= self._next_beat:
            self._next_beat = now + BEAT
            self._send({"beat": True}, now)
        heard = self._contact
        if self._knock is None:
            heard = now if heard is None else heard
        elif heard is None:
            self._knock.tick(now)
            heard = self._knock.heard
        else:
            self._knock.close()
        if not self._over and now - heard > LOST_AFTER:
            self._over = True
            self._on_event(
                Event(self._hub_host, "lost", message=lost(self._hub_host, self._endpoint["addr"]))
            )

    def close(self) -> None:
        if self._knock is not None:
            self._knock.close()
        self._hang_up()

    def _hang_up(self) -> None:
        if self._channel is not None:
            _forget(self._selector, self._channel)
            self._channel = None

    def _connect(self, now: float) -> None:
        self._attempt = now
        try:
            self._dial()
        except Exception as error:  # noqa: BLE001 - the address is the hub's answer: it may end this attempt only
            self._break(strerror(error), now)

    def _dial(self) -> None:
        """Raises OSError, ValueError and others, for an address that cannot be used."""
        self._channel = channel = Channel(begin_connection(self._endpoint), hub=False)
        self._selector.register(channel.socket, selectors.EVENT_WRITE, self._connected)

    def _connected(self, now: float) -> None:
        assert self._channel is not None  # noqa: S101 - narrows the type
        problem = self._channel.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if problem:
            self._break(os.strerror(problem), now)
        else:
            self._selector.modify(self._channel.socket, selectors.EVENT_READ, self._read)

    def _read(self, now: float) -> None:
        channel = self._channel
        assert channel is not None  # noqa: S101 - narrows the type
        try:
            for line in channel.lines():
                if self._channel is not channel:  # it broke during our answer
                    return
                if channel.agreed:
                    self._obey(channel.open(line), now)
                else:
                    self._greet(channel, line)
        except Exception as error:  # noqa: BLE001 - nothing that the other side sends may end the job here
            self._break(strerror(error), now)

    def _greet(self, channel: Channel, line: bytes) -> None:
        greeting = parse_line(line)
        channel.agree(self._secret, self._job, greeting.get("nonce"), channel.nonce)
        channel.send({"host": self._host, "nonce": channel.nonce})

    def _obey(self, message: dict[str, Any], now: float) -> None:
        kind, content = _only(message)
        event = self._end(content) if kind == "end" else None
        if kind not in ("beat", "ack", "end"):
            raise Broken("no message of a hub")
        self._contact = now
        if not self._welcome:
            self._welcome = True
            if self._news is not None:
                self._send({"news": self._news.document()}, now)
        if event is not None and not self._over:
            self._over = True
            self._send({"ack": True}, now)
            self._on_event(event)
        if kind == "ack":
            self._over = True

    def _end(self, content: Any) -> Event:
        """Why the hub ends the job. Raises Broken."""
        event = Event.parse(content, self._hosts)
        if not event.ends_the_job:
            raise Broken("an event that ends no job")
        if event.kind == "lost" and event.host == self._hub_host:
            raise Broken("a hub that says that it is lost")
        if event.kind != "lost" and event.host == self._host and self._news is None:
            raise Broken("an end of this node that it has not told")
        return event

    def _send(self, message: dict[str, Any], now: float) -> None:
        try:
            if self._channel is not None:
                self._channel.send(message)
        except Broken as error:
            self._break(str(error), now)

    def _break(self, reason: str, now: float) -> None:
        self._reason = reason
        self._welcome = False
        self._retry_at = now + RETRY
        self._hang_up()


def _only(message: dict[str, Any]) -> tuple[str, Any]:
    """The kind of a message, and its content. Raises Broken."""
    if len(message) != 1:
        raise Broken("not exactly one message")
    ((kind, content),) = message.items()
    if kind in ("beat", "ack") and content is not True:
        raise Broken("not a message")
    return kind, content


def lost(host: str, address: str) -> str:
    return f"lost contact with {host} over {address} for {LOST_AFTER:.0f} s"


def _forget(selector: selectors.BaseSelector, channel: Channel) -> None:
    with contextlib.suppress(KeyError, ValueError):  # it is not registered
        selector.unregister(channel.socket)
    channel.socket.close()
