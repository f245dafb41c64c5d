"""`mnt launch --via local`, then status, logs and stop: as any user, with no host and no inventory."""

from __future__ import annotations

import json
import os
import select
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from job_host import new_directory
from local_jobs import LocalMnt, make_python
from ports import free_port
from waiting import PATIENCE, alive, read_until, rest_of, wait_for

pytestmark = pytest.mark.one_python

HERE = socket.gethostname()

SHOW = """
import json, os, sys
env = {name: os.environ.get(name) for name in ("RANK", "WORLD_SIZE", "GLOO_SOCKET_IFNAME", "MINE")}
print("SHOWN", json.dumps({"args": sys.argv[1:], "cwd": os.getcwd(), **env}), flush=True)
"""
FAIL = """
import os, sys, time
if os.environ["RANK"] == "1":
    raise ValueError("bad batch") if len(sys.argv) == 1 else SystemExit(int(sys.argv[1]))
time.sleep(300)
"""
SLEEP = """
import os, signal, subprocess, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen(["sleep", "300"], start_new_session=True)
print("sleeping", os.environ["RANK"], flush=True)
time.sleep(300)
"""
# Ends when a file appears in the working directory; and after a while, where the test was killed.
WAIT = """
import os, time
print("waiting", flush=True)
end = time.monotonic() + 300
while not os.path.exists("go") and time.monotonic() < end:
    time.sleep(0.05)
print("gone", flush=True)
"""


def test_a_job_runs_here_in_the_callers_directory(mnt: LocalMnt) -> None:
    mnt.script(SHOW)
    odd = ["--", "--r=16", "a b", "", "-x", "$HOME", "$local_rank", "é", "--", "--log=x", "-h"]
    done = mnt.launch("--nproc", "2", "train.py", *odd)
    assert done.returncode == 0, done.stderr
    shown = [json.loads(line.split("SHOWN ")[1]) for line in done.stdout.splitlines() if "SHOWN" in line]
    assert sorted(each["RANK"] for each in shown) == ["0", "1"]
    for each in shown:
        assert (each["args"], each["cwd"], each["WORLD_SIZE"]) == (odd, str(mnt.cwd), "2")
        assert (each["GLOO_SOCKET_IFNAME"], each["MINE"]) == ("lo", None)
    assert "finished on 1 node" in done.stderr
    (job,) = mnt.jobs()
    assert (job["state"], job["backend"], job["outside_id"], job["release"]) == (
        "finished",
        "local",
        None,
        None,
    )
    node = {"host": HERE, "node_rank": 0, "state": "finished", "exit_code": 0, "gpus": None}
    assert job["nodes"] == [node]
    table = mnt("status").stdout.splitlines()
    assert table[0].split()[:3] == ["JOB", "STATE", "VIA"]
    assert table[1].split()[:3] == [job["job"], "finished", "local"]
    assert mnt("logs").stdout.count("SHOWN") == 2
    assert mnt("logs", "--rank", "1").stdout.count('"RANK": "1"') == 1
    assert mnt("logs", "--rank", "2").returncode == 2


def test_a_script_in_a_subfolder_imports_from_the_root(mnt: LocalMnt) -> None:
    (mnt.cwd / "mypkg").mkdir()
    mnt.script("WORD = 'of the tree'", "mypkg/__init__.py")
    (mnt.cwd / "jobs").mkdir()
    mnt.script("import json, mypkg, sys\nprint(mypkg.WORD, json.dumps(sys.path))", "jobs/train.py")
    done = mnt.launch("--env", "PYTHONPATH=/of/mine", "jobs/train.py")
    assert done.returncode == 0, done.stderr
    word, path = done.stdout.removeprefix("[rank0] ").split(" [")
    assert word == "of the tree"
    found = json.loads(f"[{path}")
    wanted = [str(mnt.cwd / "jobs"), str(mnt.cwd), "/of/mine"]
    assert [each for each in found if each in wanted] == wanted


