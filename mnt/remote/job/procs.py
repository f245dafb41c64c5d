"""The processes of this host, from /proc: their parents and children, and how to end a group of them.

A process is identified by its pid and its start time together: if the kernel reuses the pid for another
process, that process is never mistaken for the old one, and never signalled.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from mnt.remote.common.files import read, stat_fields, unix_lines

PR_SET_PDEATHSIG = 1  # include/uapi/linux/prctl.h
PR_SET_CHILD_SUBREAPER = 36


class Process(NamedTuple):
    pid: int
    parent: int
    session: int
    state: str  # one letter, as in proc(5)
    start_time: int  # clock ticks since boot

    @property
    def alive(self) -> bool:
        """A zombie runs nothing and holds nothing except its pid: it counts as dead."""
        return self.state not in "ZXx"


# --- reading -----------------------------------------------------------------------------------------------


def read_process(pid: int) -> Process | None:
    """The process that has this pid now; None if there is none."""
    found = stat_fields(pid)
    if found is None:
        return None
    _, fields = found
    return Process(pid, int(fields[1]), int(fields[3]), fields[0].decode(), int(fields[19]))


def read_processes() -> dict[int, Process]:
    """Every process of this host, by pid."""
    found = (read_process(pid) for pid in all_pids())
    return {process.pid: process for process in found if process is not None}


def boot_id() -> str:
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


def identify(process: Process) -> dict[str, int]:
    """A process as a document: `{"pid", "start_time"}`."""
    return {"pid": process.pid, "start_time": process.start_time}


def is_identity(document: Any) -> bool:
    """Whether a value from a file is a document of `identify`."""
    if not isinstance(document, dict):
        return False
    pid, start_time = document.get("pid"), document.get("start_time")
    return type(pid) is int and pid > 0 and type(start_time) is int


def find(identity: Mapping[str, int]) -> Process | None:
    """The living process of a document of `identify`; None once it is gone, even if its pid is in use."""
    if not is_identity(identity):
        return None
    process = read_process(identity["pid"])
    if process is None or not process.alive or process.start_time != identity["start_time"]:
        return None
    return process


def pids_with_environment(
    environment: Mapping[str, str], among: Iterable[int] | None = None
) -> Iterator[int]:
    """This user's processes, of those in `among` if given, that were started with these variables.

    A set-uid program that another user has started is not this user's. Each is yielded as soon as it is
    found: it may not live for long.
    """
    wanted = {f"{name}={value}".encode("utf-8", "surrogateescape") for name, value in environment.items()}
    for pid in all_pids() if among is None else among:
        try:
            if os.stat(f"/proc/{pid}").st_uid != os.getuid():
                continue
            with open(f"/proc/{pid}/environ", "rb") as file:
                entries = set(file.read().split(b"\0"))
        except OSError:  # it has ended, or we may not read it
            continue
        if wanted <= entries and _real_uid(pid) == os.getuid():
            yield pid


def _real_uid(pid: int) -> int | None:
    """The user that started a process: the first number of Uid in /proc/PID/status, proc(5)."""
    for line in unix_lines(read(f"/proc/{pid}/status", 8192)):
        if line.startswith("Uid:"):
            return int(line.split()[1])
    return None


def all_pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def newest_pids(count: int = 8) -> list[int]:
    """The pids that the kernel assigned last in this PID namespace, from /proc/loadavg, proc(5)."""
    last = int(read("/proc/loadavg").split()[-1])
    return list(range(last, max(1, last - count), -1))


# --- a job's processes -------------------------------------------------------------------------------------


def members(
    processes: Mapping[int, Process],
    *,
    root: int | None = None,
    carriers: Iterable[int] = (),
    recorded: Iterable[Mapping[str, int]] = (),
) -> list[Process]:
    """The living processes of a job: pure.

    They are the descendants of `root` (the supervisor, not included), the `carriers` (pids with the job's
    variables), the `recorded` ones that are still alive, the processes in the sessions of these, and the
    descendants of all. A recorded pid alone is no proof: once its process and its session have ended, the
    kernel gives the number to others.
    """
    children: dict[int, list[int]] = {}
    for process in processes.values():
        children.setdefault(process.parent, []).append(process.pid)
    seeds = set(children.get(root, ())) if root is not None else set()
    seeds.update(carriers)
    sessions = set()
    for identity in recorded:
        holder = processes.get(identity["pid"])
        if holder is not None and holder.start_time == identity["start_time"]:
            seeds.add(holder.pid)
            sessions.add(holder.session)
    seeds.update(process.pid for process in processes.values() if process.session in sessions)

    found: set[int] = set()
    waiting = [pid for pid in seeds if pid in processes]
    while waiting:
        pid = waiting.pop()
        if pid not in found and pid != root:
            found.add(pid)
            waiting.extend(children.get(pid, ()))
    return [process for pid in sorted(found) if (process := processes[pid]).alive]


def send_signal(process: Process, signum: int) -> bool:
    """Signal exactly this process. False: it is gone, or not ours."""
    descriptor = _open_process(process.pid)
    try:
        if find(identify(process)) is None:
            return False
        if descriptor is None:
            os.kill(process.pid, signum)
        else:
            signal.pidfd_send_signal(descriptor, signum)  # type: ignore[attr-defined, unused-ignore]
        return True
    except OSError:
        return False
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _open_process(pid: int) -> int | None:
    """A descriptor of the process, which stays valid if its pid is reused.

    None before Python 3.9 and Linux 5.3, or if the process is gone.
    """
    try:
        return os.pidfd_open(pid)  # type: ignore[attr-defined, unused-ignore]
    except (AttributeError, OSError):
        return None


def prctl(option: int, value: int) -> None:
    """Set a property of this process, prctl(2). Raises OSError."""
    import ctypes  # not every Python has it, and only a supervisor needs it

    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl {option}")


def kill_children(reap: Callable[[], bool], seconds: float) -> bool:
    """KILL our children, and the orphans that we get as their subreaper, for at most `seconds`.

    `reap` collects the dead, and returns True if we have no children left. Then we have no descendants
    either, because each descendant has an ancestor that is our child, and the kernel hands us orphans at the
    moment when their parent dies. Scans of /proc are no such proof: they can always miss a process that keeps
    forking and exiting. Children keep their pids until they are reaped, so the signal reaches no other
    process. If the kernel has no list of children (CONFIG_PROC_CHILDREN), nothing is killed.
    """
    mine = f"/proc/self/task/{os.getpid()}/children"  # of the main thread, which gets the orphans
    end = time.monotonic() + seconds
    while not reap():
        for pid in read(mine).split():
            os.kill(int(pid), signal.SIGKILL)
        if time.monotonic() > end:
            return False
    return True


SWEEP = 0.1  # seconds at a time for processes that start and end faster than scans find them


class Ending:
    """Ends processes: TERM to each, KILL after `grace` seconds, until several scans in a row find none.

    Call `step` every few hundredths of a second until it returns True. `look` finds the members again each
    time, so that new ones end as well. Scans miss processes that keep forking and exiting: `sweep`, called
    with whether it is time to KILL, returns whether there are certainly none of these. Gives up `PATIENCE`
    seconds after the first KILL: nothing can end a process that hangs in the kernel (a dead NFS server, a
    stuck driver); `left` lists it.
    """

    PATIENCE = 10.0
    LOOKS = 2  # scans in a row that must find none

    def __init__(
        self,
        look: Callable[[], list[Process]],
        grace: float,
        now: float,
        sweep: Callable[[bool], bool],
    ) -> None:
        self._look, self._sweep = look, sweep
        self._kill_at = now + grace
        self._signalled: set[tuple[int, int]] = set()
        self._empty_looks = 0
        self.left: list[int] = []

    @property
    def ended(self) -> int:
        """The number of processes that were signalled and are gone."""
        return len(self._signalled) - len(self.left)

    def hurry(self, kill_at: float) -> None:
        """KILL at this time, or earlier if that was due."""
        self._kill_at = min(self._kill_at, kill_at)

    def step(self, now: float) -> bool:
        """Signal the members; True when the group has ended, or when nothing more can be done."""
        found = self._look()
        self.left = [process.pid for process in found]
        self._empty_looks = 0 if found else self._empty_looks + 1
        killing = now >= self._kill_at
        if self._sweep(killing) and self._empty_looks >= self.LOOKS:
            return True
        for process in found:
            identity = (process.pid, process.start_time)
            if killing:
                send_signal(process, signal.SIGKILL)
            elif identity not in self._signalled:
                send_signal(process, signal.SIGTERM)
            if process.state == "T":  # it was stopped, and takes the TERM only when it goes on
                send_signal(process, signal.SIGCONT)
            self._signalled.add(identity)
        return killing and now >= self._kill_at + self.PATIENCE
