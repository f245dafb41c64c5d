"""`mnt fetch` on this machine: no SSH, no root, no inventory."""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path

from local_jobs import LocalMnt

from mnt.fleet import Fleet
from mnt.fleet.processes import LocalConnection
from mnt.inventory.model import Host
from mnt.tasks.fetch import Pattern, Wanted, list_files, survey

HERE = socket.gethostname()
WRITE = """
import os
os.makedirs("outputs", exist_ok=True)
with open("outputs/model.pt", "w") as file:
    file.write("w" * 100_000)
print("trained", flush=True)
"""


def files(directory: Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()}


def test_a_job_of_this_machine(mnt: LocalMnt) -> None:
    """It is fetched to a directory inside of its own, from which the next fetch takes nothing."""
    mnt.script(WRITE)
    assert mnt.launch("--nproc", "1", "train.py").returncode == 0
    (job,) = mnt.jobs()
    for already in (False, True, True):
        done = mnt("fetch", "--json")
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        assert (found["job"], found["to"]) == (job["job"], f"fetched/{job['job']}")
        each = found["hosts"][HERE]
        assert (each["files"] == 0) == already
        top = mnt.cwd / "fetched" / job["job"] / HERE
        fetched = files(top)
        assert {name for name in fetched if not name.startswith("logs/")} == {"release/outputs/model.pt"}
        assert each["files"] + each["already"] == len(fetched)
        assert each["later"] == 0
    assert "trained" in (top / "logs/output.log").read_text()
    for _ in range(2):
        done = mnt("fetch", "--to", ".", "--json")
        assert done.returncode == 0, done.stderr
        assert not (mnt.cwd / HERE / "release" / HERE).exists()


def test_a_job_by_the_beginning_of_its_id_and_a_path_that_could_be_one(mnt: LocalMnt) -> None:
    mnt.script(WRITE)
    assert mnt.launch("--nproc", "1", "train.py").returncode == 0
    (job,) = mnt.jobs()
    short = job["job"].rpartition("-")[2][:3]
    for words in ([short], [job["job"][:10]]):
        done = mnt("fetch", "--json", *words)
        assert json.loads(done.stdout)["job"] == job["job"], done.stderr
    for words in ([f"./{short}"], [short, "x"], ["abcdef0"], ["000" if short != "000" else "001"]):
        done = mnt("fetch", "--json", *words)  # paths, for which hosts of an inventory are needed
        assert done.returncode == 2, done.stdout
        assert "no inventory" in done.stderr


def test_nothing_to_fetch(mnt: LocalMnt) -> None:
    done = mnt("fetch")
    assert done.returncode == 2
    assert "no job" in done.stderr
    assert os.listdir(mnt.cwd) == []


def test_fetched_is_a_file(mnt: LocalMnt) -> None:
    mnt.script(WRITE)
    assert mnt.launch("--nproc", "1", "train.py").returncode == 0
    (mnt.cwd / "fetched").touch()
    done = mnt("fetch")
    assert done.returncode == 1
    assert "fetched: it cannot be made: File exists" in done.stderr
    assert "--to DIR" in done.stderr


def test_many_paths(tmp_path: Path) -> None:
    """As a shell makes them of `logs/*`."""
    (tmp_path / "x").touch()
    wanted = Wanted(
        None, tuple(Pattern(f"{tmp_path}/{'x' if number else 'y' * 200}") for number in range(1200))
    )
    here = Host("here", "192.0.2.1", python=(sys.executable,))
    with Fleet([here], connect=LocalConnection) as fleet:
        (found,) = fleet.run(survey, wanted).values()
        (listed,) = fleet.run(list_files, wanted).values()
    assert found.value is not None, found.error
    assert sum(part["files"] for part in found.value) == 1199
    assert listed.value is not None, listed.error
    assert len(listed.value[0]) == 1199
