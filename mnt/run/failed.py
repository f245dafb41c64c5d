"""The hosts that failed in the last run, remembered for each inventory: `@failed`."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from mnt.errors import OutputError, UsageError
from mnt.inventory.hostlist import MAX_HOSTS
from mnt.paths import state_directory
from mnt.remote.common.files import make_directories, parse_json, read_bytes, replace_file, strerror
from mnt.remote.common.owners import check_owners
from mnt.remote.common.refusal import Refused

_FORMAT = 1
_MOST_BYTES = 32 * 1024 * 1024  # more than 100,000 hosts with long names
_MOST_VALUES = MAX_HOSTS + 5000  # a comma is before each, and may be in the inventory's path


def state_file(inventory: str) -> Path:
    """The file with an inventory's failed hosts.

    Raises UsageError if no home directory is known.
    """
    try:
        state = state_directory()
    except OSError as error:
        raise UsageError(f"@failed: {strerror(error)}", fix="set HOME, or XDG_STATE_HOME") from None
    digest = hashlib.sha256(os.fsencode(os.path.realpath(inventory))).hexdigest()
    return state / "failed" / f"{digest[:32]}.json"


def remember(inventory: str, hosts: Sequence[str]) -> None:
    """Replace the failed hosts of the inventory.

    If that is not possible, those of an earlier run are at least forgotten: they must not be taken for these.

    Raises:
        OutputError: the file cannot be written; or, where no host failed, not even be removed.
        UsageError: another user could change it, or no home directory is known.
    """
    file = state_file(inventory)
    text = json.dumps({"format": _FORMAT, "inventory": os.path.realpath(inventory), "hosts": list(hosts)})
    try:
        make_directories(file.parent)
        _is_ours(file.parent)
        replace_file(file, text + "\n")
    except OSError as error:
        if _forgotten(file) and not hosts:
            return
        raise OutputError(
            f"{file}: the hosts for -n @failed cannot be saved: {strerror(error)}",
            fix="free space there, or set XDG_STATE_HOME to another directory",
        ) from None


def _forgotten(file: Path) -> bool:
    """Whether there is no file any more."""
    try:
        file.unlink(missing_ok=True)
    except OSError:
        return not file.exists()
    return True


def recall(inventory: str) -> list[str]:
    """The hosts that failed in the last run; none if there was no run.

    Raises:
        UsageError: the file is not valid, or another user could change it.
    """
    file = state_file(inventory)
    try:
        if not _is_ours(file.parent):
            return []
        data = read_bytes(file, _MOST_BYTES)
        if max(map(data.count, (b",", b"[", b"{"))) > _MOST_VALUES:
            raise ValueError("more values than hosts")
        document = parse_json(data)
        hosts = document["hosts"]
        if document["format"] != _FORMAT or not all(isinstance(host, str) for host in hosts):
            raise ValueError
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UsageError(f"{file}: {strerror(error)}") from None
    except (ValueError, KeyError, TypeError):
        raise UsageError(
            f"{file}: not a list of failed hosts that this mnt can read", fix=f"rm {shlex.quote(str(file))}"
        ) from None
    return list(hosts)


def _is_ours(directory: Path) -> bool:
    """Whether the directory exists. Raises UsageError unless only this user, and root, can change it."""
    try:
        return check_owners(str(directory), private=1)
    except Refused as refusal:
        raise UsageError(f"@failed: {refusal.message}", fix=refusal.fix) from None
