"""Whether the release that a launch runs is what its user means: their own, of the tree as it is now."""

from __future__ import annotations

import os
from pathlib import Path

from mnt.errors import MntError
from mnt.launch.plan import CodeTree
from mnt.push.manifest import build
from mnt.push.origin import here, is_mine, pushed_by
from mnt.push.tree import Tree, printable, walk
from mnt.tasks.push import Pushed

# Up to these sizes a tree is hashed (2,000 files of 4 KB take 0.2 s); above, times are compared, and above
# the last nothing is.
_HASHED = 5_000, 64 << 20  # entries, bytes
_MOST, _MOST_BYTES = 50_000, 8 << 20  # entries, and bytes of their paths


def remarks(tree: CodeTree, directory: str) -> list[str]:
    """What a user should know of the release that is about to run, a sentence each.

    Args:
        directory: where the user is; it, or one above it, may be the tree that was pushed.
    """
    if tree.pushed is None:
        return []
    pushed, place = tree.pushed, Path(directory).resolve()
    own = here(place)
    if not is_mine(pushed, own):
        return [f"release {tree.release} is not yours: it was pushed by {pushed_by(pushed)}"]
    source = Path(pushed["source"])
    if place != source and source not in place.parents:
        return [
            f"release {tree.release} does not come from this directory: it was pushed by {pushed_by(pushed)}"
        ]
    change = _change(source, tree, pushed)
    return [] if change is None else [f"{change}; mnt launch --push sends this tree first"]


def _change(source: Path, tree: CodeTree, pushed: Pushed) -> str | None:
    """How the tree differs from the release; None: it does not, or that cannot be said soon."""
    try:
        found = walk(source, _MOST, _MOST_BYTES)
        if len(found.entries) > _HASHED[0] or sum(entry.size for entry in found.entries) > _HASHED[1]:
            path = _changed_since(found, pushed["time"])
            return path and f"{printable(path)} was changed since release {tree.release} was pushed"
        same = build(found).sha == tree.manifest
    except MntError:  # too large, or not readable: a push would say why
        return None
    return None if same else f"{source} differs from release {tree.release}, which will run"


def _changed_since(tree: Tree, moment: float) -> str | None:
    """An entry of the tree that was changed, or had one added or removed, since a time of this machine."""
    for entry in tree.entries:
        try:
            if os.lstat(tree.root / entry.path).st_ctime > moment:
                return entry.path or "the tree"
        except OSError:
            return entry.path
    return None
