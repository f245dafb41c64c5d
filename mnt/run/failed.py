"""The hosts that failed in the last run, remembered for each inventory: `@failed`."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from mnt.errors import UsageError

_FORMAT = 1


def state_file(inventory: str) -> Path:
    """The file with an inventory's failed hosts, located by the XDG Base Directory Specification, 0.8."""
    home = os.environ.get("XDG_STATE_HOME", "")
    state = Path(home) if os.path.isabs(home) else Path("~/.local/state").expanduser()
    digest = hashlib.sha256(os.fsencode(os.path.realpath(inventory))).hexdigest()
    return state / "mnt" / "failed" / f"{digest[:32]}.json"


def remember(inventory: str, hosts: Sequence[str]) -> None:
    """Replace the failed hosts of the inventory. Raises OSError."""
    file = state_file(inventory)
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    text = json.dumps({"format": _FORMAT, "inventory": os.path.realpath(inventory), "hosts": list(hosts)})
    # mkstemp creates it with mode 0600; a reader finds the old file or the new one, never a partial one.
    descriptor, name = tempfile.mkstemp(dir=file.parent, prefix=".failed-")
    try:
        with open(descriptor, "w", encoding="utf-8") as new:
            new.write(text + "\n")
        os.replace(name, file)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


def recall(inventory: str) -> list[str]:
    """The hosts that failed in the last run; none if there was no run.

    Raises:
        UsageError: the file is not valid.
    """
    file = state_file(inventory)
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
        hosts = document["hosts"]
        if document["format"] != _FORMAT or not all(isinstance(host, str) for host in hosts):
            raise ValueError
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UsageError(f"{file}: {(error.strerror or str(error)).lower()}") from None
    except (ValueError, KeyError, TypeError):
        raise UsageError(
            f"{file}: not a list of failed hosts that this mnt can read", fix=f"rm {file}"
        ) from None
    return list(hosts)
