"""`python` in a container of podman or Charliecloud, through the whole chain on real hosts with real torch.

The image has no more than empty directories: /usr of the host and the environment with torch are mounted.
"""

from __future__ import annotations

import base64
import json
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sessions
import yaml
from images import add, docker_archive
from launches import nothing_is_left
from mirror import serving

from mnt.lab.lab import Lab, LabHost, LabRequest, down

pytestmark = pytest.mark.matrix  # the packages come from Debian's mirror the first time

RunMnt = Callable[..., subprocess.CompletedProcess[str]]
PACKAGES = ["podman", "uidmap", "slirp4netns", "charliecloud-runtime"]
EMPTY = ("etc", "usr", "tmp", "proc", "sys", "dev", "run", "var", "var/tmp", "var/cache", "var/cache/mnt")
MEET = """
import os, sys, time
import torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()
inside = os.path.exists("/run/.containerenv") or "CH_RUNNING" in os.environ
print("met", dist.get_rank(), dist.get_world_size(), inside, os.environ.get("TOKEN") == "s3cr3t", flush=True)
if sys.argv[1:] == [str(dist.get_rank())]:
    sys.exit(7)
sys.stdout.flush()
os._exit(0)  # see train/lm/worker.py
"""
STUBBORN = """
import os, signal, subprocess, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen(["/usr/bin/sleep", "311"], start_new_session=True)
print("sleeping", flush=True)
time.sleep(311)
"""


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Two hosts with podman, ch-run and the image of both."""
    name, made = sessions.new_name(), tmp_path_factory.mktemp("image")
    try:
        lab = Lab.up(LabRequest(name=name, count=2))
        archive = made / "image.tar"
        docker_archive(archive, empty_system(made / "root.tar"), "localhost/train:1")
        with serving(lab, debs=PACKAGES) as mirror:
            for host in lab.hosts:
                install(host, mirror.apt)
        send(lab.hosts[0], archive, "/shared/image.tar")
        send(lab.hosts[0], made / "root.tar", "/shared/root.tar")
        output(lab.hosts[0], "mkdir /shared/image && tar -xf /shared/root.tar -C /shared/image", user=True)
        for host in lab.hosts:
            output(host, "podman load -i /shared/image.tar", user=True)
        yield lab
    finally:
        down(name)


def empty_system(path: Path) -> Path:
    with tarfile.open(path, "w") as archive:
        for directory in (*EMPTY, "shared", "home"):
            entry = tarfile.TarInfo(directory)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(entry)
        for name in ("bin", "lib", "lib64", "sbin"):
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, f"usr/{name}"
            archive.addfile(entry)
        add(archive, "etc/passwd", b"root:x:0:0:root:/root:/bin/sh\n")
        add(archive, "etc/group", b"root:x:0:\n")
    return path


def install(host: LabHost, apt: str) -> None:
    """The packages; and what a machine has, and a lab host lacks: cgroups, and POSIX message queues."""
    lists = 'rm -f /etc/apt/sources.list.d/*; echo "$1" >/etc/apt/sources.list; apt-get update -qq'
    output(host, f"{lists}; DEBIAN_FRONTEND=noninteractive apt-get install -y -qq {' '.join(PACKAGES)}", apt)
    output(host, "for f in /etc/subuid /etc/subgid; do grep -q ^mnt: $f || echo mnt:3000000:65536 >>$f; done")
    output(
        host, "mkdir -p /dev/mqueue; mount -t mqueue mqueue /dev/mqueue; mount -t cgroup2 none /sys/fs/cgroup"
    )


def send(host: LabHost, file: Path, to: str) -> None:
    text = base64.b64encode(file.read_bytes()).decode()
    done = host.exec(["sh", "-c", 'base64 -d >"$1"', "sh", to], input=text, user=True)
    assert done.returncode == 0, done.stderr


def output(host: LabHost, script: str, *args: str, user: bool = False) -> str:
    done = host.exec(["sh", "-c", script, "sh", *args], user=user)
    assert done.returncode == 0, done.stderr
    return done.stdout


Words = Callable[[str], list[str]]


def podman(python: str) -> list[str]:
    return [
        "podman",
        "run",
        *("-v", "/usr:/usr:ro", "-v", "/var/cache/mnt:/var/cache/mnt:ro"),
        "localhost/train:1",
        python,
    ]


def charliecloud(python: str) -> list[str]:
    binds = [f"--bind={place}:{place}" for place in ("/usr", "/var/cache/mnt", "/home", "/shared")]
    return ["ch-run", *binds, "/shared/image", "--", python]


@pytest.fixture
def mnt(lab: Lab, run_mnt: RunMnt, tmp_path: Path) -> Callable[..., Any]:
    """`mnt(words, node2=words)`: mnt, with `python` in a container, and the tree pushed."""
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "meet.py").write_text(MEET)
    (tree / "stubborn.py").write_text(STUBBORN)

    def of(words: Words, node2: Words | None = None, **changes: Any) -> RunMnt:
        written = yaml.safe_load(lab.inventory_path.read_text())
        python = written["defaults"]["python"]
        written["defaults"]["python"] = words(python)
        written |= changes
        if node2 is not None:
            written["hosts"]["node2"] = {**(written["hosts"]["node2"] or {}), "python": node2(python)}
        file = tmp_path / "contained.yaml"
        file.write_text(yaml.safe_dump(written, sort_keys=False))
        assert run_mnt("push", "-i", str(file), str(tree)).returncode == 0
        return lambda command, *args: run_mnt(command, "-i", str(file), *args)

    return of


@pytest.mark.parametrize("words", [podman, charliecloud])
def test_a_job_in_containers(mnt: Callable[..., RunMnt], lab: Lab, words: Words, tmp_path: Path) -> None:
    run = mnt(words)
    secret = tmp_path / "env"
    secret.write_text("TOKEN=s3cr3t\n")
    secret.chmod(0o600)
    checked = run("preflight", "--only", "python-version,torch-version")
    assert checked.returncode == 0, checked.stdout
    done = run("launch", "--env-file", str(secret), "--nproc", "2", "meet.py")
    assert done.returncode == 0, done.stderr
    for rank in range(4):
        assert f"met {rank} 4 True True" in done.stdout
    failed = run("launch", "meet.py", "1")
    assert failed.returncode == 7, failed.stderr
    job = json.loads(run("status", "--json", "--limit", "1").stdout)["jobs"][0]
    assert (job["culprit"]["host"], job["culprit"]["rank"]) == ("node2", 1)
    assert "met 1 2" in run("logs", job["job"], "--rank", "1").stdout
    shown = run("launch", "--env-file", str(secret), "--dry-run", "meet.py")
    assert "s3cr3t" not in shown.stdout
    nothing_is_left(lab)


@pytest.mark.parametrize("words", [podman, charliecloud])
def test_a_stop_reaches_what_runs_inside(mnt: Callable[..., RunMnt], lab: Lab, words: Words) -> None:
    run = mnt(words)
    job = run("launch", "--detach", "stubborn.py").stdout.strip()
    arguments = lab.hosts[0].exec(["ps", "-eo", "args"]).stdout
    assert "/usr/bin/sleep 311" in arguments or "stubborn.py" in arguments
    stopped = run("stop", "--grace", "1", job)
    assert stopped.returncode == 0, stopped.stdout
    for host in lab.hosts:
        assert "311" not in host.exec(["ps", "-eo", "args"]).stdout
        assert output(host, "podman ps -aq", user=True) == ""
    nothing_is_left(lab)


def gone(python: str) -> list[str]:
    return [
        word.replace("train:1", "gone:1").replace("/shared/image", "/shared/gone") for word in podman(python)
    ]


def gone_too(python: str) -> list[str]:
    return [word.replace("/shared/image", "/shared/gone") for word in charliecloud(python)]


@pytest.mark.parametrize(
    ("words", "other", "says"),
    [
        (podman, gone, "localhost/gone:1: image not known"),
        (charliecloud, gone_too, "can't stat: /shared/gone: No such file or directory"),
    ],
)
def test_an_image_that_one_node_lacks_is_refused_by_host(
    mnt: Callable[..., RunMnt], lab: Lab, words: Words, other: Words, says: str
) -> None:
    run = mnt(words, node2=other)
    for options in ((), ("--no-preflight",)):
        done = run("launch", *options, "meet.py")
        assert done.returncode == 125
        assert "node2" in done.stderr
        assert says in done.stderr
    nothing_is_left(lab)
    assert lab.hosts[0].exec(["sh", "-c", "ls -d /tmp/mnt-2*/*"]).returncode != 0


def test_a_mount_that_is_missing_is_said(mnt: Callable[..., RunMnt], lab: Lab) -> None:
    run = mnt(podman, paths=[{"path": "/shared/root.tar"}])
    done = run("launch", "meet.py")
    assert done.returncode == 125
    assert (
        "the container has no /shared/root.tar, which is there on the host: a bind mount is missing"
        in done.stderr
    )
    assert "--volume=/shared/root.tar:/shared/root.tar in `python`" in done.stderr
    nothing_is_left(lab)
