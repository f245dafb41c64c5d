"""jobs.sh really run, beside jobctl: both tell the same, or jobs.sh leaves the word to jobctl."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from job_host import JobHost
from waiting import PATIENCE, wait_for

from mnt.tasks import bootstrap, glance

SLEEPER = "import time; time.sleep(600)"
MARK = "mnt-mark"


def written(
    host: JobHost, *, jobs_dir: str | None = None, shell: Sequence[str] = ("sh",), command: str | None = None
) -> str:
    """What jobs.sh writes, run as the host's user."""
    done = subprocess.run(
        [*shell, "-c", command or bootstrap.COMMAND],
        input=glance.opening(MARK, jobs_dir or host.jobs_dir, host.name),
        capture_output=True,
        env={"PATH": "/usr/bin:/bin", "HOME": str(host.directory)},
        user=host.uid if os.getuid() == 0 else None,
        extra_groups=[] if os.getuid() == 0 else None,
        timeout=PATIENCE,
    )
    assert done.stderr == b""
    return done.stdout.decode()


def glanced(host: JobHost, **options: Any) -> list[dict[str, Any]] | None:
    told = glance.understood(written(host, **options), MARK, host.name)
    return None if told is None else told["jobs"]


def listed(host: JobHost) -> Any:
    return host.call("list")["jobs"]


def files(host: JobHost, job: str) -> Path:
    return Path(host.jobs_dir) / job / host.name


def change(host: JobHost, job: str, name: str, /, **values: Any) -> None:
    path = files(host, job) / name
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


@pytest.fixture
def jobs(host: JobHost) -> dict[str, str]:
    """The ids of three jobs: one that is finished, one that failed, one that runs, and never listens."""
    host.script("import sys; raise SystemExit(int(sys.argv[1]))", "ends.py")
    host.script(SLEEPER)
    specs = {
        "finished": host.spec(argv=[host.python, "ends.py", "0"]),
        "failed": host.spec(argv=[host.python, "ends.py", "7"]),
        "starting": host.spec(),
    }
    for state, spec in specs.items():
        host.start(spec)
        wait_for(lambda job=spec["job"], state=state: host.state(job)["state"] == state)  # type: ignore[misc]
    return {state: spec["job"] for state, spec in specs.items()}


def test_no_jobs(host: JobHost) -> None:
    assert glanced(host) == []
    Path(host.jobs_dir).mkdir()
    assert glanced(host) == []
    (Path(host.jobs_dir) / "a file").write_text("")
    (Path(host.jobs_dir) / "of another" / "host").mkdir(parents=True)
    assert glanced(host) == []


@pytest.mark.parametrize("shell", ["dash", "bash", "zsh", "ksh", "busybox"])
def test_what_jobctl_says(host: JobHost, jobs: dict[str, str], shell: str) -> None:
    path = shutil.which(shell)
    if path is None:
        pytest.skip(f"{shell} is not installed")
    words = [path, "sh"] if shell == "busybox" else [path]
    told = glanced(host, shell=words, command='IFS= read -r line; eval "$line"')
    assert [entry["state"] for entry in told or ()] == ["starting", "failed", "finished"]
    assert told == listed(host)


def test_a_stopped_job(host: JobHost, jobs: dict[str, str]) -> None:
    host.stop(jobs["starting"])
    assert {entry["state"] for entry in glanced(host) or ()} == {"stopped", "failed", "finished"}
    assert glanced(host) == listed(host)


def test_a_supervisor_that_was_killed_is_left_to_jobctl(host: JobHost, jobs: dict[str, str]) -> None:
    os.kill(host.state(jobs["starting"])["supervisor"]["pid"], signal.SIGKILL)
    wait_for(lambda: host.entry(jobs["starting"])["state"] == "lost")
    assert glanced(host) is None