def test_deepspeeds_variables_are_read_and_its_engine_passes_the_local_rank(mnt: LocalMnt) -> None:
    mnt.script(SHOW)
    mnt.script("MINE=from the tree\n", ".deepspeed_env")
    done = mnt.launch("--engine", "deepspeed", "--nproc", "2", "train.py", "--", "x")
    assert done.returncode == 0, done.stderr
    shown = [json.loads(line.split("SHOWN ")[1]) for line in done.stdout.splitlines() if "SHOWN" in line]
    for each in shown:
        assert (each["MINE"], each["args"]) == ("from the tree", [f"--local_rank={each['RANK']}", "--", "x"])
    assert f"{mnt.cwd}/.deepspeed_env sets MINE" in done.stderr
    without = mnt.launch("--engine", "deepspeed", "--no-local-rank", "train.py", "x")
    assert '"args": ["x"]' in without.stdout, without.stderr
    assert mnt.launch("--no-local-rank", "train.py").returncode == 2
    mnt.script("export MINE=1\n", ".deepspeed_env")
    refused = mnt.launch("--engine", "deepspeed", "train.py")
    assert (refused.returncode, ".deepspeed_env:1: not a variable" in refused.stderr) == (2, True)


@pytest.mark.parametrize("more", [[], ["--dry-run"], ["--engine", "deepspeed"], ["--via", "ssh"]])
def test_without_a_script_and_without_the_default_one(mnt: LocalMnt, more: list[str]) -> None:
    """Said before a host is reached: there is no inventory."""
    done = mnt("launch", "--via", "local", *more)
    script = "train/train_deepspeed.py" if "deepspeed" in more else "train/train_fsdp.py"
    assert done.returncode == 2, done.stderr
    assert f"no SCRIPT is given, and there is no {script}" in done.stderr


def test_a_progress_bar_is_one_line_in_a_file(mnt: LocalMnt) -> None:
    mnt.script("import sys\nfor i in range(9): sys.stderr.write(f'\\r{i}%')\nsys.stderr.write('\\n')")
    done = mnt.launch("train.py")
    assert (done.returncode, done.stdout) == (0, "[rank0] 8%\n"), done.stderr
    assert mnt("logs").stdout == "[rank0] 8%\n"


def test_an_empty_script_is_not_the_default_one(mnt: LocalMnt) -> None:
    for words in ([""], ["-m", ""]):
        done = mnt.launch(*words)
        assert (done.returncode, "SCRIPT is empty" in done.stderr) == (2, True), done.stderr


def test_a_module_and_a_variable_that_is_passed_on(mnt: LocalMnt) -> None:
    mnt.script(SHOW)
    done = mnt.launch("--env", "MINE", "-m", "train", "x")
    assert done.returncode == 0, done.stderr
    assert '"args": ["x"]' in done.stdout
    assert '"MINE": "no"' in done.stdout


@pytest.mark.parametrize(
    ("args", "code", "message", "where"),
    [
        ((), 1, "ValueError: bad batch", f"{HERE}, rank 1"),
        (("7",), 7, "rank 1 exited with code 7", HERE),
    ],
)
def test_the_culprits_rank_words_and_code(
    mnt: LocalMnt, args: tuple[str, ...], code: int, message: str, where: str
) -> None:
    mnt.script(FAIL)
    done = mnt.launch("--nproc", "2", "--json", "train.py", *args)
    assert done.returncode == code, done.stderr
    job = json.loads(done.stdout)
    culprit = {"host": HERE, "rank": 1, "exit_code": code, "message": message}
    assert (job["state"], job["backend"], job["culprit"]) == ("failed", "local", culprit)
    assert f"{where}: {message}" in done.stderr
    wait_for(lambda: not mnt.processes())  # a supervisor ends soon after its job


