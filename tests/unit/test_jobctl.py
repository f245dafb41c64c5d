"""jobctl really run: what it refuses, what it lists, what it reads, what it stops."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from job_host import JobHost, new_directory
from ports import free_port
from pythons import interpreter
from waiting import PATIENCE, UNTIL_TOLD, alive, at_most, wait_for

from mnt.remote.common.refusal import Refused
from mnt.remote.job import ports
from mnt.remote.job.files import JobPaths

SLEEPER = "import time; time.sleep(600)"
LISTENER = """
import os, socket, sys, time
if os.fork() == 0:  # as torchrun, whose port may be a child's
    listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
time.sleep(600)
"""


def refusal(answer: dict[str, Any]) -> str:
    message: str = answer["refused"]["message"]
    return message


# --- start -------------------------------------------------------------------------------------------------


def test_start_waits_until_the_job_listens(host: JobHost) -> None:
    port = free_port()
    host.script(LISTENER)
    spec = host.spec(str(port), master={"addr": "127.0.0.1", "port": port})
    answer = host.start(spec, wait_for_port=True)
    assert answer["listening"] is True
    assert answer["peer"] is None
    assert answer["node"]["state"] == "running"
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE):
        pass
    stopped = host.stop(spec["job"])
    assert (stopped["status"], stopped["port_free"], stopped["killed"]) == ("stopped", True, 2)


def test_start_does_not_wait_for_a_job_that_has_ended(host: JobHost) -> None:
    host.script("raise SystemExit(7)")
    with at_most(PATIENCE):
        answer = host.start(host.spec(), wait_for_port=True, timeout=2 * PATIENCE)
    assert answer["listening"] is False
    assert (answer["node"]["state"], answer["node"]["exit_code"]) == ("failed", 7)


def test_start_waits_no_longer_than_told(host: JobHost) -> None:
    host.script(SLEEPER)
    answer = host.start(host.spec(), wait_for_port=True, timeout=0.5)
    assert (answer["listening"], answer["node"]["state"]) == (False, "starting")


def test_a_staged_job_is_pending_until_it_is_started(host: JobHost) -> None:
    host.script(SLEEPER)
    spec = host.spec(backend="queue", outside_id="4711")
    host.jobs.append(spec["job"])
    staged = host.call("stage", spec=spec)
    assert os.path.isfile(staged["spec"])
    assert os.path.isfile(staged["program"])
    entry = host.entry(spec["job"])
    assert (entry["state"], entry["backend"], entry["outside_id"]) == ("pending", "queue", "4711")
    spawn = {"job": spec["job"], "peer": None}
    assert alive(host.call("spawn", **spawn)["pid"])
    assert host.entry(spec["job"])["state"] == "starting"
    assert refusal(host.call("spawn", **spawn)) == f"nothing is staged here for job {spec['job']}"
    assert host.stop(spec["job"])["status"] == "stopped"


def test_a_staged_job_that_is_stopped_leaves_nothing(host: JobHost) -> None:
    host.script(SLEEPER)
    spec = host.spec()
    host.call("stage", spec=spec)
    answer = host.stop(spec["job"])
    assert (answer["status"], answer["killed"], answer["left"], answer["port_free"]) == ("none", 0, [], True)
    assert os.listdir(host.jobs_dir) == []
    assert not host.local(spec["job"]).parent.exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"script": "no.py"}, "script missing: no.py"),
        ({"unread": "train.py"}, "train.py in /"),
        ({"cwd": "/nonexistent/release"}, "working directory missing: /nonexistent/release"),
        ({"argv": ["/opt/no/bin/python", "x.py"]}, "interpreter missing: /opt/no/bin/python"),
        ({"argv": ["no-such-python", "x.py"]}, "interpreter missing: no-such-python"),
        ({"jobs_dir": "/proc/jobs"}, "cannot make /proc/jobs/"),
        ({"job": "../escape"}, "'../escape' is not a job's name"),
        ({"host": "a/b"}, "'a/b' is not a host's name"),
        ({"argv": ["./train.py"]}, "interpreter missing: ./train.py"),  # not executable
    ],
)
def test_start_says_what_is_missing_and_leaves_nothing(
    host: JobHost, changes: dict[str, Any], message: str
) -> None:
    host.script(SLEEPER)
    spec = host.spec(**changes)
    answer = host.call("start", spec=spec, wait_for_port=False, timeout=PATIENCE)
    assert refusal(answer).startswith(message)
    assert not os.path.exists(host.jobs_dir) or os.listdir(host.jobs_dir) == []
    assert not host.local(spec["job"]).parent.exists()


def test_start_leaves_nothing_if_the_interpreter_turns_out_to_be_none(host: JobHost) -> None:
    broken = host.directory / "python"
    broken.write_text("#!/nonexistent/interpreter\n")
    broken.chmod(0o755)
    host.script(SLEEPER)
    spec = host.spec(argv=["./python", "train.py"])
    answer = host.call("start", spec=spec, wait_for_port=False, timeout=PATIENCE)
    assert refusal(answer).startswith("cannot run ./python: ")
    assert os.listdir(host.jobs_dir) == []
    assert not host.local(spec["job"]).parent.exists()


def test_start_refuses_a_job_that_exists(host: JobHost) -> None:
    host.script("pass")
    spec = host.spec()
    host.start(spec)
    host.ended(spec["job"])
    assert refusal(host.start(spec)) == f"job {spec['job']} exists here already"
    assert host.state(spec["job"])["state"] == "finished"


def test_start_names_the_job_that_holds_the_master_port(host: JobHost) -> None:
    port = free_port()
    master = {"addr": "127.0.0.1", "port": port}
    host.script(LISTENER)
    first = host.spec(str(port), master=master)
    host.start(first, wait_for_port=True)
    answer = host.call("start", spec=host.spec(master=master), wait_for_port=True, timeout=PATIENCE)
    said = refusal(answer)
    assert said.startswith(f"master port {port} is taken by pid ")
    assert f", of job {first['job']}: {host.python} train.py {port}" in said
    assert answer["refused"]["fix"].startswith(f"mnt stop {first['job']}, or ")
    assert os.listdir(host.jobs_dir) == [first["job"]]
    (holder,) = ports.holders(port, str(host.jobs_dir))
    assert holder["job"] == first["job"]


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to have a second user")
def test_start_names_the_user_of_a_port_that_it_may_not_look_into(host: JobHost) -> None:
    host.script(SLEEPER)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        spec = host.spec(master={"addr": "127.0.0.1", "port": port})
        answer = host.call("start", spec=spec, wait_for_port=True, timeout=PATIENCE)
    assert refusal(answer) == f"master port {port} is taken by a process of user root"


def test_a_port_in_time_wait_is_free(host: JobHost) -> None:
    port = free_port()
    with socket.create_server(("127.0.0.1", port)) as listener:
        client = socket.create_connection(("127.0.0.1", port))
        server_side, _ = listener.accept()
        server_side.close()  # this end closes first: it keeps the TIME_WAIT
        client.close()
    host.script(LISTENER)
    spec = host.spec(str(port), master={"addr": "127.0.0.1", "port": port})
    assert host.start(spec, wait_for_port=True)["listening"] is True


# --- the node-local directory ------------------------------------------------------------------------------


def test_the_local_directory_is_private_and_new(tmp_path: Path) -> None:
    paths = JobPaths(str(tmp_path), "job", "node1")
    paths.local = str(tmp_path / "mnt-0" / "job" / "node1")
    paths.make_local()
    assert os.stat(paths.local).st_mode & 0o777 == 0o700
    assert os.stat(tmp_path / "mnt-0").st_mode & 0o777 == 0o700
    with pytest.raises(Refused, match="exists"):
        paths.make_local()
    paths.remove_local()
    assert os.listdir(tmp_path) == []


def test_local_directories_are_made_while_those_of_other_jobs_go(tmp_path: Path) -> None:
    """The last job of a user takes the empty directory along; the next must not fall over that."""

    def start_and_end(job: str) -> None:
        paths = JobPaths(str(tmp_path), job, "node1")
        paths.local = str(tmp_path / "mnt-0" / job / "node1")
        for _ in range(300):
            paths.make_local()
            paths.remove_local()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(start_and_end, "abcd"))
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("attack", ["link", "open", "owner", "file"])
def test_the_local_directory_is_not_taken_from_somebody_else(tmp_path: Path, attack: str) -> None:
    paths = JobPaths(str(tmp_path), "job", "node1")
    planted = tmp_path / "mnt-0"
    paths.local = str(planted / "job" / "node1")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(0o700)
    if attack == "link":
        planted.symlink_to(elsewhere)
    elif attack == "file":
        planted.touch()
    else:
        planted.mkdir(0o700)
        if attack == "open":
            planted.chmod(0o777)
        elif os.getuid() != 0:
            pytest.skip("needs root, to give a directory away")
        else:
            os.chown(planted, 65534, -1)
    with pytest.raises(Refused):
        paths.make_local()
    assert os.listdir(elsewhere) == []


# --- list --------------------------------------------------------------------------------------------------


def test_list_without_any_job(host: JobHost) -> None:
    before = time.time()
    answer = host.call("list")
    assert answer["jobs"] == []
    assert before <= answer["now"] <= time.time()


def test_list_shows_this_hosts_jobs_newest_first(host: JobHost) -> None:
    host.script("pass")
    old, new = host.spec(created=1000.0), host.spec(created=2000.0)
    for spec in (old, new):
        host.start(spec)
        host.ended(spec["job"])
    other = JobHost(host.directory, "node2")
    other.start(other.spec(node_rank=1))
    (Path(host.jobs_dir) / "not a job").mkdir()
    (Path(host.jobs_dir) / "some-file").touch()
    listed = host.call("list")["jobs"]
    assert [entry["job"] for entry in listed] == [new["job"], old["job"]]
    assert listed[0] == {
        **{name: new[name] for name in ("job", "host", "node_rank", "nodes", "engine", "release", "master")},
        **{"created": 2000.0, "state": "finished", "exit_code": 0, "signal": None, "failure": None},
        **{"reason": None, "listening": False, "peer": None, "backend": None, "outside_id": None},
        **{"command": None, "rankless": True},  # it was no torchrun
        **{name: listed[0][name] for name in ("started", "ended")},
    }
    other.clean_up()


def test_jobs_that_another_node_has_invented_come_after_those_that_were_started_here(host: JobHost) -> None:
    """The head counts only the first ones. jobs_dir is on a disk that the nodes share."""
    host.script(SLEEPER)
    staged, running, cleaned = specs = [host.spec(created=1000.0 + number) for number in range(3)]
    host.jobs.append(staged["job"])
    assert "refused" not in host.call("stage", spec=staged)
    for spec in (running, cleaned):
        host.start(spec)
    for number in range(5):
        invent(host, running["job"], f"fake-{number}", created=2e9 + number)
    host.local(cleaned["job"]).rename(host.directory / "away")  # as what cleans /tmp may do
    listed = [entry["job"] for entry in host.call("list")["jobs"]]
    assert listed[:3] == [spec["job"] for spec in reversed(specs)]
    assert listed[3:] == [f"fake-{number}" for number in reversed(range(5))]
    (host.directory / "away").rename(host.local(cleaned["job"]))


def test_list_tells_a_dead_supervisor_from_another_process_with_its_pid(host: JobHost) -> None:
    host.script(SLEEPER)
    spec = host.spec()
    answer = host.start(spec)
    path = Path(host.jobs_dir) / spec["job"] / host.name / "state.json"
    os.kill(answer["pid"], signal.SIGKILL)
    wait_for(lambda: not alive(answer["pid"]))
    state = json.loads(path.read_text())
    state["supervisor"]["pid"] = os.getpid()
    path.write_text(json.dumps(state))
    assert host.entry(spec["job"])["state"] == "lost"
    assert host.stop(spec["job"])["status"] == "stopped"


def test_a_job_of_before_the_last_boot_is_lost_and_its_pids_are_nobodys(host: JobHost) -> None:
    host.script(SLEEPER)
    spec = host.spec()
    answer = host.start(spec)
    path = Path(host.jobs_dir) / spec["job"] / host.name / "state.json"
    state = json.loads(path.read_text())
    state["supervisor"]["boot_id"] = "00000000-0000-0000-0000-000000000000"
    path.write_text(json.dumps(state))
    assert host.entry(spec["job"])["state"] == "lost"
    assert alive(answer["pid"])
    # Put back what was true, so that the real supervisor is asked.
    state["supervisor"]["boot_id"] = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    path.write_text(json.dumps(state))
    assert host.stop(spec["job"])["status"] == "stopped"


def test_documents_of_a_newer_mnt_are_read(host: JobHost) -> None:
    host.script(SLEEPER)
    spec = host.spec(format=2, colour="green")
    host.start(spec)
    path = Path(host.jobs_dir) / spec["job"] / host.name / "state.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 2, "mood": "good"}))
    assert host.entry(spec["job"])["state"] == "starting"
    assert host.stop(spec["job"])["status"] == "stopped"


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"state": "running", "supervisor": 1}', '{"state": NaN}', "{}\n{}"]
)
def test_a_state_that_makes_no_sense_is_that_of_a_lost_job(host: JobHost, text: str) -> None:
    host.script("pass")
    specs = [host.spec(created=2000.0), host.spec(created=1000.0)]
    for spec in specs:
        host.start(spec)
        host.ended(spec["job"])
    path = Path(host.jobs_dir) / specs[0]["job"] / host.name / "state.json"
    whole = path.read_text()
    path.write_text(text)
    assert [entry["state"] for entry in host.call("list")["jobs"]] == ["lost", "finished"]
    path.write_text(whole)
    assert [entry["state"] for entry in host.call("list")["jobs"]] == ["finished", "finished"]


def damaged(name: str, value: Any) -> Callable[[dict[str, Any]], str]:
    return lambda document: json.dumps({**document, name: value})


def without(name: str) -> Callable[[dict[str, Any]], str]:
    return lambda document: json.dumps({key: value for key, value in document.items() if key != name})


DAMAGE = {
    "empty": lambda document: "",
    "a list": lambda document: json.dumps([document]),
    "a number": lambda document: "1",
    "too deep": lambda document: '{"nodes": ' + "[" * 100_000,
    "no job": without("job"),
    "no host": without("host"),
    "no nodes": without("nodes"),
    "another job": damaged("job", "other"),
    "another host": damaged("host", "other"),
    "a text as time": damaged("created", "yesterday"),
    "a time beyond the calendar": damaged("created", 1e300),
    "no number as time": damaged("created", float("nan")),
    "nodes as text": damaged("nodes", "node1"),
    "a node as number": damaged("nodes", [1]),
    "a rank as text": damaged("nodes", [{"host": "node1", "node_rank": "0", "nproc": 1}]),
    "a rank as bool": damaged("node_rank", True),
    "an engine as mapping": damaged("engine", {}),
    "a master without port": damaged("master", {"addr": "127.0.0.1"}),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
@pytest.mark.parametrize("with_state", [True, False])
def test_a_directory_without_a_jobs_description_is_skipped(
    host: JobHost, damage: Callable[[dict[str, Any]], str], with_state: bool
) -> None:
    whole, broken = host.spec(), host.spec()
    for spec in (whole, broken):
        directory = Path(host.jobs_dir) / spec["job"] / host.name
        directory.mkdir(parents=True)
        (directory / "about.json").write_text(json.dumps(spec))
        if with_state:
            (directory / "state.json").write_text('{"state": "finished"}')
    directory.joinpath("about.json").write_text(damage(broken))
    assert [entry["job"] for entry in host.call("list")["jobs"]] == [whole["job"]]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("state", ["failed"]),
        ("exit_code", "1"),
        ("failure", {"rank": 1}),
        ("failure", "it failed"),
        ("reason", {"peer": 1}),
        ("reason", {"peer": "node2", "failure": "it failed"}),
        ("started", "yesterday"),
        ("ended", float("inf")),
        ("peer", []),
        ("supervisor", {"boot_id": Path("/proc/sys/kernel/random/boot_id").read_text().strip()}),
    ],
)
def test_a_state_with_a_wrong_type_counts_as_none(host: JobHost, name: str, value: Any) -> None:
    spec = host.spec()
    directory = Path(host.jobs_dir) / spec["job"] / host.name
    directory.mkdir(parents=True)
    (directory / "about.json").write_text(json.dumps(spec))
    (directory / "state.json").write_text(json.dumps({"state": "failed", "exit_code": 3, name: value}))
    (entry,) = host.call("list")["jobs"]
    assert (entry["state"], entry["exit_code"]) == ("lost", None)


def test_a_job_of_an_older_mnt_has_a_spec_alone(host: JobHost) -> None:
    host.script("pass")
    spec = host.spec()
    host.start(spec)
    host.ended(spec["job"])
    entry = host.entry(spec["job"])
    directory = Path(host.jobs_dir) / spec["job"] / host.name
    (directory / "about.json").unlink()
    (directory / "spec.json").write_text(json.dumps(spec))
    assert host.entry(spec["job"]) == entry
    assert host.call("logs", job=spec["job"], rank=0, follow=False, offsets={})["node"] == entry
    assert host.stop(spec["job"])["status"] == "none"


def test_a_job_that_an_older_mnt_has_staged_is_taken_back(host: JobHost) -> None:
    host.script("pass")
    spec = host.spec()
    host.jobs.append(spec["job"])
    host.call("stage", spec=spec)
    (Path(host.jobs_dir) / spec["job"] / host.name / "spec.json").write_text(json.dumps(spec))
    (host.local(spec["job"]) / "spec.json").unlink()
    assert host.entry(spec["job"])["state"] == "pending"
    assert host.stop(spec["job"])["status"] == "none"
    assert os.listdir(host.jobs_dir) == []


ROGUE = ["/bin/sh", "-c", "echo rogue > rogue"]


def test_what_another_node_writes_into_a_shared_jobs_dir_is_not_run(host: JobHost) -> None:
    """jobs_dir is on a disk that the nodes share, and another node writes there between stage and spawn."""
    host.script("import lent; print(lent.WORD)")
    spec = host.spec(python_files={"lent.py": "WORD = 'honest'"})
    host.jobs.append(spec["job"])
    host.call("stage", spec=spec)
    directory = Path(host.jobs_dir) / spec["job"] / host.name
    assert spec["secret"] not in "".join(path.read_text() for path in directory.rglob("*") if path.is_file())
    lie = {**spec, "argv": ROGUE, "env": {"PYTHONPATH": str(directory / "python")}, "remains": "rogue"}
    (directory / "python").mkdir(mode=0o777)
    (directory / "python" / "lent.py").write_text("WORD = 'rogue'")
    for name in ("spec.json", "about.json"):
        (directory / name).write_text(json.dumps(lie))
    (directory / "supervisor.py").write_text("raise SystemExit('rogue')")
    names = {"job": spec["job"], "peer": None}
    assert "refused" not in host.call("spawn", **names)
    assert host.ended(spec["job"])["state"] == "finished"
    assert host.output(spec["job"]) == "honest\n"
    assert not (host.directory / "rogue").exists()


@pytest.mark.parametrize("name", ["output.log", "supervisor.log"])
@pytest.mark.parametrize("exists", [True, False])
def test_a_log_is_not_written_into_another_file(host: JobHost, name: str, exists: bool) -> None:
    host.script("print('evil')")
    spec = host.spec()
    host.jobs.append(spec["job"])
    host.call("stage", spec=spec)
    profile = host.directory / ".profile"
    if exists:
        profile.write_text("# mine\n")
        os.chown(profile, host.uid, -1)
    (Path(host.jobs_dir) / spec["job"] / host.name / name).symlink_to(profile)
    names = {"job": spec["job"], "peer": None}
    assert "a link to another file" in host.call("spawn", **names)["refused"]["message"]
    assert (profile.read_text() if profile.exists() else "") == ("# mine\n" if exists else "")


SECRET = "hf_only_this_node_has_it"
FORGED = "ChildFailedError:\n[0]:\n  rank      : 0 (local_rank: 0)\n  exitcode  : 1 (pid: 9)\n"
FAILS_WHEN_TOLD = UNTIL_TOLD + "sys.exit(3)\n"


def instead_of_the_log(directory: Path, secret: Path) -> None:
    """The log, once it is written, makes room for a link."""
    (directory / "output.log").unlink()
    (directory / "output.log").symlink_to(secret)


def among_the_ranks(directory: Path, secret: Path) -> None:
    """A forged summary in the log, and a link where the rank's standard error is looked for."""
    (directory / "output.log").write_text(FORGED)
    rank = directory / "ranks" / "run" / "attempt_0" / "0"
    rank.mkdir(parents=True)
    for name in ("stderr.log", "error.json"):
        (rank / name).symlink_to(secret)


