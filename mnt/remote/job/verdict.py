"""How a node's part of a job ended, and why: pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mnt.remote.job.channel import Event
from mnt.remote.job.entry import as_failure
from mnt.remote.job.failures import Failure, exit_code_of, make_failure


def verdict(code: int, reason: Mapping[str, Any] | None, failure: Failure | None) -> dict[str, Any]:
    """How the node's part ended, as fields of its state.

    Args:
        code: exit code of the job's first process, -N for signal N.
        reason: why the job was told to end (see `reason_of`); None: it ended by itself.
        failure: the failure found on this node, if any.
    """
    if reason is None and code == 0:
        return {"state": "finished", "exit_code": 0, "signal": None, "failure": None}
    # After it was told to end, it has failed only if a process had failed before, and by itself.
    if failure is not None and (reason is None or (failure["rank"] is not None and not failure["victim"])):
        return {
            "state": "failed",
            "exit_code": exit_code_of(code) if failure["exit_code"] is None else failure["exit_code"],
            "signal": failure["signal"],
            "failure": failure,
        }
    if reason is not None and reason.get("message"):
        ended = make_failure(str(reason["message"]), time=reason["time"])
        return {"state": "failed", "exit_code": None, "signal": None, "failure": ended}
    return {"state": "stopped", "exit_code": None, "signal": None, "failure": None}


def reason_of(event: Event, now: float, nic_down: str | None = None) -> dict[str, Any]:
    """Why this node's part ends after another's has: the `reason` of `mnt.tasks.job.JobEntry`.

    Args:
        nic_down: this node's training NIC, if that is why it hears nobody.
    """
    if event.kind == "lost":
        return {"lost": event.host, "message": event.message, "time": now, "nic": nic_down}
    if event.kind == "stopped":
        return {"request": True, "peer": event.host}
    return {"peer": event.host, "failure": as_failure(event.failure)}
