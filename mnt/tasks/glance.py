"""The jobs of a host, without a Python there: its files come as they are, and are understood on the head.

Starting an interpreter on each of 64 lab hosts takes longer than all the rest of `mnt status`. Where what
jobs.sh tells leaves any doubt, the head asks jobctl.py, which can look twice.
"""

from __future__ import annotations

from typing import Any

from mnt.fleet import HostConnection, execute
from mnt.remote.common.procstat import parse_stat
from mnt.remote.job.entry import merged, newest_first
from mnt.remote.job.files import FINAL_STATES, FORMAT
from mnt.remote.job.procs import Process
from mnt.tasks import bootstrap
from mnt.tasks.bootstrap import BadFrame

_LIMIT = 1 << 23  # bytes of all files; more than the 200 jobs have that jobs.sh tells of


def glance(connection: HostConnection, jobs_dir: str, host: str, *, timeout: float) -> dict[str, Any] | None:
    """In the shape of `mnt.tasks.job.Jobs`; None: jobctl.py has to be asked.

    Raises HostError where the host does not answer in time, or cannot be reached.
    """
    if "\n" in jobs_dir or "\0" in jobs_dir:
        return None
    mark = bootstrap.new_mark()
    output = bytearray()

    def take(data: bytes) -> None:
        if len(output) <= _LIMIT:
            output.extend(data)

    stdin = opening(mark, jobs_dir, host)
    execute(connection, bootstrap.COMMAND, stdin=[stdin], timeout=timeout, on_stdout=take)
    return understood(output.decode(errors="replace"), mark, host)


def opening(mark: str, jobs_dir: str, host: str) -> bytes:
    """All that jobs.sh reads. No newline and no NUL are in the arguments."""
    text = f"{bootstrap.shell_line('job/jobs.sh')}\n{mark}\n{jobs_dir}\n{host}\n"
    return text.encode("utf-8", "surrogateescape")


def understood(text: str, mark: str, host: str) -> dict[str, Any] | None:
    """What jobs.sh wrote; None where that is not all clear: then a job has just begun, or ended, or died.

    Args:
        text: its standard output; what a start-up file says before does not matter.
        mark: see `bootstrap.new_mark`.
        host: the host's name in the jobs.
    """
    lines = text.partition(f"{mark} begin ")[2].splitlines()
    if len(lines) < 2 or lines[-1] != f"{mark} end":
        return None
    try:
        now, boot_id = lines[0].split()
        jobs: list[str] = []
        files: dict[str, dict[str, Any]] = {"about.json": {}, "state.json": {}}
        alive: set[tuple[str, int, int]] = set()
        for line in lines[1:-1]:
            if line.startswith(f"{mark} job "):
                jobs.append(line.removeprefix(f"{mark} job "))
            elif line.startswith(f"{mark} stat "):
                job, _, stat = line.removeprefix(f"{mark} stat ").partition(" ")
                process = Process.of(int(stat.split()[0]), parse_stat(stat.encode())[1])
                if process.alive:
                    alive.add((job, process.pid, process.start_time))
            else:
                job, of_host, rest = line.split("/", 2)
                name, _, document = rest.partition(":")
                if of_host != host:
                    return None
                files[name][job] = bootstrap.parse(document)
        entries = []
        for job in jobs:
            spec, state = files["about.json"][job], files["state.json"][job]
            if state["state"] not in FINAL_STATES:
                supervisor = state["supervisor"]
                if supervisor["boot_id"] != boot_id:
                    state["state"] = "lost"
                elif (job, supervisor["pid"], supervisor["start_time"]) not in alive:
                    return None
            if spec["job"] != job or spec["format"] != FORMAT:
                return None
            entries.append(merged(spec, state))
        return {"now": float(now), "jobs": newest_first(entries)}
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, BadFrame):
        return None
