"""`mnt push` to real hosts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import faults
import pytest
import yaml
from waiting import PATIENCE, wait_for

from mnt import __version__
from mnt.fleet import Fleet
from mnt.inventory import loader
from mnt.lab.lab import Lab, LabHost
from mnt.push import manifest as manifests
from mnt.push import transfer
from mnt.push.result import PushResult
from mnt.push.session import Progress
from mnt.push.tree import walk
from mnt.tasks.push import find_release

_numbers = count(1)


class Site:
    """A lab with a workdir of the test's own."""

    def __init__(self, lab: Lab, directory: Path, workdir: str) -> None:
        self.lab = lab
        self.workdir = workdir
        self.inventory = directory / "inventory.yaml"
        inventory = yaml.safe_load(lab.inventory_path.read_text())
        inventory["defaults"]["workdir"] = workdir
        self.inventory.write_text(yaml.safe_dump(inventory, sort_keys=False))
        self.argv = [sys.executable, "-m", "mnt", "push", "-i", str(self.inventory)]

    def push(self, source: Path, *options: str) -> dict[str, Any]:
        """`mnt push --json`; its document, with the exit code as "exit" and what it told people as "said"."""
        ran = subprocess.run(
            [*self.argv, "--json", *options, str(source)], capture_output=True, text=True, timeout=PATIENCE
        )
        document = json.loads(ran.stdout) if ran.stdout else {}
        return {**document, "exit": ran.returncode, "said": ran.stderr}

    def push_with(self, source: Path, progress: Progress) -> PushResult:
        """A push in this process, which tells `progress` of its steps."""
        tree = walk(source)
        hosts = loader.load(str(self.inventory)).hosts
        with Fleet(hosts) as fleet:
            return transfer.push(fleet, tree.root, manifests.build(tree), progress=progress)

    def sh(self, host: LabHost, script: str) -> str:
        """The output of a shell script in the workdir of a host."""
        ran = host.exec(["sh", "-c", f"cd {self.workdir} && {script}"], user=True)
        assert ran.returncode == 0, ran.stderr
        return ran.stdout.strip()

    def current(self, host: LabHost) -> str:
        return self.sh(host, "readlink current").removeprefix("releases/")

    def files(self, host: LabHost) -> list[str]:
        """All that lies in the workdir of a host, if it is there."""
        return sorted(host.exec(["sh", "-c", f"find {self.workdir} | sort"], user=True).stdout.splitlines())


@pytest.fixture
def site(lab: Lab, tmp_path: Path) -> Iterator[Site]:
    """The session's lab, with a workdir that is removed afterwards."""
    workdir = f"~/push-{next(_numbers)}"
    yield Site(lab, tmp_path, workdir)
    for host in lab.hosts:
        host.exec(["sh", "-c", f"chmod -R u+w {workdir}; rm -rf {workdir}"], user=True)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    root = tmp_path / "source"
    for path in ("train/a.py", "train/cache/x.pyc", ".git/config", "with space\n/and newline"):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(path)
    (root / os.fsdecode(b"latin-\xe9")).write_bytes(bytes(range(256)) * 100)
    (root / "run.sh").write_text("#!/bin/sh\n")
    (root / "run.sh").chmod(0o755)
    (root / "private").mkdir(mode=0o700)
    (root / "read-only").mkdir()
    (root / "read-only" / "file").write_text("x")
    (root / "read-only" / "file").chmod(0o444)
    (root / "read-only").chmod(0o555)
    (root / "link").symlink_to("train")
    (root / "dangling").symlink_to("../../gone")
    (root / ".gitignore").write_text("*.pyc\n")
    return root


@pytest.fixture
def big(tmp_path: Path) -> Path:
    """A tree that takes a second or more to send."""
    root = tmp_path / "big"
    root.mkdir()
    with open(root / "weights", "wb") as file:
        for _ in range(200):
            file.write(os.urandom(1 << 20))
    return root


HASH_OF_TREE = (
    "tar --exclude=.git --exclude='*.pyc' --exclude=./outputs --sort=name --mtime=@0 --owner=0 --group=0 "
    "--numeric-owner -cf - . | sha256sum"
)


