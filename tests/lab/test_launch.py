"""Launch, status, logs and stop on real hosts: small scripts under the real torchrun."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from faults import port_taken, power_off, write_file
from launches import SLEEP, nothing_is_left, processes_of_jobs, start_attached, start_mnt
from terminals import on_a_terminal
from waiting import PATIENCE, read_until, rest_of, wait_for

from mnt.errors import HostError
from mnt.inventory import loader
from mnt.lab.lab import Lab
from mnt.launch import watch
from mnt.launch.plan import LaunchOptions
from mnt.launch.run import run

pytestmark = pytest.mark.usefixtures("no_job_left")

Mnt = Callable[..., subprocess.CompletedProcess[str]]

SHOW = """
import json, os, sys
print("ARGS " + json.dumps(sys.argv[1:]), flush=True)
print("ENV " + json.dumps(dict(os.environ)), flush=True)
"""
RAISE = """
import os, time
if os.environ["RANK"] == "1":
    time.sleep(1)
    raise SystemExit(int(os.environ.get("CODE", "7"))) if "CODE" in os.environ else ValueError("bad batch")
time.sleep(300)
"""
COUNT = """
import time
for i in range(40):
    print("tick", i, flush=True)
    time.sleep(0.25)
"""


# As many scripts for DeepSpeed's launcher: without --local_rank it trains on its own.
MEET = """
import argparse, os, sys
import torch.distributed as dist
parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int, default=-1)
arguments, rest = parser.parse_known_args()
if arguments.local_rank >= 0:
    dist.init_process_group("gloo")
    print(f"rank {dist.get_rank()} of {dist.get_world_size()} local", arguments.local_rank, rest, flush=True)
    dist.barrier()