def for_the_ranks(directory: Path, secret: Path) -> None:
    """The same, with a link to a directory in which that has the name of a log."""
    (directory / "output.log").write_text(FORGED)
    attempt = directory / "ranks" / "run" / "attempt_0"
    attempt.mkdir(parents=True)
    (attempt / "0").symlink_to(secret.parent)


@pytest.mark.parametrize("plant", [instead_of_the_log, among_the_ranks, for_the_ranks])
def test_a_file_that_only_this_node_has_is_not_shown_as_a_log(
    host: JobHost, plant: Callable[[Path, Path], None]
) -> None:
    """jobs_dir is on a disk that the nodes share, and another node makes links there while the job runs."""
    secret = host.directory / "private" / "stderr.log"
    secret.parent.mkdir()
    secret.write_text(SECRET)
    host.script(FAILS_WHEN_TOLD)
    spec = host.spec()
    host.start(spec)
    directory = Path(host.jobs_dir) / spec["job"] / host.name
    plant(directory, secret)
    (host.directory / "go").touch()
    state = host.ended(spec["job"])
    assert state["state"] == "failed"
    shown = [
        json.dumps(state),
        json.dumps(logs(host, spec["job"])),
        json.dumps(logs(host, spec["job"], rank=0)),
    ]
    assert not [text for text in shown if SECRET in text]


