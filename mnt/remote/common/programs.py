"""Programs that the inventory names, and that are found by a PATH which a host makes. Python 3.8."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence

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
