"""Stage, start, stop and read one host's part of jobs. The head calls it through `mnt.tasks.job`.

Arguments: `action` and that action's own, as `mnt.tasks.job` sends them. What cannot be done is answered as
`{"refused": {"message", "fix"}}`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, BinaryIO

from mnt.remote.common.refusal import Refused
from mnt.remote.job.logs import read_logs
from mnt.remote.job.start import spawn_node, stage_node
from mnt.remote.job.stop import stop_node

_ACTIONS = {"stage": stage_node, "spawn": spawn_node, "stop": stop_node}


def main(args: dict[str, Any], emit: Callable[[dict[str, Any]], None], stdin: BinaryIO) -> dict[str, Any]:
    """Do one action on this host's jobs."""
    try:
        if args["action"] == "logs":
            return read_logs(args, emit)
        return _ACTIONS[args["action"]](args)
    except Refused as refusal:
        return {"refused": refusal.document()}
