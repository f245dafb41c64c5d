"""A node whose supervisor is started from outside, as by pdsh or mpirun, with all that these can do wrong."""

from __future__ import annotations

import os
import shlex
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from job_host import JobHost
from waiting import PATIENCE, wait_for

from mnt.launch.backends.api import start_line

SHOWS = "import os; print(*(os.environ.get(name, '-') for name in ('HOME', 'GIVEN', 'PASSED', 'DROPPED')))"


def stage(host: JobHost, source: str = SHOWS, **changes: Any) -> dict[str, Any]:
    host.script(source)
    outside = {"starter": "starter", "passes": ["PASSED"], "join_within": 60.0, "env": {"GIVEN": "x y"}}
    spec = host.spec(**{**outside, **changes})
    host.jobs.append(spec["job"])
    assert "refused" not in host.call("stage", spec=spec)
    return spec


def starter(spec: dict[str, Any], before: str = "") -> list[str]:
    return ["sh", "-c", f"{before}{start_line(spec['job'])}"]


def join(host: JobHost, spec: dict[str, Any], argv: list[str], **args: Any) -> dict[str, Any]:
    given = {"peer": None, "timeout": PATIENCE, "to_its_end": False, **args}
    return host.call("join", job=spec["job"], argv=argv, **given)


def test_it_runs_with_the_environment_of_the_login(host: JobHost) -> None:
    spec = stage(host)
    before = "export HOME=/wrong PASSED='a \"b' DROPPED=yes; "
    answer = join(host, spec, starter(spec, before))
    assert answer["pid"] > 0
    assert host.ended(spec["job"])["state"] == "finished"
    assert host.output(spec["job"]) == f'{host.directory} x y a "b -\n'


def test_the_supervisors_log_is_not_written_into_another_file(host: JobHost) -> None:
    """jobs_dir is on a disk that the nodes share, and another node makes a link there."""
    spec = stage(host)
    mine = host.directory / "mine"
    mine.write_text("precious\n")
    os.chown(mine, host.uid, -1)
    (Path(host.jobs_dir) / spec["job"] / host.name / "supervisor.log").symlink_to(mine)
    answer = join(host, spec, starter(spec))
    assert "a link to another file" in answer["refused"]["message"]
    assert mine.read_text() == "precious\n"
    nothing_is_left(host, spec)


def test_the_starter_lives_as_long_as_the_job(host: JobHost) -> None:
    spec = stage(host, "import time; time.sleep(600)")
    pid = join(host, spec, ["sh", "-c", f"{shlex.join(starter(spec))}; touch {host.directory}/over"])
    assert pid["pid"] > 0
    assert not (host.directory / "over").exists()
    assert host.stop(spec["job"])["status"] == "stopped"
    wait_for((host.directory / "over").exists)
    assert host.entry(spec["job"])["state"] == "stopped"


def test_a_term_from_the_starter_is_no_stop_of_the_users(host: JobHost) -> None:
    spec = stage(host, "import time; time.sleep(600)")
    supervisor = join(host, spec, starter(spec))["pid"]
    subprocess.run(["kill", str(supervisor)], check=True)
    ended = host.ended(spec["job"])
    assert (ended["state"], ended["failure"]["message"]) == ("failed", "starter has ended it: SIGTERM")


def test_a_starter_that_fails_is_named_with_its_last_line(host: JobHost) -> None:
    spec = stage(host)
    answer = join(host, spec, ["sh", "-c", "echo first; echo 'node2: Permission denied' >&2; exit 255"])
    assert answer["refused"]["message"] == "sh has ended with code 255: node2: Permission denied"
    nothing_is_left(host, spec)


def test_a_starter_that_starts_nothing(host: JobHost) -> None:
    spec = stage(host)
    noted = host.directory / "pid"
    answer = join(host, spec, ["sh", "-c", f"echo $$ >{noted}; exec sleep 600"], timeout=1.0)
    assert answer["refused"]["message"] == "starter has not started the job here"
    nothing_is_left(host, spec)
    wait_for(lambda: not Path(f"/proc/{noted.read_text().strip()}").exists())


def test_a_program_that_is_missing_is_named_before_anything_is_written(host: JobHost) -> None:
    host.script("pass")
    spec = host.spec(starter="mpirun", passes=[], join_within=60.0, programs={"no-mpirun": "openmpi-bin"})
    answer = host.call("stage", spec=spec)
    assert answer["refused"]["message"] == "no-mpirun is not installed"
    assert "apt install openmpi-bin" in answer["refused"]["fix"]
    nothing_is_left(host, spec)


def test_a_supervisor_that_may_not_join_leaves_nothing(host: JobHost) -> None:
    spec = stage(host, join_within=0.2)
    subprocess.run(starter(spec), user=host.uid, env={"PATH": "/usr/bin:/bin"}, check=False)
    nothing_is_left(host, spec)


def test_stop_of_one_that_waits_to_join(host: JobHost) -> None:
    spec = stage(host)
    waiting = subprocess.Popen(starter(spec), user=host.uid, env={"PATH": "/usr/bin:/bin"})
    wait_for((host.local(spec["job"]) / "started").exists)
    time.sleep(0.3)
    answer = host.stop(spec["job"])
    assert (answer["status"], answer["killed"]) == ("none", 0)
    waiting.wait(PATIENCE)
    nothing_is_left(host, spec)


def test_a_job_starts_once(host: JobHost) -> None:
    spec = stage(host, "import time; time.sleep(600)")
    join(host, spec, starter(spec))
    again = subprocess.run(
        starter(spec), user=host.uid, env={"PATH": "/usr/bin:/bin"}, check=False, timeout=60
    )
    assert again.returncode == 0
    assert host.stop(spec["job"])["status"] == "stopped"


def test_what_is_refused_at_the_start_is_said(host: JobHost) -> None:
    spec = stage(host)
    log = Path(host.jobs_dir) / spec["job"] / host.name / "output.log"
    log.symlink_to("/no/such/directory/log")
    answer = join(host, spec, starter(spec))
    assert answer["refused"]["message"] == f"cannot write {log}: a link to another file"
    nothing_is_left(host, spec)


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to have a second user")
@pytest.mark.parametrize("linked", [False, True])
def test_what_another_user_has_put_there_is_not_run(tmp_path: Path, linked: bool) -> None:
    job, uid = f"test-{os.getpid()}", 61000 + os.getpid() % 1000
    place = Path(f"/tmp/mnt-{uid}")
    theirs = Path(f"/tmp/mnt-test-theirs-{uid}") if linked else place
    script = theirs / job / "node1" / "start"
    try:
        script.parent.mkdir(parents=True)
        script.write_text("touch /tmp/mnt-test-was-run\n")
        if linked:
            os.symlink(theirs, place)
            os.lchown(place, uid, -1)
        done = subprocess.run(
            ["sh", "-c", start_line(job, within=1)], user=uid, capture_output=True, text=True
        )
        assert (done.returncode, done.stderr) == (69, "nothing is staged here\n")
        assert not os.path.exists("/tmp/mnt-test-was-run")
    finally:
        subprocess.run(["rm", "-rf", str(place), str(theirs)], check=True)


def nothing_is_left(host: JobHost, spec: dict[str, Any]) -> None:
    assert not os.path.exists(host.jobs_dir) or os.listdir(host.jobs_dir) == []
    assert not host.local(spec["job"]).parent.exists()
    wait_for(lambda: not host.inhabitants())