@pytest.mark.parametrize("name", ["about.json", "state.json"])
def test_what_is_behind_a_link_is_no_job_file(host: JobHost, name: str) -> None:
    host.script("raise SystemExit(3)")
    spec = host.spec()
    host.start(spec)
    host.ended(spec["job"])
    path = Path(host.jobs_dir) / spec["job"] / host.name / name
    path.rename(host.directory / name)
    path.symlink_to(host.directory / name)
    assert [entry["state"] for entry in host.call("list")["jobs"]] == (
        ["lost"] if name == "state.json" else []
    )


def test_a_jobs_dir_behind_a_link_is_read(host: JobHost) -> None:
    """As in a home that has been moved."""
    host.script("print('here')\nraise SystemExit(3)")
    (host.directory / "link").symlink_to(host.directory)
    host.jobs_dir = str(host.directory / "link" / "jobs")
    spec = host.spec()
    host.start(spec)
    host.ended(spec["job"])
    assert host.entry(spec["job"])["state"] == "failed"
    assert data(logs(host, spec["job"])["frames"]) == "here\n"


def test_no_secret_and_no_environment_leave_the_host_for_a_status(host: JobHost) -> None:
    host.script(SLEEPER)
    spec = host.spec(env={"TOKEN": "of the environment"})
    host.start(spec)
    directory = Path(host.jobs_dir) / spec["job"] / host.name
    for told in (json.dumps(host.call("list")), (directory / "about.json").read_text()):
        assert spec["job"] in told
        assert spec["secret"] not in told
        assert "of the environment" not in told


