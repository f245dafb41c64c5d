"""The link between a job's supervisors: one node's end is the end of all, with no head in sight."""

from __future__ import annotations

import json
import os
import random
import select
import selectors
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from job_host import JobHost, new_directory
from ports import free_port
from waiting import PATIENCE, UNTIL_TOLD, alive, at_most, wait_for

from mnt.remote.job import peers
from mnt.remote.job.channel import LINE_BYTES, Broken, Channel, Event, node_secret, parse_line
from mnt.remote.job.failures import make_failure
from mnt.remote.job.peers import Hub, Spoke

FAILURE = dict(make_failure("exit code 3", 3, time=1e9))
SLEEPER = "import time; time.sleep(600)"
WHEN_TOLD = UNTIL_TOLD + "raise SystemExit(int(sys.argv[1]))\n"
IMPATIENT = {"LOST_AFTER = 20.0": "LOST_AFTER = 2.0", "BEAT = 2.0": "BEAT = 0.4"}


# --- whole supervisors -------------------------------------------------------------------------------------


class TwoNodes:
    """A job of two nodes with one home; what each of them runs is the test's choice."""

    def __init__(self) -> None:
        directory = new_directory()
        self.hosts = [JobHost(directory, name) for name in ("node1", "node2")]
        self.job = ""
        self.spec: dict[str, Any] = {}  # further values of both specs

    def start(self, *programs: tuple[str, str], **options: Any) -> list[int]:
        """Start (source, argument) on each node. Returns the supervisors' pids."""
        nodes = [{"host": h.name, "node_rank": rank, "nproc": 1} for rank, h in enumerate(self.hosts)]
        pids: list[int] = []
        peer = None
        for rank, (host, (source, argument)) in enumerate(zip(self.hosts, programs, strict=True)):
            host.script(source, f"train{rank}.py")
            script = f"train{rank}.py"
            spec = host.spec(
                nodes=nodes,
                node_rank=rank,
                peer=peer,
                script=script,
                argv=[host.python, script, argument],
                **({"job": self.job} if self.job else {}),
                **self.spec,
            )
            self.job = spec["job"]
            answer = host.start(spec, **options)
            peer = peer or answer["peer"]
            pids.append(answer["pid"])
        return pids

    def connected(self) -> None:
        first, second = self.hosts
        wait_for(lambda: second.state(self.job)["peer"] == "connected")
        wait_for(lambda: first.state(self.job)["peer"] == "1 of 1 other nodes got through")

    def go(self) -> None:
        (self.hosts[0].directory / "go").touch()


@pytest.fixture
def two() -> Iterator[TwoNodes]:
    nodes = TwoNodes()
    with ExitStack() as afterwards:  # each of them, whatever another one's says
        afterwards.callback(nodes.hosts[0].remove)
        for host in nodes.hosts:
            afterwards.callback(host.clean_up)
        yield nodes


@pytest.mark.parametrize("bad", [0, 1])
def test_the_failure_of_one_node_ends_the_other(two: TwoNodes, bad: int) -> None:
    programs = [(SLEEPER, ""), (SLEEPER, "")]
    programs[bad] = (WHEN_TOLD, "3")
    pids = two.start(*programs)
    two.connected()
    failing, healthy = two.hosts[bad], two.hosts[1 - bad]
    with at_most(15):  # for a node that is silent it would take 20
        two.go()
        state = healthy.ended(two.job)
    assert (state["state"], state["exit_code"]) == ("stopped", None)
    assert state["reason"]["peer"] == failing.name
    assert state["reason"]["failure"]["exit_code"] == 3
    assert (failing.ended(two.job)["state"], failing.state(two.job)["exit_code"]) == ("failed", 3)
    wait_for(lambda: not any(alive(pid) for pid in pids))


def test_nodes_that_finish_one_after_the_other_raise_no_alarm(two: TwoNodes) -> None:
    pids = two.start(("pass", ""), (WHEN_TOLD, "0"), changes=IMPATIENT)
    assert two.hosts[0].ended(two.job)["state"] == "finished"
    time.sleep(3)  # longer than IMPATIENT's patience
    assert two.hosts[1].state(two.job)["state"] == "running"
    two.go()
    assert two.hosts[1].ended(two.job)["state"] == "finished"
    assert two.hosts[0].state(two.job)["state"] == "finished"
    wait_for(lambda: not any(alive(pid) for pid in pids))