def test_damaged_files_of_jobs_hide_no_other_job(mnt: LocalMnt) -> None:
    mnt.script("print('done')")
    assert mnt.launch("train.py").returncode == 0
    jobs = mnt.home / ".mnt" / "jobs"
    (whole,) = mnt.jobs()
    about = json.loads((jobs / whole["job"] / HERE / "about.json").read_text())
    damage = {
        "no-names": {key: value for key, value in about.items() if key not in ("job", "host")},
        "text-as-time": {**about, "job": "text-as-time", "created": "yesterday"},
        "nodes-as-text": {**about, "job": "nodes-as-text", "nodes": "node1"},
        "a-list": [about],
    }
    for name, document in damage.items():
        directory = jobs / name / HERE
        directory.mkdir(parents=True)
        (directory / "about.json").write_text(json.dumps(document))
    (directory / "about.json").write_text("[" * 100_000)
    state = {"state": ["running"], "reason": {"failure": 1}, "started": "now"}
    odd = jobs / "odd-state" / HERE
    odd.mkdir(parents=True)
    (odd / "about.json").write_text(json.dumps({**about, "job": "odd-state"}))
    (odd / "state.json").write_text(json.dumps(state))
    assert {job["job"]: job["state"] for job in mnt.jobs()} == {whole["job"]: "finished", "odd-state": "lost"}
    listed = mnt("status")
    assert (listed.returncode, listed.stdout.count("\n")) == (0, 3)
    assert "finished" in mnt("status", whole["job"]).stdout


def test_a_missing_script_and_a_taken_port_never_start(mnt: LocalMnt) -> None:
    missing = mnt.launch("no such.py")
    assert missing.returncode == 125
    assert f"script missing: no such.py (in {mnt.cwd})" in missing.stderr
    mnt.script(SHOW)
    with socket.create_server(("127.0.0.1", mnt.port)):
        taken = mnt.launch("train.py")
    assert taken.returncode == 125
    assert f"master port {mnt.port} is taken by pid {os.getpid()} " in taken.stderr
    assert "--master-port" in taken.stderr
    assert mnt.jobs() == []


def test_without_torch_one_line_says_so_and_how_to_get_it(mnt: LocalMnt, tmp_path: Path) -> None:
    bare = make_python(tmp_path / "bare")
    for path in (tmp_path / "bare").glob("lib/python*/site-packages/torch-*/METADATA"):
        path.unlink()
        path.parent.rmdir()
    mnt.script(SHOW)
    words = ["launch", "--via", "local", "--python", bare, "--master-port", str(mnt.port)]
    refused = mnt(*words, "train.py")
    assert refused.returncode == 125
    assert f"{HERE}: {bare} has no torch" in refused.stderr
    assert f"{bare} -m pip install torch, or name an interpreter that has it: --python PATH" in refused.stderr
    assert len(refused.stderr.splitlines()) == 2
    dry = mnt(*words, "--dry-run", "--json", "train.py")
    assert dry.returncode == 1
    document = json.loads(dry.stdout)
    assert [refusal["message"] for refusal in document["refusals"]] == [f"{HERE}: {bare} has no torch"]
    assert document["refusals"][0]["fix"].startswith(f"{bare} -m pip install torch")
    assert document["world_size"] == 1
    shown = mnt(*words, "--dry-run", "train.py")
    assert shown.returncode == 1
    assert "torch.distributed.run" in shown.stdout
    assert "a launch would be refused" in shown.stderr
    assert mnt(*words, "--dry-run", "--no-preflight", "train.py").returncode == 0


def test_the_gpus_that_the_shell_allows_are_worth_a_note(
    mnt: LocalMnt, monkeypatch: pytest.MonkeyPatch
) -> None:
    mnt.script(SHOW)
    dry = ("--dry-run", "--no-preflight")
    monkeypatch.delitem(mnt.env, "CUDA_VISIBLE_DEVICES", raising=False)
    assert "CUDA_VISIBLE" not in mnt.launch(*dry, "train.py").stderr
    monkeypatch.setitem(mnt.env, "CUDA_VISIBLE_DEVICES", "2")
    assert "--env CUDA_VISIBLE_DEVICES passes it on" in mnt.launch(*dry, "train.py").stderr
    taken = mnt.launch(*dry, "--env", "CUDA_VISIBLE_DEVICES", "train.py")
    assert "warning" not in taken.stderr
    assert "export CUDA_VISIBLE_DEVICES=2" in taken.stdout


