"""What is said of a culprit, of a reboot, and of one thing or several."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mnt.errors import counted
from mnt.launch.culprit import Culprit
from mnt.remote.job.entry import describe
from mnt.remote.job.files import JobPaths
from mnt.remote.job.procs import boot_id


@pytest.mark.parametrize(
    ("culprit", "sentence"),
    [
        (Culprit("a", 0, 7, "rank 0 exited with code 7"), "a: rank 0 exited with code 7"),
        (Culprit("a", 1, 7, "rank 1 exited with code 7: bye"), "a: rank 1 exited with code 7: bye"),
        (
            Culprit("a", 1, 137, "rank 1 was killed by SIGKILL"),
            "a: rank 1 was killed by SIGKILL (exit code 137)",
        ),
        (Culprit("a", 1, 7, "rank 11 exited with code 7"), "a, rank 1: rank 11 exited with code 7"),
        (Culprit("a", 3, 1, "ValueError: code 12"), "a, rank 3: ValueError: code 12 (exit code 1)"),
        (Culprit("a", None, 7, "exit code 7"), "a: exit code 7"),
        (Culprit("a", None, 2, "it broke"), "a: it broke (exit code 2)"),
        (Culprit("a", None, None, "it cannot be reached"), "a: it cannot be reached"),
    ],
)
def test_a_culprit_says_nothing_twice(culprit: Culprit, sentence: str) -> None:
    assert culprit.sentence() == sentence


def test_one_and_several() -> None:
    assert [counted(n, "host") for n in (0, 1, 2)] == ["0 hosts", "1 host", "2 hosts"]
    assert [counted(n, "entry", "entries") for n in (1, 2)] == ["1 entry", "2 entries"]


@pytest.mark.parametrize(
    ("boot", "state", "rebooted"),
    [("another", "running", True), (None, "running", None), ("another", "finished", None)],
)
def test_a_job_of_an_earlier_boot(
    tmp_path: Path, boot: str | None, state: str, rebooted: bool | None
) -> None:
    paths = JobPaths(str(tmp_path), "job-1", "node1")
    Path(paths.directory).mkdir(parents=True)
    about = {"job": "job-1", "host": "node1", "node_rank": 0, "created": 1.0}
    about["nodes"] = [{"host": "node1", "node_rank": 0, "nproc": 1}]
    supervisor = {"pid": 1 << 21, "start_time": 1, "boot_id": boot or boot_id()}
    Path(paths.about).write_text(json.dumps(about))
    Path(paths.state).write_text(json.dumps({"state": state, "supervisor": supervisor}))
    entry = describe(paths)
    assert entry is not None
    assert entry["state"] == ("lost" if state == "running" else state)
    assert entry.get("rebooted") is rebooted
