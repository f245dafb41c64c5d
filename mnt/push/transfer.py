"""A whole push: either all hosts get the release, or no host changes."""

from __future__ import annotations

import contextlib
import getpass
import os
import platform
import secrets
import signal
from collections.abc import Iterable
from datetime import datetime, timezone
from itertools import chain
from pathlib import Path

from mnt.errors import MntError, said
from mnt.fleet import Fleet, Outcome
from mnt.inventory.model import Host
from mnt.push.manifest import Manifest
from mnt.push.plan import (
    Delivery,
    Survey,
    choose_release,
    deliver,
    in_the_way,
    leaders,
    likely_shared,
    seen_by_one,
)
from mnt.push.result import HostResult, PushResult
from mnt.push.session import Frame, HostStep, Progress, Session, StepFailed
from mnt.push.stream import spooled
from mnt.remote.push.receive import ignored

_CACHED = 65.0  # seconds until an NFS client must see a new `current`: acdirmax is 60
_COMMITTED = ("commit", "prune", "confirm")
_RECEIVED = ("stage", "switch", "commit", "prune")  # the steps after which a host has the whole stream


def push(
    fleet: Fleet, root: Path, manifest: Manifest, *, keep_releases: int = 5, progress: Progress | None = None
) -> PushResult:
    """Send the tree at `root` to all hosts of the fleet, then switch `current` to it on all hosts.

    Args:
        fleet: its fan-out must be at least the number of its hosts.
        manifest: of that tree, as it is now.
        keep_releases: how many of the newest releases stay on a host.
        progress: receives the progress.

    Raises MntError if the tree has changed meanwhile, or cannot be linked to shared/. After this error, and
    after a KeyboardInterrupt before the commit, all hosts are unchanged.
    """
    check_kept(fleet.hosts, manifest)
    return _Push(fleet, root, manifest, keep_releases, progress or Progress()).run()


def check_kept(hosts: Iterable[Host], manifest: Manifest) -> None:
    """Raises MntError if the tree has an entry where a host needs a link to shared/."""
    for name in {name for host in hosts for name in host.keep}:
        obstacle = in_the_way(manifest.entries, name)
        if obstacle is not None:
            raise MntError(
                f"the tree contains {obstacle}, but `keep` in the inventory requires a link to shared/{name}",
                fix=f"list {name}/ in .mntignore, or remove it from `keep`",
            )


