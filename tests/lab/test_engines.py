"""The engines beside torchrun's own, on real hosts: ranks, NICs, exit code, culprit, logs, stop."""

from __future__ import annotations

import base64
import io
import json
import os
import shutil
import signal
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from launches import nothing_is_left, start_attached
from waiting import read_until, rest_of

from mnt.lab.lab import Lab

pytestmark = pytest.mark.usefixtures("no_job_left")

Mnt = Callable[..., subprocess.CompletedProcess[str]]

TWO = ("-n", "node[1-2]", "--nproc", "2")
BACKENDS = pytest.mark.parametrize(
    "via", ["ssh", pytest.param("pdsh", marks=pytest.mark.skipif(not shutil.which("pdsh"), reason="no pdsh"))]
)

# Each rank says where it is; then the rank FAILS fails, once the file WAITS exists, and the others wait.
PLACE = """#!/bin/sh
echo "PLACE $RANK $WORLD_SIZE $LOCAL_RANK $NODE_RANK $OMPI_COMM_WORLD_RANK $MNT_HOST $GLOO_SOCKET_IFNAME"
printf 'ARG <%s>\\n' "$@"
[ -n "$FAILS" ] || exit 0
trap 'echo told to end; exit 0' TERM
if [ "$RANK" = "$FAILS" ]; then
    until [ -e "${WAITS:-/}" ]; do sleep 0.1; done
    sleep 1
    echo "last words" >&2
    exit 37
fi
sleep 300 & wait
"""
# Under torch: as many ranks as there should be meet, each on its node's NIC.
MEET = """
import argparse, os, sys, time
import torch, torch.distributed as dist
if "ACCELERATE_MIXED_PRECISION" in os.environ:
    import accelerate
    accelerate.Accelerator()
else:
    dist.init_process_group("gloo")
parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int)
_, rest = parser.parse_known_args()
met = torch.ones(1)
dist.all_reduce(met)
print("PLACE", dist.get_rank(), int(met), os.environ["LOCAL_RANK"], os.environ["MNT_HOST"],
      os.environ["GLOO_SOCKET_IFNAME"], rest, flush=True)
if os.environ.get("FAILS"):
    if os.environ["FAILS"] == os.environ["RANK"]:
        time.sleep(1)
        print("last words", file=sys.stderr, flush=True)
        os._exit(37)
    time.sleep(300)
dist.barrier()
os._exit(0)  # see train/lm/worker.py
"""
ODD = ("--", "a b", "", "$local_rank", "--m", "--no=1", "--cpu", "it's")


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("tree")
    (root / "place").write_text(PLACE)
    (root / "place").chmod(0o755)
    (root / "plain").write_text("data")
    (root / "meet.py").write_text(MEET)
    return root


@pytest.fixture
def nics(lab: Lab) -> dict[str, str]:
    return {host.name: host.spec.nic for host in lab.hosts}


def places(stdout: str) -> dict[int, list[str]]:
    """By rank, the words that it printed of its place."""
    found = [line.partition("PLACE ")[2].split() for line in stdout.splitlines() if "PLACE " in line]
    return {int(words[0]): words[1:] for words in found}


# --- any program -------------------------------------------------------------------------------------------


