"""Releases on one host: what `current` is, and whether a release is there.

Each task runs `mnt/remote/receive.py` on the host, which knows where releases lie (docs/architecture.md).
"""

from __future__ import annotations

from typing import Any, TypedDict

from mnt.errors import HostError
from mnt.fleet import HostConnection
from mnt.tasks.program import run_program


class FoundRelease(TypedDict):
    current: str | None  # the release that `current` leads to; None: nothing was pushed here
    has: bool  # the release that was asked for (`current` if none was) is here, with its manifest
    path: str | None  # absolute path of that release on the host, whether it is there or not; None: no release
    manifest_sha: str | None  # SHA-256 (hex) of its manifest; the same on every host that holds the same tree


def find_release(connection: HostConnection, release: str | None = None) -> FoundRelease:
    """Look for a release in the host's workdir: `release`, or whatever `current` is. Nothing is hashed anew.

    Raises HostError (phase `command`) if the workdir cannot be read, or `current` is no link to a release.
    """
    args = {"action": "find", "workdir": connection.target.workdir, "release": release}
    answer: FoundRelease = _ask(connection, args)
    return answer


def _ask(connection: HostConnection, args: dict[str, Any]) -> Any:
    answer = run_program(connection, "receive", args)
    refusal = answer.get("refused")
    if refusal is not None:
        raise HostError(connection.target.name, "command", refusal["message"], fix=refusal.get("fix"))
    return answer