@pytest.mark.parametrize("name", ["-rf", "a b", "$(touch evil)", "'\"", "*", "~x", "`touch evil`"])
def test_any_directory(host: JobHost, name: str) -> None:
    host.jobs_dir = str(host.directory / name)
    host.script("")
    spec = host.spec()
    host.start(spec)
    host.ended(spec["job"])
    listed = host.call("list")["jobs"]
    assert [entry["state"] for entry in listed] == ["finished"]
    host.jobs_dir = f"~/{name}"
    assert host.call("list")["jobs"] == listed
    assert not list(host.directory.glob("**/evil"))


# --- stop --------------------------------------------------------------------------------------------------


def test_stop_of_what_does_not_run(host: JobHost) -> None:
    assert host.stop("no-such-job") == {
        "status": "none",
        "killed": 0,
        "left": [],
        "port_free": True,
        "frames": [],
    }
    host.script("pass")
    spec = host.spec()
    host.start(spec)
    host.ended(spec["job"])
    assert host.stop(spec["job"])["status"] == "none"
    assert host.state(spec["job"])["state"] == "finished"


def test_stop_says_that_somebody_else_has_the_port(host: JobHost) -> None:
    host.script(SLEEPER)
    spec = host.spec(master={"addr": "127.0.0.1", "port": free_port()})
    host.start(spec)
    with socket.create_server(("127.0.0.1", spec["master"]["port"])):
        answer = host.stop(spec["job"])
    assert (answer["status"], answer["port_free"]) == ("stopped", False)