def test_a_node_that_fails_after_node_0_has_finished_still_ends_the_rest(two: TwoNodes) -> None:
    two.start(("pass", ""), (WHEN_TOLD, "5"))
    two.hosts[0].ended(two.job)
    two.connected()
    two.go()
    assert two.hosts[1].ended(two.job)["exit_code"] == 5


@pytest.mark.parametrize("stopped", [0, 1])
def test_a_stop_on_one_node_ends_the_job_on_the_other(two: TwoNodes, stopped: int) -> None:
    two.start((SLEEPER, ""), (SLEEPER, ""))
    two.connected()
    asked, other = two.hosts[stopped], two.hosts[1 - stopped]
    assert asked.stop(two.job)["status"] == "stopped"
    state = other.ended(two.job)
    assert (state["state"], state["reason"]) == ("stopped", {"request": True, "peer": asked.name})
    assert asked.state(two.job)["reason"] == {"request": True}


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("lost", [0, 1])
def test_a_lost_node_ends_the_job(two: TwoNodes, lost: int, signum: signal.Signals) -> None:
    """Its supervisor was killed, or says no more: as seen from here, a host that died, or a pulled cable."""
    pids = two.start((SLEEPER, ""), (SLEEPER, ""), changes=IMPATIENT)
    two.connected()
    os.kill(pids[lost], signum)
    state = two.hosts[1 - lost].ended(two.job)
    gone = two.hosts[lost].name
    assert (state["state"], state["exit_code"], state["reason"]["lost"]) == ("failed", None, gone)
    assert state["failure"]["message"] == f"lost contact with {gone} over 127.0.0.1 for 2 s"
    assert state["failure"]["victim"] is False


def test_a_job_goes_on_without_the_link(two: TwoNodes) -> None:
    """Behind a firewall the nodes still train; the state says that they do not hear each other."""
    first, second = two.hosts
    first.script(SLEEPER)
    nodes = [{"host": host.name, "node_rank": rank, "nproc": 1} for rank, host in enumerate(two.hosts)]
    closed = free_port()
    spec = second.spec(nodes=nodes, node_rank=1, peer={"addr": "127.0.0.1", "port": closed})
    second.start(spec, changes={"FIRST_CONTACT = 30.0": "FIRST_CONTACT = 1.0"})
    expected = f"unreachable: 127.0.0.1:{closed}: Connection refused"
    wait_for(lambda: second.entry(spec["job"])["peer"] == expected)
    assert second.entry(spec["job"])["state"] == "running"


def test_a_node_0_that_awaits_no_port_and_fails_at_once_still_ends_the_rest(two: TwoNodes) -> None:
    """All nodes are started then, whatever happens on node 0: it waits for those that come late."""
    two.spec = {"listens": False}
    two.start(("raise SystemExit(3)", ""), (SLEEPER, ""))
    state = two.hosts[1].ended(two.job)
    assert (state["state"], state["reason"]["failure"]["exit_code"]) == ("stopped", 3)


@pytest.mark.parametrize(("answers", "listens"), [(True, True), (False, True), (False, False)])
def test_without_the_link_a_job_goes_on_as_long_as_the_rendezvous_answers(
    two: TwoNodes, answers: bool, listens: bool
) -> None:
    """The master's host died before the first contact, or a firewall closes the link only.

    If nobody has to listen there, nothing can be known from it.
    """
    second = two.hosts[1]
    second.script(SLEEPER)
    nodes = [{"host": host.name, "node_rank": rank, "nproc": 1} for rank, host in enumerate(two.hosts)]
    with socket.create_server(("127.0.0.1", 0)) as server:
        rendezvous = {"addr": "127.0.0.1", "port": server.getsockname()[1]}
        if not answers:
            server.close()
        link = {"addr": "127.0.0.1", "port": free_port()}
        spec = second.spec(nodes=nodes, node_rank=1, peer=link, master=rendezvous, listens=listens)
        quicker = {"FIRST_CONTACT = 30.0": "FIRST_CONTACT = 1.0", "EVERY = 5.0": "EVERY = 0.2"}
        second.start(spec, changes={**IMPATIENT, **quicker})
        if answers or not listens:
            wait_for(lambda: second.entry(spec["job"])["peer"].startswith("unreachable"))
            time.sleep(3)  # longer than IMPATIENT's patience
            assert second.entry(spec["job"])["state"] == "running"
        else:
            state = second.ended(spec["job"])
            assert (state["state"], state["reason"]["lost"]) == ("failed", two.hosts[0].name)