@pytest.mark.parametrize("words", [("python", "train.py"), ("torchrun", "--nproc_per_node=2", "train.py")])
def test_what_starts_a_script_is_no_script(mnt: LocalMnt, words: tuple[str, ...]) -> None:
    mnt.script(SHOW)
    refused = mnt.launch(*words)
    assert refused.returncode == 2
    assert f"{words[0]} is no SCRIPT" in refused.stderr
    mnt.script(SHOW, words[0])
    assert mnt.launch("--dry-run", words[0]).returncode == 0


def test_an_interpreter_that_is_not_there(mnt: LocalMnt) -> None:
    mnt.script(SHOW)
    refused = mnt("launch", "--via", "local", "--python", "/no/such/python", "train.py")
    assert refused.returncode == 125
    assert f"{HERE}: /no/such/python does not run: not found: /no/such/python" in refused.stderr


def test_a_dry_run_shows_what_the_host_would_refuse(mnt: LocalMnt) -> None:
    dry = mnt.launch("--dry-run", "--json", "train.py")
    assert dry.returncode == 1
    (refusal,) = json.loads(dry.stdout)["refusals"]
    refused = mnt.launch("train.py")
    assert refused.returncode == 125
    assert "script missing: " in refusal["message"]
    assert refusal["message"] in refused.stderr
    assert mnt.jobs() == []


@pytest.mark.parametrize("mode", [0o1777, 0o777])
def test_a_directory_in_which_another_user_can_put_files(mnt: LocalMnt, mode: int) -> None:
    """Its sitecustomize.py would run as this user, with the job's secrets, whatever the script is."""
    own = mnt.cwd
    mnt.script("print('mine')")
    mnt.cwd = new_directory()
    try:
        mnt.script("import sys; sys.exit('hers')", "sitecustomize.py")
        mnt.cwd.chmod(mode)
        named = f"all users can write to {mnt.cwd} (mode {mode:04o})"
        for words, code in (((), 125), (("--no-preflight",), 125), (("--dry-run",), 1)):
            done = mnt.launch(*words, str(own / "train.py"))
            assert (done.returncode, named in done.stderr) == (code, True), done.stdout + done.stderr
            assert "hers" not in done.stdout + done.stderr
        mnt.cwd.chmod(0o775)  # as with umask 002: its group is this user's
        (mnt.cwd / "sitecustomize.py").unlink()
        assert "mine" in mnt.launch(str(own / "train.py")).stdout
    finally:
        shutil.rmtree(mnt.cwd)
        mnt.cwd = own


def test_a_dry_run_starts_nothing(mnt: LocalMnt) -> None:
    mnt.script(SHOW)
    done = mnt.launch("--dry-run", "--json", "--nproc", "3", "train.py")
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    assert (plan["backend"], plan["release"], plan["world_size"]) == ("local", None, 3)
    assert plan["master"] == {"host": HERE, "addr": "127.0.0.1", "port": mnt.port}
    (node,) = plan["nodes"]
    assert (node["host"], node["cwd"], node["argv"][0]) == (HERE, str(mnt.cwd), mnt.python)
    assert plan["refusals"] == []
    assert mnt.jobs() == []


def test_ctrl_c_ends_the_job(mnt: LocalMnt) -> None:
    mnt.script(SLEEP)
    launch = mnt.attached("--nproc", "2", "--grace", "0.5", "train.py")
    read_until(launch, "sleeping", 2)
    os.killpg(launch.pid, signal.SIGINT)  # as a terminal does: to all of its foreground processes
    said = rest_of(launch)
    assert launch.returncode == 130, said
    assert f"{HERE}: stopped" in said
    assert f"{HERE}: answer" not in said, "that the watching has ended is no news"
    wait_for(lambda: not mnt.processes())  # a supervisor ends soon after its job
    assert mnt.jobs()[0]["state"] == "stopped"


