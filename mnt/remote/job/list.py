"""List the jobs that have a directory for a host. The head calls it through `mnt.tasks.job`.

Arguments: `jobs_dir` and `host`; optional: `most`, the largest size of the list in bytes of JSON, and
`wanted`, the name of the job that is asked for, or an abbreviation of it. The answer is
`mnt.tasks.job.Jobs`. This is not a part of jobctl.py because it runs on every host, and needs little of what
jobctl.py imports.
"""

from __future__ import annotations

import heapq
import json
import math
import time
from collections.abc import Callable, Iterable
from typing import Any, BinaryIO, NamedTuple

from mnt.remote.common.forms import may_mean
from mnt.remote.common.refusal import Refused
from mnt.remote.job.entry import list_entries
from mnt.remote.job.files import FINAL_STATES

_MOST_PROBLEMS = 10  # they usually have one cause


def main(args: dict[str, Any], emit: Callable[[dict[str, Any]], None], stdin: BinaryIO) -> dict[str, Any]:
    return answer_of(args["jobs_dir"], args["host"], args.get("most"), args.get("wanted"))


def answer_of(jobs_dir: str, host: str, most: int | None = None, wanted: str | None = None) -> dict[str, Any]:
    """The answer; the head calls this for its own machine."""
    problems: list[Refused] = []
    try:
        found = that_fit(list_entries(jobs_dir, host, problems), math.inf if most is None else most, wanted)
    except Refused as refusal:
        return {"refused": refusal.document()}
    if found.unended:
        message = f"{found.unended} jobs that seem to be lost here are left out: there are too many"
        problems.insert(0, Refused(message, "mnt stop --all ends those that are listed"))
    return {
        "now": time.time(),
        "jobs": found.jobs,
        "left_out": found.left_out,
        "problems": [problem.document() for problem in problems[:_MOST_PROBLEMS]],
    }


class Fitting(NamedTuple):
    """The entries that are listed, in the order of `that_fit`, and how many are not."""

    jobs: list[dict[str, Any]]
    left_out: int
    unended: int  # of those that are left out, how many have not ended


def that_fit(entries: Iterable[tuple[dict[str, Any], bool]], most: float, wanted: str | None) -> Fitting:
    """The entries that have at most `most` bytes of JSON together. No more of them are in memory meanwhile.

    Those are left out last that are wanted, then those that have not ended, then the newest. Of those that
    have not ended, the ones that were started here count more: others may be an invention of other nodes. So
    these come first in the list too, because the head counts only some of those that have not ended; all
    others have the newest first.

    Args:
        entries: each with whether it was certainly started here.

    Raises Refused if one that may be wanted, or has not ended and was started here, is left out.
    """
    kept: list[tuple[_Rank, int, dict[str, Any]]] = []  # a heap: the lowest rank is the first
    left_out, unended, highest = 0, 0, None  # of those that are left out
    for number, (entry, is_local) in enumerate(entries):
        when, going_on = entry["created"] or entry["started"] or 0, entry["state"] not in FINAL_STATES
        rank = _Rank(
            wanted is not None and may_mean(wanted, entry["job"]),
            going_on and is_local,
            going_on,
            when,
            -number,
        )
        size = len(json.dumps(entry)) + 2
        heapq.heappush(kept, (rank, size, entry))
        most -= size
        while kept and (most < 0 or (highest is not None and kept[0][0] < highest)):
            lowest, size, _ = heapq.heappop(kept)
            if lowest.wanted and not lowest.runs:
                raise Refused(f"too many jobs that may be {wanted!r} are here", "name more of its id")
            if lowest.runs:
                raise Refused("too many jobs run or are lost here to list them", "mnt stop JOB ends a job")
            most += size
            left_out, unended = left_out + 1, unended + lowest.unended
            highest = lowest if highest is None else max(highest, lowest)
    listed = sorted(kept, key=lambda each: (each[0].runs, each[0].when, each[0].place), reverse=True)
    return Fitting([entry for _, _, entry in listed], left_out, unended)


class _Rank(NamedTuple):
    """A higher one is left out later."""

    wanted: bool
    runs: bool  # or was started here, and has not ended properly
    unended: bool
    when: float  # created or started, epoch seconds
    place: int  # none is another one's
