"""pdsh, mpirun and Slurm start the supervisors; all else is as over SSH: NICs, logs, culprit, code, stop."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sessions
from launches import SLEEP, nothing_is_left, start_attached
from setups import output
from slurms import queue, start_slurm
from waiting import read_until, rest_of, wait_for

from mnt.lab.lab import Lab, LabRequest, down

pytest.importorskip("ansible_runner", reason="pip install 'mnt-cluster[setup]'")

Run = Callable[..., subprocess.CompletedProcess[str]]
Mnt = Callable[..., subprocess.CompletedProcess[str]]

SHOW = """
import json, os
print("ENV " + json.dumps(dict(os.environ)), flush=True)
"""
FAIL = """
import os, time
if os.environ["RANK"] == "1":
    time.sleep(1)
    raise SystemExit(7)
time.sleep(300)
"""
MEET = """
import os, sys
import torch.distributed as dist
dist.init_process_group("gloo")
print(f"rank {dist.get_rank()} of {dist.get_world_size()} over", os.environ["GLOO_SOCKET_IFNAME"], flush=True)
dist.barrier()
os._exit(0)
"""
VIA = ("pdsh", "mpi", "slurm")


def sample(*first: str, of: tuple[str, ...] = VIA) -> list[Any]:
    """These now, and the others on demand."""
    return [pytest.param(via, marks=() if via in first else pytest.mark.matrix) for via in of]


STARTERS = "pdsh|mpirun|orted|srun|slurmstepd"


@pytest.fixture(scope="module")
def cluster(lab_support: None, run_mnt: Run, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Two hosts with Slurm, and the scripts."""
    name, root = sessions.new_name(), tmp_path_factory.mktemp("tree")
    for script, text in {"show": SHOW, "fail": FAIL, "sleeper": SLEEP, "meet": MEET}.items():
        (root / f"{script}.py").write_text(text)
    try:
        lab = Lab.up(LabRequest(name=name, count=2))
        start_slurm(lab)
        done = run_mnt("push", str(root), lab=lab)
        assert done.returncode == 0, done.stderr
        yield lab
    finally:
        down(name)


@pytest.fixture
def mnt(cluster: Lab, run_mnt: Run) -> Iterator[Mnt]:
    """`mnt` on that lab; after the test no process of a job is left, nor any of what starts jobs."""

    def run(*args: str, **options: Any) -> subprocess.CompletedProcess[str]:
        return run_mnt(*args, lab=cluster, **options)

    yield run
    nothing_is_left(cluster)
    for host in cluster.hosts:
        wait_for(lambda host=host: not starters(host))  # type: ignore[misc]
    wait_for(lambda: queue(cluster.hosts[0]) == [])


def starters(host: Any) -> str:
    return str(host.exec(["pgrep", "-xa", STARTERS]).stdout)


@pytest.mark.parametrize("via", VIA)
def test_the_ranks_meet_each_over_its_own_nic(mnt: Mnt, cluster: Lab, via: str) -> None:
    done = mnt("launch", "--via", via, "meet.py")
    assert done.returncode == 0, done.stderr
    nics = [host.spec.nic for host in cluster.hosts]
    assert len({*nics}) == 2
    for rank, nic in enumerate(nics):
        assert f"node{rank + 1} | [rank{rank}] rank {rank} of 2 over {nic}\n" in done.stdout
    job = json.loads(mnt("status", "--json").stdout)["jobs"][0]
    assert (job["backend"], job["state"]) == (via, "finished")


@pytest.mark.parametrize("via", sample("mpi"))
def test_a_node_has_the_environment_of_its_own_login(mnt: Mnt, tmp_path: Path, via: str) -> None:
    """Nothing of pdsh's, mpirun's or Slurm's but what tells its share of the node."""
    given = {"XDG_STATE_HOME": str(tmp_path), "SECRET_OF_THE_HEAD": "s3cret"}
    done = mnt("launch", "--via", via, "--env", "MINE=a b'$x", "show.py", env=given)
    assert done.returncode == 0, done.stderr
    for line in filter(lambda line: "ENV {" in line, done.stdout.splitlines()):
        found = json.loads(line.partition("ENV ")[2])
        assert (found["HOME"], found["MINE"]) == ("/home/mnt", "a b'$x")
        assert not {"SECRET_OF_THE_HEAD", "XDG_STATE_HOME"} & {*found}
        allowed = ("SLURM_JOB_ID", "SLURM_JOB_NODELIST")
        foreign = [name for name in found if name.startswith(("OMPI_", "PMIX_", "SLURM_", "PDSH_"))]
        assert {*foreign} == ({*allowed} if via == "slurm" else set())
    assert done.stdout.count("ENV {") == 2


