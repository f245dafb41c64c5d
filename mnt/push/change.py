"""A change of the workdirs of all hosts: locked, carried out, then committed on all or undone on all."""

from __future__ import annotations

import contextlib
import os
import platform
import secrets
import signal
from collections.abc import Iterator
from datetime import datetime, timezone
from typing import Any

from mnt.fleet import Fleet
from mnt.push.ending import Ending
from mnt.push.origin import user
from mnt.push.plan import Survey, leaders, likely_shared, seen_by_one
from mnt.push.result import DONE, HostResult, Left, PushResult
from mnt.push.session import HostStep, Progress, Session, StepFailed
from mnt.remote.common.signals import ignored
from mnt.tasks.push import Pushed

KEEP = 5  # releases, unless something else is asked for
_CACHED = 65.0  # seconds until an NFS client must see a new `current`: acdirmax is 60


class Change:
    """Base of a push, a rollback and a pruning, which have steps of their own between survey and commit.

    Args:
        progress: receives the progress.
        entries: of the manifest, if there is one.
    """

    noun = "push"  # in messages
    done = "pushed"  # the status of a host on which `current` was switched
    sha = ""  # SHA-256 (hex) of the manifest whose releases the survey looks for; "": of none

    def __init__(self, fleet: Fleet, progress: Progress, entries: int = 0) -> None:
        self._progress = progress
        self._hosts = [host.name for host in fleet.hosts]
        self._beacons = {host: secrets.token_hex(8) for host in self._hosts}
        self._session = Session(fleet, self._beacons, _who(), progress, entries)
        self._resources = contextlib.ExitStack()
        self._leader: dict[str, str] = {}
        self._in_use: dict[str, list[str]] = {}
        self._surveys: dict[str, Survey] = {}
        self._pushed: dict[str, Pushed | None] = {}  # by host: who pushed the release that is current before
        self._release = ""
        self._switching = False
        self._committed = False

    def run(self) -> None:
        """Carry out the change. After the commit, an interrupt only ends the waiting.

        See `mnt.push.transfer.push` for the errors.
        """
        try:
            with self._resources, contextlib.suppress(StepFailed), self._session.running():
                self._open()
                self._survey()
                self._prepare()
                self._switch()
                self._commit()
        except KeyboardInterrupt:
            if not self._committed:
                raise

    def _prepare(self) -> None:
        """Choose `_release`, and see to it that every workdir has it."""
        raise NotImplementedError

    def _note(self) -> dict[str, object]:
        """The arguments of `commit`."""
        return {}

    def _pruning(self, host: str) -> dict[str, object] | None:
        """The arguments of `prune` for the workdir of a host; None: nothing is removed there."""
        return None

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
        """Lock the workdirs, and learn what is there.

        The first workdir is locked before the others, so one of two pushes to the same hosts gets all locks.
        """
        self._progress.step("survey", 0)
        survey = HostStep("survey", {"sha": self.sha})
        first, *others = self._leaders
        frames = self._session.ask({first: survey})
        frames.update(self._session.ask(dict.fromkeys(others, survey)))
        self._surveys = {
            host: Survey(frame["current"], tuple(frame["taken"]), frame["holds"], frame["previous"])
            for host, frame in frames.items()
        }
        self._pushed = {host: frame["pushed"] for host, frame in frames.items()}

    def _switch(self) -> None:
        """Switch `current` to the release in every workdir; this can still be undone."""
        switch = HostStep("switch", {"id": self._release})
        commands = {host: switch for host in self._leaders if not self._was_current(host)}
        if commands:
            self._progress.step("switch", 0)
            self._switching = True
            self._session.ask(commands)

    def _commit(self) -> None:
        """Make the switch final, then remove old releases."""
        with ignored(signal.SIGINT, signal.SIGTERM):
            self._session.tell(dict.fromkeys(self._hosts, HostStep("commit", self._note())))
            self._committed = True
        self._session.hear(self._hosts, patient=True)
        last = {host: step for host in self._hosts if (step := self._last_step(host)) is not None}
        if any(step.step == "prune" for step in last.values()):
            self._progress.step("prune", 0)
        self._session.ask(last)

    def _last_step(self, host: str) -> HostStep | None:
        """What a host does after the commit."""
        if self._leader[host] != host:
            return HostStep("confirm", {"id": self._release, "patience": _CACHED})
        pruning = self._pruning(host)
        return None if pruning is None else HostStep("prune", pruning)

    @property
    def _leaders(self) -> list[str]:
        """The first host of each workdir."""
        return [host for host in self._hosts if self._leader[host] == host]

    def _sharing(self, leader: str) -> Iterator[str]:
        """The hosts that share the workdir of a leader, and itself."""
        return (host for host in self._hosts if self._leader[host] == leader)

    def _was_current(self, host: str) -> bool:
        """Whether `current` of the host's workdir already pointed to the release before the change."""
        return self._surveys[self._leader[host]].current == self._release

    # --- the result -----------------------------------------------------------------------------------------

    def result(self) -> PushResult:
        """The result, after `run`."""
        return PushResult(self._release, {host: self._result(host) for host in self._hosts})

    def _result(self, host: str) -> HostResult:
        ending = self._ending(host)
        answer, status = ending.answer, ending.status(self.done)
        error, fix = ending.problem(self.noun)
        leader = self._leader.get(host, host)
        if status == "unknown" and error is None and answer is not None:
            error = f"its `current` is {answer['current']} after the {self.noun}"
            if leader != host:
                error += f", though {leader} shares its workdir and has switched it: one of the two is wrong"
            fix = f"check `current` in the workdir of {host}, and what replaces Python or mnt's files there"
        return HostResult(
            status=status,
            files_sent=self._files_sent(host),
            bytes_sent=self._session.payload_sent(host),
            seconds=self._session.seconds[host],
            current=answer["current"] if answer is not None else self._release if status in DONE else None,
            shares_with=leader if leader != host else None,
            replaced=self._replaced(leader) if status == self.done else None,
            left=self._left(host),
            error=error,
            fix=fix,
        )

    def _replaced(self, leader: str) -> dict[str, Any] | None:
        """Who pushed the release that was current before."""
        pushed = self._pushed.get(leader)
        return None if pushed is None else {**pushed}

    def _files_sent(self, host: str) -> int:
        """How many files a host has received."""
        return 0

    def _left(self, host: str) -> tuple[Left, ...]:
        """The releases that a host did not remove."""
        frame = self._session.frames.get(host, {})
        return tuple(Left(**each) for each in frame["left"]) if frame.get("step") == "prune" else ()

    def _ending(self, host: str) -> Ending:
        leader = self._leader.get(host)
        survey = self._surveys.get(leader or host)
        return Ending(
            host,
            self._release,
            self._session.reached.get(host),
            self._session.ended.get(host),
            leads=leader == host,
            was_current=survey is not None and survey.current == self._release,
            switching=self._switching,
        )


def _who() -> str:
    return f"{user()}@{platform.node()}, pid {os.getpid()}, since {datetime.now(timezone.utc):%H:%M:%S} UTC"
