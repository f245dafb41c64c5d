"""A push from end to end: the release comes to all hosts, or nothing changes on any."""

from __future__ import annotations

import contextlib
import getpass
import os
import platform
import secrets
import signal
import threading
from collections.abc import Iterable, Iterator
from datetime import datetime, timezone
from pathlib import Path

from mnt.errors import MntError
from mnt.fleet import Fleet, Outcome
from mnt.inventory.model import Host
from mnt.push.manifest import Manifest
from mnt.push.plan import Delivery, Survey, choose_release, deliver, in_the_way, leaders, likely_shared
from mnt.push.report import HostReport, Report
from mnt.push.session import Command, Frame, Progress, Session, StepFailed
from mnt.push.stream import Spool


def push(
    fleet: Fleet, root: Path, manifest: Manifest, *, keep_releases: int = 5, progress: Progress | None = None
) -> Report:
    """Bring the tree at `root` to all hosts of the fleet, then let `current` lead to it everywhere.

    Args:
        fleet: with a fan-out of at least as many as it has hosts.
        manifest: of that tree, as it is now.
        keep_releases: how many of the newest releases stay on a host.
        progress: told how it goes.

    Raises MntError if the tree has changed meanwhile, or cannot be linked to shared/; then, and on a
    KeyboardInterrupt before the commit, nothing has changed on any host.
    """
    check_kept(fleet.hosts, manifest)
    return _Push(fleet, root, manifest, keep_releases, progress or Progress()).run()


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
        self, fleet: Fleet, root: Path, manifest: Manifest, keep_releases: int, progress: Progress
    ) -> None:
        self._fleet = fleet
        self._root = root
        self._manifest = manifest
        self._keep_releases = keep_releases
        self._progress = progress
        self._hosts = [host.name for host in fleet.hosts]
        self._nonces = {host: secrets.token_hex(8) for host in self._hosts}
        self._session = Session(fleet, self._nonces, _who(), progress)
        self._resources = contextlib.ExitStack()
        self._leader: dict[str, str] = {}
        self._in_use: dict[str, list[str]] = {}
        self._surveys: dict[str, Survey] = {}
        self._deliveries: dict[str, Delivery] = {}
        self._release = ""
        self._switching = False

    def run(self) -> Report:
        with self._resources, contextlib.suppress(StepFailed), self._session:
            self._open()
            self._survey()
            self._stage()
            self._switch()
            self._commit()
        return Report(self._release, {host: self._report(host) for host in self._hosts})

    # --- the steps ------------------------------------------------------------------------------------------

    def _open(self) -> None:
        """Reach all hosts, and find out which of them share a workdir."""
        self._progress.step("connect", 0)
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
        self._progress.step("survey", 0)
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
        self._progress.step("stage", each * len(receivers))
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
        switch = Command("switch", {"id": self._release})
        commands = {host: switch for host in self._leaders if not self._was_current(host)}
        if commands:
            self._progress.step("switch", 0)
            self._switching = True
            self._session.ask(commands)

    def _commit(self) -> None:
        """Make it final. From here on an interrupt comes too late: it only ends the waiting."""
        with _uninterrupted():
            self._session.tell(dict.fromkeys(self._hosts, Command("commit")))
        with contextlib.suppress(KeyboardInterrupt):
            self._session.hear(self._hosts, patient=True)
            self._progress.step("prune", 0)
            self._session.ask({host: Command("prune", self._pruning(host)) for host in self._leaders})

    def _pruning(self, host: str) -> dict[str, object]:
        """What has to stay: what any host that shares the workdir runs in, and the release before it."""
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
        """Whether `current` of the host's workdir led to the release before the push."""
        return self._surveys[self._leader[host]].current == self._release

    # --- how it ended ---------------------------------------------------------------------------------------

    def _report(self, host: str) -> HostReport:
        outcome = self._session.ended.get(host)
        answer = None if outcome is None else outcome.value
        delivery = self._deliveries.get(host)
        staged = delivery is not None and self._session.reached.get(host) in (
            delivery.how,
            "switch",
            "commit",
            "prune",
        )
        error, fix = _problem(outcome)
        leader = self._leader.get(host, host)
        return HostReport(
            status=self._status(host, answer),
            files_sent=self._manifest.files if staged and delivery and delivery.how == "stage" else 0,
            bytes_sent=self._session.payload_sent(host),
            seconds=self._session.seconds[host],
            current=answer["current"] if answer is not None else None,
            shares_with=leader if leader != host else None,
            error=error,
            fix=fix,
        )

    def _status(self, host: str, answer: Frame | None) -> str:
        if self._session.reached.get(host) in ("commit", "prune"):
            return "unchanged" if self._was_current(host) else "pushed"
        if answer is None:
            return "unknown" if self._switching else "failed"
        if self._switching and answer["current"] == self._release and not self._was_current(host):
            return "switched"
        return "untouched" if answer["called_off"] else "failed"


def _problem(outcome: Outcome[Frame] | None) -> tuple[str | None, str | None]:
    """What went wrong on a host itself, and how to mend it."""
    if outcome is None:
        return "it did not answer when the push was called off", None
    if outcome.error is not None:
        return f"{outcome.error.phase}: {outcome.error.reason}", outcome.error.fix
    refused = (outcome.value or {}).get("refused")
    if refused is None or (outcome.value or {})["called_off"]:
        return None, None
    return refused["message"], refused["fix"]


def _who() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # an uid without a name
        user = f"uid {os.getuid()}"
    return f"{user}@{platform.node()}, pid {os.getpid()}, since {datetime.now(timezone.utc):%H:%M:%S} UTC"


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Let no interrupt cut a short piece of work in two. For the main thread; others get none."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
