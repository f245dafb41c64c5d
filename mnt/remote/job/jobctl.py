"""Stage, hold, start and stop one host's part of a job, and read its logs. Called through `mnt.tasks.job`.

Arguments: `action` and the arguments of that action, as `mnt.tasks.job` sends them. The answer to an action
that is not possible is `{"refused": {"message", "fix"}}`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, BinaryIO

from mnt.remote.common.refusal import Refused
from mnt.remote.job.hold import hold_node
from mnt.remote.job.join import join_node
from mnt.remote.job.logs import read_logs
from mnt.remote.job.start import await_port, await_ranks, check_node, spawn_node, stage_node
from mnt.remote.job.stop import stop_node, stop_nodes

_ACTIONS = {
    "check": check_node,
    "stage": stage_node,
    "spawn": spawn_node,
    "join": join_node,
    "await port": await_port,
    "await ranks": await_ranks,
    "stop": stop_node,
    "stop all": stop_nodes,
}


def main(args: dict[str, Any], emit: Callable[[dict[str, Any]], None], stdin: BinaryIO) -> dict[str, Any]:
    """Carry out one action on this host's jobs."""
    try:
        if args["action"] == "logs":
            return read_logs(args, emit)
        if args["action"] == "hold":
            return hold_node(args, emit, stdin)
        return _ACTIONS[args["action"]](args)
    except Refused as refusal:
        return {"refused": refusal.document()}
