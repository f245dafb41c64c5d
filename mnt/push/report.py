"""How a push ended, on each host."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

STATUSES = {
    "pushed": "the release is current here",
    "unchanged": "the release was current here before",
    "failed": "this host is why the push was called off; it is as it was",
    "untouched": "the push was called off because of another host; this one is as it was",
    "switched": "the push was called off, but `current` could not be switched back here",
    "unknown": "the connection was lost when `current` was to be switched",
}


@dataclass(frozen=True)
class HostReport:
    """One host's part. `status` is a key of STATUSES."""

    status: str
    files_sent: int = 0
    bytes_sent: int = 0  # manifest and tar stream
    seconds: float = 0.0  # from the start of the push until the host had verified the release
    current: str | None = None  # the release that `current` leads to at the end; None: none, or not known
    shares_with: str | None = None  # the host that received the release for this one too
    error: str | None = None
    fix: str | None = None


@dataclass(frozen=True)
class Report:
    """A whole push. `intended` is the release that all hosts were to end at; "" if none was chosen."""

    intended: str
    hosts: dict[str, HostReport]

    @property
    def release(self) -> str | None:
        """The release that is current because of this push, or may be; None: no host was changed."""
        return self.intended if self.ok or self.mixed else None

    @property
    def ok(self) -> bool:
        return all(host.status in ("pushed", "unchanged") for host in self.hosts.values())

    @property
    def mixed(self) -> bool:
        """Whether the hosts may be at different releases because of this push."""
        statuses = {host.status for host in self.hosts.values()}
        return bool(statuses & {"unknown", "switched"}) or (not self.ok and "pushed" in statuses)

    def document(self) -> dict[str, Any]:
        """The JSON document of `mnt push --json` (docs/push.md)."""
        return {
            "ok": self.ok,
            "release": self.release,
            "mixed": self.mixed,
            "hosts": {name: _document(host) for name, host in self.hosts.items()},
        }


def _document(host: HostReport) -> dict[str, Any]:
    always = {
        "status": host.status,
        "files_sent": host.files_sent,
        "bytes_sent": host.bytes_sent,
        "seconds": round(host.seconds, 3),
        "current": host.current,
    }
    optional = {"shares_with": host.shares_with, "error": host.error, "fix": host.fix}
    return {**always, **{key: value for key, value in optional.items() if value is not None}}