@pytest.mark.parametrize("via", sample("pdsh"))
def test_the_culprit_and_its_code(mnt: Mnt, via: str) -> None:
    done = mnt("launch", "--via", via, "fail.py")
    assert done.returncode == 7, done.stderr
    assert "failed: node2: rank 1 exited with code 7" in done.stderr


@pytest.mark.parametrize("via", sample("mpi"))
def test_ctrl_c_stops_the_job_everywhere(mnt: Mnt, cluster: Lab, via: str) -> None:
    running = start_attached(cluster, "--via", via, "--grace", "1", "sleeper.py")
    read_until(running, "sleeping 1")
    running.send_signal(signal.SIGINT)
    said = rest_of(running)
    assert running.returncode == 130, said


@pytest.mark.parametrize("via", sample("slurm"))
def test_a_detached_job_outlives_mnt_and_is_stopped(mnt: Mnt, via: str) -> None:
    done = mnt("launch", "--via", via, "--detach", "sleeper.py")
    assert done.returncode == 0, done.stderr
    job = done.stdout.strip()
    assert mnt("status", job, "--json").stdout.count('"running"') == 3
    done = mnt("stop", job, "--grace", "1")
    assert done.returncode == 0, done.stderr
    assert json.loads(mnt("status", job, "--json").stdout)["jobs"][0]["state"] == "stopped"


@pytest.mark.parametrize(
    ("via", "program"),
    [
        ("pdsh", "pdsh"),
        *(pytest.param("mpi", name, marks=pytest.mark.matrix) for name in ("mpirun", "orted")),
    ],
)
def test_a_program_that_is_missing(mnt: Mnt, cluster: Lab, via: str, program: str) -> None:
    host = cluster.hosts[0]
    place = output(host, "sh", "-c", f"command -v {program}").strip()
    output(host, "mv", place, f"{place}.away")
    try:
        for more in ([], ["--dry-run"]):
            done = mnt("launch", "--via", via, *more, "show.py")
            assert done.returncode == (1 if more else 125)
            assert f"node1: command: {program} is not installed" in done.stderr
            assert "apt install" in done.stderr
    finally:
        output(host, "mv", f"{place}.away", place)


@pytest.mark.parametrize("via", sample("pdsh", of=("pdsh", "mpi")))
def test_a_login_between_the_nodes_that_fails(mnt: Mnt, cluster: Lab, via: str) -> None:
    """pdsh and mpirun need the logins of `mnt ssh-setup`; nothing starts, and nothing is left."""
    key = "/home/mnt/.ssh/id_ed25519"
    output(cluster.hosts[0], "mv", key, f"{key}.away")
    try:
        done = mnt("launch", "--via", via, "--no-preflight", "show.py")
        assert done.returncode == 125, done.stdout
        assert "the job did not start: node1: command: " in done.stderr
        assert '"starting"' not in mnt("status", "--json").stdout
    finally:
        output(cluster.hosts[0], "mv", f"{key}.away", key)


# --- by hand -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("via", sample("mpi", "slurm", of=("ssh", *VIA)))
def test_what_is_exported_runs_without_mnt(mnt: Mnt, cluster: Lab, tmp_path: Path, via: str) -> None:
    place = f"/shared/export-{via}"
    exported = tmp_path / "export"
    done = mnt("launch", "--via", via, "--env", "A=b c", "--export", str(exported), "meet.py")
    assert done.returncode == 0, done.stderr
    first = cluster.hosts[0]
    output(first, "mkdir", "-p", place, user=True)
    for file in exported.iterdir():
        text = file.read_text().replace(str(exported), place)  # it is said where it must be on the nodes
        first.exec(["sh", "-c", f"cat > {place}/{file.name}"], input=text, user=True)
    if via == "slurm":
        words = ["sbatch", "--wait", f"--output={place}/said", f"{place}/job.sbatch"]
        output(first, *words, user=True)
        said = output(first, "cat", f"{place}/said")
    elif via == "ssh":  # from here, as the inventory says
        here = subprocess.run(["sh", exported / "start.sh"], capture_output=True, text=True, timeout=120)
        assert here.returncode == 0, here.stderr
        said = here.stdout + here.stderr
    else:
        said = output(first, "sh", f"{place}/start.sh", user=True)
    for rank, host in enumerate(cluster.hosts):
        assert f"rank {rank} of 2 over {host.spec.nic}\n" in said
    again = mnt("launch", "--via", via, "--export", str(exported), "meet.py")
    assert (again.returncode, "is not empty" in again.stderr) == (2, True)