def test_a_hang_up_leaves_the_job_to_stop(mnt: LocalMnt) -> None:
    mnt.script(SLEEP)
    launch = mnt.attached("train.py")
    read_until(launch, "sleeping")
    os.killpg(launch.pid, signal.SIGHUP)
    launch.communicate(timeout=PATIENCE)
    assert launch.returncode == 129
    assert [job["state"] for job in mnt.jobs()] == ["running"]
    stopped = mnt("stop", "--json", "--grace", "0.5")
    assert stopped.returncode == 0, stopped.stderr
    (job,) = json.loads(stopped.stdout)["jobs"]
    assert job["backend"] == "local"
    assert job["hosts"][HERE]["status"] == "stopped"
    assert job["hosts"][HERE]["port_free"]


def test_a_job_whose_files_were_deleted_is_stopped_by_its_name(mnt: LocalMnt) -> None:
    mnt.script(SLEEP)
    job = mnt.launch("--detach", "train.py").stdout.strip()
    assert len(pids := mnt.processes()) > 2
    shutil.rmtree(mnt.home / ".mnt" / "jobs" / job)
    stopped = mnt("stop", "--json", "--grace", "0.5", job)
    assert stopped.returncode == 0, stopped.stderr
    (document,) = json.loads(stopped.stdout)["jobs"]
    assert (document["job"], document["backend"]) == (job, "local")
    assert document["hosts"][HERE]["status"] == "stopped"
    assert not any(map(alive, pids))
    again = mnt("stop", job)
    assert again.returncode == 2
    assert "there are no jobs on the hosts" in again.stderr
    assert not Path(f"/tmp/mnt-{os.getuid()}", job).exists()


def test_a_job_whose_files_are_deleted_while_it_is_watched_is_no_success(mnt: LocalMnt) -> None:
    mnt.script(SLEEP)
    launch = mnt.attached("train.py")
    read_until(launch, "sleeping")
    (job,) = os.listdir(mnt.home / ".mnt" / "jobs")
    shutil.rmtree(mnt.home / ".mnt" / "jobs")
    said = rest_of(launch)
    assert launch.returncode == 1, said
    assert f"fix: its processes may still run: mnt stop {job} ends them" in said
    assert mnt("stop", job, "--grace", "0.5").returncode == 0


def test_a_killed_launch_leaves_a_job_that_goes_on(mnt: LocalMnt) -> None:
    mnt.script(WAIT)
    launch = mnt.attached("train.py")
    read_until(launch, "waiting")
    launch.kill()
    launch.communicate()
    (mnt.cwd / "go").touch()
    assert mnt.ended(mnt.jobs()[0]["job"])["state"] == "finished"


def test_detached_jobs_are_followed_and_told_apart(mnt: LocalMnt) -> None:
    mnt.script(WAIT)
    started = mnt.launch("--detach", "train.py")
    assert started.returncode == 0, started.stderr
    first = started.stdout.strip()
    same_port = mnt.launch("train.py")
    assert same_port.returncode == 125
    assert f", of job {first}: " in same_port.stderr
    other_port = ("--master-port", str(free_port()))
    second = json.loads(mnt.launch(*other_port, "--detach", "--json", "train.py").stdout)
    unnamed = mnt("stop")
    assert unnamed.returncode == 2
    assert first in unnamed.stderr
    assert second["job"] in unnamed.stderr
    assert mnt("stop", second["job"], "--grace", "0.5").returncode == 0
    follow = mnt.popen("logs", "-f", first)
    read_until(follow, "waiting")
    (mnt.cwd / "go").touch()
    rest = rest_of(follow)
    assert follow.returncode == 0
    assert "gone" in rest
    states = {job["job"]: job["state"] for job in mnt.jobs()}
    assert states == {first: "finished", second["job"]: "stopped"}


