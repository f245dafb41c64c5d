"""Checkpoints on disk: a directory per step, and a pointer to the latest one that all ranks have completed.

    OUT/step-00000020/    what the engine saved
    OUT/latest            text: `step-00000020`

The pointer is replaced by one rename after all ranks have saved, so it never names an incomplete checkpoint.
The names follow DeepSpeed's own layout (a tag, and `latest`), so its tools can read these directories.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

LATEST = "latest"


def directory_name(step: int) -> str:
    return f"step-{step:08d}"


def step_of(name: str) -> int | None:
    """The step that a directory name stands for; None for any other name."""
    found = re.fullmatch(r"step-(\d{8,})", name)
    return int(found[1]) if found else None


def outdated(steps: Iterable[int], *, current: int, keep: int) -> list[int]:
    """The steps whose checkpoints are removed after `current` is saved: all but the newest `keep` up to it.

    Later checkpoints stay: a run that resumed from an older checkpoint does not remove newer ones.
    """
    return sorted(step for step in steps if step <= current)[:-keep]


def saved_steps(out: Path) -> list[int]:
    steps = (step_of(entry.name) for entry in out.iterdir()) if out.is_dir() else ()
    return sorted(step for step in steps if step is not None)


def point(out: Path, name: str) -> None:
    """Makes `name` the latest checkpoint of `out`, by one rename."""
    draft = out / f".{LATEST}.new"
    with draft.open("w", encoding="utf-8") as file:
        file.write(name + "\n")
        file.flush()
        os.fsync(file.fileno())
    draft.replace(out / LATEST)


def latest(out: Path) -> str | None:
    """The name of the checkpoint in the pointer of `out`; None if there is no pointer."""
    try:
        return (out / LATEST).read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return None
