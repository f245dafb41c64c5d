"""Follow the nodes of a job to their end: show their output; if one fails, end the others."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from mnt.errors import HostError
from mnt.launch.culprit import why_lost
from mnt.launch.follow import RETRY_EVERY, follow
from mnt.launch.jobs import ACTIVE, Job, merge_job
from mnt.remote.common.forms import CONNECTED
from mnt.tasks.job import list_jobs, stop_node

if TYPE_CHECKING:
    from mnt.fleet import Fleet, HostConnection, Outcome
    from mnt.launch.plan import LaunchPlan
    from mnt.tasks.job import JobEntry, Why

GIVE_UP_AFTER = 10.0  # seconds that a node may be unreachable after all others have ended
GIVE_UP_ALONE = 600.0  # the same if no other node can be reached: the head's network may be down
# The same for a node that no other node's supervisor has heard, while others run: none of them can lose it.
GIVE_UP_UNLINKED = 15.0
PEERS_FIRST = 3.0  # seconds that the nodes' supervisors have to report a failure to each other


def skipped(host: str, job: str, frame: Mapping[str, Any]) -> str:
    """A sentence about output of a host that is not shown (`mnt.tasks.job.read_logs`)."""
    megabytes = f"{frame['skipped'] / 1e6:,.1f} MB"
    if frame["why"] == "not kept":
        what = f"{megabytes} of the rank's {frame['stream']} are not kept, only its end"
        return f"{host}: {what}; mnt logs {job} --node {host} has the output of all ranks"
    return f"{host}: {megabytes} of output skipped, because the job was stopped; mnt logs {job} --node {host}"


class Watch:
    """An attached job.

    Args:
        plan: the plan of the started job.
        output: takes (host, text) as it arrives; text may contain surrogate escapes.
        tell: takes messages about the job, one line at a time.
    """

    def __init__(
        self, plan: LaunchPlan, *, output: Callable[[str, str], None], tell: Callable[[str], None]
    ) -> None:
        self._job = plan.job
        self._planned = plan.description
        self._jobs_dirs = {node.host: node.jobs_dir for node in plan.nodes}
        self._output = output
        self._tell = tell
        self._grace = plan.grace  # seconds between TERM and KILL, if another node's failure ends a node
        self._entries: dict[str, JobEntry] = {}
        self._followed: set[str] = set()  # to the end of their part
        self._away: set[str] = set()
        self._unlinked: str | None = None  # the host that is given up although the others run
        self._requested = False  # the first part that ended was stopped
        self._without: set[str] = set()  # hosts that answered that they have no files of this job
        self._close: Callable[[str], None] = lambda host: None
        self._failed = threading.Event()
        self._over = threading.Event()
        self._output_error: BaseException | None = None

    def follow(self, fleet: Fleet, clock_offsets: Mapping[str, float]) -> Job:
        """Watch until every node has ended or was given up. Returns the final state of the job.

        Args:
            fleet: over the job's hosts.
            clock_offsets: by host, seconds that its clock is ahead of the head's.

        Raises:
            HostError: no node could be followed to its end.
            Any exception of `output`. The job goes on.
        """
        self._close = lambda host: fleet.connection(host).close()
        ender = threading.Thread(target=self._end_others, args=(fleet,), daemon=True)
        ender.start()
        try:
            results = fleet.run_each(
                self._follow_node, dict.fromkeys(self._jobs_dirs, ()), on_result=self._raise_output_error
            )
        finally:
            self._over.set()
            self._failed.set()
        ender.join()
        errors = results.errors()
        entries = {
            host: (entry, clock_offsets.get(host, 0.0))
            for host, entry in self._entries.items()
            if host not in errors
        }
        if not entries:
            error = next(iter(errors.values()))
            fix = f"the job may still run: mnt status {self._job} shows it once the hosts answer"
            if error.host in self._without:
                fix = f"its processes may still run: mnt stop {self._job} ends them"
            raise HostError(error.host, error.phase, error.reason, fix=fix)
        never_started = self._without - self._entries.keys()
        return merge_job(
            entries,
            unreachable=errors.keys() - never_started,
            asked=self._jobs_dirs,
            planned=self._planned,
        )

    def running(self) -> list[str]:
        """The hosts that are not followed to their end yet, in rank order."""
        return [host for host in self._jobs_dirs if host not in self._followed]

    def give_up(self, fleet: Fleet) -> None:
        """End `follow` soon, whatever the hosts send. Called in another thread."""
        self._over.set()
        for host in self.running():
            fleet.connection(host).close()

    def _follow_node(self, connection: HostConnection) -> None:
        host = connection.target.name

        def on_frame(frame: dict[str, Any]) -> None:
            if self._over.is_set():
                raise HostError(host, "channel", "it was not waited for any longer")
            if "state" in frame:
                self._changed(host, frame["state"])
            elif "skipped" in frame:
                self._tell(skipped(host, self._job, frame))
            else:
                self._show(host, frame["data"])

        try:
            last = follow(connection, self._jobs_dirs[host], self._job, on_frame, retry=self._reach_again)
        except HostError as error:
            if error.connection_lost:
                raise
            self._await_end(connection, error)
        else:
            self._ended(connection, last)

    def _show(self, host: str, text: str) -> None:
        try:
            self._output(host, text)
        except BaseException as error:
            self._output_error = error
            raise

    def _raise_output_error(self, outcome: Outcome[None]) -> None:
        if self._output_error is not None:
            raise self._output_error

    def _await_end(self, connection: HostConnection, error: HostError) -> None:
        """Watch a node without its output, after this error. Raises it if its state cannot be had either."""
        if self._over.wait(RETRY_EVERY):  # the watching has ended, and that ended the program on the host
            raise error
        told = False
        while True:
            try:
                entry = self._entry(connection)
            except HostError as lost:
                if lost.connection_lost:
                    self._reach_again(connection, lost)
                    continue
                entry = None
            if entry is None:
                if len(self._jobs_dirs) > 1:  # of one node, the error is shown at the end
                    self._tell(f"{error.message}; the host is no longer watched")
                raise error
            if not told:
                self._tell(f"{error.message}; its further output is not shown")
                told = True
            if entry["state"] not in ACTIVE:
                self._ended(connection, entry)
                return
            self._changed(connection.target.name, entry)
            if self._over.wait(RETRY_EVERY):
                raise error

    def _entry(self, connection: HostConnection) -> JobEntry | None:
        """The node's state. None: the host has no files of the job: it never started there, or lost them."""
        host = connection.target.name
        for entry in list_jobs(connection, self._jobs_dirs[host], host, wanted=self._job)["jobs"]:
            if entry["job"] == self._job:
                return entry
        self._without.add(host)
        return None

    def _changed(self, host: str, entry: JobEntry) -> None:
        self._entries[host] = entry
        if entry["state"] not in ACTIVE and entry["state"] != "finished":
            self._requested = self._requested or (entry["state"] == "stopped" and not self._failed.is_set())
            self._failed.set()
        # Whoever waits for a host that the others have lost need not wait for its answer any more.
        for lost in filter(self._abandoned, list(self._away)):
            self._close(lost)

    def _end_others(self, fleet: Fleet) -> None:
        """After a node has ended the job, end the nodes that their own supervisors do not end in time."""
        self._failed.wait()
        # All at once: one that is frozen, or lies, answers only at the limit of `stop_node`, if at all.
        enders: dict[str, threading.Thread] = {}
        pause = PEERS_FIRST
        while not self._over.wait(pause):
            pause = RETRY_EVERY
            for host, entry in list(self._entries.items()):
                if entry["state"] in ACTIVE and host not in self._away and host not in enders:
                    of_host = (fleet.connection(host), entry)
                    enders[host] = threading.Thread(target=self._end, args=of_host, daemon=True)
                    enders[host].start()
        for ender in enders.values():
            ender.join()

    def _ended(self, connection: HostConnection, entry: JobEntry) -> None:
        """A node's part has ended. End what is left of it, if nobody there takes care of that."""
        host = connection.target.name
        self._changed(host, entry)
        if entry["state"] == "lost":
            self._end(connection, entry)
            with contextlib.suppress(HostError):  # it stays lost
                self._changed(host, self._entry(connection) or entry)
        self._followed.add(host)

    def _end(self, connection: HostConnection, entry: JobEntry) -> None:
        """End one node's part, or what is left of it."""
        host = connection.target.name
        why: Why | None = None
        if entry["state"] == "lost":
            why = {"message": why_lost(entry), "lost": None}
            self._tell(f"{host}: {why['message']}; ending what is left there")
        elif self._unlinked is not None:
            why = {"message": f"{self._unlinked} cannot be reached", "lost": self._unlinked}
            self._tell(f"{host}: ending, because {why['message']}")
        elif self._requested:
            self._tell(f"{host}: ending, because the job was stopped")
        else:
            self._tell(f"{host}: ending, because the job has failed")
        try:
            stop_node(connection, self._jobs_dirs[host], self._job, host, grace=self._grace, why=why)
        except HostError as error:
            self._tell(error.message)

    def _reach_again(self, connection: HostConnection, error: HostError) -> None:
        """Return when the host answers again; raise the error when waiting makes no sense any more."""
        host = connection.target.name
        self._away.add(host)
        away_since = time.monotonic()
        alone_since: float | None = None
        if self._over.wait(RETRY_EVERY):  # the watching has ended, and that closed the connection
            raise error
        self._tell(f"{error.message}; the job goes on there, reconnecting")
        while True:
            if self._abandoned(host):
                raise error
            now = time.monotonic()
            in_reach = self._in_reach()
            if any(self._runs(other) for other in in_reach):
                alone_since = None
            elif in_reach:
                alone_since = alone_since or now
            if now - away_since > GIVE_UP_ALONE or (alone_since and now - alone_since > GIVE_UP_AFTER):
                raise error
            if (
                alone_since is None
                and in_reach
                and now - away_since > GIVE_UP_UNLINKED
                and not self._linked(host)
            ):
                self._unlinked = host
                self._failed.set()
                raise error
            try:
                connection.close()
                connection.open()
            except HostError as again:
                error = again
            else:
                self._away.discard(host)
                self._tell(f"{host}: connected again")
                return
            if self._over.wait(RETRY_EVERY):
                raise error

    def _in_reach(self) -> list[str]:
        return [host for host in self._jobs_dirs if host not in self._away]

    def _abandoned(self, host: str) -> bool:
        """Whether all nodes in reach have ended, and one of them because it had lost this host."""
        if any(self._runs(other) for other in self._in_reach()):
            return False
        return any((entry["reason"] or {}).get("lost") == host for entry in list(self._entries.values()))

    def _linked(self, host: str) -> bool:
        """Whether the supervisors hear each other, so that they notice if this node is lost."""
        master, *others = self._jobs_dirs
        asked = others if host == master else [host]
        return any(entry["peer"] == CONNECTED for each in asked if (entry := self._entries.get(each)))

    def _runs(self, host: str) -> bool:
        entry = self._entries.get(host)
        return entry is None or entry["state"] in ACTIVE
