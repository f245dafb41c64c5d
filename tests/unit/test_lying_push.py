"""One host of a push lies about its workdir; the others are real receivers on this machine."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import pytest
from lying_hosts import LyingConnection, speaking

from mnt.fleet import Fleet, HostConnection
from mnt.fleet.login.shared import Shared
from mnt.fleet.processes import LocalConnection
from mnt.inventory.model import Host, Ssh
from mnt.push import change
from mnt.push.manifest import build
from mnt.push.result import PushResult
from mnt.push.session import Progress
from mnt.push.transfer import push
from mnt.push.tree import walk
from mnt.remote.push import receive

pytestmark = pytest.mark.one_python

Frames = Iterator[tuple[str, Any]]
Script = Callable[[str, str, dict[str, Any], IO[bytes]], Frames]


class Site:
    """Hosts with workdirs; `liars` speak by a script instead."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._workdirs: dict[str, Path] = {}

    def share(self, host: str, workdir: str) -> None:
        self._workdirs[host] = self._directory / workdir

    def current(self, host: str) -> str:
        return (self._workdir(host) / "current").readlink().name

    def _workdir(self, host: str) -> Path:
        return self._workdirs.get(host, self._directory / host)

    def push(
        self,
        text: str,
        *names: str,
        liars: dict[str, Script] | None = None,
        progress: Progress | None = None,
        fanout: int = 64,
    ) -> PushResult:
        tree = self._directory / "tree"
        tree.mkdir(exist_ok=True)
        (tree / "train.py").write_text(text)

        with self.fleet(*names, liars=liars, fanout=fanout) as fleet:
            return push(fleet, tree, build(walk(tree)), progress=progress)

    def fleet(self, *names: str, liars: dict[str, Script] | None = None, fanout: int = 64) -> Fleet:
        def connect(host: Host, shared: Shared) -> HostConnection:
            script = (liars or {}).get(host.name)
            if script is None:
                return LocalConnection(host, shared)
            return LyingConnection(host, shared, command=speaking(script))

        here = Host("here", "192.0.2.1", Ssh(config=None), python=(sys.executable,))
        hosts = [replace(here, name=name, workdir=str(self._workdir(name))) for name in names]
        return Fleet(hosts, fanout=fanout, connect=connect)

    def releases(self, host: str) -> Path:
        return self._workdir(host) / "releases"


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def sees_all(host: str, program: str, args: dict[str, Any], stdin: IO[bytes]) -> Frames:
    yield "frame", {"step": "open", "numbers": None, "in_use": []}
    release = None
    while line := stdin.readline():
        if line == b"\n":  # a sign of life
            continue
        command = json.loads(line)
        step, answer = command["do"], {}
        release = command.get("id", release)
        if step == "look":
            answer = {"sees": sorted(command["beacons"])}
        elif step == "survey":
            answer = {"current": None, "taken": [], "holds": {}, "previous": None, "pushed": None}
        elif step == "stage":
            stdin.read(command["stream"])
        elif step == "offer":
            stdin.read(command["manifest"])
            answer = {"lacks": "ff"}
        elif step == "prune":
            answer = {"pruned": [], "left": []}
        yield "frame", {"step": step, **answer}
    yield "answer", {"current": release}


@pytest.mark.parametrize("liar", ["node1", "node3"])
@pytest.mark.parametrize("again", [True, False])
def test_a_host_that_says_that_all_share_its_workdir(site: Site, liar: str, again: bool) -> None:
    """Whether the tree was pushed before, so that every host could use it again, or not."""
    names = ["node1", "node2", "node3"]
    honest = [name for name in names if name != liar]
    assert site.push("old", *honest).ok
    assert site.push("new", *honest).ok
    result = site.push("old" if again else "third", *names, liars={liar: sees_all})
    assert {host: each.status for host, each in result.hosts.items() if host != liar} == dict.fromkeys(
        honest, "pushed"
    )
    assert [site.current(host) for host in honest] == [result.release] * 2
    assert not any(each.shares_with for each in result.hosts.values())


def test_who_really_shares_still_does(site: Site) -> None:
    site.share("node1", "shared")
    site.share("node3", "shared")
    result = site.push("x", "node1", "node2", "node3", "node4", liars={"node4": sees_all})
    assert result.ok
    assert {host: each.shares_with for host, each in result.hosts.items()} == {
        "node1": None,
        "node2": None,
        "node3": "node1",
        "node4": None,
    }
    assert site.current("node1") == site.current("node2") == result.release


@pytest.mark.parametrize("current", ["20200101-000000-00000000", None])
@pytest.mark.parametrize("liar", ["node1", "node2"])
def test_a_host_is_pushed_only_if_it_says_so(site: Site, liar: str, current: str | None) -> None:
    def lie(host: str, program: str, args: dict[str, Any], stdin: IO[bytes]) -> Frames:
        for kind, value in sees_all(host, program, args, stdin):
            yield kind, {"current": current} if kind == "answer" else value

    result = site.push("x", "node1", "node2", liars={liar: lie})
    assert not result.ok
    assert {host: each.status for host, each in result.hosts.items() if each.status != "pushed"} == {
        liar: "unknown"
    }
    assert f"its `current` is {current}" in (result.hosts[liar].error or "")


def test_a_shared_workdir_whose_first_host_does_not_switch(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """node1 really shares the workdir of node2, makes the release there, and only says that it switches."""
    monkeypatch.setattr(change, "_CACHED", 0.1)
    site.share("node1", "shared")
    site.share("node2", "shared")
    assert site.push("old", "node1", "node2").ok
    before = site.current("node2")

    def lie(host: str, program: str, args: dict[str, Any], stdin: IO[bytes]) -> Frames:
        receiver = receive.Push(receive.Releases(args["workdir"], ()), args["beacon"], "me", stdin)
        yield "frame", {"step": "open", **receiver.open()}
        release = None
        while (command := receiver.next_command()) is not None:
            step = command.pop("do")
            release = command.get("id", release)
            acts = step not in ("switch", "prune")
            idle = {"pruned": [], "left": []} if step == "prune" else {}
            yield "frame", {"step": step, **(receive._STEPS[step](receiver, **command) if acts else idle)}
        receiver._always.close()
        yield "answer", {"current": release}

    result = site.push("new", "node1", "node2", liars={"node1": lie})
    assert site.current("node2") == before
    assert not result.ok
    assert result.hosts["node2"].status == "unknown"
    assert "node1 shares its workdir and has switched it" in (result.hosts["node2"].error or "")