def test_a_master_address_that_is_not_of_this_host_ends_nothing(two: TwoNodes) -> None:
    """A public address behind NAT: torchrun manages, the link does not."""
    first = two.hosts[0]
    first.script(SLEEPER)
    nodes = [{"host": host.name, "node_rank": rank, "nproc": 1} for rank, host in enumerate(two.hosts)]
    spec = first.spec(nodes=nodes, master={"addr": "192.0.2.1", "port": 29500})
    answer = first.start(spec)
    assert answer["peer"] is None
    assert first.entry(spec["job"])["peer"].startswith("unreachable: cannot listen on 192.0.2.1: ")


# --- the protocol ------------------------------------------------------------------------------------------


class Loop:
    """A hub and its spokes in this process."""

    def __init__(self, hosts: tuple[str, ...] = ("node2", "node3")) -> None:
        self.selector = selectors.DefaultSelector()
        self.heard: list[Event] = []
        self.hub = Hub(self.selector, "127.0.0.1", "job", "secret", hosts, self.heard.append)
        self.spokes: list[Spoke] = []
        self.told: dict[str, list[Event]] = {}

    def spoke(self, host: str, secret: str | None = None, job: str = "job") -> Spoke:
        told = self.told.setdefault(host, [])
        spoke = Spoke(
            self.selector,
            "node1",
            self.hub.endpoint,
            self.hub.endpoint,
            job,
            node_secret("secret", host) if secret is None else secret,
            host,
            told.append,
            time.monotonic(),
            ("node2", "node3"),
        )
        self.spokes.append(spoke)
        return spoke

    def until(self, condition: Callable[[], bool]) -> None:
        """Let them talk until it is so."""
        wait_for(lambda: not self.step() and condition())

    def turn(self) -> None:
        """Let them talk for a while: for what must not happen."""
        for _ in range(10):
            while self.step():
                pass

    def step(self, wait: float = 0.02) -> bool:
        """Whether anything was there to be dealt with, within `wait` seconds."""
        for side in (self.hub, *self.spokes):
            side.tick(time.monotonic())
        ready = self.selector.select(wait)
        for key, _ in ready:
            key.data(time.monotonic())
        return bool(ready)

    def close(self) -> None:
        for side in (*self.spokes, self.hub):
            side.close()
        assert not self.selector.get_map()


@pytest.fixture
def loop() -> Iterator[Loop]:
    made = Loop()
    yield made
    made.close()


def test_one_end_is_told_to_all_others(loop: Loop) -> None:
    first, second = loop.spoke("node2"), loop.spoke("node3")
    loop.until(lambda: first.status == second.status == "connected")
    assert loop.hub.status == "2 of 2 other nodes got through"
    event = Event("node2", "failed", FAILURE)
    first.report(event, time.monotonic())
    loop.until(lambda: loop.heard == [event])
    loop.until(lambda: all(side.settled(time.monotonic()) for side in (first, second, loop.hub)))
    assert loop.told == {"node2": [], "node3": [event]}


def test_who_comes_late_is_told_too(loop: Loop) -> None:
    event = Event("node1", "failed", FAILURE)
    loop.hub.report(event, time.monotonic())
    assert not loop.hub.settled(time.monotonic())
    loop.spoke("node2")
    loop.until(lambda: loop.told["node2"] == [event])
    now = time.monotonic()
    assert not loop.hub.settled(now)
    assert loop.hub.settled(now + peers.FIRST_CONTACT + 1)  # node3 never came


def test_a_connection_that_breaks_is_made_again(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "RETRY", 1e9)  # not before the interruption was seen
    spoke = loop.spoke("node2")
    loop.until(lambda: spoke.status == "connected")
    loop.hub._drop(loop.hub._channels["node2"])
    loop.until(lambda: spoke.status == "interrupted: connection closed")
    spoke._retry_at = 0.0
    loop.until(lambda: spoke.status == "connected")
    assert loop.heard == loop.told["node2"] == []


@pytest.mark.parametrize(
    ("host", "secret", "job"),
    [
        ("node2", "wrong", "job"),
        ("node2", "secret", "job"),
        ("node2", node_secret("secret", "node3"), "job"),
        ("node2", None, "other job"),
        ("node9", None, "job"),
    ],
)
def test_strangers_are_not_let_in(loop: Loop, host: str, secret: str | None, job: str) -> None:
    stranger = loop.spoke(host, secret, job)
    loop.turn()
    assert loop.hub.status == "0 of 2 other nodes got through"
    assert stranger.status == "connecting"
    stranger.report(Event("node2", "failed"), time.monotonic())
    loop.turn()
    assert loop.heard == []


