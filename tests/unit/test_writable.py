"""Whether a push, a job and its end can write: the attempts on this machine, and what is made of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fleets import findings, make_fleet, only_finding, texts

from mnt.facts.host import HostFacts, Mounted, MountPoint, PathFacts, Space, WriteTest
from mnt.inventory.model import Mount
from mnt.remote.common.writing import try_to_write
from mnt.remote.probe import probe, writes

HOME, RELEASES, JOBS = "/home/ubuntu", "/home/ubuntu/mnt/releases", "/home/ubuntu/.mnt/jobs"
NO_INODES = Space(size=2**40, free=2**39, inodes=5000, inodes_free=0)


def attempt(path: str, result: str, directory: str = "", space: Space | None = None) -> WriteTest:
    return WriteTest(path, directory or path, result, space, "/home" if path.startswith("/home") else path)


@pytest.mark.parametrize(
    ("tests", "message", "fix"),
    [
        (
            [attempt(RELEASES, "EROFS"), attempt(JOBS, "EROFS")],
            f"cannot write to {RELEASES}, {JOBS}: read-only file system",
            "find out why: sudo dmesg | tail; then: sudo mount -o remount,rw /home",
        ),
        (
            [attempt("/tmp", "EACCES")],
            "cannot write to /tmp: permission denied",
            "sudo chmod 1777 /tmp",
        ),
        (
            [attempt(RELEASES, "EACCES", HOME)],
            f"cannot write to {RELEASES}: permission denied",
            f"sudo install -d -o ubuntu {RELEASES}",
        ),
        (
            [attempt(JOBS, "ENOSPC"), attempt(RELEASES, "ok")],
            f"cannot write to {JOBS}: no space left on device",
            "delete what is not needed: du -xh --max-depth=2 /home | sort -h | tail",
        ),
        (
            [attempt(JOBS, "ENOSPC", space=NO_INODES)],
            f"cannot write to {JOBS}: no inode left (5000 in use)",
            "delete what is not needed: du --inodes -xh --max-depth=2 /home | sort -h | tail",
        ),
        (
            [attempt(JOBS, "EDQUOT")],
            f"cannot write to {JOBS}: disk quota exceeded",
            "delete what is not needed, or raise the quota of the user: "
            "du -xh --max-depth=2 /home | sort -h | tail",
        ),
        (
            [attempt(JOBS, "hung")],
            f"cannot write to {JOBS}: the file system does not answer",
            f"check its file system and its server: findmnt -T {JOBS}",
        ),
        (
            [attempt(JOBS, "ENOTDIR", "/home/ubuntu/.mnt")],
            f"cannot write to {JOBS}: not a directory",
            "move it away: mv /home/ubuntu/.mnt /home/ubuntu/.mnt.old",
        ),
        (
            [attempt(JOBS, "ENOSUCH")],  # a liar's
            f"cannot write to {JOBS}: ENOSUCH",
            f"check its file system and its server: findmnt -T {JOBS}",
        ),
    ],
)
def test_a_place_that_cannot_be_written_to(tests: list[WriteTest], message: str, fix: str) -> None:
    finding = only_finding(make_fleet({"node2": {"writes": tuple(tests)}}), "writable", "node2")
    assert (finding.severity, finding.message, finding.fix) == ("fail", message, fix)


def test_places_with_different_reasons_are_different_findings() -> None:
    tests = (attempt(JOBS, "EACCES"), attempt("/tmp", "EACCES"), attempt(RELEASES, "EROFS"))
    assert texts(findings(make_fleet({"node2": {"writes": tests}}))) == ["writable node2 fail"] * 3


def test_a_shared_workdir_is_made_for_its_group() -> None:
    fleet = make_fleet(
        {"node1": {"writes": (attempt("/data/x", "EACCES", "/data"),)}}, host={"workdir_group": "ml"}
    )
    assert only_finding(fleet, "writable", "node1").fix == "sudo install -d -o ubuntu -g ml -m 2775 /data/x"


@pytest.mark.parametrize("disk", ["~", "/tmp", "/dev/shm"])
def test_a_full_disk_is_told_once(disk: str) -> None:
    real = HOME if disk == "~" else disk
    full = Space(size=2**30, free=0, inodes=100, inodes_free=50)
    facts: dict[str, Any] = {"writes": (attempt(f"{real}/x", "ENOSPC", real, full),)}
    if disk != "/dev/shm":
        facts["paths"] = {disk: PathFacts("dir", real, space=full)}
    only_finding(make_fleet({"node2": facts}), "writable", "node2")


def test_storage_that_fails_is_told_once() -> None:
    wanted = Mount("/shared", options=("rw",))
    stack = (Mounted("/shared", "head:/x", "nfs4", ("rw",)),)
    facts = {
        "mounts": {"/shared": MountPoint(stack, stack[0])},
        "paths": {"/shared": PathFacts("dir", "/shared", write="EROFS")},
        "writes": (WriteTest("/shared/mnt", "/shared", "EROFS", None, "/shared"),),
    }
    fleet = make_fleet({"node1": facts}, count=1, storage=(wanted,))
    only_finding(fleet, "storage-mount", "node1")


# --- on this machine -------------------------------------------------------------------------------------


def tried(workdir: Path, jobs: Path) -> dict[str, tuple[str, str]]:
    args = {"workdir": str(workdir), "keep": ["outputs"], "jobs_dir": str(jobs)}
    answer = json.loads(json.dumps(probe.main(args, lambda frame: None, None)))  # type: ignore[arg-type]
    return {test.path: (test.directory, test.result) for test in HostFacts.parse("here", answer).writes}


def test_each_place_is_tried_where_it_is_or_will_be(tmp_path: Path) -> None:
    workdir, jobs = tmp_path / "work", tmp_path / "a" / "jobs"
    found = tried(workdir, jobs)
    assert found["/tmp"] == ("/tmp", "ok")
    assert found[str(workdir)] == found[str(jobs)] == (str(tmp_path), "ok")
    (workdir / "releases").mkdir(parents=True)
    (workdir / "shared" / "outputs").mkdir(parents=True)
    found = tried(workdir, jobs)
    for path in (workdir, workdir / "releases", workdir / "shared", workdir / "shared" / "outputs"):
        assert found[str(path)] == (str(path), "ok")
        assert [each.name for each in path.iterdir() if each.name.startswith(".mnt")] == []


def test_nothing_is_tried_where_others_could_interfere(tmp_path: Path) -> None:
    open_to_all = tmp_path / "work"
    open_to_all.mkdir(mode=0o777)
    open_to_all.chmod(0o777)
    assert str(open_to_all) not in tried(open_to_all, tmp_path / "jobs")


def test_a_link_and_a_file_are_no_directories(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "dangling").symlink_to(tmp_path / "nothing")
    assert try_to_write(str(tmp_path / "file")) == "ENOTDIR"
    assert try_to_write(str(tmp_path / "dangling")) == "ENOENT"
    assert try_to_write("/proc") in ("ENOENT", "EACCES")
    assert try_to_write(str(tmp_path)) == "ok"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["dangling", "file"]


def test_a_file_system_that_does_not_answer() -> None:
    answers = {"a": None, "b": [], "c": None}
    found = writes.collect(answers, "/work", "/jobs")
    assert [(test["path"], test["result"]) for test in found] == [("/work", "hung"), ("/tmp", "hung")]