# --- what arrives -------------------------------------------------------------------------------------------


def test_the_same_bytes_lie_on_every_host(site: Site, source: Path) -> None:
    pushed = site.push(source)
    assert pushed["exit"] == 0, pushed
    here = subprocess.run(["sh", "-c", HASH_OF_TREE], cwd=source, capture_output=True, text=True, check=True)
    for host in site.lab.hosts:
        assert site.sh(host, f"cd current && {HASH_OF_TREE}") == here.stdout.strip()
        assert site.current(host) == pushed["release"]
        assert site.sh(host, "ls -A releases").split() == [
            ".lock",
            pushed["release"],
            pushed["release"] + ".manifest.json",
            pushed["release"] + ".pushed.json",
        ]
        assert pushed["hosts"][host.name]["files_sent"] == 6
        assert pushed["hosts"][host.name]["status"] == "pushed"
    assert list(pushed["hosts"]) == [host.name for host in site.lab.hosts]


def test_an_unchanged_tree_is_not_sent_again(site: Site, source: Path) -> None:
    first = site.push(source)
    again = site.push(source)
    assert (again["exit"], again["release"]) == (0, first["release"])
    for result in again["hosts"].values():
        assert (result["status"], result["files_sent"], result["bytes_sent"]) == ("unchanged", 0, 0)


def test_a_host_that_joins_gets_the_release_of_the_others(site: Site, source: Path) -> None:
    first = site.push(source, "-n", "node[1-3]")
    then = site.push(source)
    assert (then["ok"], then["release"]) == (True, first["release"])
    assert [h["files_sent"] for h in then["hosts"].values()] == [0, 0, 0, 6]


def test_a_damaged_release_is_replaced_everywhere(site: Site, source: Path) -> None:
    first = site.push(source)
    site.sh(site.lab.hosts[1], "echo more >> current/train/a.py")
    again = site.push(source)
    assert again["ok"]
    assert again["release"] != first["release"]
    assert [h["files_sent"] for h in again["hosts"].values()] == [0, 1, 0, 0]  # all copy what they have
    assert {site.current(host) for host in site.lab.hosts} == {again["release"]}


def await_next_second() -> None:
    this = int(time.time())
    wait_for(lambda: int(time.time()) != this)


def test_old_releases_are_removed(site: Site, source: Path) -> None:
    made = []
    for number in range(4):
        (source / "run.sh").write_text(f"exit {number}\n")
        made.append(site.push(source, "--keep-releases", "2")["release"])
        await_next_second()  # ids are in seconds, and these are to be told apart by them
    host = site.lab.hosts[0]
    assert [name for name in site.sh(host, "ls releases").split() if "json" not in name] == made[2:]


def test_only_the_changed_line_is_sent(site: Site, big: Path) -> None:
    """Each host gets what it lacks: node3 has nothing, and node2 has a file that was changed there."""
    (big / "run.py").write_text("print(1)\n")
    first = site.push(big, "-x", "node3")
    assert first["hosts"]["node1"]["bytes_sent"] > 200 << 20
    (big / "run.py").write_text("print(2)\n")
    site.sh(site.lab.hosts[1], "chmod u+w current/weights && echo >> current/weights")
    then = site.push(big)
    assert then["ok"], then
    assert [h["files_sent"] for h in then["hosts"].values()] == [1, 2, 2, 1]
    assert [h["bytes_sent"] > 200 << 20 for h in then["hosts"].values()] == [False, True, True, False]
    assert then["hosts"]["node1"]["bytes_sent"] < 5000
    sums = {site.sh(host, "cat current/weights current/run.py | sha256sum") for host in site.lab.hosts}
    assert len(sums) == 1