def test_a_hub_that_does_not_know_the_secret_is_not_obeyed(loop: Loop) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(PATIENCE)
        loop.hub.endpoint = {"addr": "127.0.0.1", "port": listener.getsockname()[1]}
        spoke = loop.spoke("node2")
        loop.turn()
        connection, _ = listener.accept()
        with connection:
            connection.sendall(b'{"mnt": 1, "nonce": "%s"}\n' % (32 * b"0"))
            loop.until(lambda: bool(select.select([connection], [], [], 0)[0]))
            assert b"node2" in connection.recv(4096)
            connection.sendall(b'deadbeef {"end": {"host": "node1", "kind": "failed"}}\n')
            loop.turn()
        assert loop.told["node2"] == []
        assert spoke.status == "connecting"


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\xff\xfe\x00\n",
        b"0 {}\n",
        b"0 []\n",
        b"0 " + b"[" * 50_000 + b"\n",
        b"x" * (LINE_BYTES + 10),
        b"",
    ],
)
def test_garbage_harms_nobody(loop: Loop, garbage: bytes) -> None:
    spoke = loop.spoke("node2")
    with socket.create_connection(("127.0.0.1", loop.hub.endpoint["port"])) as connection:
        connection.sendall(garbage)
        connection.shutdown(socket.SHUT_WR)
        connection.setblocking(False)

        def hung_up() -> bool:
            """The hub has; its greeting comes before."""
            try:
                return not connection.recv(4096)
            except BlockingIOError:
                return False
            except ConnectionResetError:
                return True

        loop.until(hung_up)
    loop.until(lambda: spoke.status == "connected")
    assert loop.heard == []


NONCE = 32 * "5"
ODD_VALUES = (
    "\ud800",
    "",
    "x" * 40,
    32 * "g",
    32 * "\u0660",
    5,
    -1,
    1e308,
    True,
    None,
    [],
    {},
    [[]],
    {"a": 1},
)


def hostile_lines(seed: int, count: int) -> Iterator[bytes]:
    """Lines of somebody who does not know the secret; some have the right form."""
    chance = random.Random(seed)
    for _ in range(count):
        nonce = chance.choice((NONCE, *ODD_VALUES))
        host = chance.choice(("node2", "node9", *ODD_VALUES))
        message: Any = {"mnt": 1, "nonce": nonce, "host": host, "end": {"host": host, "kind": "failed"}}
        message = chance.choice((message, {"nonce": nonce}, [message], nonce, {"news": message}))
        payload = json.dumps(message, ensure_ascii=chance.random() < 0.5).encode("utf-8", "surrogatepass")
        sign = chance.choice((b"", b"x ", b"0" * 64 + b" ", b"\xff ", b"x  "))
        line = bytearray(sign + payload)
        for _ in range(chance.choice((0, 0, 1, 5))):
            line[chance.randrange(len(line))] = chance.randrange(256)
        if chance.random() < 0.05:
            line = bytearray(chance.choice((b"[", b'{"a":', b"x"))) * chance.choice((500, 70_000))
        yield bytes(line).replace(b"\n", b"") + b"\n"


def exchange(loop: Loop, connection: socket.socket, line: bytes) -> None:
    """Send one line, and let them talk until the other side has hung up."""
    connection.setblocking(False)
    sent = 0

    def over() -> bool:
        nonlocal sent
        try:
            if sent < len(line):
                sent += connection.send(line[sent:])
            while connection.recv(65536):
                pass
        except BlockingIOError:
            return False
        except OSError:
            return True
        return True

    deadline = time.monotonic() + PATIENCE
    while not over():
        loop.step(0.001)
        assert time.monotonic() < deadline
    connection.close()


# 10,000 lines each: MNT_FUZZ=10000 pytest tests/unit/test_supervisor_peers.py -k hostile
LINES = int(os.environ.get("MNT_FUZZ", "1000"))


def test_hostile_lines_to_the_hub_end_nothing(loop: Loop) -> None:
    spoke = loop.spoke("node2")
    loop.until(lambda: spoke.status == "connected")
    for line in hostile_lines(seed=1, count=LINES):
        exchange(loop, socket.create_connection(("127.0.0.1", loop.hub.endpoint["port"])), line)
    assert spoke.status == "connected"
    assert (loop.heard, loop.told) == ([], {"node2": []})


