"""A whole push: either all hosts get the release, or no host changes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from functools import partial
from pathlib import Path

from mnt.errors import MntError
from mnt.fleet import Fleet
from mnt.inventory.hostlist import sentences
from mnt.inventory.model import Host
from mnt.push.change import KEEP, Change
from mnt.push.manifest import Manifest
from mnt.push.notices import check_keys, ignore_line
from mnt.push.origin import here, is_mine, is_this_tree, pushed_by
from mnt.push.plan import choose_release, has, in_the_way, lacking
from mnt.push.result import PushResult
from mnt.push.session import HostStep, Progress
from mnt.push.stream import spooled
from mnt.push.tree import ignore_file

_RECEIVED = ("stage", "switch", "commit", "prune")  # the steps after which a host has the whole stream


def push(
    fleet: Fleet,
    root: Path,
    manifest: Manifest,
    *,
    keep_releases: int = KEEP,
    allow_secrets: bool = False,
    progress: Progress | None = None,
) -> PushResult:
    """Send the tree at `root` to all hosts of the fleet, then switch `current` to it on all hosts.

    Args:
        manifest: of that tree, as it is now.
        keep_releases: how many of the newest releases stay on a host.
        allow_secrets: send private keys too.
        progress: receives the progress.

    Raises the `refusal`, and MntError if the tree has changed meanwhile. After these errors, and after a
    KeyboardInterrupt before the commit, all hosts are unchanged.
    """
    refused = refusal(fleet.hosts, root, manifest, allow_secrets=allow_secrets)
    if refused is not None:
        raise refused
    change = _Push(fleet, root, manifest, keep_releases, progress or Progress())
    change.run()
    return change.result()


def refusal(
    hosts: Iterable[Host], root: Path, manifest: Manifest, *, allow_secrets: bool = False
) -> MntError | None:
    """Why the tree at `root` may not be pushed to these hosts; none of them is asked.

    A UsageError: it contains private keys. Another MntError: it cannot be linked to shared/.
    """
    try:
        check_kept(hosts, manifest)
        if not allow_secrets:
            check_keys(ignore_file(root), manifest.keys)
    except MntError as error:
        return error
    return None


def check_kept(hosts: Iterable[Host], manifest: Manifest) -> None:
    """Raises MntError if the tree has an entry where a host needs a link to shared/."""
    found = in_the_way(manifest.entries, dict.fromkeys(name for host in hosts for name in host.keep))
    if found is not None:
        name, obstacle = found
        ignored = ignore_line(min(name, obstacle, key=len))  # no / at its end: it may be a link or a file
        raise MntError(
            f"the tree contains {obstacle}, but `keep` in the inventory requires a link to shared/{name}",
            fix=f"list {ignored} in .mntignore, or remove {name} from `keep`",
        )


class _Push(Change):
    def __init__(
        self, fleet: Fleet, root: Path, manifest: Manifest, keep_releases: int, progress: Progress
    ) -> None:
        super().__init__(fleet, progress, len(manifest.entries))
        self.sha = manifest.sha
        self._root = root
        self._manifest = manifest
        self._keep_releases = keep_releases
        self._origin = here(root, manifest.started)
        self._wanted: dict[str, list[int]] = {}  # host -> the files that it gets, as indexes of the entries

    def _prepare(self) -> None:
        """Choose the release, deliver it to every workdir, and verify it there."""
        self._release = choose_release(self._surveys.values(), self._manifest.sha, datetime.now(timezone.utc))
        self._announce()
        receivers = [host for host in self._leaders if not has(self._surveys[host], self._release)]
        self._wanted = self._offer(receivers)
        adopt = HostStep("adopt", {"id": self._release})
        commands = {host: adopt for host in self._leaders if host not in receivers}
        files = sorted({index for wanted in self._wanted.values() for index in wanted})
        spool = self._resources.enter_context(spooled(self._root, self._manifest, files))
        for host, wanted in self._wanted.items():
            commands[host] = HostStep("stage", {"stream": spool.size(wanted)}, partial(spool.chunks, wanted))
        self._progress.step("stage", sum(map(spool.size, self._wanted.values())))
        self._session.ask(commands)
        wait = HostStep("wait", {"id": self._release, "sha": self._manifest.sha})
        self._session.ask({host: wait for host in self._hosts if host not in self._leaders})

    def _announce(self) -> None:
        """Say what is about to be replaced, if it is not of this user, or of another tree."""
        replaced = [
            (host, f"current, {self._surveys[host].current}, was pushed by {pushed_by(pushed)}")
            for host in self._leaders
            if (pushed := self._pushed[host]) is not None
            and not self._was_current(host)
            and not (is_mine(pushed, self._origin) and is_this_tree(pushed, self._origin))
        ]
        for text in sentences(replaced):
            self._progress.warn(f"{text}; mnt rollback leads back to it")

    def _offer(self, receivers: Sequence[str]) -> dict[str, list[int]]:
        """Tell hosts what the release consists of, and learn which files they lack."""
        if not receivers:
            return {}
        document = self._manifest.document
        offer = HostStep("offer", {"id": self._release, "manifest": len(document)}, lambda: [document])
        self._progress.step("offer", len(document) * len(receivers))
        answers = self._session.ask(dict.fromkeys(receivers, offer))
        return {host: lacking(self._manifest.entries, frame["lacks"]) for host, frame in answers.items()}

    def _note(self) -> dict[str, object]:
        return {"pushed": self._origin.document()}

    def _pruning(self, host: str) -> dict[str, object]:
        """It keeps releases that processes of the hosts in this push use."""
        in_use = {release for other in self._sharing(host) for release in self._in_use[other]}
        before = self._surveys[host]
        previous = before.previous if self._was_current(host) else before.current
        return {"keep": self._keep_releases, "protect": sorted(in_use), "previous": previous}

    def _files_sent(self, host: str) -> int:
        return len(self._wanted.get(host, ())) if self._session.reached.get(host) in _RECEIVED else 0