def test_results_beside_the_code_are_not_removed_unasked(site: Site, source: Path) -> None:
    mnt = [*site.argv[:-3], "releases"]
    made = [site.push(source)["release"]]
    host = site.lab.hosts[1]
    site.sh(host, "mkdir -p current/runs/x && echo 12345 > current/runs/x/events")
    site.sh(host, "mkdir current/train/__pycache__ && echo > current/train/__pycache__/a.cpython-311.pyc")
    for number in range(3):
        await_next_second()
        (source / "run.sh").write_text(f"exit {number}\n")
        pushed = site.push(source, "--keep-releases", "1")
        made.append(pushed["release"])
    lost = {"release": made[0], "files": 1, "bytes": 6, "names": ["runs/x/events"]}
    assert {name: each.get("left") for name, each in pushed["hosts"].items()} == {
        **dict.fromkeys(("node1", "node3", "node4")),
        "node2": [lost],
    }
    assert site.sh(host, f"cat releases/{made[0]}/runs/x/events") == "12345"
    options = ["-i", str(site.inventory)]
    shown = subprocess.run([*mnt, *options], capture_output=True, text=True, check=True).stdout
    assert "1 file, 6 bytes: runs/x/events" in shown
    asked = [*mnt, "prune", *options, made[0]]
    refused = subprocess.run(asked, capture_output=True, text=True)
    assert refused.returncode == 1
    assert "--with-results" in refused.stdout
    assert subprocess.run([*asked, "--with-results"]).returncode == 0
    assert made[0] not in site.sh(host, "ls releases")


def test_a_rollback_leads_back_on_all_hosts(site: Site, source: Path) -> None:
    mnt = [*site.argv[:-3], "rollback", "-i", str(site.inventory), "--json"]
    first = site.push(source)["release"]
    (source / "run.sh").write_text("exit 1\n")
    second = site.push(source)["release"]
    for expected in (first, second):
        ran = subprocess.run(mnt, capture_output=True, text=True, check=True)
        assert json.loads(ran.stdout)["release"] == expected
        assert {site.current(host) for host in site.lab.hosts} == {expected}
    site.sh(site.lab.hosts[2], f"echo more >> releases/{first}/run.sh")
    ran = subprocess.run(mnt, capture_output=True, text=True)
    assert ran.returncode == 1
    assert "node3: release" in ran.stderr
    assert {site.current(host) for host in site.lab.hosts} == {second}


def test_what_jobs_write_stays(site: Site, source: Path) -> None:
    site.push(source)
    host = site.lab.hosts[0]
    site.sh(host, "echo kept > current/outputs/log")
    (source / "run.sh").write_text("exit 1\n")
    site.push(source)
    assert site.sh(host, "cat current/outputs/log") == "kept"


def test_launch_can_find_the_current_release(site: Site, source: Path) -> None:
    release = site.push(source, "-n", "node1")["release"]
    hosts = loader.load(str(site.inventory)).hosts[:2]
    with Fleet(hosts) as fleet:
        found = fleet.run(find_release).values_by_host()
    sha = manifests.build(walk(source)).sha
    path = f"/home/mnt/{site.workdir[2:]}/releases/{release}"
    pushed = found["node1"].pop("pushed")
    assert (pushed["source"], pushed["mnt"]) == (str(source), __version__)
    assert found["node1"] == {"current": release, "path": path, "manifest_sha": sha}
    assert found["node2"] == {"current": None, "path": None, "manifest_sha": None, "pushed": None}


# --- a workdir that hosts share -----------------------------------------------------------------------------


def test_a_shared_workdir_is_written_once(lab: Lab, source: Path, tmp_path: Path) -> None:
    site = Site(lab, tmp_path, f"/shared/push-{next(_numbers)}")
    try:
        pushed = site.push(source)
        assert pushed["ok"], pushed
        assert [h["files_sent"] for h in pushed["hosts"].values()] == [6, 0, 0, 0]
        assert [h.get("shares_with") for h in pushed["hosts"].values()] == [None, "node1", "node1", "node1"]
        assert {h["status"] for h in pushed["hosts"].values()} == {"pushed"}
        assert {site.current(host) for host in lab.hosts} == {pushed["release"]}
        assert site.sh(lab.hosts[3], "ls -A releases | wc -l") == "4"
    finally:
        lab.hosts[0].exec(["rm", "-rf", site.workdir])


