"""`mnt fetch` on real hosts: what a job has written, paths, interrupts, and hosts that are off or full."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from faults import power_off
from launches import nothing_is_left, start_attached
from waiting import PATIENCE, read_until, rest_of, wait_for

from mnt.lab.lab import Lab

Run = Callable[..., subprocess.CompletedProcess[str]]
MIB = 1 << 20

WRITE = """
import os, socket
os.makedirs("outputs/deep", exist_ok=True)
os.makedirs("local", exist_ok=True)
host = socket.gethostname()
with open("outputs/deep/model.pt", "wb") as file:
    file.write(host.encode() * 100_000)
with open("local/log.txt", "w") as file:
    file.write(host)
if os.path.lexists("local/latest"):  # of another test
    os.unlink("local/latest")
os.symlink("log.txt", "local/latest")
print("trained on", host, flush=True)
"""
WAIT = """
import os, time
os.makedirs("outputs", exist_ok=True)
log = open("outputs/growing.log", "w", buffering=1)
print("writing", flush=True)
end = time.monotonic() + 300
while not os.path.exists("outputs/stop") and time.monotonic() < end:
    log.write("x" * 10_000 + chr(10))
    time.sleep(0.002)
"""


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("tree")
    for name, text in {"write": WRITE, "wait": WAIT}.items():
        (root / f"{name}.py").write_text(text)
    (root / "data.txt").write_text("pushed")
    return root


@pytest.fixture(autouse=True)
def nothing_left(lab: Lab) -> Iterator[None]:
    """No process of any job, and no file of these tests on any host."""
    yield
    nothing_is_left(lab)
    for host in lab.hosts:
        host.exec(["sh", "-c", "rm -rf ~/project/shared/outputs/* ~/fetched.* ~/'odd names'"], user=True)


def on(lab: Lab, host: str, script: str) -> str:
    done = lab.host(host).exec(["sh", "-ec", script], user=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def launched(mnt: Run, script: str, *words: str) -> str:
    done = mnt("launch", "--json", "-n", "node[1-2]", *words, script)
    assert done.returncode == 0, done.stderr
    return str(json.loads(done.stdout)["job"])


def hosts_of(done: subprocess.CompletedProcess[str]) -> dict[str, dict[str, Any]]:
    assert done.stdout, done.stderr
    found: dict[str, dict[str, Any]] = json.loads(done.stdout)["hosts"]
    return found


def files(directory: Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*") if not path.is_dir()}


def test_the_newest_job(pushed: Run, lab: Lab, tmp_path: Path) -> None:
    job = launched(pushed, "write.py")
    done = pushed("fetch", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert f"job {job}, on node[1-2]" in done.stderr
    top = tmp_path / "fetched" / job
    assert sorted(os.listdir(top)) == ["node1", "node2"]
    for host in ("node1", "node2"):
        found = files(top / host)
        assert {name for name in found if not name.startswith("logs/")} == {
            "release/local/log.txt",
            "release/local/latest",
            "shared/outputs/deep/model.pt",
        }
        assert {"logs/output.log", "logs/about.json", "logs/state.json", "logs/supervisor.log"} <= found
        assert any(name.startswith("logs/ranks/") for name in found)
        assert (top / host / "shared/outputs/deep/model.pt").read_bytes() == host.encode() * 100_000
        assert (top / host / "release/local/latest").read_text() == host
        assert f"trained on {host}" in (top / host / "logs/output.log").read_text()
        stamp = on(lab, host, "stat -c %Y ~/project/shared/outputs/deep/model.pt")
        assert int((top / host / "shared/outputs/deep/model.pt").stat().st_mtime) == int(stamp)

    again = pushed("fetch", job, "--json", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    for host, each in hosts_of(again).items():
        assert (each["files"], each["bytes"], each["status"]) == (0, 0, "fetched")
        assert each["already"] == len(files(top / host))

    # What was changed here stays; and git and `mnt push` leave all of it out.
    mine = top / "node1/release/local/log.txt"
    mine.write_text("mine")
    refused = pushed("fetch", cwd=tmp_path)
    assert refused.returncode == 1
    assert "node1: release/local/log.txt: it is newer here; --force overwrites it" in refused.stderr
    assert mine.read_text() == "mine"
    assert pushed("fetch", "--force", cwd=tmp_path).returncode == 0
    assert mine.read_text() == "node1"
    (tmp_path / "train.py").write_text("")
    assert (tmp_path / "fetched/.gitignore").read_text() == "*\n"
    planned = json.loads(pushed("push", "--dry-run", "--json", cwd=tmp_path).stdout)
    assert planned["files"] == 1


def test_a_dry_run_writes_nothing(pushed: Run, lab: Lab, tmp_path: Path) -> None:
    on(lab, "node1", "mkdir -p ~/project/shared/outputs; head -c 5000 /dev/zero > ~/project/shared/outputs/x")
    done = pushed("fetch", "--dry-run", "~/project/shared/outputs", "-n", "node[1-2]", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "1 file, 5.0 kB, would go to fetched" in done.stderr
    assert [line.split()[:3] for line in done.stdout.splitlines()[1:]] == [
        ["node1", "there", "1"],
        ["node2", "nothing", "0"],
    ]
    assert list(tmp_path.iterdir()) == []


def test_paths(pushed: Run, lab: Lab, tmp_path: Path) -> None:
    on(
        lab,
        "node1",
        "mkdir -p ~/project/shared/outputs/run1 ~/project/shared/outputs/..data '/tmp/odd names';"
        "cd ~/project/shared/outputs;"
        "for name in a.log b.log c.pt '[1]*.log'; do echo x > run1/\"$name\"; done;"
        "echo v > ..data/token; ln -s ..data/token token; ln -s /etc/passwd out; mkfifo pipe;"
        "echo x > '/tmp/odd names/it'\\''s; $(reboot)'",
    )
    both = ("-n", "node[1-2]", "--json", "--to", str(tmp_path))
    done = pushed("fetch", "~/project/shared/outputs/run1/*.log", "/tmp/odd names/", "data.txt", *both)
    assert done.returncode == 0, done.stderr
    found = hosts_of(done)
    assert files(tmp_path / "node1") == {
        "project/shared/outputs/run1/a.log",
        "project/shared/outputs/run1/b.log",
        "project/shared/outputs/run1/[1]*.log",
        "tmp/odd names/it's; $(reboot)",
        "data.txt",
    }
    assert files(tmp_path / "node2") == {"data.txt"}
    assert found["node2"]["absent"] == ["~/project/shared/outputs/run1/*.log", "/tmp/odd names/"]
    assert found["node1"]["absent"] == []

    done = pushed("fetch", "~/project/shared/outputs", *both)
    assert done.returncode == 0, done.stderr
    assert hosts_of(done)["node1"]["left_out"] == {
        "project/shared/outputs/out": "it is a link out of this directory",
        "project/shared/outputs/pipe": "it is a pipe",
    }
    assert (tmp_path / "node1/project/shared/outputs/token").read_text() == "v\n"
    assert not os.path.lexists(tmp_path / "node1/project/shared/outputs/out")

    none = pushed("fetch", "nothing.pt", "data.txt", "-n", "node[1-2]", "--to", str(tmp_path))
    assert none.returncode == 1
    assert "no host has nothing.pt" in none.stderr
    assert "no host has data.txt" not in none.stderr
    on(lab, "node1", "rm -r '/tmp/odd names'")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["20260101-101500-3fa90c", "20260101-101500-3fa90d"], "is a job, with other arguments"),
        (["20260101-101500-3fa90c", "x"], "is a job, with other arguments"),
        (["../x"], "a path with '..'"),
        (["x/../../y"], "a path with '..'"),
        (["~eve/x"], "the home of another user"),
        (["/etc", "etc"], "lead to the same place here: etc"),
        (["x", "-n", "node9"], "node9"),
    ],
)
def test_what_cannot_be_meant(pushed: Run, tmp_path: Path, words: list[str], says: str) -> None:
    done = pushed("fetch", *words, cwd=tmp_path)
    assert (done.returncode, says in done.stderr) == (2, True), done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_job_that_is_not_there(pushed: Run, tmp_path: Path) -> None:
    job = launched(pushed, "write.py")
    done = pushed("fetch", "20260101-101500-3fa90c", cwd=tmp_path)
    assert (done.returncode, "20260101-101500-3fa90c" in done.stderr) == (2, True), done.stderr
    assert f"name one of these: {job} (finished)" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_others_can_write_to(pushed: Run, tmp_path: Path) -> None:
    done = pushed("fetch", "data.txt", "--to", "/tmp", cwd=tmp_path)
    assert done.returncode == 2
    assert "all users can write to /tmp" in done.stderr
    assert "own below it" in done.stderr


def start(lab: Lab, *words: str, cwd: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "mnt", "fetch", *words],
        cwd=cwd,
        env={**os.environ, "MNT_INVENTORY": str(lab.inventory_path)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def part_of(directory: Path) -> int:
    """Bytes of the one incomplete file."""
    parts = (path for path in directory.rglob(".mnt-part-*") if path.name != ".mnt-part-lock")
    return next((path.stat().st_size for path in parts), 0)


def test_an_interrupt_and_the_rest(make_lab: Callable[..., Lab], run_mnt: Run, tmp_path: Path) -> None:
    size = 16 * MIB
    lab = make_lab(count=1)
    slow = ["dev", "mgmt0", "root", "tbf", "rate", "40mbit", "burst", "64kb", "latency", "100ms"]
    assert lab.host("node1").exec(["tc", "qdisc", "add", *slow]).returncode == 0
    on(lab, "node1", f"head -c {size} /dev/urandom > ~/big; sha256sum < ~/big > ~/sum")
    fetch = start(lab, "~/big", "-n", "node1", cwd=tmp_path)
    wait_for(lambda: part_of(tmp_path) > MIB, every=0.002)
    fetch.send_signal(signal.SIGINT)
    said = rest_of(fetch)
    assert fetch.returncode == 130, said
    arrived = part_of(tmp_path)
    assert 0 < arrived < size
    assert not (tmp_path / "fetched/node1/big").exists()
    assert lab.host("node1").exec(["tc", "qdisc", "del", "dev", "mgmt0", "root"]).returncode == 0
    done = run_mnt("fetch", "~/big", "-n", "node1", "--json", lab=lab, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert hosts_of(done)["node1"]["bytes"] == size - arrived
    big = tmp_path / "fetched/node1/big"
    sums = subprocess.run(["sha256sum"], stdin=big.open("rb"), capture_output=True, text=True, check=True)
    assert sums.stdout == on(lab, "node1", "cat ~/sum")
    assert files(tmp_path) == {"fetched/.gitignore", "fetched/node1/big"}


def test_a_host_that_is_off(make_lab: Callable[..., Lab], run_mnt: Run, tmp_path: Path) -> None:
    lab = make_lab(count=3)
    for host in lab.hosts:
        on(lab, host.name, "hostname > ~/x")
    power_off(lab.host("node2"))
    done = run_mnt("fetch", "~/x", "--json", lab=lab, cwd=tmp_path)
    assert done.returncode == 1
    assert {host: each["status"] for host, each in hosts_of(done).items()} == {
        "node1": "fetched",
        "node2": "unreachable",
        "node3": "fetched",
    }
    assert (tmp_path / "fetched/node3/x").read_text() == "node3\n"
    assert not (tmp_path / "fetched/node2").exists()


def test_hosts_that_share_their_files(make_lab: Callable[..., Lab], run_mnt: Run, tmp_path: Path) -> None:
    """One home directory for all, as over NFS: a job's files are fetched once, its logs from each host."""
    lab = make_lab(count=2, shared_home=True)
    (tmp_path / "train.py").write_text(WRITE.replace('"local/latest"', 'f"local/latest-{host}"'))
    assert run_mnt("push", lab=lab, cwd=tmp_path).returncode == 0
    done = run_mnt("launch", "train.py", lab=lab, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    done = run_mnt("fetch", "--json", "--to", "here", lab=lab, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = hosts_of(done)
    assert found["node2"]["shared_with"] == ["node1"]
    assert (tmp_path / "here/node1/shared/outputs/deep/model.pt").exists()
    assert not (tmp_path / "here/node2/shared").exists()
    for host in ("node1", "node2"):
        assert f"trained on {host}" in (tmp_path / "here" / host / "logs/output.log").read_text()


def test_a_job_that_still_runs(pushed: Run, lab: Lab, tmp_path: Path) -> None:
    """Its files grow while they are read; what was listed arrives, and the rest the next time."""
    job = start_attached(lab, "-n", "node1", "wait.py")
    try:
        read_until(job, "writing")
        wait_for(lambda: int(on(lab, "node1", "stat -c %s ~/project/shared/outputs/growing.log")) > MIB)

        def changed() -> bool:
            done = pushed("fetch", "--json", cwd=tmp_path)
            assert done.returncode == 0, done.stderr
            assert "which still runs: its files may change" in done.stderr
            return "shared/outputs/growing.log" in hosts_of(done)["node1"]["changed"]

        wait_for(changed)
        (log,) = tmp_path.rglob("growing.log")
        first = log.stat().st_size
        assert first > MIB
        assert set(log.read_text()) <= {"x", "\n"}
    finally:
        on(lab, "node1", "touch ~/project/shared/outputs/stop")
        rest_of(job)
    done = pushed("fetch", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "shared/outputs/growing.log" not in hosts_of(done)["node1"]["changed"]
    assert log.stat().st_size == int(on(lab, "node1", "stat -c %s ~/project/shared/outputs/growing.log"))


def test_the_disk_here_is_full(pushed: Run, lab: Lab, tmp_path: Path) -> None:
    """Known before from the sizes, or only when it is full: no host is blamed, and nothing is half there."""
    to = tmp_path / "to"
    to.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m,mode=755", "t", to], check=False).returncode:
        pytest.skip("nothing can be mounted here")
    try:
        for host, size in (("node1", 4), ("node2", 2), ("node3", 2)):
            on(lab, host, f"head -c {size * MIB} /dev/urandom > ~/fetched.x; echo small > ~/fetched.y")
        done = pushed("fetch", "~/fetched.*", "-n", "node[1,2]", "--json", "--to", str(to))
        assert done.returncode == 1
        found = hosts_of(done)
        assert f"no space in {to}/node1 for 2 files" in found["node1"]["error"]
        assert "free space there" in found["node1"]["fix"]
        assert (found["node2"]["status"], found["node2"]["files"]) == ("fetched", 2)

        subprocess.run(["rm", "-r", str(to / "node2")], check=True)
        done = pushed("fetch", "~/fetched.*", "-n", "node[2,3]", "--to", str(to))
        assert done.returncode == 1
        assert f"{to}/node" in done.stderr
        assert "No space left on device" in done.stderr or "no space in" in done.stderr
        assert "unreachable" not in done.stderr
        assert not list(to.rglob("fetched.x")) or len(list(to.rglob("fetched.x"))) == 1

        subprocess.run(["mount", "-o", "remount,size=20m", to], check=True)
        done = pushed("fetch", "~/fetched.*", "-n", "node[2,3]", "--to", str(to))
        assert done.returncode == 0, done.stderr
        assert {path.stat().st_size for path in to.rglob("fetched.x")} == {2 * MIB}
    finally:
        subprocess.run(["umount", str(to)], check=True)


def test_start_up_files_that_print(make_lab: Callable[..., Lab], run_mnt: Run, tmp_path: Path) -> None:
    lab = make_lab(count=1)
    on(lab, "node1", "echo 'echo hello; echo oops >&2' | tee ~/.bashrc > ~/.profile; echo x > ~/x")
    done = run_mnt("fetch", "~/x", lab=lab, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "fetched/node1/x").read_text() == "x\n"


def test_files_that_come_and_go(pushed: Run, lab: Lab, tmp_path: Path) -> None:
    """Temporary files of a job that runs: they are gone when they should be sent, and nothing is missing."""
    script = (
        "cd ~/project/shared; mkdir -p outputs; echo keep > outputs/keep; "
        "i=0; while [ $i -lt 400000 ] && [ ! -e outputs/stop ]; do "
        "echo $i > outputs/tmp$((i % 50)); rm -f outputs/tmp$(((i + 25) % 50)); i=$((i + 1)); done"
    )
    inside = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "mnt",
            "lab",
            "exec",
            "--name",
            lab.spec.name,
            "--user",
            "node1",
            "--",
            "sh",
            "-c",
            script,
        ],
        stdin=subprocess.DEVNULL,
    )
    try:
        wait_for(lambda: "tmp" in on(lab, "node1", "ls ~/project/shared/outputs"))
        for _ in range(4):
            done = pushed("fetch", "outputs", "-n", "node1", "--json", "--to", str(tmp_path))
            assert done.returncode in (0, 1), done.stderr
            (found,) = hosts_of(done).values()
            assert all("shorter" in why or "size" in why for why in found["failed"].values()), found
            assert (tmp_path / "node1/outputs/keep").read_text() == "keep\n"
    finally:
        on(lab, "node1", "touch ~/project/shared/outputs/stop")
        assert inside.wait(PATIENCE) == 0


def test_a_file_of_proc(pushed: Run, tmp_path: Path) -> None:
    done = pushed("fetch", "/proc/cpuinfo", "/sys/class/net/lo/mtu", "-n", "node1", cwd=tmp_path)
    assert done.returncode == 1
    assert "node1: proc/cpuinfo: its size is not what it tells, as in /proc and /sys" in done.stderr
    assert "node1: sys/class/net/lo/mtu: its size is not what it tells" in done.stderr
    assert not (tmp_path / "fetched/node1/proc/cpuinfo").exists()


def test_what_this_user_cannot_read(pushed: Run, lab: Lab, tmp_path: Path) -> None:
    lab.host("node1").exec(
        ["sh", "-c", "mkdir -m 700 /tmp/private; echo x > /tmp/secret; chmod 600 /tmp/secret"]
    )
    try:
        done = pushed("fetch", "/tmp/private", "/tmp/secret", "-n", "node1", cwd=tmp_path)
    finally:
        lab.host("node1").exec(["rm", "-r", "/tmp/private", "/tmp/secret"])
    assert done.returncode == 1
    assert "node1: tmp/private: this user cannot read it there" in done.stderr
    assert "node1: tmp/secret: Permission denied" in done.stderr