sys.stdout.flush()
os._exit(0)  # see train/lm/worker.py
"""


def on_demand(*values: Any) -> Any:
    """A case that is like another one, and takes long."""
    return pytest.param(*values, marks=pytest.mark.matrix)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("tree")
    for name, text in {"show": SHOW, "fail": RAISE, "sleeper": SLEEP, "count": COUNT, "meet": MEET}.items():
        (root / f"{name}.py").write_text(text)
    return root


def training_python(lab: Lab) -> str:
    return str(yaml.safe_load(lab.inventory_path.read_text())["defaults"]["python"])


def shown(stdout: str, what: str) -> dict[str, Any]:
    """What show.py printed, by host."""
    found = {}
    for line in stdout.splitlines():
        host, _, text = line.partition(" | ")
        _, mark, document = text.partition(f"{what} ")
        if mark:
            found[host.strip()] = json.loads(document)
    return found


@pytest.mark.parametrize("program", [on_demand(["show.py"]), on_demand(["-m", "show"]), ["--", "show.py"]])
def test_arguments_arrive_byte_for_byte(pushed: Mnt, program: list[str]) -> None:
    odd = [
        "--",  # torchrun's argparse would drop the first one
        "--r=16",  # and take these for abbreviations of its own options
        "--log=x",
        "--nnodes=3",
        "-t",
        "--module",
        "-h",
        "--version",
        "\udcff\udcfe",  # bytes that are not UTF-8
        "@file",
        "$local_rank",
        "$$",
        "a b",
        "it's",
        '"q"',
        "line\nbreak",
        "$(reboot)",
        "{job_dir}",
        "",
        "-x",
        "--flag=1",
        "é",
        "*",
        "\\n",
        "--",
    ]
    done = pushed("launch", "-n", "node[1-2]", *program, *odd)
    assert done.returncode == 0, done.stderr
    assert shown(done.stdout, "ARGS") == {"node1": odd, "node2": odd}


@pytest.mark.parametrize(
    ("words", "meet"),
    [
        on_demand(["--engine", "deepspeed", "meet.py"], True),
        (["--engine", "deepspeed", "-m", "meet"], True),
        on_demand(["--engine", "deepspeed", "--no-local-rank", "meet.py"], False),
        (["meet.py"], False),
        on_demand(["meet.py", "--local_rank=0"], True),
    ],
)
def test_deepspeeds_scripts_get_their_local_rank_and_ranks_that_do_not_meet_a_warning(
    pushed: Mnt, words: list[str], meet: bool
) -> None:
    done = pushed("launch", "-n", "node[1-2]", "--nproc", "2", *words, "--", "x")
    assert done.returncode == 0, done.stderr
    said = {line.split("] ")[1] for line in done.stdout.splitlines() if "local" in line}
    if "deepspeed" in words and meet:
        assert said == {f"rank {rank} of 4 local {rank % 2} ['--', 'x']" for rank in range(4)}
    assert len(said) == 4 * meet
    assert ("each rank has trained alone" in done.stderr) is not meet
    (newest, *_) = json.loads(pushed("status", "--json").stdout)["jobs"]
    assert bool(newest["warnings"]) is not meet


def test_each_node_has_its_own_network_and_nothing_of_the_caller(pushed: Mnt, lab: Lab) -> None:
    env = {"CALLERS_OWN": "no", "NAMED": "yes"}
    done = pushed("launch", "-n", "node[1-4]", "--env", "NAMED", "--env", "X=1 2", "show.py", env=env)
    assert done.returncode == 0, done.stderr
    seen = shown(done.stdout, "ENV")
    assert {host: env["NCCL_SOCKET_IFNAME"] for host, env in seen.items()} == {
        "node1": "=eth0",
        "node2": "=enp26s0np0",
        "node3": "=ens3f0",
        "node4": "=eno1",
    }
    for env in seen.values():
        assert (env["NAMED"], env["X"]) == ("yes", "1 2")
        assert "CALLERS_OWN" not in env
        assert "SSH_CONNECTION" not in env
        assert env["PATH"].split(":")[0] == os.path.dirname(training_python(lab))
    assert sorted(env["RANK"] for env in seen.values()) == ["0", "1", "2", "3"]


def test_gpus_that_torch_does_not_see_are_refused(pushed: Mnt, lab: Lab, tmp_path: Path) -> None:
    """Also where the checks are not asked: the training environment of the lab has a build for CPUs."""
    document = yaml.safe_load(lab.inventory_path.read_text())
    document["hosts"]["node2"]["gpus"] = 2
    inventory = tmp_path / "gpus.yaml"
    inventory.write_text(yaml.safe_dump(document, sort_keys=False))
    said = "torch sees 0 of the 2 GPUs that this node was promised: torch"
    for more, code in ((["--dry-run"], 1), ([], 125)):
        words = ("-i", str(inventory), "-n", "node[1-2]", "--no-preflight", *more)
        done = pushed("launch", *words, "show.py")
        assert (done.returncode, said in done.stderr) == (code, True), done.stderr
        assert "set `gpus` of this host in the inventory to 0" in done.stderr
        assert "ARGS" not in done.stdout


def test_a_shell_is_where_a_job_would_run(pushed: Mnt, lab: Lab) -> None:
    shell = [sys.executable, "-m", "mnt", "shell", "-i", str(lab.inventory_path)]
    typed = "pwd; which python; echo $GLOO_SOCKET_IFNAME $PYTHONPATH; exit 7"
    for words, nic in ((["node2"], "enp26s0np0"), ([], "eth0")):
        said = on_a_terminal([*shell, *words], [("$ ", typed)])
        assert said.code == 7, said.text
        (release,) = {
            line for line in said.text.splitlines() if line.startswith("/home/mnt/project/releases/")
        }
        assert f"\n{training_python(lab)}\n{nic} {release}\n" in said.text
    refused = pushed("shell", "node9")
    assert (refused.returncode, "a shell needs a terminal" in refused.stderr) == (2, True)
    said = on_a_terminal([*shell, "node9"], [])
    assert (said.code, "node9: not one of the selected hosts" in said.text) == (2, True)


@pytest.mark.matrix
def test_a_module_runs_in_place_of_a_script(pushed: Mnt) -> None:
    done = pushed("launch", "-n", "node1", "-m", "show", "--lr", "1")
    assert done.returncode == 0, done.stderr
    assert 'ARGS ["--lr", "1"]' in done.stdout


def test_dry_run_starts_nothing(pushed: Mnt) -> None:
    done = pushed("launch", "--dry-run", "--json", "-n", "node[2-3]", "--nproc", "2", "show.py")
    document = json.loads(done.stdout)
    assert document["world_size"] == 4
    assert [node["env"]["GLOO_SOCKET_IFNAME"] for node in document["nodes"]] == ["enp26s0np0", "ens3f0"]
    assert (
        json.loads(pushed("status", "--json").stdout)["jobs"] == []
        or document["job"] not in pushed("status").stdout
    )


def test_a_script_that_raises_its_rank_its_traceback_its_code(pushed: Mnt) -> None:
    done = pushed("launch", "-n", "node[1-2]", "fail.py")
    assert done.returncode == 1
    assert "node2, rank 1: ValueError: bad batch" in done.stderr
    assert "Traceback" in done.stdout
    job = json.loads(pushed("status", "--json").stdout)["jobs"][0]
    assert job["state"] == "failed"
    assert (job["culprit"]["host"], job["culprit"]["rank"]) == ("node2", 1)


def test_the_culprits_exit_code_is_kept(pushed: Mnt) -> None:
    done = pushed("launch", "-n", "node[1-2]", "--env", "CODE=7", "fail.py")
    assert done.returncode == 7, done.stderr


def test_a_detached_job_fails_as_a_whole_with_nobody_watching(pushed: Mnt, lab: Lab) -> None:
    done = pushed("launch", "--detach", "-n", "node[1-2]", "--env", "CODE=9", "fail.py")
    assert done.returncode == 0, done.stderr
    wait_for(lambda: not any(processes_of_jobs(lab, name) for name in ("node1", "node2")), every=0.5)
    job = json.loads(pushed("status", "--json", done.stdout.strip()).stdout)["jobs"][0]
    assert (job["state"], job["culprit"]["exit_code"]) == ("failed", 9)


def test_a_missing_script_never_starts(pushed: Mnt) -> None:
    done = pushed("launch", "-n", "node[1-2]", "no such.py")
    assert done.returncode == 125
    assert "no such.py" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_taken_master_port_names_its_holder(pushed: Mnt, lab: Lab) -> None:
    with port_taken(lab.host("node1"), 29500) as pid:
        done = pushed("launch", "-n", "node[1-2]", "show.py")
    assert done.returncode == 125
    assert "29500" in done.stderr
    assert f"pid {pid}" in done.stderr
    assert "python3" in done.stderr


def test_ctrl_c_stops_the_job_everywhere(pushed: Mnt, lab: Lab) -> None:
    launch = start_attached(lab, "-n", "node[1-2]", "--grace", "1", "sleeper.py")
    read_until(launch, "sleeping", 2)
    launch.send_signal(signal.SIGINT)
    said = rest_of(launch)
    assert launch.returncode == 130, said
    assert "node1: stopped" in said
    assert "node2: stopped" in said


@pytest.mark.matrix
def test_a_frozen_supervisor_is_named_and_its_node_ended(pushed: Mnt, lab: Lab) -> None:
    launch = start_attached(lab, "-n", "node[1-2]", "--grace", "1", "sleeper.py")
    read_until(launch, "sleeping", 2)
    frozen = lab.host("node2").exec(["pkill", "-STOP", "-f", "[s]upervisor.py"])
    assert frozen.returncode == 0, frozen.stderr
    said = rest_of(launch)
    assert launch.returncode == 1, said
    assert "failed: node2: its supervisor is stopped (SIGSTOP)" in said.splitlines()[-1]
    job = json.loads(pushed("status", "--json").stdout)["jobs"][0]
    assert (job["state"], job["culprit"]["host"]) == ("failed", "node2")
    assert [node["state"] for node in job["nodes"]] == ["stopped", "failed"]


def test_a_master_that_ends_at_once_is_the_culprit_and_the_worker_is_taken_back(
    pushed: Mnt, lab: Lab
) -> None:
    """Even if its failure looks like a consequence of another."""
    write_file(lab.host("node1"), "/tmp/sitecustomize.py", "import os; print('SignalException'); os._exit(1)")
    done = pushed(
        "launch", "-n", "node[1-2]", "--env", "PYTHONPATH=/tmp", "--env", "PYTHONUNBUFFERED=1", "show.py"
    )
    lab.host("node1").exec(["rm", "/tmp/sitecustomize.py"])
    assert done.returncode == 125, done.stderr
    assert "the job did not start: node1: SignalException" in done.stderr
    job = json.loads(pushed("status", "--json").stdout)["jobs"][0]
    assert job["culprit"]["host"] == "node1"
    assert [node["state"] for node in job["nodes"]] == ["failed", "stopped"]


@pytest.mark.parametrize("how", [on_demand(()), ("--detach",)])
def test_two_launches_on_one_port_the_second_names_the_port(
    pushed: Mnt, lab: Lab, how: tuple[str, ...]
) -> None:
    words = ("-n", "node[1-2]", "--no-preflight", "--master-port", "29500", *how, "count.py")
    launches = [start_attached(lab, *words) for _ in range(2)]
    said = [launch.communicate(timeout=PATIENCE)[0] for launch in launches]
    assert sorted(launch.returncode for launch in launches) == [0, 125], said
    pushed("stop", "--all", "--grace", "1")
    (loser,) = (text for text, launch in zip(said, launches, strict=True) if launch.returncode)
    assert "node1: " in loser
    assert "29500" in loser
    assert "cannot be reached" not in loser


@pytest.mark.matrix  # beside that of test_local.py
def test_a_job_whose_files_were_deleted_is_stopped_by_its_name(pushed: Mnt, lab: Lab) -> None:
    job = pushed("launch", "--detach", "-n", "node[1-2]", "sleeper.py").stdout.strip()
    for name in ("node1", "node2"):
        lab.host(name).exec(["sh", "-c", f"rm -rf /home/mnt/.mnt/jobs/{job}"])
    assert pushed("status", job).returncode == 2
    done = pushed("stop", job, "--grace", "1", "--json")
    assert done.returncode == 0, done.stderr
    (document,) = json.loads(done.stdout)["jobs"]
    assert {host: each["status"] for host, each in document["hosts"].items()} == {
        "node1": "stopped",
        "node2": "stopped",
    }
    unknown = pushed("stop", job)
    assert unknown.returncode == 2
    assert "no job" in unknown.stderr


def test_a_hang_up_detaches(pushed: Mnt, lab: Lab) -> None:
    launch = start_attached(lab, "-n", "node1", "sleeper.py")
    read_until(launch, "sleeping")
    launch.send_signal(signal.SIGHUP)
    launch.communicate(timeout=PATIENCE)
    assert json.loads(pushed("status", "--json").stdout)["jobs"][0]["state"] == "running"
    assert pushed("stop", "--grace", "1").returncode == 0


def test_kill_9_of_an_attached_launch_leaves_a_job_that_stop_ends(pushed: Mnt, lab: Lab) -> None:
    launch = start_attached(lab, "-n", "node[1-2]", "sleeper.py")
    read_until(launch, "sleeping", 2)
    launch.kill()
    launch.communicate()
    done = pushed("stop", "--all", "--json", "--grace", "1")
    assert done.returncode == 0, done.stderr
    hosts = json.loads(done.stdout)["jobs"][0]["hosts"]
    assert {host: (each["status"], each["left"], each["port_free"]) for host, each in hosts.items()} == {
        "node1": ("stopped", [], True),
        "node2": ("stopped", [], True),
    }


@pytest.mark.parametrize("after", [on_demand(0.3), 1.0, on_demand(2.0), on_demand(4.0)])
def test_kill_9_of_launch_at_any_moment(pushed: Mnt, lab: Lab, after: float) -> None:
    launch = start_attached(lab, "-n", "node[1-2]", "sleeper.py")
    time.sleep(after)
    launch.kill()
    launch.communicate()
    done = pushed("stop", "--all", "--grace", "1")
    assert done.returncode == 0, done.stderr


@pytest.mark.matrix
def test_two_jobs_of_the_same_script_stop_ends_only_the_one_named(pushed: Mnt) -> None:
    first = pushed("launch", "--detach", "-n", "node1", "sleeper.py").stdout.strip()
    second = pushed("launch", "--detach", "-n", "node2", "sleeper.py").stdout.strip()
    try:
        unnamed = pushed("stop")
        assert unnamed.returncode == 2
        assert first in unnamed.stderr
        assert second in unnamed.stderr
        assert pushed("stop", first, "--grace", "1").returncode == 0
        states = {job["job"]: job["state"] for job in json.loads(pushed("status", "--json").stdout)["jobs"]}
        assert (states[first], states[second]) == ("stopped", "running")
    finally:
        assert pushed("stop", "--all", "--grace", "1").returncode == 0


def test_logs_of_a_node_and_of_a_rank(pushed: Mnt) -> None:
    done = pushed("launch", "-n", "node[1-2]", "--nproc", "2", "show.py", "mark")
    assert done.returncode == 0, done.stderr
    everything = pushed("logs")
    assert everything.stdout.count('ARGS ["mark"]') == 4
    of_node = pushed("logs", "--node", "node2")
    assert of_node.stdout.count('ARGS ["mark"]') == 2
    of_rank = pushed("logs", "--rank", "3")
    assert of_rank.stdout.count('ARGS ["mark"]') == 1
    assert '"RANK": "3"' in of_rank.stdout
    nobody = pushed("logs", "--rank", "4")
    assert nobody.returncode == 2
    assert "a rank from 0 to 3" in nobody.stderr


def test_a_dropped_connection_does_not_end_an_attached_job(pushed: Mnt, lab: Lab) -> None:
    launch = start_attached(lab, "-n", "node1", "count.py")
    read_until(launch, "tick 3")
    lab.host("node1").exec(["sh", "-c", "pkill -KILL -f '^sshd: mnt'"])
    rest = rest_of(launch)
    assert launch.returncode == 0, rest
    ticks = [line.split("tick ")[1] for line in rest.splitlines() if "tick " in line]
    assert ticks == [str(i) for i in range(4, 40)]


@pytest.mark.matrix
def test_a_dropped_connection_does_not_end_the_following_of_a_job(pushed: Mnt, lab: Lab) -> None:
    job = pushed("launch", "-n", "node[1-2]", "--detach", "count.py").stdout.strip()
    logs = start_mnt(lab, "logs", "-f", job)
    read_until(logs, "tick 3", 2)
    lab.host("node2").exec(["sh", "-c", "pkill -KILL -f '^sshd: mnt'"])
    rest = rest_of(logs)
    assert logs.returncode == 0, rest
    assert "node2: channel: connection lost" in rest
    assert f"job {job} finished on 2 nodes" in rest
    for host in ("node1", "node2"):
        ticks = [line.split("tick ")[1] for line in rest.splitlines() if line.startswith(f"{host} | ")]
        assert ticks == [str(i) for i in range(40 - len(ticks), 40)]


def test_launch_from_a_tree_that_was_never_pushed(run_mnt: Mnt, make_lab: Callable[..., Lab]) -> None:
    done = run_mnt("launch", "show.py", lab=make_lab(count=1))
    assert done.returncode == 125
    assert "never pushed" in done.stderr
    assert "mnt push" in done.stderr


def test_a_dry_run_shows_what_a_launch_would_refuse(
    run_mnt: Mnt, make_lab: Callable[..., Lab], tree: Path
) -> None:
    lab = make_lab(count=2)
    unpushed = run_mnt("launch", "--dry-run", "--json", "show.py", lab=lab)
    assert unpushed.returncode == 1, unpushed.stderr
    (refusal,) = json.loads(unpushed.stdout)["refusals"]
    assert "never pushed" in refusal["message"]
    assert refusal["fix"] == "mnt push"
    assert run_mnt("push", str(tree), lab=lab).returncode == 0
    with port_taken(lab.host("node1"), 29500):
        taken = run_mnt("launch", "--dry-run", "--json", "show.py", lab=lab)
        shown = run_mnt("launch", "--dry-run", "show.py", lab=lab)
        unjudged = run_mnt("launch", "--dry-run", "--no-preflight", "show.py", lab=lab)
    assert taken.returncode == 1
    document = json.loads(taken.stdout)
    assert [node["host"] for node in document["nodes"]] == ["node1", "node2"]
    assert [refusal["message"].split(":")[0] for refusal in document["refusals"]] == ["port-free"]
    assert shown.returncode == 1
    assert "torch.distributed.run" in shown.stdout
    assert "port-free: node1: " in shown.stderr
    assert unjudged.returncode == 1  # without the checks it is the host that refuses
    assert "master port 29500 is taken by" in unjudged.stderr
    missing = run_mnt("launch", "--dry-run", "no such.py", lab=lab)
    assert missing.returncode == 1
    assert all(f"{host}: command: script missing: " in missing.stderr for host in ("node1", "node2"))


def test_the_script_of_the_api_page(make_lab: Callable[..., Lab], tmp_path: Path) -> None:
    """docs/api.md: preflight, push and launch from Python."""
    lab = make_lab(count=2)
    page = (Path(__file__).parents[2] / "docs" / "api.md").read_text()
    (tmp_path / "train.py").write_text("import os; print('trained by rank', os.environ['RANK'])")
    done = subprocess.run(
        [sys.executable, "-c", page.split("```python\n")[1].split("```")[0]],
        cwd=tmp_path,
        env={**os.environ, "MNT_INVENTORY": str(lab.inventory_path)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert {f"trained by rank {rank}" in done.stdout for rank in (0, 1)} == {True}


def test_a_mix_of_releases_is_refused(
    run_mnt: Mnt, make_lab: Callable[..., Lab], tree: Path, tmp_path: Path
) -> None:
    lab = make_lab(count=2)
    (tmp_path / "other.py").write_text("")
    assert run_mnt("push", "-n", "node1", str(tree), lab=lab).returncode == 0
    assert run_mnt("push", "-n", "node2", str(tmp_path), lab=lab).returncode == 0
    done = run_mnt("launch", "show.py", lab=lab)
    assert done.returncode == 125
    assert "different releases" in done.stderr


@pytest.mark.matrix
def test_one_home_shared_by_all_nodes(run_mnt: Mnt, make_lab: Callable[..., Lab], tree: Path) -> None:
    lab = make_lab(count=2, shared_home=True)
    assert run_mnt("push", str(tree), lab=lab).returncode == 0
    done = run_mnt("launch", "--env", "CODE=5", "fail.py", lab=lab)
    assert done.returncode == 5, done.stderr
    started = run_mnt("launch", "--detach", "sleeper.py", lab=lab)
    assert started.returncode == 0, started.stderr
    status = json.loads(run_mnt("status", "--json", started.stdout.strip(), lab=lab).stdout)["jobs"][0]
    assert [node["state"] for node in status["nodes"]] == ["running", "running"]
    stopped = run_mnt("stop", "--grace", "1", lab=lab)
    assert stopped.returncode == 0, stopped.stderr
    nothing_is_left(lab)


@pytest.mark.matrix
def test_a_job_whose_nodes_are_all_lost_is_no_success(
    run_mnt: Mnt, make_lab: Callable[..., Lab], tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "GIVE_UP_ALONE", 1.0)
    lab = make_lab(count=2)
    assert run_mnt("push", str(tree), lab=lab).returncode == 0
    dying = []

    def output(host: str, text: str) -> None:
        if "sleeping" in text and not dying:
            dying.extend(lab.hosts)
            for each in lab.hosts:
                power_off(each)

    with pytest.raises(HostError) as caught:
        run(loader.load(str(lab.inventory_path)), LaunchOptions(script="sleeper.py"), output)
    assert "the job may still run: mnt status " in str(caught.value.fix)


def test_a_host_that_dies_in_mid_job_is_named_and_the_others_end(
    run_mnt: Mnt, make_lab: Callable[..., Lab], tree: Path
) -> None:
    lab = make_lab(count=3)
    assert run_mnt("push", str(tree), lab=lab).returncode == 0
    launch = start_attached(lab, "--grace", "1", "sleeper.py")
    read_until(launch, "sleeping", 3)
    power_off(lab.host("node3"))
    said = rest_of(launch)
    assert launch.returncode == 1, said
    assert "failed: node3: " in said.splitlines()[-1]
    nothing_is_left(lab)
