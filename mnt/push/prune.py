"""Remove releases from all hosts, on request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from mnt.fleet import Fleet
from mnt.push.change import KEEP, Change
from mnt.push.result import Left
from mnt.push.session import HostStep, Progress


@dataclass(frozen=True)
class Pruned:
    """What was removed from one host."""

    removed: tuple[str, ...] = ()
    left: tuple[Left, ...] = ()
    shares_with: str | None = None  # another host, from whose workdir, which is the same, they were removed
    error: str | None = None
    fix: str | None = None

    def document(self) -> dict[str, Any]:
        """The host in the JSON document, without `shares_with`, `error` and `fix` if there are none."""
        fields = {**asdict(self), "removed": list(self.removed), "left": [asdict(each) for each in self.left]}
        return {key: value for key, value in fields.items() if value is not None}


def prune(
    fleet: Fleet,
    releases: Sequence[str] = (),
    *,
    keep: int = KEEP,
    with_results: bool = False,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> dict[str, Pruned]:
    """Remove releases from all hosts of the fleet; the current and the previous one, and those in use, stay.

    Args:
        fleet: what one of its hosts uses stays on all.
        releases: their ids; none: all but the `keep` newest.
        with_results: also remove releases that contain files that no push has brought.
        dry_run: only tell what would be removed.

    Returns the result of each host. If a host fails before anything was removed, nothing is removed anywhere.
    """
    change = _Prune(
        fleet,
        progress or Progress(),
        {"keep": keep, "ids": list(releases) or None, "with_results": with_results, "dry_run": dry_run},
    )
    change.run()
    return change.pruned()


class _Prune(Change):
    noun = "pruning"

    def __init__(self, fleet: Fleet, progress: Progress, arguments: dict[str, Any]) -> None:
        super().__init__(fleet, progress)
        self._arguments = arguments

    def _prepare(self) -> None:
        """Nothing has to be there."""

    def _switch(self) -> None:
        """Nothing is switched."""

    def _last_step(self, host: str) -> HostStep | None:
        if self._leader[host] != host:
            return None
        protect = {release for in_use in self._in_use.values() for release in in_use}
        return HostStep(
            "prune", {**self._arguments, "protect": sorted(protect), "previous": self._surveys[host].previous}
        )

    def pruned(self) -> dict[str, Pruned]:
        """The result of each host, after `run`."""
        return {host: self._pruned(host) for host in self._hosts}

    def _pruned(self, host: str) -> Pruned:
        leader = self._leader.get(host, host)
        frame = self._session.frames.get(host, {})
        if frame.get("step") == "prune":
            return Pruned(tuple(frame["pruned"]), self._left(host))
        error, fix = self._ending(host).problem(self.noun)
        if error is None and leader == host:
            error = "nothing was removed, because of another host"
        return Pruned(shares_with=leader if leader != host else None, error=error, fix=fix)