def test_stop_during_a_start_whose_caller_was_killed(host: JobHost) -> None:
    host.script(SLEEPER)
    spec = host.spec()
    host.jobs.append(spec["job"])
    late = {"supervisor = Supervisor(": "time.sleep(60); supervisor = Supervisor("}
    start = host.begin("start", late, spec=spec, wait_for_port=False, timeout=PATIENCE)
    wait_for(lambda: [each for each in host.call("list")["jobs"] if each["state"] == "starting"] or None)
    start.process.kill()
    start.process.communicate()
    answer = host.stop(spec["job"])
    assert (answer["status"], answer["killed"], answer["left"]) == ("stopped", 1, [])
    assert host.entry(spec["job"])["state"] == "stopped"


def test_a_job_whose_start_was_cut_off_before_its_supervisor_is_lost_until_it_is_stopped(
    host: JobHost,
) -> None:
    host.script(SLEEPER)
    spec = host.spec()
    host.start(spec)
    host.stop(spec["job"])
    (Path(host.jobs_dir) / spec["job"] / host.name / "state.json").unlink()
    assert host.entry(spec["job"])["state"] == "lost"
    assert host.stop(spec["job"])["status"] == "stopped"
    assert host.entry(spec["job"])["state"] == "stopped"


def test_stop_of_a_job_whose_directory_was_deleted(host: JobHost) -> None:
    host.script(SLEEPER)
    spec = host.spec()
    answer = host.start(spec)
    shutil.rmtree(os.path.join(host.jobs_dir, spec["job"]))
    with socket.create_server(("127.0.0.1", spec["master"]["port"])):
        stopped = host.stop(spec["job"])
    assert (stopped["status"], stopped["port_free"]) == ("stopped", False)
    assert not alive(answer["pid"])