def test_hostile_lines_to_a_spoke_end_nothing(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    """From somebody who answers in the hub's place."""
    monkeypatch.setattr(peers, "RETRY", 0.0)
    endpoint = loop.hub.endpoint
    greeting = json.dumps({"mnt": 1, "nonce": NONCE}).encode() + b"\n"
    with socket.create_server(("127.0.0.1", 0)) as listener:
        loop.hub.endpoint = {"addr": "127.0.0.1", "port": listener.getsockname()[1]}
        spoke = loop.spoke("node2")
        for number, line in enumerate(hostile_lines(seed=2, count=LINES)):
            while not select.select([listener], [], [], 0)[0]:
                loop.step(0.001)
            connection, _ = listener.accept()
            if number % 2:
                connection.sendall(greeting)
            else:
                line = line + b"x\n"  # a second one, should the first pass for a greeting
            exchange(loop, connection, line)
    assert loop.told == {"node2": []}
    spoke._endpoint = endpoint
    loop.until(lambda: spoke.status == "connected")


def test_a_node_speaks_only_for_itself(loop: Loop) -> None:
    spoke = loop.spoke("node2")
    loop.until(lambda: spoke.status == "connected")
    spoke.report(Event("node3", "failed"), time.monotonic())
    loop.until(lambda: spoke.status != "connected")
    assert loop.heard == []


def test_many_idle_strangers_are_shown_out(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "ATTEMPT", 0.3)
    monkeypatch.setattr(peers, "RETRY", 0.1)
    idle = []
    for _ in range(80):
        idle.append(socket.create_connection(("127.0.0.1", loop.hub.endpoint["port"])))
        loop.step()
    spoke = loop.spoke("node2")
    loop.until(lambda: spoke.status == "connected")
    for connection in idle:
        connection.close()


def signed_pair() -> tuple[Channel, Channel]:
    ours, theirs = socket.socketpair()
    hub, spoke = Channel(ours, hub=True), Channel(theirs, hub=False)
    for channel in (hub, spoke):
        channel.agree("secret", "job", 32 * "1", 32 * "2")
    return hub, spoke


def test_lines_cannot_be_replayed_reflected_or_changed() -> None:
    hub, spoke = signed_pair()
    hub.send({"beat": True})
    (line,) = spoke.lines()
    assert spoke.open(line) == {"beat": True}
    with pytest.raises(Broken):
        spoke.open(line)  # again
    with pytest.raises(Broken):
        hub.open(line)  # sent back
    hub.send({"end": 1})
    (line,) = spoke.lines()
    with pytest.raises(Broken):
        spoke.open(line.replace(b"1", b"2"))
    for channel in (hub, spoke):
        channel.socket.close()


def nested(depth: int) -> Any:
    value: Any = 0
    for _ in range(depth):
        value = [value]
    return value


LOST = {"host": "node2", "kind": "lost", "message": "lost contact with node2"}
WRONG_EVENTS: list[Any] = [
    None,
    [],
    {},
    {"host": 3},
    {"host": []},
    {"host": "node2"},
    {"host": "node2", "kind": "quit"},
    {"host": "node2", "kind": ["failed"]},
    {"host": "node2", "kind": "failed", "failure": "bad"},
    {"host": "node2", "kind": "failed", "failure": {}},
    {"host": "node2", "kind": "failed", "message": "lost contact with node3"},
    {**LOST, "message": 5},
    {**LOST, "message": None},
    {**LOST, "message": "\ud800"},
    {**LOST, "message": "a\udc80b"},
    {**LOST, "failure": FAILURE},
    {"host": "node9", "kind": "failed"},
    {"host": "no such host!", "kind": "failed"},
    {"host": "node2\n", "kind": "failed"},
    *(
        {"host": "node2", "kind": "failed", "failure": {**FAILURE, **change}}
        for change in (
            {"exit_code": 256},
            {"exit_code": -1},
            {"exit_code": True},
            {"rank": 2**63},
            {"rank": 1.5},
            {"time": 1e12},
            {"time": -1},
            {"victim": 1},
            {"message": None},
            {"message": "\udfff"},
            {"message": nested(900)},
            {"signal": "\ud800"},
            {"signal": "\udcff"},
            {"traceback": nested(900)},
        )
    ),
]


@pytest.mark.parametrize("document", WRONG_EVENTS)
def test_events_are_parsed_strictly(document: Any) -> None:
    with pytest.raises(Broken):
        Event.parse(document, {"node1", "node2", "node3"})


@pytest.mark.parametrize("letter", ["x", "\u00e9", "\U0001f600", '"', "\0"])
def test_no_event_grows_beyond_a_line(letter: str) -> None:
    """Letters that have one byte or four in UTF-8 have up to twelve in our JSON."""
    host, long = "n" * 253, letter * 65536
    failure = {**FAILURE, "message": long, "signal": letter * 1024, "traceback": long, "rank": 2**63 - 1}
    for event in (Event(host, "failed", failure), Event(host, "lost", message=long)):
        document = event.document()
        assert len(json.dumps({"end": document})) < LINE_BYTES / 2
        parsed = Event.parse(document, {host})
        assert parsed.document() == document
    assert Event.parse({"host": host, "kind": "failed", "failure": failure}, {host}).document()["failure"]


@pytest.mark.parametrize(
    "payload",
    [b'{"beat": NaN}', b'{"beat": %s}' % (b"9" * 5000), b'{"beat": 1e999}', b"[" * 60_000, b"\xff", b"[]"],
)
def test_messages_are_plain_json(payload: bytes) -> None:
    with pytest.raises(Broken):
        parse_line(payload)


# --- nodes of the job that lie -----------------------------------------------------------------------------

WRONG_MESSAGES: list[Any] = [
    {},
    {"beat": 1},
    {"ack": "yes"},
    {"beat": True, "ack": True},
    {"beat": True, "more": nested(900)},
    {"mnt": 1},
]


def send_raw(channel: Channel, message: Any) -> None:
    """As `Channel.send`, but in UTF-8 where that is possible: shorter than what we send."""
    try:
        payload = json.dumps(message, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        payload = json.dumps(message).encode()
    channel.send_line(channel._sign(channel._mine, channel._sent, payload) + b" " + payload)
    channel._sent += 1


def both_connected(loop: Loop) -> tuple[Spoke, Spoke]:
    first, second = loop.spoke("node2"), loop.spoke("node3")
    loop.until(lambda: first.status == second.status == "connected")
    return first, second


@pytest.mark.parametrize(
    "message",
    [
        *({"news": event} for event in WRONG_EVENTS),
        {"news": LOST},  # true or not: that a spoke is lost is the hub's to say
        {"news": {**LOST, "host": "node3"}},
        {"news": {**LOST, "host": "node1"}},
        {"news": {"host": "node3", "kind": "failed", "failure": FAILURE}},
        {"news": {"host": "node1", "kind": "stopped"}},
        {"end": {"host": "node2", "kind": "failed"}},
        *WRONG_MESSAGES,
    ],
)
def test_a_spoke_that_lies_loses_only_its_connection(loop: Loop, message: Any) -> None:
    rogue, honest = both_connected(loop)
    assert rogue._channel is not None
    rogue._retry_at = 1e9
    send_raw(rogue._channel, message)
    loop.until(lambda: rogue.status != "connected")
    loop.turn()
    assert honest.status == "connected"
    assert (loop.heard, loop.told) == ([], {"node2": [], "node3": []})


@pytest.mark.parametrize(
    "message",
    [
        *({"end": event} for event in WRONG_EVENTS),
        {"end": {**LOST, "host": "node1"}},  # of itself
        {"end": {"host": "node3", "kind": "finished"}},
        {"end": {"host": "node3", "kind": "ended"}},
        {"end": {"host": "node2", "kind": "failed", "failure": FAILURE}},  # which node2 knows better
        {"end": {"host": "node2", "kind": "stopped"}},
        {"news": {"host": "node1", "kind": "failed"}},
        *WRONG_MESSAGES,
    ],
)
def test_a_hub_that_lies_loses_only_its_connection(
    loop: Loop, message: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "RETRY", 1e9)
    deceived, other = both_connected(loop)
    send_raw(loop.hub._channels["node2"], message)
    loop.until(lambda: deceived.status.startswith("interrupted: "))
    loop.turn()
    assert other.status == "connected"
    assert (loop.heard, loop.told) == ([], {"node2": [], "node3": []})


def test_a_hub_that_never_acknowledges_keeps_no_supervisor(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoke, _ = both_connected(loop)
    monkeypatch.setattr(loop.hub, "_obey", lambda *_: None)
    spoke.report(Event("node2", "finished"), time.monotonic())
    loop.turn()
    now = time.monotonic()
    assert not spoke.settled(now)
    assert spoke.settled(now + 2 * peers.LOST_AFTER + 1)


@pytest.mark.parametrize("teller", ["node1", "node3"])
def test_a_spoke_that_never_confirms_keeps_no_supervisor(
    loop: Loop, monkeypatch: pytest.MonkeyPatch, teller: str
) -> None:
    """node2 sends beats, and no more: it does not confirm the end that node 0, or node3, has told."""
    liar, honest = both_connected(loop)
    monkeypatch.setattr(liar, "_end", lambda content: None)
    began = time.monotonic()
    if teller == "node1":
        loop.hub.report(Event("node1", "failed", failure=FAILURE), began)
    else:
        honest.report(Event("node3", "failed", failure=FAILURE), began)
        loop.until(lambda: loop.heard != [])
        loop.hub.report(Event("node1", "finished"), time.monotonic())
    loop.turn()
    now = time.monotonic()
    loop.hub._contact["node2"] = now + 2 * peers.PATIENCE  # its beats
    assert not loop.hub.settled(began + peers.PATIENCE - 1)
    assert loop.hub.settled(now + peers.PATIENCE + 1)


def test_who_still_runs_is_waited_for(loop: Loop) -> None:
    both_connected(loop)
    now = time.monotonic()
    loop.hub.report(Event("node1", "finished"), now)
    assert not loop.hub.settled(now + 1000 * peers.PATIENCE)


def test_a_long_end_is_heard_by_all(loop: Loop) -> None:
    """What fits into a line as UTF-8 does not as ASCII."""
    rogue, honest = both_connected(loop)
    assert rogue._channel is not None
    failure = {**FAILURE, "message": "\u00e9" * 30_000}
    send_raw(rogue._channel, {"news": {"host": "node2", "kind": "failed", "failure": failure}})
    loop.until(lambda: bool(loop.told["node3"]))
    assert honest.status == "connected"
    assert [event.host for event in (*loop.heard, *loop.told["node3"])] == ["node2", "node2"]


def test_a_node_cannot_pose_as_another(loop: Loop) -> None:
    """Not even in place of its connection: node2 keeps its own, and node3 hears nothing."""
    honest, other = both_connected(loop)
    rogue = loop.spoke("node2", node_secret("secret", "node3"))
    rogue.report(Event("node2", "failed", FAILURE), time.monotonic())
    loop.until(lambda: rogue._reason == "connection closed")
    loop.turn()
    assert honest.status == other.status == "connected"
    assert (loop.heard, loop.told) == ([], {"node2": [], "node3": []})


@pytest.mark.parametrize(
    "endpoint",
    [
        {"addr": "1.2.3.4.5", "port": 1},
        {"addr": "fe80::1%nosuch", "port": 1},
        {"addr": "fe80::1", "port": 1},
        {"addr": "localhost", "port": 1},  # no question to a name server
        {"addr": "x" * 70_000, "port": 1},
        {"addr": "\udc80", "port": 1},
        {"addr": "a\0b", "port": 1},
        {"addr": "::", "port": 1},
        {"addr": "255.255.255.255", "port": 1},
        {"addr": "127.0.0.1", "port": 2**70},
        {"addr": "127.0.0.1", "port": -1},
        {"addr": "127.0.0.1", "port": 65536},
        {"addr": None, "port": None},
    ],
)
def test_an_address_that_cannot_be_used_ends_one_attempt(loop: Loop, endpoint: dict[str, Any]) -> None:
    good = loop.hub.endpoint
    loop.hub.endpoint = endpoint
    spoke = loop.spoke("node2")
    loop.turn()
    assert spoke.status == "connecting"
    spoke._endpoint, spoke._retry_at = good, 0.0
    loop.until(lambda: spoke.status == "connected")
    assert loop.told == {"node2": []}


def test_a_failure_before_the_link_is_up_is_told_all_the_same(loop: Loop) -> None:
    spoke = loop.spoke("node2")
    event = Event("node2", "failed", FAILURE)
    spoke.report(event, time.monotonic())
    assert not spoke.settled(time.monotonic())
    loop.until(lambda: loop.heard == [event])
    loop.until(lambda: spoke.settled(time.monotonic()))
