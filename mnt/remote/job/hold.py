"""End a part of a job whose launch is cut off before it has started all nodes: the others may never come."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, BinaryIO

from mnt.remote.common.life import LivelyInput, Silent
from mnt.remote.job.stop import stop_node

_WHY = {"message": "mnt launch was cut off before it had started all nodes", "lost": None}


def hold_node(
    args: dict[str, Any], emit: Callable[[dict[str, Any]], None], stdin: BinaryIO
) -> dict[str, Any]:
    """Wait until the head ends the stream. If it is gone before, end this node's part of the job."""
    emit({"held": True})
    try:
        while LivelyInput(stdin).read(4096):
            pass
    except (ConnectionError, Silent, SystemExit):
        end_without_head(args)
        raise
    return {}


def end_without_head(args: dict[str, Any]) -> None:
    """End this node's part of a job that was not started everywhere: what is staged, or runs already."""
    stop_node({**args, "grace": args.get("grace", 0.0), "why": _WHY})