def test_jobs_by_the_beginning_of_their_ids(mnt: LocalMnt) -> None:
    mnt.script(SLEEP)
    ids = [mnt.launch("--master-port", str(free_port()), "--detach", "train.py").stdout.strip() for _ in "ab"]
    first, second = (id.rpartition("-")[2] for id in ids)
    if first[:3] == second[:3]:
        pytest.skip("one in 4096: both begin with the same three digits")
    short = first[:3]
    (shown,) = json.loads(mnt("status", "--json", short).stdout)["jobs"]
    assert shown["job"] == ids[0]
    logs = mnt("logs", first[:4])
    assert (logs.returncode, f"job {ids[0]}, on {HERE}" in logs.stderr) == (0, True)
    for words in (("logs",), ("logs", "-f"), ("status",), ("stop",), ("fetch",)):
        several = mnt(*words, ids[0][:8])  # the day; if it has just ended, only the second is of another
        if ids[0][:8] == ids[1][:8]:
            assert several.returncode == 2
            assert f"'{ids[0][:8]}' may be any of 2 jobs" in several.stderr
            assert all(f"{id} (running)" in several.stderr for id in ids), several.stderr
    unknown = mnt("stop", "3f")
    assert (unknown.returncode, "there is no job '3f'" in unknown.stderr) == (2, True)

    stopped = mnt("stop", "--grace", "0.2", short)
    assert stopped.returncode == 0, stopped.stderr
    assert stopped.stderr.startswith(f"stopping job {ids[0]}\n")
    assert {job["job"]: job["state"] for job in mnt.jobs()} == {ids[0]: "stopped", ids[1]: "running"}
    as_document = mnt("stop", "--json", "--grace", "0.2", second[:5])
    assert [job["job"] for job in json.loads(as_document.stdout)["jobs"]] == [ids[1]]


def test_no_job_is_stopped_by_an_abbreviation_if_another_may_be_meant(mnt: LocalMnt, tmp_path: Path) -> None:
    """It may run on the host that does not answer."""
    mnt.script(SLEEP)
    job = mnt.launch("--detach", "train.py").stdout.strip()
    inventory = tmp_path / "away.yaml"
    inventory.write_text(f"hosts: {{away: {{address: 127.0.0.1, ssh: {{port: {free_port()}}}}}}}\n")
    short = job.rpartition("-")[2][:4]
    refused = mnt("stop", "-i", str(inventory), short)
    assert refused.returncode == 1
    assert f"'{short}' is {job} on the hosts that answered (away did not)" in refused.stderr, refused.stderr
    assert f"name it in full: mnt stop {job}" in refused.stderr
    assert [each["state"] for each in mnt.jobs()] == ["running"]
    mnt("stop", "-i", str(inventory), "--grace", "0.2", job)
    assert [each["state"] for each in mnt.jobs()] == ["stopped"]


def test_following_ends_with_a_ctrl_c_and_the_job_goes_on(mnt: LocalMnt) -> None:
    mnt.script(WAIT)
    assert mnt.launch("--detach", "train.py").returncode == 0
    follow = mnt.popen("logs", "-f")
    read_until(follow, "waiting")
    os.killpg(follow.pid, signal.SIGINT)
    follow.communicate(timeout=PATIENCE)
    assert follow.returncode == 130
    assert [job["state"] for job in mnt.jobs()] == ["running"]


def test_following_a_job_whose_files_vanish(mnt: LocalMnt) -> None:
    mnt.script(WAIT)
    job = mnt.launch("--detach", "train.py").stdout.strip()
    follow = mnt.popen("logs", "-f", job)
    read_until(follow, "waiting")
    shutil.rmtree(mnt.home / ".mnt" / "jobs" / job)
    rest = rest_of(follow)
    (mnt.cwd / "go").touch()
    assert follow.returncode == 1
    assert f"job {job}: no host that answers has it any more" in rest


