"""playbooks/tasks/tuning.py: what a host cannot have is said at once, with units and causes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[2] / "playbooks" / "tasks" / "tuning.py"
NOBODY = 65534


# The limits of a container, and none of root's capabilities. Who is root becomes another user only when all
# is imported: that one may not be able to read this Python.
SMALL = f"""
import json, os, re, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 100))
resource.setrlimit(resource.RLIMIT_MEMLOCK, (4096, 8192))
if os.getuid() == 0:
    os.setuid({NOBODY})
exec(compile(sys.stdin.read(), "tuning.py", "exec"))
"""


def run(*words: str, program: str | None = None) -> subprocess.CompletedProcess[str]:
    """As the playbook runs it: the program comes by standard input."""
    return subprocess.run(
        [sys.executable, "-I", "-c", SMALL, *words],
        input=program or PROGRAM.read_text(),
        capture_output=True,
        text=True,
    )


def test_all_limits_that_a_host_cannot_have_are_said_at_once() -> None:
    done = run("able", "unlimited", "1048576", "1000000g")
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    memlock, nofile, shm, way = line.split("; ")
    why = "(no CAP_SYS_RESOURCE: a container gets its limits from outside)"
    assert memlock == f"memlock can be at most 8 KiB {why}, not unlimited"
    assert nofile == f"nofile can be at most 100 files {why}, not 1048576 files"
    assert shm.startswith("/dev/shm has ")
    assert "and must have 1000000g, 1024000000 MiB (no CAP_SYS_ADMIN: " in shm
    assert way.startswith(
        "run it with what this host allows: mnt setup tuning -e memlock=8 -e nofile=100 -e shm_size="
    )
    # What it names is what the host allows.
    words = dict(word.split("=") for word in way.split() if "=" in word)
    again = run("able", words["memlock"], words["nofile"], words["shm_size"])
    assert (again.returncode, again.stderr) == (0, "")


def test_one_that_it_can_have_is_not_said() -> None:
    done = run("able", "8", "1048576", "1k")
    assert "memlock" not in done.stderr
    assert "/dev/shm" not in done.stderr
    assert done.stderr.endswith("mnt setup tuning -e nofile=100\n")


def test_more_files_than_the_kernel_has_for_anybody() -> None:
    text = PROGRAM.read_text().replace('"/proc/sys/fs/nr_open"', "sys.argv.pop()")
    for nr_open, wanted, says in (("80", "90", ""), ("80", "200", "80 files (fs.nr_open of the kernel), ")):
        place = Path(f"/tmp/mnt-nr-open-{os.getpid()}")
        place.write_text(nr_open)
        place.chmod(0o644)
        try:
            done = run("able", "8", wanted, "1k", str(place), program=text)
        finally:
            place.unlink()
        assert says in done.stderr
        assert (done.returncode == 0) is (says == "")


def test_all_limits_of_a_new_session_are_said_at_once() -> None:
    done = run("session", "unlimited", "1048576")
    assert done.returncode == 1
    said, _, way = done.stderr.partition(": ")
    assert said == (
        "in a new session memlock is still 4 KiB, not unlimited; nofile is still 64 files, not 1048576 files"
    )
    assert way.endswith("look for ulimit in ~/.bashrc, and for memlock and nofile in /etc/security\n")
    assert run("session", "4", "64").returncode == 0


@pytest.mark.parametrize(("hosts", "size"), [("2000", "4096\n"), ("5000", "16384\n"), ("3", "")])
def test_the_table_of_neighbours(tmp_path: Path, hosts: str, size: str) -> None:
    place = Path("/tmp") / f"mnt-neighbours-{os.getpid()}"
    place.mkdir(mode=0o755)
    try:
        (place / "gc_thresh3").write_text("1024\n")
        (place / "gc_thresh3").chmod(0o644)
        assert run("neighbours", str(place), hosts).stdout == size
    finally:
        (place / "gc_thresh3").unlink()
        place.rmdir()
    assert run("neighbours", str(place), hosts).stdout == ""
