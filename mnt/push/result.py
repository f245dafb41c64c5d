"""The result of a push, in total and on each host."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

STATUSES = {
    "pushed": "the release is current here",
    "rolled-back": "the release is current here again",
    "unchanged": "the release was already current here",
    "failed": "cancelled because of this host; it is unchanged",
    "untouched": "cancelled because of another host; this host is unchanged",
    "switched": "cancelled, but `current` could not be switched back here",
    "unknown": "the connection was lost while `current` was being switched, or the host says that it is not",
}
_SWITCHED = {"pushed", "rolled-back"}
DONE = {*_SWITCHED, "unchanged"}

WHY_LEFT = {
    "absent": "is not there",
    "current": "is current",
    "previous": "is the previous one, to which mnt rollback leads",
    "used": "is in use",
    "foreign": "contains files of jobs",
}


@dataclass(frozen=True)
class Left:
    """A release that was not removed."""

    release: str
    why: str  # a key of WHY_LEFT
    foreign: dict[str, Any] | None = None  # for "foreign": {"files", "bytes", "names"}: the first few names


@dataclass(frozen=True)
class HostResult:
    """The result on one host."""

    status: str  # a key of STATUSES
    files_sent: int = 0
    bytes_sent: int = 0  # manifest and tar stream
    seconds: float = 0.0  # from the start of the push until the host had verified the release
    current: str | None = None  # the release that `current` points to at the end; None: none, or unknown
    shares_with: str | None = None  # another host that received the release for the shared workdir
    replaced: dict[str, Any] | None = None  # who pushed what was current before (mnt.tasks.push.Pushed)
    left: tuple[Left, ...] = ()  # old releases that were not removed
    error: str | None = None
    fix: str | None = None

    def document(self) -> dict[str, Any]:
        """The host in the document, without those of its keys after `current` that have no value.

        `left` has the releases that stay because of what jobs have written there.
        """
        left = [{"release": each.release, **each.foreign} for each in self.left if each.foreign]
        fields = {**asdict(self), "seconds": round(self.seconds, 3), "left": left or None}
        return {key: value for key, value in fields.items() if value is not None or key == "current"}


@dataclass(frozen=True)
class PushResult:
    """The result of a whole push, or of a rollback."""

    intended: str  # the release that was to become current on all hosts; "" if none was chosen
    hosts: dict[str, HostResult]

    @property
    def release(self) -> str | None:
        """The release that this change made current on all or some hosts; None: no host was changed."""
        return self.intended if self.ok or self.mixed else None

    @property
    def ok(self) -> bool:
        return all(host.status in DONE for host in self.hosts.values())

    @property
    def mixed(self) -> bool:
        """Whether this change may have left the hosts with different current releases."""
        statuses = {host.status for host in self.hosts.values()}
        return bool(statuses & {"unknown", "switched"}) or (not self.ok and bool(statuses & _SWITCHED))

    def document(self) -> dict[str, Any]:
        """The JSON document of `mnt push --json` (docs/push.md)."""
        return {
            "ok": self.ok,
            "release": self.release,
            "mixed": self.mixed,
            "hosts": {name: host.document() for name, host in self.hosts.items()},
        }
