"""List the jobs that have a directory for a host. The head calls it through `mnt.tasks.job`.

Arguments: `jobs_dir` and `host`. The answer is `mnt.tasks.job.Jobs`. This is not a part of jobctl.py because
it runs on every host, and needs little of what jobctl.py imports.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, BinaryIO

from mnt.remote.common.refusal import Refused
from mnt.remote.job.entry import list_entries


def main(args: dict[str, Any], emit: Callable[[dict[str, Any]], None], stdin: BinaryIO) -> dict[str, Any]:
    return answer_of(args["jobs_dir"], args["host"])


def answer_of(jobs_dir: str, host: str) -> dict[str, Any]:
    """The answer; the head calls this for its own machine."""
    try:
        return {"now": time.time(), "jobs": list_entries(jobs_dir, host)}
    except Refused as refusal:
        return {"refused": refusal.document()}