def invent(host: JobHost, real: str, job: str, **changes: Any) -> None:
    """The files of a real job, copied as those of another one: they name its supervisor."""
    source, copy = (Path(host.jobs_dir) / each / host.name for each in (real, job))
    copy.mkdir(parents=True)
    for name in ("about.json", "state.json"):
        document = json.loads((source / name).read_text())
        (copy / name).write_text(json.dumps({**document, "job": job, **changes}))
    for path in (copy.parent, copy, *copy.iterdir()):
        os.chown(path, host.uid, -1)


def test_stop_of_a_job_that_another_node_has_invented_ends_no_other_job(host: JobHost) -> None:
    """jobs_dir is on a disk that the nodes share."""
    host.script(SLEEPER)
    spec, invented = host.spec(), host.spec()
    answer = host.start(spec)
    invent(host, spec["job"], invented["job"])
    stopped = host.stop(invented["job"])
    assert (stopped["killed"], stopped["left"]) == (0, [])
    assert alive(answer["pid"])
    assert host.entry(spec["job"])["state"] == "starting"
    # The same supervisor, when only the state of its own job names it.
    (host.local(spec["job"]) / "processes.json").unlink()
    assert host.stop(spec["job"])["status"] == "stopped"
    assert not alive(answer["pid"])
    assert host.entry(spec["job"])["state"] == "stopped"


