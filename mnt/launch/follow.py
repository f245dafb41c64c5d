"""Follow what one node of a job writes, to the end of its part and through lost connections."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mnt.errors import HostError
from mnt.launch.jobs import ACTIVE
from mnt.tasks.job import read_logs

if TYPE_CHECKING:
    from mnt.fleet import HostConnection
    from mnt.tasks.job import JobEntry

RETRY_EVERY = 2.0  # seconds between attempts to reach a node again
_GIVE_UP_AFTER = 60.0  # seconds that a node may be unreachable for `reach_again`

Retry = Callable[["HostConnection", HostError], None]


def follow(
    connection: HostConnection,
    jobs_dir: str,
    job: str,
    on_frame: Callable[[dict[str, Any]], None],
    *,
    retry: Retry,
    rank: int | None = None,
    tail: int | None = None,
) -> JobEntry:
    """Read a node's output, or one global rank's, until its part of the job has ended.

    Args:
        on_frame, rank, tail: see `mnt.tasks.job.read_logs`. No byte of the output comes twice.
        retry: called with the error when the connection is lost; returns when there is one again.

    Returns the node's last entry. Raises HostError, phase `command` or `answer`, if the host does not send
    its output, and what `retry` or `on_frame` raises.
    """
    host = connection.target.name
    offsets: dict[str, int] = {}

    def take(frame: dict[str, Any]) -> None:
        if "offset" in frame:
            offsets[frame["stream"]] = frame["offset"]
        on_frame(frame)

    while True:
        try:
            last = read_logs(
                connection,
                jobs_dir,
                job,
                host,
                rank=rank,
                follow=True,
                offsets=offsets,
                tail=tail,
                on_frame=take,
            )
        except HostError as error:
            if not error.connection_lost:
                raise
            retry(connection, error)
            continue
        if last["state"] in ACTIVE or last["state"] == "pending":
            raise HostError(host, "answer", f"its log ends, but its part is {last['state']}")
        return last


def reach_again(connection: HostConnection, error: HostError, tell: Callable[[str], None]) -> None:
    """Return when the host answers again. Raises HostError if it does not within a minute.

    Args:
        tell: takes messages for people, one line at a time.
    """
    deadline = time.monotonic() + _GIVE_UP_AFTER
    time.sleep(RETRY_EVERY)  # first: after a Ctrl-C, which closes the connection, there is nothing to tell
    tell(f"{error.message}; the job goes on there, reconnecting")
    while True:
        try:
            connection.close()
            connection.open()
        except HostError:
            if time.monotonic() > deadline:
                raise
        else:
            tell(f"{connection.target.name}: connected again")
            return
        time.sleep(RETRY_EVERY)