def test_a_supervisor_whose_pid_another_process_has_is_left_to_jobctl(
    host: JobHost, jobs: dict[str, str]
) -> None:
    supervisor = host.state(jobs["starting"])["supervisor"]
    change(host, jobs["starting"], "state.json", supervisor={**supervisor, "start_time": 1})
    assert glanced(host) is None
    change(host, jobs["starting"], "state.json", supervisor=supervisor)
    assert glanced(host) is not None


def test_before_a_boot_of_the_host_it_is_lost(host: JobHost, jobs: dict[str, str]) -> None:
    supervisor = host.state(jobs["starting"])["supervisor"]
    change(host, jobs["starting"], "state.json", supervisor={**supervisor, "boot_id": "another"})
    assert [entry["state"] for entry in glanced(host) or ()] == ["lost", "failed", "finished"]
    assert glanced(host) == listed(host)
    change(host, jobs["starting"], "state.json", supervisor=supervisor)


@pytest.mark.parametrize(
    "text", [None, "", "{", "[]", "{}", '{"state": "running", "supervisor": 1}', '{"state": NaN}', "{}\n{}"]
)
def test_a_state_that_makes_no_sense_is_left_to_jobctl(
    host: JobHost, jobs: dict[str, str], text: str | None
) -> None:
    path = files(host, jobs["finished"]) / "state.json"
    whole = path.read_text()
    if text is None:
        path.unlink()
    else:
        path.write_text(text)
    assert glanced(host) is None
    path.write_text(whole)
    assert glanced(host) == listed(host)


def test_a_spec_of_another_job_is_left_to_jobctl(host: JobHost, jobs: dict[str, str]) -> None:
    change(host, jobs["finished"], "about.json", job="another")
    assert glanced(host) is None
    change(host, jobs["finished"], "about.json", job=jobs["finished"], format=2)
    assert glanced(host) is None


def test_a_job_of_an_older_mnt_is_left_to_jobctl(host: JobHost, jobs: dict[str, str]) -> None:
    (files(host, jobs["finished"]) / "about.json").unlink()
    assert glanced(host) is None


def test_no_secret_leaves_the_host(host: JobHost, jobs: dict[str, str]) -> None:
    spec = json.loads((files(host, jobs["starting"]) / "spec.json").read_text())
    assert spec["secret"]
    assert spec["secret"] not in written(host)
    assert '"env"' not in written(host)


def test_hundreds_of_jobs_are_left_to_jobctl(host: JobHost) -> None:
    for number in range(201):
        place = files(host, f"job{number}")
        place.mkdir(parents=True)
        (place / "spec.json").write_text("{}")
    assert glanced(host) is None


@pytest.mark.parametrize("name", ["-rf", "a b", "$(touch evil)", "'\"", "*", "~x", "`touch evil`"])
def test_any_directory(host: JobHost, name: str) -> None:
    host.jobs_dir = str(host.directory / name)
    host.script("")
    spec = host.spec()
    host.start(spec)
    host.ended(spec["job"])
    expected = listed(host)
    assert [entry["state"] for entry in expected] == ["finished"]
    assert glanced(host) == expected
    assert glanced(host, jobs_dir=f"~/{name}") == expected
    assert not list(host.directory.glob("**/evil"))


def test_the_home_of_another_user_is_left_to_jobctl(host: JobHost) -> None:
    assert glanced(host, jobs_dir="~nobody/jobs") is None


def test_noise_before_does_not_count_and_noise_within_leaves_it_to_jobctl(
    host: JobHost, jobs: dict[str, str]
) -> None:
    text = written(host)
    jobs_told = glance.understood(text, MARK, host.name)
    assert jobs_told is not None
    assert glance.understood("motd\n" + text, MARK, host.name) == jobs_told
    first, _, rest = text.partition("\n")
    assert glance.understood(f"{first}\nnoise\n{rest}", MARK, host.name) is None
    assert glance.understood(text.removesuffix(f"{MARK} end\n"), MARK, host.name) is None
    assert glance.understood("", MARK, host.name) is None