def test_any_program_runs_once_per_slot_with_its_place(pushed: Mnt, nics: dict[str, str]) -> None:
    done = pushed("launch", *TWO, "--engine", "command", "--rank-env", "ompi", "./place", "a b", "", "--x")
    assert done.returncode == 0, done.stderr
    for rank, words in places(done.stdout).items():
        host = f"node{rank // 2 + 1}"
        assert words == ["4", str(rank % 2), str(rank // 2), str(rank), host, nics[host]]
        assert f"[rank{rank}] PLACE" in done.stdout
    assert sorted(places(done.stdout)) == [0, 1, 2, 3]
    log = pushed("logs", "--rank", "3").stdout
    assert log.splitlines()[1:] == ["ARG <a b>", "ARG <>", "ARG <--x>"]


@BACKENDS
def test_a_program_that_fails_names_its_rank_and_keeps_its_code(pushed: Mnt, lab: Lab, via: str) -> None:
    done = pushed("launch", *TWO, "--via", via, "--engine", "command", "--env", "FAILS=3", "./place")
    assert done.returncode == 37, done.stderr
    assert "failed: node2: rank 3 exited with code 37: last words" in done.stderr
    assert done.stdout.count("told to end") == 3
    assert pushed("logs", "--rank", "3").stdout.splitlines()[-1] == "last words"
    nothing_is_left(lab)


@BACKENDS
def test_ctrl_c_ends_programs_everywhere(pushed: Mnt, lab: Lab, via: str) -> None:
    launch = start_attached(lab, *TWO, "--via", via, "--engine", "command", "--env", "FAILS=9", "./place")
    read_until(launch, "PLACE", 4)
    launch.send_signal(signal.SIGINT)
    said = rest_of(launch)
    assert launch.returncode == 130, said
    assert said.count("told to end") <= 4
    nothing_is_left(lab)


def test_a_detached_program_fails_as_a_whole_with_nobody_watching(pushed: Mnt, lab: Lab) -> None:
    waits = ("--env", "FAILS=0", "--env", "WAITS=/tmp/fail-now")
    done = pushed("launch", *TWO, "--detach", "--engine", "command", *waits, "./place")
    assert done.returncode == 0, done.stderr
    assert lab.host("node1").exec(["touch", "/tmp/fail-now"]).returncode == 0
    nothing_is_left(lab)
    job = json.loads(pushed("status", done.stdout.strip(), "--json").stdout)["jobs"][0]
    assert job["state"] == "failed"
    assert (job["culprit"]["rank"], job["culprit"]["exit_code"]) == (0, 37)


@pytest.mark.parametrize(
    ("program", "says"),
    [
        ("no-such-program", "program missing: no-such-program (not on PATH)"),
        ("plain", "./plain names the one in the tree"),
        ("./plain", "./plain is not executable"),
        ("./absent", "script missing: ./absent"),
    ],
)
def test_a_program_that_is_not_there_never_starts(pushed: Mnt, program: str, says: str) -> None:
    done = pushed("launch", *TWO, "--engine", "command", program)
    assert done.returncode == 125
    assert says in done.stderr


def test_a_secret_of_a_program_is_not_seen_from_outside(pushed: Mnt, lab: Lab, tmp_path: Path) -> None:
    (tmp_path / "env").write_text("TOKEN=hunter2\n")
    (tmp_path / "env").chmod(0o600)
    args = ("--engine", "command", "--env-file", str(tmp_path / "env"), "--env", "FAILS=9", "./place")
    assert "hunter2" not in pushed("launch", "--dry-run", "--json", *TWO, *args).stdout
    done = pushed("launch", *TWO, "--detach", *args)
    try:
        for name in ("node1", "node2"):
            seen = (
                lab.host(name)
                .exec(["sh", "-c", "ps -ww -eo args; cat /home/*/.mnt/jobs/*/*/about.json"])
                .stdout
            )
            assert "./place" in seen
            assert "hunter2" not in seen
    finally:
        assert pushed("stop", done.stdout.strip(), "--grace", "1").returncode == 0


# --- torch -------------------------------------------------------------------------------------------------


@pytest.fixture
def accelerate(lab: Lab) -> Iterator[None]:
    """Hosts with accelerate: that of the training environment, or of $MNT_ACCELERATE, a site-packages."""
    python = (
        lab.hosts[0].exec(["sh", "-c", "ls -d /var/cache/mnt/train-venv/lib/*/site-packages"]).stdout.strip()
    )
    source = os.environ.get("MNT_ACCELERATE", python)
    names = [path.name for path in Path(source).glob("accelerate*")]
    if not names:
        pytest.skip("accelerate is not in the training environment: scripts/train-venv.sh installs it")
    if source != python:
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w:gz") as archive:
            for name in names:
                archive.add(Path(source, name), name)
        text = base64.b64encode(packed.getvalue()).decode()
        unpack = ["sh", "-c", f"base64 -d | tar xz --no-same-owner -C {python}"]
        for host in lab.hosts:
            assert host.exec(unpack, input=text).returncode == 0
    yield
    if source != python:
        for host in lab.hosts:
            host.exec(["sh", "-c", f"rm -rf {python}/accelerate*"])


ENGINES: dict[str, tuple[str, ...]] = {
    "c10d": ("--rdzv", "c10d"),
    "deepspeed-c10d": ("--engine", "deepspeed", "--rdzv", "c10d"),
    "deepspeed-launcher": ("--engine", "deepspeed", "--deepspeed-launcher"),
    "accelerate": ("--engine", "accelerate"),
}


def engine_options(request: pytest.FixtureRequest, engine: str) -> tuple[str, ...]:
    if engine == "accelerate":
        request.getfixturevalue("accelerate")
    return ENGINES[engine]


@BACKENDS
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.matrix
def test_ranks_meet_where_mnt_says(
    pushed: Mnt, nics: dict[str, str], request: pytest.FixtureRequest, engine: str, via: str
) -> None:
    """Hosts in the other order: c10d would give rank 0 to node1 all the same, and mnt must know."""
    options = (*engine_options(request, engine), "--via", via, "--nproc", "2", "-n", "node2,node1")
    done = pushed("launch", *options, "meet.py", *ODD)
    assert done.returncode == 0, done.stderr
    order = ["node1", "node2"] if "c10d" in engine else ["node2", "node1"]
    for rank, words in places(done.stdout).items():
        host = order[rank // 2]
        assert words[:4] == ["4", str(rank % 2), host, nics[host]]
        assert repr([*ODD]) in " ".join(words)
    assert sorted(places(done.stdout)) == [0, 1, 2, 3]
    assert f"PLACE 3 4 1 {order[1]}" in pushed("logs", "--rank", "3").stdout
    assert ("listens on every address" in done.stderr) == (engine != "accelerate")


@BACKENDS
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.matrix
def test_a_rank_that_fails_is_named(
    pushed: Mnt, lab: Lab, request: pytest.FixtureRequest, engine: str, via: str
) -> None:
    options = (*engine_options(request, engine), "--via", via, *TWO, "--env", "FAILS=2")
    done = pushed("launch", *options, "meet.py")
    assert done.returncode == 37, done.stderr
    assert "failed: node2: rank 2 exited with code 37: last words" in done.stderr
    assert "last words" in pushed("logs", "--rank", "2").stdout
    nothing_is_left(lab)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.matrix
def test_a_stop_leaves_nothing(pushed: Mnt, lab: Lab, request: pytest.FixtureRequest, engine: str) -> None:
    options = (*engine_options(request, engine), *TWO, "--detach", "--env", "FAILS=9")
    job = pushed("launch", *options, "meet.py").stdout.strip()
    stopped = pushed("stop", job, "--grace", "2", "--json")
    assert stopped.returncode == 0, stopped.stderr
    assert {host["status"] for host in json.loads(stopped.stdout)["jobs"][0]["hosts"].values()} <= {
        "stopped",
        "none",
    }
    nothing_is_left(lab)
    assert pushed("status", job, "--json").stdout.count('"stopped"') >= 1


@pytest.mark.matrix
def test_a_host_without_accelerate_is_named(pushed: Mnt, lab: Lab) -> None:
    hosts = [host for host in lab.hosts if host.name in ("node1", "node2")]
    look = ["sh", "-c", "ls -d /var/cache/mnt/train-venv/lib/*/site-packages/accelerate*.dist-info"]
    found: dict[str, Any] = {host.name: host.exec(look).stdout.split() for host in hosts}
    for host in hosts:
        for path in found[host.name]:
            host.exec(["mv", path, f"{path}.away"])
    try:
        done = pushed("launch", *TWO, "--engine", "accelerate", "meet.py")
    finally:
        for host in hosts:
            for path in found[host.name]:
                host.exec(["mv", f"{path}.away", path])
    assert done.returncode == 125
    assert "node[1-2]: " in done.stderr
    assert "has no accelerate, which --engine accelerate needs" in done.stderr


def test_a_config_file_that_is_not_in_the_tree_never_starts(
    pushed: Mnt, lab: Lab, request: pytest.FixtureRequest
) -> None:
    request.getfixturevalue("accelerate")
    done = pushed("launch", *TWO, "--engine", "accelerate", "--accelerate-config", "absent.yaml", "meet.py")
    assert done.returncode == 125
    assert "file missing: absent.yaml" in done.stderr
