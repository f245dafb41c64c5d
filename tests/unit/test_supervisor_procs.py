"""Which processes are of a job, and that nobody else is ever signalled."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from waiting import wait_for

from mnt.remote.job.procs import (
    Ending,
    Process,
    find,
    identify,
    members,
    pids_with_environment,
    read_process,
    send_signal,
)


def table(*rows: tuple[int, int, int]) -> dict[int, Process]:
    """Processes of (pid, parent, session), each started at 100 times its pid."""
    return {pid: Process(pid, parent, session, "S", 100 * pid) for pid, parent, session in rows}


# A supervisor (10) with an agent (11), whose worker (12) leads a session and has a child (13); an orphan (20)
# in that session; somebody else (30) and their child (31).
HOST = table(
    (1, 0, 1),
    (10, 1, 10),
    (11, 10, 11),
    (12, 11, 12),
    (13, 12, 12),
    (20, 1, 12),
    (30, 1, 30),
    (31, 30, 30),
)


def pids(processes: list[Process]) -> list[int]:
    return [process.pid for process in processes]


def test_the_descendants_of_the_supervisor_and_not_itself() -> None:
    assert pids(members(HOST, root=10)) == [11, 12, 13]


def test_those_with_the_mark_and_their_descendants() -> None:
    assert pids(members(HOST, carriers=[11])) == [11, 12, 13]
    assert pids(members(HOST, carriers=[999])) == []


def test_a_recorded_leader_stands_for_its_session() -> None:
    assert pids(members(HOST, recorded=[{"pid": 12, "start_time": 1200}])) == [12, 13, 20]


def test_the_session_of_a_recorded_leader_that_is_gone() -> None:
    """No new process can have a pid that still names a session, and one in it that was recorded is proof."""
    without = {pid: process for pid, process in HOST.items() if pid != 12}
    recorded = [{"pid": pid, "start_time": 100 * pid} for pid in (12, 13)]
    assert pids(members(without, recorded=recorded)) == [13, 20]


def test_a_session_that_got_the_pid_of_a_recorded_leader_is_another() -> None:
    """As of a login whose shell has ended: nothing in it was recorded."""
    without = {pid: process for pid, process in HOST.items() if pid != 12}
    assert pids(members(without, recorded=[{"pid": 12, "start_time": 1200}])) == []


def test_a_pid_that_another_process_has_now_is_not_the_recorded_one() -> None:
    assert members(HOST, recorded=[{"pid": 12, "start_time": 7}, {"pid": 30, "start_time": 7}]) == []


@pytest.mark.parametrize("state", ["Z", "X"])
def test_the_dead_are_no_members_but_their_children_are(state: str) -> None:
    processes = {**HOST, 12: HOST[12]._replace(state=state)}
    assert pids(members(processes, root=10)) == [11, 13]


def test_loops_of_parents_end() -> None:
    """The table is no snapshot of one moment: a pid reused meanwhile may close a circle."""
    assert pids(members(table((5, 6, 5), (6, 5, 5)), carriers=[5])) == [5, 6]


@pytest.fixture
def sleeper() -> Iterator[Process]:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], env={"MARK": "a b"})
    found = read_process(process.pid)
    assert found is not None
    yield found
    process.kill()
    process.wait()


def test_a_process_is_its_pid_and_its_start(sleeper: Process) -> None:
    assert find(identify(sleeper)) is not None
    other = sleeper._replace(start_time=sleeper.start_time - 1)
    assert find(identify(other)) is None
    assert send_signal(other, signal.SIGKILL) is False
    assert find(identify(sleeper)) is not None
    assert send_signal(sleeper, signal.SIGKILL) is True


def test_a_command_of_spaces_and_parentheses_is_read_over() -> None:
    code = "import ctypes, time; ctypes.CDLL(None).prctl(15, b') S 1 (x'); print(flush=True); time.sleep(600)"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        found = read_process(process.pid)
        assert found is not None
        assert found.parent == os.getpid()
    finally:
        process.kill()
        process.communicate()


def test_the_environment_must_hold_all_that_is_asked_for(sleeper: Process) -> None:
    # It has left our own program by then.
    wait_for(lambda: sleeper.pid in pids_with_environment({"MARK": "a b"}))
    assert sleeper.pid not in pids_with_environment({"MARK": "a"})
    assert sleeper.pid not in pids_with_environment({"MARK": "a b", "OTHER": "1"})


def test_a_stopped_process_ends_by_term_within_the_grace(sleeper: Process) -> None:
    """Whether it was stopped before the end began, or while it goes on."""
    os.kill(sleeper.pid, signal.SIGSTOP)

    def look() -> list[Process]:
        found = find(identify(sleeper))
        return [found] if found is not None else []

    wait_for(lambda: look()[0].state == "T")
    ending = Ending(look, 1000.0, 0.0, lambda killing: True)
    wait_for(lambda: ending.step(1.0))
    assert os.waitstatus_to_exitcode(os.waitpid(sleeper.pid, 0)[1]) == -signal.SIGTERM


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("name", ["program", f"x\vUid:\t{os.getuid()}"])  # is in /proc/PID/status before Uid
def test_a_set_uid_program_that_another_user_has_started_is_not_this_users(name: str) -> None:
    with tempfile.TemporaryDirectory(prefix="mnt-test-") as directory:
        program = shutil.copy("/bin/sleep", os.path.join(directory, name))
        os.chmod(program, 0o4755)
        os.chmod(directory, 0o755)
        process = subprocess.Popen([program, "600"], env={"MARK": "eve"}, user=64999)
        try:
            environ = Path(f"/proc/{process.pid}/environ")
            wait_for(lambda: environ.stat().st_uid == os.getuid() and environ.read_bytes() == b"MARK=eve\0")
            assert process.pid not in pids_with_environment({"MARK": "eve"})
        finally:
            process.kill()
            process.wait()


def test_what_cannot_be_ended_is_named_in_the_end() -> None:
    immortal = Process(2**22 + 1, 1, 1, "D", 1)
    ending = Ending(lambda: [immortal], 1.0, 0.0, lambda killing: True)
    assert ending.step(0.0) is False
    assert ending.step(1.0) is False
    assert ending.step(1.0 + Ending.PATIENCE) is True
    assert (ending.left, ending.ended) == ([immortal.pid], 0)
