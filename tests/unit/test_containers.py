"""`python` as a command that starts a container: what is added, what is refused, and what is missing inside.

docker, nerdctl and apptainer by their arguments only; tests/lab/test_containers.py runs podman and ch-run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_plan import FACTS, NODE1, NODE2, plan

from mnt.errors import InventoryError
from mnt.inventory.loader import load
from mnt.launch.secret import Secret
from mnt.launch.staging import node_specs
from mnt.remote.common.containers import for_a_look, kind_of
from mnt.remote.job.inside import problem_inside

PODMAN = ("podman", "run", "--rm", "-v", "/data:/data", "image:1", "python")
RELEASE = "/home/ubuntu/mnt/releases/20261127-120000-abcd1234"
USUAL = ["--pull=never", "--network=host", "--ipc=host"]


def words(python: Sequence[str], **settings: Any) -> list[str]:
    """The words of node1 before those of torchrun."""
    options = settings.pop("options", {})
    facts = {name: replace(found, uid=1000) for name, found in FACTS.items()}
    hosts = (replace(NODE1, python=tuple(python), gpus=0, **settings), NODE2)
    argv = list(plan(hosts=hosts, facts=facts, **options).nodes[0].argv)
    return argv[: argv.index("-m")]


def test_podman_gets_the_jobs_directories_network_and_names_of_variables() -> None:
    found = words(PODMAN, env={"HF_HOME": "/data/hf"}, options={"secrets": {"HF_TOKEN": Secret("s3cr3t")}})
    assert found[:2] == ["podman", "run"]
    assert found[-5:] == list(PODMAN[2:])
    added = found[2:-5]
    assert added[:3] == USUAL
    assert {
        "--name=mnt-j-node1",
        f"--workdir={RELEASE}",
        "--volume=/home/ubuntu/mnt:/home/ubuntu/mnt",
        "--volume=/home/ubuntu/.mnt/jobs:/home/ubuntu/.mnt/jobs",
        "--volume=/tmp/mnt-1000:/tmp/mnt-1000",
        "--volume=/tmp/mnt-tmp-1000:/tmp/mnt-tmp-1000",
        "--env=HF_TOKEN",
        "--env=HF_HOME",
        "--env=NCCL_SOCKET_IFNAME",
        "--env=MNT_JOB",
        "--env=PYTHONPATH",
        "--env=TMPDIR=/tmp/mnt-tmp-1000",
    } <= {*added}
    assert "--env=PATH" not in added
    assert "s3cr3t" not in " ".join(found)


@pytest.mark.parametrize(
    ("python", "absent", "present"),
    [
        # What is there is not said again, or it would be an error of podman's.
        (("docker", "run", "--net=host", "--pull=always", "--ipc", "host", "i", "python"), USUAL, ["--rm"]),
        (
            ("podman", "run", "-v", "/home:/home", "i", "python"),
            ["--volume=/home/ubuntu/mnt:/home/ubuntu/mnt"],
            [],
        ),
        (
            ("podman", "run", "-v", "/x:/home", "i", "python"),
            [],
            ["--volume=/home/ubuntu/mnt:/home/ubuntu/mnt"],
        ),
        (
            ("docker", "run", "--mount", "type=bind,src=/home/ubuntu,dst=/home/ubuntu", "i", "python"),
            ["--volume=/home/ubuntu/mnt:/home/ubuntu/mnt"],
            ["--user=1000", "--volume=/tmp/mnt-1000:/tmp/mnt-1000"],
        ),
        (("docker", "run", "-u", "5", "i", "python"), ["--user=1000"], []),
        (("podman", "run", "i", "python"), ["--user=1000"], ["--rm"]),
        (
            ("apptainer", "exec", "--nv", "x.sif", "python"),
            ["--rm", "--network=host", "--env=MNT_JOB"],
            ["--bind=/home/ubuntu/mnt:/home/ubuntu/mnt", f"--pwd={RELEASE}"],
        ),
        (
            ("/usr/bin/ch-run", "-b", "/home", "/images/x", "--", "python"),
            ["--bind=/home/ubuntu/mnt:/home/ubuntu/mnt", "--bind=/tmp/mnt-1000:/tmp/mnt-1000"],
            [f"--cd={RELEASE}", "--set-env=TMPDIR=/tmp/mnt-tmp-1000"],
        ),
        (
            ("ch-run", "-t", "/images/x", "--", "python"),
            [],
            ["--bind=/home/ubuntu/mnt:/home/ubuntu/mnt", "--bind=/tmp/mnt-1000:/tmp/mnt-1000"],
        ),
    ],
)
def test_options(python: Sequence[str], absent: Sequence[str], present: Sequence[str]) -> None:
    found = words(python)
    assert not {*absent} & {*found}
    assert {*present} <= {*found}
    place = 1 if "ch-run" in python[0] else 2
    assert found[:place] == list(python[:place])
    assert found[-len(python) + place :] == list(python[place:])


def test_the_spec_says_how_a_container_is_ended() -> None:
    hosts = (
        replace(NODE1, python=PODMAN, gpus=0),
        replace(NODE2, gpus=0, python=("ch-run", "/i", "--", "python")),
    )
    specs = node_specs(plan(hosts=hosts), None, secret="", created=0.0)
    assert specs["node1"]["container"] == {"program": "podman", "name": "mnt-j-node1"}
    assert specs["node2"]["container"] is None
    assert specs["node2"]["unset"] == ["TMPDIR"]
    assert specs["node1"]["argv"][: len(specs["node1"]["python"])] == specs["node1"]["python"]


def test_a_look_needs_no_files_and_leaves_nothing() -> None:
    assert for_a_look(PODMAN, "n") == ["podman", "run", *USUAL, "--name=n", *PODMAN[2:]]
    apptainer = ("apptainer", "exec", "x.sif", "python")
    assert for_a_look(apptainer, "n") == list(apptainer)
    assert kind_of(("python3",)) is None


@pytest.mark.parametrize(
    ("python", "says"),
    [
        ("[podman, exec, x, python]", "podman needs 'run', as in [podman, run, .., IMAGE, python]"),
        ("[docker, run, -d, i, python]", "docker run cannot have -d"),
        ("[docker, run, --name, x, i, python]", "docker run cannot have --name"),
        ("[docker, run, i]", "no interpreter is named in the container"),
        ("[apptainer, run, x.sif]", "apptainer needs 'exec'"),
        ("[ch-run, /images/x]", "no interpreter is named in the container"),
    ],
)
def test_a_command_that_cannot_work_is_refused_where_it_is_written(
    tmp_path: Path, python: str, says: str
) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(f"hosts: [a]\ndefaults:\n  python: {python}\n")
    with pytest.raises(InventoryError) as error:
        load(file)
    assert "c.yaml:3: defaults.python: " in str(error.value)
    assert says in error.value.message


FINE = {"missing": [], "closed": [], "cwd": "/w", "nics": ["lo", "eth0"], "unset": []}


@pytest.mark.parametrize(
    ("found", "message", "fix"),
    [
        ({"missing": ["/w", "/x"]}, "the container has no /w and 1 more", "--volume=/w:/w in `python`"),
        ({"closed": ["/j"]}, "the container cannot write to /j", "without `ro`"),
        ({"cwd": "/"}, "the container works in /, not in /w", "remove the option"),
        ({"nics": ["lo", "tap0"]}, "the container has no eth0, the training NIC", "--network=host"),
        (
            {"unset": ["MASTER_ADDR"]},
            "the environment does not arrive in the container: MASTER_ADDR",
            "--cleanenv",
        ),
    ],
)
def test_what_is_missing_inside_is_said_with_the_way_out(
    found: dict[str, Any], message: str, fix: str
) -> None:
    problem = problem_inside(PODMAN, "/w", "eth0", {**FINE, **found})
    assert problem is not None
    assert problem.message.startswith(message)
    assert fix in (problem.fix or "")
    assert problem_inside(PODMAN, "/w", "eth0", FINE) is None