def test_the_same_path_is_not_taken_for_a_shared_one(site: Site, source: Path) -> None:
    assert all("shares_with" not in h for h in site.push(source)["hosts"].values())


def test_a_link_to_the_shared_directory_is_found_out(lab: Lab, source: Path, tmp_path: Path) -> None:
    """One host reaches the workdir by another path."""
    shared, site = f"/shared/push-{next(_numbers)}", Site(lab, tmp_path, f"~/push-{next(_numbers)}")
    here, there = lab.hosts[0], lab.hosts[2]
    for host in (here, there):
        host.exec(["sh", "-c", f"mkdir -p {shared}; ln -s {shared} {site.workdir}"], user=True)
    try:
        pushed = site.push(source)
        assert [h["files_sent"] for h in pushed["hosts"].values()] == [6, 6, 0, 6]
        assert pushed["hosts"]["node3"]["shares_with"] == "node1"
    finally:
        for host in lab.hosts:
            host.exec(["sh", "-c", f"rm -rf {site.workdir} {shared}"], user=True)


# --- nothing changes unless all goes well -------------------------------------------------------------------


def test_a_host_that_is_down(make_lab: Callable[..., Lab], source: Path, tmp_path: Path) -> None:
    lab = make_lab(count=3)
    site = Site(lab, tmp_path, "~/code")
    faults.stop_sshd(lab.hosts[1])
    pushed = site.push(source)
    assert (pushed["exit"], pushed["ok"], pushed["release"]) == (1, False, None)
    assert [h["status"] for h in pushed["hosts"].values()] == ["untouched", "failed", "untouched"]
    assert "connect" in pushed["hosts"]["node2"]["error"]
    assert [site.files(host) for host in lab.hosts] == [[], [], []]


def test_a_host_without_room(make_lab: Callable[..., Lab], source: Path, tmp_path: Path) -> None:
    lab = make_lab(count=2)
    site = Site(lab, tmp_path, "/srv/code")
    for host, size in zip(lab.hosts, ("64m", "64k"), strict=True):
        options = f"size={size},uid={lab.spec.uid},mode=755"
        host.exec(["sh", "-c", f"mkdir -p /srv/code; mount -t tmpfs -o {options} none /srv/code"])
    (source / "weights").write_bytes(os.urandom(1 << 20))
    pushed = site.push(source)
    assert [h["status"] for h in pushed["hosts"].values()] == ["untouched", "failed"]
    assert "no space" in pushed["hosts"]["node2"]["error"]
    assert [site.files(host) for host in lab.hosts] == [["/srv/code"], ["/srv/code"]]
    lab.hosts[1].exec(["mount", "-o", "remount,size=64m,nr_inodes=8", "/srv/code"])
    assert "no inodes" in site.push(source)["hosts"]["node2"]["error"]


class AtStep(Progress):
    """Does something as a step begins."""

    def __init__(self, step: str, action: Callable[[], object]) -> None:
        self._step = step
        self._action = action

    def step(self, step: str, size: int) -> None:
        if step == self._step:
            self._action()


def test_a_switch_that_fails_on_one_host_is_taken_back_on_all(site: Site, source: Path) -> None:
    first = site.push(source)["release"]
    before = [site.files(host) for host in site.lab.hosts]
    (source / "run.sh").write_text("exit 1\n")
    broken = site.lab.hosts[2]

    def put_in_the_way() -> None:
        site.sh(broken, "rm current && mkdir -p current/in-the-way")

    report = site.push_with(source, AtStep("switch", put_in_the_way))
    assert [h.status for h in report.hosts.values()] == ["untouched", "untouched", "failed", "untouched"]
    assert "current is not a link" in str(report.hosts["node3"].error)
    assert [h.current for h in report.hosts.values()] == [first, first, None, first]
    assert not report.mixed

    refused = site.push(source)
    assert (refused["exit"], refused["hosts"]["node3"]["status"]) == (1, "failed")
    site.sh(broken, f"rm -r current && ln -s releases/{first} current")
    assert [site.files(host) for host in site.lab.hosts] == before
    assert site.push(source)["ok"]


