"""The note beside a release: who pushed it, from where. Runs on a host: Python 3.8, standard library."""

from __future__ import annotations

import json
import os
from typing import Any

from mnt.remote.common.files import read_json, replace_file
from mnt.remote.common.forms import CALENDAR_END

_FORMAT = 1
_NEEDED, _OPTIONAL = ("user", "head", "source", "mnt"), ("commit", "branch")  # texts
_LONGEST = 1000  # characters of a text


def read_pushed(path: bytes) -> dict[str, Any] | None:
    """The note, as `mnt.tasks.push.Pushed`; None: there is none, or something else is there."""
    note = read_json(os.fsdecode(path)) or {}
    moment = note.get("time")
    texts = {
        name: note[name][:_LONGEST] for name in (*_NEEDED, *_OPTIONAL) if isinstance(note.get(name), str)
    }
    if note.get("format") != _FORMAT or not texts.keys() >= set(_NEEDED) or not _is_moment(moment):
        return None
    missing = dict.fromkeys(_OPTIONAL)
    return {**missing, **texts, "time": moment}


def _is_moment(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value < CALENDAR_END


def write_pushed(path: bytes, note: dict[str, Any]) -> None:
    """Store the note. Raises OSError."""
    replace_file(os.fsdecode(path), json.dumps({"format": _FORMAT, **note}), 0o644)