def test_with_an_inventory_the_local_jobs_are_merged_in(mnt: LocalMnt, tmp_path: Path) -> None:
    mnt.script(SHOW)
    assert mnt.launch("train.py").returncode == 0
    inventory = tmp_path / "c.yaml"
    inventory.write_text(
        f"cluster: c\nhosts:\n  node1: {{address: 127.0.0.1}}\nssh: {{port: {mnt.port}, user: nobody}}\n"
    )
    listed = mnt("status", "-i", str(inventory), "--json")
    assert listed.returncode == 1  # node1 cannot be asked
    assert "node1: " in listed.stderr
    assert [job["backend"] for job in json.loads(listed.stdout)["jobs"]] == ["local"]


def test_several_labs_do_not_hide_the_local_jobs(mnt: LocalMnt) -> None:
    mnt.script(SLEEP)
    assert mnt.launch("--detach", "train.py").returncode == 0
    (job,) = (each["job"] for each in mnt.jobs())
    for name in ("a", "b"):
        (mnt.labs / name).mkdir(parents=True)
        (mnt.labs / name / "inventory.yaml").write_text("")
    listed = mnt("status", "--json")
    assert [each["job"] for each in json.loads(listed.stdout)["jobs"]] == [job]
    assert "several labs are running" in listed.stderr
    assert "-i with one of: lab:a, lab:b" in listed.stderr
    assert listed.returncode == 1  # for the labs' jobs are not among them
    for words in (["stop"], ["stop", "--all"]):  # which job is meant is not known
        refused = mnt(*words)
        assert refused.returncode == 2
        assert "several labs are running" in refused.stderr
    assert "sleeping" in mnt("logs", job).stdout
    assert "stopped" in mnt("stop", job, "--grace", "0.2").stderr
    assert [each["state"] for each in json.loads(mnt("status", "--json").stdout)["jobs"]] == ["stopped"]
    assert mnt("status", "-i", "lab").returncode == 2


def test_an_inventory_that_is_named_has_to_be_there(mnt: LocalMnt) -> None:
    assert mnt("status").returncode == 0
    assert mnt("status", "-n", "node1").returncode == 2
    assert mnt("status", "-i", "nope").returncode == 2