def test_two_stops_at_once_agree(host: JobHost) -> None:
    host.script(SLEEPER)
    spec = host.spec()
    host.start(spec)
    calls = [host.begin("stop", job=spec["job"], grace=1.0) for _ in range(2)]
    answers = [call.answer() for call in calls]
    assert all(answer["left"] == [] for answer in answers)
    assert "stopped" in [answer["status"] for answer in answers]


# --- logs --------------------------------------------------------------------------------------------------


def data(frames: list[dict[str, Any]], stream: str = "output") -> str:
    return "".join(frame["data"] for frame in frames if frame.get("stream") == stream)


def logs(host: JobHost, job: str, **changes: Any) -> dict[str, Any]:
    return host.call("logs", job=job, **{"rank": None, "follow": False, "offsets": {}, **changes})


def test_logs_come_in_bounded_frames_and_no_character_is_cut(host: JobHost) -> None:
    text = (
        "€" * 200_000
    )  # 600 kB: pieces of 256 KiB end within a character; in JSON each is too large a frame
    host.script(f"import sys; sys.stdout.buffer.write('{text[0]}'.encode() * {len(text)} + b'\\xff\\n')")
    spec = host.spec()
    host.start(spec)
    host.ended(spec["job"])
    answer = logs(host, spec["job"])
    frames = [frame for frame in answer["frames"] if "data" in frame]
    assert len(frames) == 5
    assert data(frames) == text + "\udcff\n"
    assert not any("\udc80" <= character <= "\udcfe" for character in data(frames))
    assert frames[-1]["offset"] == 3 * len(text) + 2
    # Going on where a connection broke off.
    again = logs(host, spec["job"], offsets={"output": frames[0]["offset"]})
    assert data(answer["frames"]) == frames[0]["data"] + data(again["frames"])
    assert answer["node"]["state"] == "finished"