@pytest.mark.parametrize("via", sample("ssh", of=("ssh", "slurm")))
def test_no_secret_is_exported_or_shown(mnt: Mnt, tmp_path: Path, via: str) -> None:
    (tmp_path / "env").write_text("TOKEN=s3cret\n")
    (tmp_path / "env").chmod(0o600)
    given = ["--via", via, "--env-file", str(tmp_path / "env")]
    shown = mnt("launch", *given, "--dry-run", "meet.py")
    assert mnt("launch", *given, "--export", str(tmp_path / "x"), "meet.py").returncode == 0
    texts = [file.read_text() for file in (tmp_path / "x").iterdir()]
    assert "s3cret" not in "".join([shown.stdout, shown.stderr, *texts])
    assert any("${TOKEN:?" in text for text in texts)


# --- Slurm -------------------------------------------------------------------------------------------------


def test_slurm_rejects_it_with_its_reason(mnt: Mnt) -> None:
    for words, said in [
        (["--partition", "gpus"], "partition gpus has 0 nodes, and 2 are asked for"),
        (["--time", "soon"], "Slurm rejects the job: "),
        (["--sbatch=--qos"], "Slurm rejects the job: "),
        (["--count", "3"], "3 hosts are asked for, of 2"),
    ]:
        done = mnt("launch", "--via", "slurm", *words, "show.py")
        assert (done.returncode, said in done.stderr) == (125, True), (words, done.stderr)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGHUP])
def test_it_waits_for_its_hosts_and_says_why(mnt: Mnt, cluster: Lab, signum: signal.Signals) -> None:
    running = start_attached(cluster, "--via", "slurm", "--sbatch=--begin=now+1hour", "show.py")
    read_until(running, "is pending: BeginTime (Slurm job ")
    assert [line.split()[1] for line in queue(cluster.hosts[0])] == ["PENDING"]
    running.send_signal(signum)
    rest_of(running)
    assert running.returncode == 128 + signum  # and `mnt` looks whether the job has been withdrawn


def test_scancel_is_told_as_such(mnt: Mnt, cluster: Lab) -> None:
    done = mnt("launch", "--via", "slurm", "--count", "1", "--detach", "sleeper.py")
    assert done.returncode == 0, done.stderr
    (waiting,) = queue(cluster.hosts[0])
    output(cluster.hosts[0], "scancel", waiting.split()[0])
    wait_for(lambda: '"failed"' in mnt("status", done.stdout.strip(), "--json").stdout)
    said = mnt("status", done.stdout.strip(), "--json").stdout
    assert "Slurm has ended it: it was cancelled (scancel)" in said


@pytest.mark.matrix  # Slurm counts minutes
def test_a_time_limit_is_told_as_such(mnt: Mnt) -> None:
    done = mnt("launch", "--via", "slurm", "--time", "1", "--grace", "1", "sleeper.py", timeout=400)
    assert "Slurm has ended it: its time limit of 00:01:00 is over" in done.stderr
    assert done.returncode == 1


@pytest.mark.matrix
def test_an_array_is_several_jobs(mnt: Mnt, cluster: Lab) -> None:
    done = mnt("launch", "--via", "slurm", "--count", "1", "--array", "2", "show.py")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count(" finished on ") == 2
    jobs = json.loads(mnt("status", "--json").stdout)["jobs"]
    tasks = {job["outside_id"].partition("_")[2] for job in jobs[:2]}
    assert tasks == {"0", "1"}
