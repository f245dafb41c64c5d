"""The programs in playbooks that look for a daemon: another user's process may have its name."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parents[2] / "playbooks" / "tasks"
EVE = 64999
PR_SET_NAME, PR_SET_DUMPABLE = 15, 4
NAME = "mnt-daemond"

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
Start = Callable[..., int]


def run(program: str, *args: str) -> str:
    """What a program of the playbooks prints."""
    argv = [sys.executable, str(PROGRAMS / program), *args]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@contextmanager
def orphan(name: bytes, *, uids: tuple[int, int, int], dumpable: int) -> Iterator[int]:
    """A process with a name, whose parent has ended; its pid."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        if os.fork() == 0:
            libc = ctypes.CDLL(None)
            soft = min(256, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
            os.setresuid(*uids)
            libc.prctl(PR_SET_NAME, name, 0, 0, 0)
            libc.prctl(PR_SET_DUMPABLE, dumpable, 0, 0, 0)
            os.write(writer, str(os.getpid()).encode())
            os.close(writer)
            signal.pause()
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writer)
    with open(reader, "rb") as file:
        pid = int(file.read())
    try:
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)


@pytest.fixture
def start() -> Iterator[Start]:
    with ExitStack() as stack:

        def run(name: str | bytes, *uids: int, dumpable: int = 1) -> int:
            text = name.encode() if isinstance(name, str) else name
            return stack.enter_context(
                orphan(text, uids=(uids + uids[:1] * 2)[:3], dumpable=dumpable)  # type: ignore[arg-type]
            )

        yield run


def daemon(file: Path) -> str:
    return run("daemon.py", NAME, str(file), "nobody,no-such-user").strip()


def test_a_daemon_of_anybody_else_does_not_run(tmp_path: Path, start: Start) -> None:
    file = tmp_path / "munge.key"
    file.touch()
    assert daemon(file) == "stopped"
    start(NAME, EVE)
    start(NAME, EVE, dumpable=0)  # its directory in /proc is root's
    start(NAME, EVE, 0, 0)  # a program of root's that anybody may start
    start(b"\xff\n", EVE)  # no UTF-8
    assert daemon(file) == "stopped"
    os.utime(file, (0, 0))
    start(NAME, 65534)
    assert daemon(file) == "current"


def test_nor_is_it_an_old_one(tmp_path: Path, start: Start) -> None:
    file = tmp_path / "munge.key"
    file.touch()
    start(NAME, EVE)
    os.utime(file, (2**32, 2**32))
    start(NAME, 0)
    assert daemon(file) == "old"
    os.utime(file, (0, 0))
    assert daemon(file) == "current"


def test_a_file_that_is_still_to_come(tmp_path: Path, start: Start) -> None:
    """In a check."""
    start(NAME, 0)
    assert daemon(tmp_path / "slurm.conf") == "current"


def test_only_roots_sshd_gets_larger_limits(start: Start) -> None:
    ours = start("sshd", 0)
    if "PPid:\t1\n" not in Path(f"/proc/{ours}/status").read_text():
        pytest.skip("orphans have another parent here")
    others = [start("sshd", EVE), start("sshd", EVE, dumpable=0), start("sshd", EVE, 0, 0)]
    start(b"\xff\n", EVE)
    said = run("tuning.py", "sshd", "0", "512", "look")
    found = {int(line.split()[2]) for line in said.splitlines()}
    assert ours in found
    assert found.isdisjoint(others)
