"""Programs that the inventory names: found by a PATH which a host makes, and asked. Python 3.8."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from mnt.remote.common.files import encode, parse_json
from mnt.remote.common.forms import EXPOSED
from mnt.remote.common.owners import check_owners, find_group
from mnt.remote.common.refusal import Refused


def judged(words: Sequence[str], environment: Mapping[str, str], group: str | None) -> list[str]:
    """The words with the path of the program. Raises Refused: it is not there, or others can exchange it."""
    path = shutil.which(words[0], path=environment.get("PATH", os.defpath))
    if path is None:
        raise Refused(f"not found: {words[0]}", "set `python` of this host in the inventory")
    try:
        check_owners(os.path.abspath(path), None if group is None else find_group(group))
    except Refused as refusal:
        raise Refused(f"{EXPOSED}: {refusal.message}", refusal.fix) from refusal
    return [path, *words[1:]]


class Told(NamedTuple):
    """How a program has ended that was to print a JSON object in its last line."""

    code: int
    found: dict[str, Any] | None  # None: there is no such line
    said: str  # the last line on its standard error


def ask(argv: Sequence[str], environment: Mapping[bytes, bytes], cwd: str, seconds: float) -> Told:
    """Run such a program. Raises OSError, and subprocess.TimeoutExpired after so many seconds."""
    done = subprocess.run(
        [encode(word) for word in argv],
        cwd=encode(cwd),
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=seconds,
    )
    try:
        found = parse_json(done.stdout.strip().rpartition(b"\n")[2])
    except ValueError:
        found = None
    said = done.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2].strip()
    return Told(done.returncode, found if isinstance(found, dict) else None, said)
