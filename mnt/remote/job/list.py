"""List the jobs that have a directory for a host. The head calls it through `mnt.tasks.job`.

Arguments: `jobs_dir` and `host`; optional: `most`, the largest size of the list in bytes of JSON, and
`wanted`, the name of the job that is asked for. The answer is `mnt.tasks.job.Jobs`. This is not a part of
jobctl.py because it runs on every host, and needs little of what jobctl.py imports.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any, BinaryIO

from mnt.remote.common.refusal import Refused
from mnt.remote.job.entry import list_entries
from mnt.remote.job.files import FINAL_STATES

_MOST_PROBLEMS = 10  # they usually have one cause


def main(args: dict[str, Any], emit: Callable[[dict[str, Any]], None], stdin: BinaryIO) -> dict[str, Any]:
    return answer_of(args["jobs_dir"], args["host"], args.get("most"), args.get("wanted"))


def answer_of(jobs_dir: str, host: str, most: int | None = None, wanted: str | None = None) -> dict[str, Any]:
    """The answer; the head calls this for its own machine."""
    try:
        entries, problems = list_entries(jobs_dir, host)
        jobs = entries if most is None else that_fit(entries, most, wanted)
    except Refused as refusal:
        return {"refused": refusal.document()}
    return {
        "now": time.time(),
        "jobs": jobs,
        "left_out": len(entries) - len(jobs),
        "problems": [problem.document() for problem in problems[:_MOST_PROBLEMS]],
    }


def that_fit(entries: list[dict[str, Any]], most: int, wanted: str | None) -> list[dict[str, Any]]:
    """The entries that have at most `most` bytes together, in their order.

    Those come first that are wanted, then those that have not ended, then the first ones of the list. Raises
    Refused if one that is wanted or has not ended is left out.
    """

    def rank(index: int) -> tuple[bool, bool, int]:
        entry = entries[index]
        return entry["job"] != wanted, entry["state"] in FINAL_STATES, index

    kept = []
    for index in sorted(range(len(entries)), key=rank):
        most -= len(json.dumps(entries[index])) + 2
        if most < 0:
            not_wanted, ended, _ = rank(index)
            if ended and not_wanted:
                break
            raise Refused("too many jobs run or are lost here to list them", "mnt stop JOB ends a job")
        kept.append(index)
    return [entries[index] for index in sorted(kept)]
