"""The result of a push, in total and on each host."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

STATUSES = {
    "pushed": "the release is current here",
    "unchanged": "the release was already current here",
    "failed": "the push was cancelled because of this host; it is unchanged",
    "untouched": "the push was cancelled because of another host; this host is unchanged",
    "switched": "the push was cancelled, but `current` could not be switched back here",
    "unknown": "the connection was lost while `current` was being switched, or the host says that it is not",
}


@dataclass(frozen=True)
class HostResult:
    """The result on one host."""

    status: str  # a key of STATUSES
    files_sent: int = 0
    bytes_sent: int = 0  # manifest and tar stream
    seconds: float = 0.0  # from the start of the push until the host had verified the release
    current: str | None = None  # the release that `current` points to at the end; None: none, or unknown
    shares_with: str | None = None  # another host that received the release for the shared workdir
    error: str | None = None
    fix: str | None = None

    def document(self) -> dict[str, Any]:
        """The host in the document; `shares_with`, `error` and `fix` are left out if there are none."""
        fields = {**asdict(self), "seconds": round(self.seconds, 3)}
        return {key: value for key, value in fields.items() if value is not None or key == "current"}


@dataclass(frozen=True)
class PushResult:
    """The result of a whole push."""

    intended: str  # the release that was to become current on all hosts; "" if none was chosen
    hosts: dict[str, HostResult]

    @property
    def release(self) -> str | None:
        """The release that this push made current on all or some hosts; None: no host was changed."""
        return self.intended if self.ok or self.mixed else None

    @property
    def ok(self) -> bool:
        return all(host.status in ("pushed", "unchanged") for host in self.hosts.values())

    @property
    def mixed(self) -> bool:
        """Whether this push may have left the hosts with different current releases."""
        statuses = {host.status for host in self.hosts.values()}
        return bool(statuses & {"unknown", "switched"}) or (not self.ok and "pushed" in statuses)

    def document(self) -> dict[str, Any]:
        """The JSON document of `mnt push --json` (docs/push.md)."""
        return {
            "ok": self.ok,
            "release": self.release,
            "mixed": self.mixed,
            "hosts": {name: host.document() for name, host in self.hosts.items()},
        }
