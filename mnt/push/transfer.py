"""A whole push: either all hosts get the release, or no host changes."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timezone
from itertools import chain
from pathlib import Path

from mnt.errors import MntError
from mnt.fleet import Fleet
from mnt.inventory.model import Host
from mnt.push.change import Change
from mnt.push.manifest import Manifest
from mnt.push.notices import check_keys, private_keys
from mnt.push.plan import Delivery, choose_release, deliver, in_the_way
from mnt.push.result import PushResult
from mnt.push.session import HostStep, Progress
from mnt.push.stream import spooled

_RECEIVED = ("stage", "switch", "commit", "prune")  # the steps after which a host has the whole stream


def push(
    fleet: Fleet,
    root: Path,
    manifest: Manifest,
    *,
    keep_releases: int = 5,
    allow_secrets: bool = False,
    progress: Progress | None = None,
) -> PushResult:
    """Send the tree at `root` to all hosts of the fleet, then switch `current` to it on all hosts.

    Args:
        fleet: its fan-out must be at least the number of its hosts.
        manifest: of that tree, as it is now.
        keep_releases: how many of the newest releases stay on a host.
        allow_secrets: send private keys too.
        progress: receives the progress.

    Raises UsageError if the tree contains private keys, and MntError if it has changed meanwhile, or cannot
    be linked to shared/. After these errors, and after a KeyboardInterrupt before the commit, all hosts are
    unchanged.
    """
    check_kept(fleet.hosts, manifest)
    if not allow_secrets:
        check_keys(root, private_keys(root, manifest))
    change = _Push(fleet, root, manifest, keep_releases, progress or Progress())
    change.run()
    return change.result()


def check_kept(hosts: Iterable[Host], manifest: Manifest) -> None:
    """Raises MntError if the tree has an entry where a host needs a link to shared/."""
    for name in {name for host in hosts for name in host.keep}:
        obstacle = in_the_way(manifest.entries, name)
        if obstacle is not None:
            raise MntError(
                f"the tree contains {obstacle}, but `keep` in the inventory requires a link to shared/{name}",
                fix=f"list {name}/ in .mntignore, or remove it from `keep`",
            )


class _Push(Change):
    def __init__(
        self, fleet: Fleet, root: Path, manifest: Manifest, keep_releases: int, progress: Progress
    ) -> None:
        super().__init__(fleet, progress)
        self.sha = manifest.sha
        self._root = root
        self._manifest = manifest
        self._keep_releases = keep_releases
        self._deliveries: dict[str, Delivery] = {}

    def _prepare(self) -> None:
        """Choose the release, deliver it to every workdir, and verify it there."""
        self._release = choose_release(self._surveys.values(), self._manifest.sha, datetime.now(timezone.utc))
        self._deliveries = {host: deliver(self._surveys[host], self._release) for host in self._leaders}
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

    def _pruning(self, host: str) -> dict[str, object]:
        """It keeps releases that processes of the hosts in this push use."""
        in_use = {release for other in self._sharing(host) for release in self._in_use[other]}
        before = self._surveys[host]
        previous = before.previous if self._was_current(host) else before.current
        return {"keep": self._keep_releases, "protect": sorted(in_use), "previous": previous}

    def _files_sent(self, host: str) -> int:
        received = self._session.reached.get(host) in _RECEIVED
        return self._manifest.files if received and self._deliveries.get(host) == Delivery("stage") else 0
