"""Which releases are removed, and which stay. Runs on a host: Python 3.8, standard library."""

from __future__ import annotations

from typing import Any, Iterable, Sequence

from mnt.remote.push.releases import Releases

_MOST_LEFT = 200  # releases that are told to stay, the newest


def prune(
    releases: Releases,
    *,
    keep: int,
    protect: Iterable[str] = (),
    previous: str | None = None,
    ids: Sequence[str] | None = None,
    with_results: bool = False,
    dry_run: bool = False,
) -> dict[str, Any]:
    """Remove releases; the current one, and those in use, always stay.

    Args:
        keep: how many of the newest stay.
        protect: releases that stay because something elsewhere uses them.
        previous: the release to which a rollback leads, which stays.
        ids: consider these, whatever their age, in place of all but the newest.
        with_results: also remove releases that contain foreign files.
        dry_run: remove nothing; the answer is the same.

    Returns {"pruned": [id], "left": [{"release", "why", "foreign"}]}. `why` is "absent", "current",
    "previous", "used" or "foreign"; with the last, `foreign` tells what it contains (`Contents.foreign`).
    """
    present, current = releases.ids(), releases.current()
    used = {*protect, *(use.release for use in releases.uses())}

    def why_not(release: str) -> str | None:
        if release not in present:
            return "absent"
        if release == current:
            return "current"
        if release in used:
            return "used"
        return "previous" if release == previous else None

    pruned: list[str] = []
    left: list[dict[str, Any]] = []
    for release in sorted(present[keep:] if ids is None else set(ids), reverse=True):
        why, foreign = why_not(release), None
        if why is None and not with_results:
            contents = releases.contents(release, thorough=True)
            if contents.foreign_files:
                why, foreign = "foreign", contents.foreign()
        if why is None and not dry_run and not releases.remove(release):
            why = "used"
        if why is None:
            pruned.append(release)
        else:
            left.append({"release": release, "why": why, "foreign": foreign})
    return {"pruned": pruned, "left": left[:_MOST_LEFT]}