class _Push:
    def __init__(
        self, fleet: Fleet, root: Path, manifest: Manifest, keep_releases: int, progress: Progress
    ) -> None:
        self._root = root
        self._manifest = manifest
        self._keep_releases = keep_releases
        self._progress = progress
        self._hosts = [host.name for host in fleet.hosts]
        self._beacons = {host: secrets.token_hex(8) for host in self._hosts}
        self._session = Session(fleet, self._beacons, _who(), progress)
        self._resources = contextlib.ExitStack()
        self._leader: dict[str, str] = {}
        self._in_use: dict[str, list[str]] = {}
        self._surveys: dict[str, Survey] = {}
        self._deliveries: dict[str, Delivery] = {}
        self._release = ""
        self._switching = False

    def run(self) -> PushResult:
        with self._resources, contextlib.suppress(StepFailed), self._session.running():
            self._open()
            self._survey()
            self._stage()
            self._switch()
            self._commit()
        return PushResult(self._release, {host: self._result(host) for host in self._hosts})

    # --- the steps ------------------------------------------------------------------------------------------

    def _open(self) -> None:
        """Connect to all hosts, and find out which of them share a workdir."""
        self._progress.step("connect", 0)
        opened = self._session.hear(self._hosts, patient=True)
        self._in_use = {host: frame["in_use"] for host, frame in opened.items()}
        likely = likely_shared({host: opened[host]["numbers"] for host in self._hosts})
        looks = {
            host: HostStep("look", {"beacons": self._beacons, "likely": likely[host]}) for host in self._hosts
        }
        answers = self._session.ask(looks)
        sees = {host: answers[host]["sees"] for host in self._hosts}
        again = {
            host: HostStep("look", {"beacons": self._beacons, "likely": others})
            for host, others in seen_by_one(sees).items()
        }
        for host, frame in self._session.ask(again).items():
            sees[host] = frame["sees"]
        self._leader = leaders(sees)

    def _survey(self) -> None:
        """Lock the workdirs, and choose the release by their content.

        The first workdir is locked before the others, so one of two pushes to the same hosts gets all locks.
        """
        self._progress.step("survey", 0)
        survey = HostStep("survey", {"sha": self._manifest.sha})
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
        """Deliver the release to every workdir, and verify it there."""
        commands: dict[str, HostStep] = {}
        for host, delivery in self._deliveries.items():
            source = {} if delivery.source is None else {"source": delivery.source}
            commands[host] = HostStep(delivery.step, {"id": self._release, **source})
        receivers = [host for host, command in commands.items() if command.step == "stage"]
        size = 0
        if receivers:
            document = self._manifest.document
            spool = self._resources.enter_context(spooled(self._root, self._manifest))
            size = len(document) + spool.size
            arguments = {"id": self._release, "manifest": len(document), "stream": spool.size}
            stage = HostStep("stage", arguments, lambda: chain([document], spool.chunks()))
            commands.update(dict.fromkeys(receivers, stage))
        self._progress.step("stage", size * len(receivers))
        self._session.ask(commands)
        wait = HostStep("wait", {"id": self._release, "sha": self._manifest.sha})
        self._session.ask({host: wait for host in self._hosts if host not in self._leaders})

    def _switch(self) -> None:
        """Switch `current` to the release in every workdir; this can still be undone."""
        switch = HostStep("switch", {"id": self._release})
        commands = {host: switch for host in self._leaders if not self._was_current(host)}
        if commands:
            self._progress.step("switch", 0)
            self._switching = True
            self._session.ask(commands)

    def _commit(self) -> None:
        """Make the switch final. After this, an interrupt only ends the waiting."""
        with ignored(signal.SIGINT, signal.SIGTERM):
            self._session.tell(dict.fromkeys(self._hosts, HostStep("commit")))
        with contextlib.suppress(KeyboardInterrupt):
            self._session.hear(self._hosts, patient=True)
            self._progress.step("prune", 0)
            confirm = HostStep("confirm", {"id": self._release, "patience": _CACHED})
            last = {host: HostStep("prune", self._pruning(host)) for host in self._leaders}
            self._session.ask({host: last.get(host, confirm) for host in self._hosts})

    def _pruning(self, host: str) -> dict[str, object]:
        """The arguments of `prune`: it keeps releases that processes use, and the previous release."""
        protect = {r for other in self._hosts if self._leader[other] == host for r in self._in_use[other]}
        previous = self._surveys[host].current
        if previous is not None:
            protect.add(previous)
        return {"keep": self._keep_releases, "protect": sorted(protect)}

    @property
    def _leaders(self) -> list[str]:
        """The first host of each workdir."""
        return [host for host in self._hosts if self._leader[host] == host]

    def _was_current(self, host: str) -> bool:
        """Whether `current` of the host's workdir already pointed to the release before the push."""
        return self._surveys[self._leader[host]].current == self._release

    # --- the result -----------------------------------------------------------------------------------------

    def _result(self, host: str) -> HostResult:
        outcome = self._session.ended.get(host)
        answer = None if outcome is None else outcome.value
        reached = self._session.reached.get(host)
        received = reached in _RECEIVED and self._deliveries.get(host) == Delivery("stage")
        error, fix = _problem(outcome)
        leader = self._leader.get(host, host)
        status = self._status(host, answer)
        if status == "unknown" and error is None and answer is not None:
            error = f"its `current` is {answer['current']} after the push"
            if leader != host:
                error += f", though {leader} shares its workdir and has switched it: one of the two is wrong"
            fix = f"check `current` in the workdir of {host}, and what replaces Python or mnt's files there"
        return HostResult(
            status=status,
            files_sent=self._manifest.files if received else 0,
            bytes_sent=self._session.payload_sent(host),
            seconds=self._session.seconds[host],
            current=answer["current"] if answer is not None else None,
            shares_with=leader if leader != host else None,
            error=error,
            fix=fix,
        )

    def _status(self, host: str, answer: Frame | None) -> str:
        if self._session.reached.get(host) in _COMMITTED:
            # A host that only shares a workdir has not switched it, so its last answer counts.
            leads = self._leader[host] == host
            confirmed = leads if answer is None else answer["current"] == self._release
            if not confirmed:
                return "unknown"
            return "unchanged" if self._was_current(host) else "pushed"
        if answer is None:
            return "unknown" if self._switching else "failed"
        if self._switching and answer["current"] == self._release and not self._was_current(host):
            return "switched"
        return "untouched" if answer["called_off"] else "failed"


def _problem(outcome: Outcome[Frame] | None) -> tuple[str | None, str | None]:
    """The error of a host itself, and its fix."""
    if outcome is None:
        return "it did not answer when the push was cancelled", None
    if outcome.error is not None:
        return f"{outcome.error.phase}: {outcome.error.reason}", outcome.error.advice
    refused = (outcome.value or {}).get("refused")
    if refused is None or (outcome.value or {})["called_off"]:
        return None, None
    return refused["message"], said(outcome.host, refused["fix"])


def _who() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # an uid without a name
        user = f"uid {os.getuid()}"
    return f"{user}@{platform.node()}, pid {os.getpid()}, since {datetime.now(timezone.utc):%H:%M:%S} UTC"
