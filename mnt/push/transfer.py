"""A push from end to end: the release comes to all hosts, or nothing changes on any."""

from __future__ import annotations

import contextlib
import getpass
import os
import platform
import secrets
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime, timezone
from pathlib import Path

from mnt.errors import MntError
from mnt.fleet import Fleet, Outcome
from mnt.inventory.model import Host
from mnt.push.manifest import Manifest
from mnt.push.plan import Delivery, Survey, choose_release, deliver, in_the_way, leaders, likely_shared
from mnt.push.report import HostReport, Report
from mnt.push.session import Command, Frame, Session, StepFailed
from mnt.push.stream import Spool

OnStep = Callable[[str, int], None]  # a step that begins, and the bytes that it will send to all hosts together


def push(
    fleet: Fleet, root: Path, manifest: Manifest, *, keep_releases: int = 5, on_step: OnStep | None = None
) -> Report:
    """Bring the tree at `root` to all hosts of the fleet, then let `current` lead to it everywhere.

    Args:
        fleet: with a fan-out of at least as many as it has hosts.
        manifest: of that tree, as it is now.
        keep_releases: how many of the newest releases stay on a host.

    Raises MntError if the tree has changed meanwhile, or cannot be linked to shared/; then, and on a
    KeyboardInterrupt before the commit, nothing has changed on any host.
    """
    check_kept(fleet.hosts, manifest)
    return _Push(fleet, root, manifest, keep_releases, on_step or (lambda step, size: None)).run()


def check_kept(hosts: Iterable[Host], manifest: Manifest) -> None:
    """Raises MntError if the tree has something where a host wants a link to shared/."""
    for name in {name for host in hosts for name in host.keep}:
        obstacle = in_the_way(manifest.entries, name)
        if obstacle is not None:
            raise MntError(
                f"the tree has {obstacle}, where `keep` of the inventory wants a link to shared/{name}",
                fix=f"List {name}/ in .mntignore, or take it out of `keep`.",
            )


class _Push:
    def __init__(
        self, fleet: Fleet, root: Path, manifest: Manifest, keep_releases: int, on_step: OnStep
    ) -> None:
        self._fleet = fleet
        self._root = root
        self._manifest = manifest
        self._keep_releases = keep_releases
        self._on_step = on_step
        self._hosts = [host.name for host in fleet.hosts]
        self._nonces = {host: secrets.token_hex(8) for host in self._hosts}
        self._session = Session(fleet, self._nonces, _who())
        self._resources = contextlib.ExitStack()
        self._leader: dict[str, str] = {}
        self._in_use: dict[str, list[str]] = {}
        self._surveys: dict[str, Survey] = {}
        self._deliveries: dict[str, Delivery] = {}
        self._release = ""
        self._switching = False
        self._committed = False

    def run(self) -> Report:
        with self._resources, contextlib.suppress(StepFailed), self._session:
            self._open()
            self._survey()
            self._stage()
            self._switch()
            self._commit()
        return Report(self._release if self._switching else None, {h: self._report(h) for h in self._hosts})

    # --- the steps ------------------------------------------------------------------------------------------

    def _open(self) -> None:
        """Reach all hosts, and find out which of them share a workdir."""
        self._on_step("connect", 0)
        opened = self._session.hear(self._hosts, patient=True)
        self._in_use = {host: frame["in_use"] for host, frame in opened.items()}
        likely = likely_shared({host: opened[host]["mark"] for host in self._hosts})
        looks = {
            host: Command("look", {"nonces": self._nonces, "likely": likely[host]}) for host in self._hosts
        }
        seen = self._session.ask(looks)
        self._leader = leaders({host: seen[host]["sees"] for host in self._hosts})

    def _survey(self) -> None:
        """Hold the workdirs, and choose the release from what lies in them.

        The first workdir is held before the others: of two pushes to the same hosts, one wins all of them.
        """
        self._on_step("survey", 0)
        survey = Command("survey", {"sha": self._manifest.sha})
        first, *others = self._leaders
        frames = self._session.ask({first: survey})
        frames.update(self._session.ask(dict.fromkeys(others, survey)))
        self._surveys = {
            host: Survey(frame["current"], tuple(frame["taken"]), frame["holds"])
            for host, frame in frames.items()
        }
        self._release = choose_release(self._surveys.values(), self._manifest.sha, datetime.now(timezone.utc))
        self._deliveries = {host: deliver(self._surveys[host], self._release) for host in self._leaders}

    def _stage(self) -> None:
        """Bring the release to every workdir, and have it verified."""
        receivers = [host for host, delivery in self._deliveries.items() if delivery.how == "stage"]
        spool = self._resources.enter_context(Spool(self._root, self._manifest)) if receivers else None
        each = len(self._manifest.document) + spool.size if spool is not None else 0
        self._on_step("stage", each * len(receivers))
        self._session.ask({host: self._delivery(host, spool) for host in self._leaders})
        wait = Command("wait", {"id": self._release, "sha": self._manifest.sha})
        self._session.ask({host: wait for host in self._hosts if host not in self._leaders})

    def _delivery(self, host: str, spool: Spool | None) -> Command:
        delivery = self._deliveries[host]
        arguments: dict[str, object] = {"id": self._release}
        if delivery.how == "copy":
            arguments["source"] = delivery.source
        if delivery.how != "stage" or spool is None:
            return Command(delivery.how, arguments)
        document = self._manifest.document
        arguments.update(manifest=len(document), stream=spool.size)

        def payload() -> Iterator[bytes]:
            yield document
            yield from spool.chunks()

        return Command("stage", arguments, payload)

    def _switch(self) -> None:
        """Let `current` lead to the release in every workdir, still to be taken back."""
        self._on_step("switch", 0)
        self._switching = True
        self._session.ask({host: Command("switch", {"id": self._release}) for host in self._leaders})

    def _commit(self) -> None:
        """Make it final. An interrupt comes too late from here on; it only ends the waiting."""
        with _uninterrupted():
            self._committed = True
            self._session.ask(dict.fromkeys(self._hosts, Command("commit")))
        self._on_step("prune", 0)
        with contextlib.suppress(KeyboardInterrupt):
            self._session.ask({host: Command("prune", self._pruning(host)) for host in self._leaders})

    def _pruning(self, host: str) -> dict[str, object]:
        """What must stay: what is in use on any host that shares the workdir, and the release before this one."""
        protect = {r for other in self._hosts if self._leader[other] == host for r in self._in_use[other]}
        previous = self._surveys[host].current
        if previous is not None:
            protect.add(previous)
        return {"keep": self._keep_releases, "protect": sorted(protect)}

    @property
    def _leaders(self) -> list[str]:
        """The first host of each workdir."""
        return [host for host in self._hosts if self._leader[host] == host]
