"""The reach program, on addresses of the loopback interface."""

from __future__ import annotations

import contextlib
import io
import json
import os
import queue
import resource
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ports import free_port
from waiting import PATIENCE

from mnt.remote.net import reach

TOKEN, NONCE = b"t" * 16, b"n" * 16


def asked(name: str, ports: list[int], master: int | None, address: str = "") -> dict[str, Any]:
    """A target that has the token."""
    return {
        "name": name,
        "address": address or name,
        "master": master,
        "ports": ports,
        "nonce": NONCE.hex(),
        "answers": {port: reach.proof(TOKEN, NONCE, port).hex() for port in (*ports, master) if port},
    }


class Host:
    """The program on one address, in a thread."""

    def __init__(self, address: str, master: int, samples: int = 3, timeout: float = PATIENCE) -> None:
        self.address = address
        self.master = master
        reading, writing = os.pipe()
        self._stdin = os.fdopen(writing, "wb", buffering=0)
        self._frames: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        args = {"address": address, "token": TOKEN.hex(), "master": master, "samples": samples}
        args["timeout"] = timeout
        self._thread = threading.Thread(
            target=reach.main, args=(args, self._frames.put, os.fdopen(reading, "rb"))
        )
        self._thread.start()
        self.listening = self._frames.get(timeout=PATIENCE)["listening"]

    def target(self, **changes: Any) -> dict[str, Any]:
        ports, master = self.listening["ports"], self.master if self.listening["master"] else None
        return {**asked(self.address, ports, master), **changes}

    def reach(self, *targets: dict[str, Any]) -> dict[str, Any]:
        self._stdin.write(json.dumps({"targets": targets}).encode() + b"\n")
        found: dict[str, Any] = self._frames.get(timeout=PATIENCE)["reached"]
        return found

    def end(self) -> None:
        self._stdin.close()
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()


@pytest.fixture
def port() -> int:
    """One that is free on all addresses."""
    return free_port()


@pytest.fixture
def here(port: int) -> Iterator[Host]:
    host = Host("127.0.0.11", port)
    yield host
    host.end()


@pytest.fixture
def there(port: int) -> Iterator[Host]:
    host = Host("127.0.0.12", port)
    yield host
    host.end()