@pytest.mark.parametrize(
    "words",
    [
        ("--via", "local", "-n", "node1"),
        ("--via", "local", "-i", "lab"),
        ("--python", "python3"),
        ("--via", "x"),
    ],
)
def test_options_that_do_not_go_together(mnt: LocalMnt, words: tuple[str, ...]) -> None:
    done = mnt("launch", *words, "train.py")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_the_script_of_the_api_page(mnt: LocalMnt) -> None:
    """docs/api.md: a launch on this machine from Python."""
    mnt.script(FAIL)
    done = subprocess.run(
        [mnt.python, "-c", mnt.api_script()],
        cwd=mnt.cwd,
        env=mnt.api_env,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 1, done.stderr
    assert "ValueError: bad batch" in done.stdout
    assert [job["state"] for job in mnt.jobs()] == ["failed"]


@pytest.mark.parametrize("words", [("--json",), (), ("--detach",)])
def test_output_that_cannot_be_written_is_no_success(mnt: LocalMnt, words: tuple[str, ...]) -> None:
    mnt.script(WAIT)
    with open("/dev/full", "w") as full:
        launch = subprocess.Popen(
            [sys.executable, "-m", "mnt", *mnt.launch_words(*words, "train.py")],
            cwd=mnt.cwd,
            env=mnt.env,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
        if "--json" in words:  # the job's output goes to stderr, the document comes at the end
            wait_for(lambda: [job for job in mnt.jobs() if job["state"] == "running"])
            (mnt.cwd / "go").touch()
        _, said = launch.communicate(timeout=PATIENCE)
    assert launch.returncode == 1, said
    assert "the output cannot be written: No space left on device" in said
    assert "Traceback" not in said
    (job,) = mnt.jobs()
    assert f"the job goes on: mnt logs -f {job['job']}" in said or "--json" in words
    assert job["state"] == ("finished" if "--json" in words else "running")


def test_a_reader_that_is_slow_loses_nothing(mnt: LocalMnt) -> None:
    """Not even from a pipe that whoever made it set not to block."""
    mnt.script("print('x' * 2_000_000)")
    read, write = os.pipe()
    os.set_blocking(write, False)
    launch = subprocess.Popen(
        [sys.executable, "-m", "mnt", *mnt.launch_words("train.py")], cwd=mnt.cwd, env=mnt.env, stdout=write
    )
    os.close(write)
    wait_for(lambda: (launch.poll() is not None) or len(select.select([read], [], [], 0)[0]) > 0)
    with open(read, "rb") as pipe:
        output = pipe.read()
    assert launch.wait(PATIENCE) == 0
    assert output.count(b"x") == 2_000_000


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams(mnt: LocalMnt, closed: str) -> None:
    mnt.script(SHOW)
    words = shlex.join([sys.executable, "-m", "mnt", *mnt.launch_words("train.py")])
    done = subprocess.run(
        ["sh", "-c", f"{words} {closed}"], cwd=mnt.cwd, env=mnt.env, capture_output=True, text=True
    )
    shown = ">&- " not in closed.replace("2>&-", "") + " "
    assert done.returncode == (0 if shown else 1), done.stderr
    assert "Traceback" not in done.stderr
    assert ("SHOWN" in done.stdout) == shown
    if closed == ">&-":
        assert "standard output: the output cannot be written: it is closed" in done.stderr
    wait_for(lambda: [job["state"] for job in mnt.jobs()] == ["finished"])  # it goes on


def test_nobody_reads_the_progress(mnt: LocalMnt) -> None:
    """Nothing is left behind, staged or running."""
    mnt.script(SHOW)
    read, write = os.pipe()
    os.close(read)
    launch = subprocess.Popen(
        [sys.executable, "-m", "mnt", *mnt.launch_words("train.py")], cwd=mnt.cwd, env=mnt.env, stderr=write
    )
    os.close(write)
    assert launch.wait(PATIENCE) != 0
    assert [job["state"] for job in mnt.jobs() if job["state"] != "stopped"] == []


def test_the_current_directory_was_removed(mnt: LocalMnt) -> None:
    mnt.cwd.rmdir()
    mnt.cwd.mkdir()
    command = 'rmdir "$PWD" && exec "$@"'
    words = [sys.executable, "-m", "mnt", *mnt.launch_words("train.py")]
    done = subprocess.run(
        ["sh", "-c", command, "sh", *words],
        cwd=mnt.cwd,
        env={**mnt.env, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2, done.stderr
    assert done.stderr.splitlines()[0] == "mnt: the current directory does not exist any more"
    mnt.cwd.mkdir()


def test_a_callback_that_raises_ends_the_watching(mnt: LocalMnt) -> None:
    mnt.script(WAIT)
    script = mnt.api_script().replace('print(text, end="", flush=True)', "[][0]")
    done = subprocess.run(
        [mnt.python, "-c", script],
        cwd=mnt.cwd,
        env=mnt.api_env,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 1
    assert "IndexError" in done.stderr
    assert [job["state"] for job in mnt.jobs()] == ["running"]


def test_a_python_script_that_is_terminated_stops_its_job(mnt: LocalMnt) -> None:
    mnt.script(SLEEP)
    launch = subprocess.Popen(
        [mnt.python, "-c", mnt.api_script()],
        cwd=mnt.cwd,
        env=mnt.api_env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    read_until(launch, "sleeping")
    launch.terminate()
    rest = rest_of(launch)
    assert launch.returncode != 0, rest
    assert [job["state"] for job in mnt.jobs()] == ["stopped"]


@pytest.mark.train
def test_the_real_torchrun(tmp_path: Path) -> None:
    python = Path(os.environ.get("MNT_CACHE", "/var/cache/mnt")) / "train-venv" / "bin" / "python"
    if not python.exists():
        pytest.skip(f"no training environment at {python}: run scripts/train-venv.sh")
    local = LocalMnt(tmp_path, str(python))
    local.script("import torch.distributed as d; d.init_process_group('gloo'); d.barrier(); print('met')")
    done = local.launch("--nproc", "2", "train.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("met") == 2
    local.clean_up()