def test_logs_follow_to_the_end(host: JobHost) -> None:
    host.script(
        """
        import os, time
        print("first", flush=True)
        for _ in range(15000):  # 300 s: a killed test leaves nothing that lives on
            if os.path.exists("go"):
                break
            time.sleep(0.02)
        print("last", flush=True)
        raise SystemExit(2)
        """
    )
    spec = host.spec()
    host.start(spec)
    call = host.begin("logs", job=spec["job"], rank=None, follow=True, offsets={})
    seen = [call.frame()]
    while data(seen) != "first\n":
        seen.append(call.frame())
    (host.directory / "go").touch()
    answer = call.answer()
    frames = seen + answer["frames"]
    assert data(frames).startswith("first\nlast\n")
    states = [frame["state"]["state"] for frame in frames if "state" in frame]
    assert (states[0], states[-1]) == ("starting", "failed")
    assert answer["node"]["exit_code"] == 2
    assert "data" in frames[-1] or frames[-1]["state"]["state"] == "failed"


def test_logs_end_when_the_supervisor_is_killed(host: JobHost) -> None:
    host.script("print('up', flush=True)\n" + SLEEPER)
    spec = host.spec()
    answer = host.start(spec)
    wait_for(lambda: host.output(spec["job"]))
    call = host.begin("logs", job=spec["job"], rank=None, follow=True, offsets={})
    os.kill(answer["pid"], signal.SIGKILL)
    followed = call.answer()
    assert followed["node"]["state"] == "lost"
    assert data(followed["frames"]) == "up\n"


def test_logs_of_a_rank(host: JobHost) -> None:
    host.script(
        """
        import os
        for rank in ("0", "1"):
            directory = os.path.join(os.environ["RANKS"], "run", "attempt_0", rank)
            os.makedirs(directory)
            for stream in ("stdout", "stderr"):
                with open(os.path.join(directory, stream + ".log"), "w") as file:
                    file.write(stream + " of " + rank)
        """
    )
    nodes = [
        {"host": "node0", "node_rank": 0, "nproc": 4},
        {"host": host.name, "node_rank": 1, "nproc": 2},
    ]
    spec = host.spec(node_rank=1, nodes=nodes)
    spec["env"]["RANKS"] = str(host.local(spec["job"]) / "ranks")
    host.start(spec)
    host.ended(spec["job"])
    frames = logs(host, spec["job"], rank=5)["frames"]
    assert (data(frames, "stdout"), data(frames, "stderr")) == ("stdout of 1", "stderr of 1")
    assert refusal(logs(host, spec["job"], rank=0)) == "rank 0 is not on node1: it has 4 to 5"


def test_logs_of_no_such_job(host: JobHost) -> None:
    assert refusal(logs(host, "nothing")) == "no job nothing on node1"


# --- Python 3.8 --------------------------------------------------------------------------------------------


def test_all_of_it_runs_on_python_3_8() -> None:
    host = JobHost(new_directory(), python=interpreter("python3.8"), ordinary_user=False)
    try:
        port = free_port()
        host.script("print('on 3.8', flush=True)\n" + LISTENER)
        spec = host.spec(str(port), master={"addr": "127.0.0.1", "port": port})
        assert host.start(spec, wait_for_port=True)["listening"] is True
        assert data(logs(host, spec["job"])["frames"]).startswith("on 3.8\n")
        assert host.entry(spec["job"])["state"] == "running"
        stopped = host.stop(spec["job"])
        assert (stopped["status"], stopped["killed"], stopped["left"]) == ("stopped", 2, [])
        assert host.entry(spec["job"])["state"] == "stopped"
    finally:
        host.clean_up()
        host.remove()
