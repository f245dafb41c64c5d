"""Back to an earlier release: `current` is switched on all hosts, or on none."""

from __future__ import annotations

from mnt.errors import MntError
from mnt.fleet import Fleet
from mnt.inventory.hostlist import fold
from mnt.push.change import Change
from mnt.push.plan import choose_target
from mnt.push.result import PushResult
from mnt.push.session import HostStep, Progress


def rollback(fleet: Fleet, release: str | None = None, *, progress: Progress | None = None) -> PushResult:
    """Switch `current` to an earlier release on all hosts of the fleet; nothing is sent or removed.

    Args:
        release: its id; None: the release that was current before.
        progress: receives the progress.

    Raises MntError if a host does not have that release as it was pushed. After this error, and after a
    KeyboardInterrupt before the commit, all hosts are unchanged.
    """
    change = _Rollback(fleet, release, progress or Progress())
    change.run()
    return change.result()


class _Rollback(Change):
    noun, done = "rollback", "rolled-back"

    def __init__(self, fleet: Fleet, wanted: str | None, progress: Progress) -> None:
        super().__init__(fleet, progress)
        self._wanted = wanted

    def _prepare(self) -> None:
        self._release = choose_target(self._surveys, self._wanted)
        self._progress.step("verify", 0)
        found = self._session.ask(dict.fromkeys(self._leaders, HostStep("verify", {"id": self._release})))
        damaged = [host for host, frame in found.items() if not frame["intact"]]
        if damaged:
            raise MntError(
                f"{fold(damaged)}: release {self._release} is not as it was pushed: files have changed",
                fix="push that tree again, or name another release: mnt releases",
            )
        shas = {frame["sha"] for frame in found.values()}
        if len(shas) > 1:
            raise MntError(f"the hosts have different trees as release {self._release}", fix="push again")
        adopt, wait = (
            HostStep("adopt", {"id": self._release}),
            HostStep("wait", {"id": self._release, "sha": shas.pop()}),
        )
        self._session.ask(dict.fromkeys(self._leaders, adopt))
        self._session.ask({host: wait for host in self._hosts if host not in self._leaders})