def test_a_host_lost_at_the_switch_is_reported_and_goes_back_by_itself(
    make_lab: Callable[..., Lab], source: Path, tmp_path: Path
) -> None:
    lab = make_lab(count=3)
    site = Site(lab, tmp_path, "~/code")
    first = site.push(source)["release"]
    (source / "run.sh").write_text("exit 1\n")
    report = site.push_with(source, AtStep("switch", lambda: faults.stop_sshd(lab.hosts[1])))
    assert [h.status for h in report.hosts.values()] == ["untouched", "unknown", "untouched"]
    assert [h.current for h in report.hosts.values()] == [first, None, first]
    assert report.mixed
    wait_for(lambda: not any("incoming" in path for path in site.files(lab.hosts[1])))
    assert [site.current(host) for host in lab.hosts] == [first] * 3
    assert site.files(lab.hosts[1]) == site.files(lab.hosts[0])


def until_it_arrives(site: Site, running: subprocess.Popen[str]) -> None:
    """Wait until the big file is on its way to the first host."""

    def arrives() -> bool:
        assert running.poll() is None, running.stderr and running.stderr.read()
        return any("/.incoming-" in path for path in site.files(site.lab.hosts[0]))

    wait_for(arrives)


def test_an_interrupt_leaves_nothing(site: Site, big: Path) -> None:
    with subprocess.Popen([*site.argv, str(big)], stderr=subprocess.PIPE, text=True) as running:
        until_it_arrives(site, running)
        running.send_signal(signal.SIGINT)
        _, said = running.communicate(timeout=PATIENCE)
    assert running.returncode == 130, said
    assert [site.files(host) for host in site.lab.hosts] == [[], [], [], []]


def test_a_push_that_is_killed_leaves_nothing_that_the_next_does_not_remove(site: Site, big: Path) -> None:
    with subprocess.Popen([*site.argv, str(big)], stderr=subprocess.PIPE, text=True) as running:
        until_it_arrives(site, running)
        running.kill()
    wait_for(lambda: not any(site.files(host) for host in site.lab.hosts))
    assert [site.files(host) for host in site.lab.hosts] == [[], [], [], []]
    pushed = site.push(big)
    assert pushed["ok"], pushed
    for host in site.lab.hosts:
        assert site.sh(host, "ls -A releases").split()[1:] == [
            pushed["release"],
            pushed["release"] + ".manifest.json",
            pushed["release"] + ".pushed.json",
        ]


def test_two_pushes_at_once(site: Site, source: Path) -> None:
    others: list[dict[str, Any]] = []
    report = site.push_with(source, AtStep("stage", lambda: others.append(site.push(source))))
    assert report.ok
    assert others[0]["exit"] == 1
    assert "another push" in others[0]["hosts"]["node1"]["error"]
    assert {h["status"] for h in others[0]["hosts"].values()} == {"failed", "untouched"}
    assert {site.current(host) for host in site.lab.hosts} == {report.release}


# --- the command line ---------------------------------------------------------------------------------------


def test_a_dry_run_lists_what_would_travel(site: Site, source: Path) -> None:
    ran = subprocess.run([*site.argv, "--dry-run", str(source)], capture_output=True, text=True)
    assert ran.returncode == 0
    assert "train/a.py" in ran.stdout.splitlines()
    assert "with space\\n/and newline" in ran.stdout.splitlines()
    assert not any("pyc" in line for line in ran.stdout.splitlines())
    assert "6 files" in ran.stderr
    assert site.files(site.lab.hosts[0]) == []


def test_a_source_that_is_not_there(site: Site, tmp_path: Path) -> None:
    pushed = site.push(tmp_path / "gone")
    assert pushed["exit"] == 2
    assert "does not exist" in pushed["said"]


def test_a_tree_with_files_where_outputs_are_kept(site: Site, source: Path) -> None:
    (source / "outputs").mkdir()
    (source / "outputs" / "model.pt").write_text("x")
    pushed = site.push(source)
    assert pushed["exit"] == 1
    assert "outputs/model.pt" in pushed["said"]
    assert site.files(site.lab.hosts[0]) == []
