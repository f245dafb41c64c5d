"""Stage, start, stop and read one host's part of jobs. The head calls it through `mnt.tasks.job`.

Arguments: `action` and that action's own, as `mnt.tasks.job` sends them. What cannot be done is answered as
`{"refused": {"message", "fix"}}`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, BinaryIO

from mnt.remote.common.refusal import Refused
from mnt.remote.job.logs import read_logs
from mnt.remote.job.start import spawn_node, stage_node, start_node
from mnt.remote.job.stop import stop_node


def main(args: dict[str, Any], emit: Callable[[dict[str, Any]], None], stdin: BinaryIO) -> dict[str, Any]:
    """Do one action on this host's jobs."""
    try:
        return _do(args["action"], args, emit)
    except Refused as refusal:
        return {"refused": refusal.document()}


def _do(action: str, args: dict[str, Any], emit: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    if action == "start":
        return start_node(args, emit)
    if action == "stage":
        return stage_node(args)
    if action == "spawn":
        return spawn_node(args, emit)
    if action == "stop":
        return stop_node(args)
    if action == "logs":
        return read_logs(args, emit)
    raise ValueError(f"no such action: {action}")