def test_it_listens_on_the_master_port_and_over_the_whole_range(here: Host) -> None:
    first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    third = (last - first + 1) / 3
    assert here.listening["master"]
    assert [int((port - first) // third) for port in here.listening["ports"]] == [0, 1, 2]


def test_all_is_well(here: Host, there: Host) -> None:
    (result,) = here.reach(there.target()).values()
    assert result["master"] == "ok"
    assert result["ports"] == dict.fromkeys(there.listening["ports"], "ok")
    assert (result["full"], result["route"], "no_route" in result) == (True, "lo", False)
    assert 0 < result["latency"] < PATIENCE
    assert result["mtu"] > 1000


def test_a_hundred_targets_at_once(here: Host, there: Host) -> None:
    results = here.reach(*(there.target(name=f"copy{n}") for n in range(100)))
    assert {(each["master"], each["full"], *each["ports"].values()) for each in results.values()} == {
        ("ok", True, "ok", "ok", "ok")
    }


def test_nobody_listens_there(here: Host, there: Host, port: int) -> None:
    result = here.reach(there.target(address="127.0.0.13"))[there.address]
    assert {result["master"], *result["ports"].values()} == {"refused"}
    assert not {"full", "latency"} & result.keys()


def test_one_that_listens_and_does_not_answer_is_not_reached_by_full_packets(port: int) -> None:
    here = Host("127.0.0.11", port, timeout=1)
    with socket.create_server(("127.0.0.14", 0)) as mute:
        target = asked("mute", [mute.getsockname()[1]], None, "127.0.0.14")
        result = here.reach(target)["mute"]
    here.end()
    assert (list(result["ports"].values()), result["full"], "master" in result) == (["ok"], False, False)


def test_a_master_port_that_is_held_is_left_alone(port: int) -> None:
    with socket.create_server(("0.0.0.0", port)):
        host = Host("127.0.0.15", port)
        host.end()
    assert not host.listening["master"]
    assert len(host.listening["ports"]) == 3


def test_an_address_that_is_not_here() -> None:
    with pytest.raises(OSError, match="Cannot assign requested address"):
        reach.main({"address": "192.0.2.1", "token": "", "master": 1, "samples": 1}, print, io.BytesIO())


def test_no_targets_came(port: int) -> None:
    frames: list[dict[str, Any]] = []
    args = {"address": "127.0.0.16", "token": "", "master": port, "samples": 1}
    assert reach.main(args, frames.append, io.BytesIO()) == {}
    assert [list(frame) for frame in frames] == [["listening"]]


# --- routes, in a network namespace --------------------------------------------------------

CONNECT = """
import json
from mnt.remote.net import reach
targets = [{"name": a, "address": a, "master": None, "ports": [9]} for a in ADDRESSES]
print(json.dumps(reach._reach(targets, "10.0.0.1", 0.3, 64)))
"""
SET_UP = """
ip link set lo up
ip link add train type veth peer name other
ip link set train up; ip link set other up
ip addr add 10.0.0.1/24 dev train
ip link add wrong type veth peer name other2
ip link set wrong up
ip route add 10.0.0.7/32 dev wrong
ip route add blackhole 10.0.0.8/32
ip route add prohibit 10.0.0.9/32
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make a network namespace")
def test_routes_and_what_the_kernel_says_of_them() -> None:
    addresses = [f"10.0.0.{n}" for n in (6, 7, 8, 9)] + ["192.0.2.1"]
    code = CONNECT.replace("ADDRESSES", repr(addresses))
    within = ["unshare", "--net", "sh", "-ec", f'{SET_UP}\nexec "$@"', "sh"]
    done = subprocess.run(
        [*within, sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE, check=True
    )
    found = {
        name: (result.get("route"), result.get("no_route"), *result["ports"].values())
        for name, result in json.loads(done.stdout).items()
    }
    assert found == {
        "10.0.0.6": ("train", None, "timeout"),
        "10.0.0.7": ("wrong", None, "timeout"),
        "10.0.0.8": (None, "Invalid argument", "Invalid argument"),
        "10.0.0.9": (None, "Permission denied", "denied"),
        "192.0.2.1": (None, "Network is unreachable", "unreachable"),
    }


def test_the_route_to_this_host_itself() -> None:
    assert reach.interface_to("127.0.0.1") == "lo"


DRIVER = """
import json, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[2]), int(sys.argv[3])))
from mnt.remote.net.reach import main
main(json.loads(sys.argv[1]), lambda frame: print(json.dumps(frame), flush=True), sys.stdin.buffer)
"""


class Limited:
    """The program in a process of its own, with this many descriptors."""

    def __init__(self, address: str, master: int, limits: tuple[int, int]) -> None:
        args = json.dumps(
            {"address": address, "token": TOKEN.hex(), "master": master, "samples": 2, "timeout": 10}
        )
        words = [sys.executable, "-c", DRIVER, args, *map(str, limits)]
        self.process: Any = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.listening = json.loads(self.process.stdout.readline())["listening"]

    def reach(self, name: str, other: Limited, master: int) -> dict[str, Any]:
        target = asked(name, other.listening["ports"], master)
        self.process.stdin.write(json.dumps({"targets": [target]}).encode() + b"\n")
        self.process.stdin.flush()
        found: dict[str, Any] = json.loads(self.process.stdout.readline())["reached"][name]
        return found

    def end(self) -> None:
        self.process.stdin.close()
        assert self.process.wait(PATIENCE) == 0
        self.process.stdout.close()


def crowd(addresses: list[str], target: tuple[str, int], count: int) -> list[socket.socket]:
    """Connections of strangers, from these addresses in turn, of which some say something."""
    held = []
    for number in range(count):
        stranger = socket.socket()
        stranger.bind((addresses[number % len(addresses)], 0))
        stranger.settimeout(PATIENCE)
        stranger.connect(target)
        with contextlib.suppress(OSError):  # it may be closed already
            stranger.send((b"", b"\xff\xff\xff\xff", b"x", b"\0\0\0\0\0")[number % 4])
        held.append(stranger)
    return held


@pytest.mark.parametrize("limits", [(1024, 1024), (64, 4096), (64, 64)])
@pytest.mark.parametrize("addresses", [["127.0.0.41"], [f"127.0.1.{n}" for n in range(1, 200)]])
@pytest.mark.parametrize("at", ["master", "sample"])
def test_a_crowd_of_strangers_changes_no_result(
    port: int, limits: tuple[int, int], addresses: list[str], at: str
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2000), hard))  # the crowd is in this process
    one, other = Limited("127.0.0.31", port, limits), Limited("127.0.0.32", port, (1024, 1024))
    victim = ("127.0.0.31", port if at == "master" else one.listening["ports"][0])
    held = crowd(addresses, victim, 1100)
    try:
        seen, sees = other.reach("127.0.0.31", one, port), one.reach("127.0.0.32", other, port)
        for result in (seen, sees):
            assert (result["master"], result["full"], set(result["ports"].values())) == ("ok", True, {"ok"})
        assert len(os.listdir(f"/proc/{one.process.pid}/fd")) <= min(limits[1], 4096)
    finally:
        for stranger in held:
            stranger.close()
        one.end()
        other.end()


def test_a_peer_that_closes_is_not_reached(port: int) -> None:
    """Nor does it say anything about packets of full size. It is asked three times."""
    here = Host("127.0.0.11", port)
    with answering("127.0.0.16", lambda peer: None) as (rude, asked_of_it):
        result = here.reach(asked("rude", [rude], None, "127.0.0.16"))["rude"]
    here.end()
    assert (result["full"], result["ports"]) == (None, {rude: "Connection reset by peer"})
    assert len(asked_of_it) == 3


@pytest.mark.parametrize(
    "answer",
    [
        lambda port: b"all",  # what every listener answered once
        lambda port: reach.proof(b"other token", NONCE, port),
        lambda port: reach.proof(TOKEN, b"other nonce", port),  # that another host has seen
        lambda port: reach.proof(TOKEN, NONCE, port + 1),  # from a port that is open
        lambda port: NONCE * 2,
    ],
)
def test_who_claims_an_address_does_not_pass_for_its_host(port: int, answer: Callable[[int], bytes]) -> None:
    """A host that accepts nothing, and a stranger who answers in its place."""
    here = Host("127.0.0.11", port)

    def say(peer: socket.socket) -> None:
        peer.recv(1 << 17)
        peer.sendall(answer(peer.getsockname()[1]))
        peer.recv(1)

    with answering("127.0.0.17", say) as (one, _), answering("127.0.0.17", say) as (other, _):
        result = here.reach(asked("stranger", [one, other], None, "127.0.0.17"))["stranger"]
    here.end()
    assert set(result["ports"].values()) == {"another host answers"}
    assert result["full"] is None


@contextlib.contextmanager
def answering(address: str, say: Callable[[socket.socket], None]) -> Iterator[tuple[int, list[str]]]:
    """Something that accepts connections at a port, and says this; with whom it has talked."""
    talked: list[str] = []

    def serve() -> None:
        with contextlib.suppress(OSError):  # it is closed
            while True:
                peer, (other, _) = server.accept()
                talked.append(other)
                with contextlib.suppress(OSError), peer:
                    say(peer)

    with socket.create_server((address, 0)) as server:
        threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1], talked
        server.shutdown(socket.SHUT_RDWR)
