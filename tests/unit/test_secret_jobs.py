"""Secrets in a launch: in its plan, on a host, and in a whole job on this machine."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from job_host import JobHost
from local_jobs import LocalMnt, make_python
from test_plan import FACTS, NODE1, NODE2, PROBED, plan
from test_secret import VALUE, make_file, shell
from waiting import wait_for

from mnt.errors import InventoryError, NeverStarted
from mnt.facts.fleet import FleetFacts
from mnt.inventory.model import Inventory, Network, SecretSource
from mnt.launch.jobs import JobRecord
from mnt.launch.plan import LaunchOptions, plan_launch
from mnt.launch.run import Draft, Launch
from mnt.launch.secret import HIDDEN, Secret
from mnt.launch.staging import node_specs
from mnt.network.decision import decide
from mnt.trial.plan import plan_trial

# --- the plan ----------------------------------------------------------------------------------------------


def planned(sources: dict[str, SecretSource] | None = None, **options: Any) -> Any:
    hosts = (replace(NODE1, env={"PLAIN": "seen", "FROM_FILE": "weak"}), NODE2)
    inventory = Inventory("c", "c.yaml", hosts, network=Network(mode="tcp"), secrets=sources or {})
    decided = decide(FleetFacts(inventory, hosts, PROBED))
    return plan_launch(inventory, hosts, decided, FACTS, LaunchOptions(**options), JobRecord("j"))


def launched(plan: Any) -> Launch:
    return Draft(Launch(None, plan, (), {}), (), None).launch()  # type: ignore[arg-type]


def values(plan: Any) -> dict[str, str]:
    launch = launched(plan)
    assert launch.plan.secret_names == plan.secret_names == sorted(launch.plan.secrets)
    return {name: secret.reveal() for name, secret in launch.plan.secrets.items()}


def test_precedence_of_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ONE", "TWO", "THREE"):
        monkeypatch.setenv(name, f"inventory's {name}")
    sources = {name: SecretSource(env=name) for name in ("ONE", "TWO", "THREE")}
    of_file = {name: Secret(f"file's {name}") for name in ("TWO", "FROM_FILE", "FOUR")}
    got = planned(sources, secrets=of_file, env={"THREE": "own", "FOUR": "own", "FIVE": "own"})
    assert values(got) == {
        "ONE": "inventory's ONE",
        "TWO": "file's TWO",
        "THREE": "own",
        "FROM_FILE": "file's FROM_FILE",
        "FOUR": "own",
    }
    assert got.nodes[0].env["PLAIN"] == "seen"
    assert got.nodes[0].env["FIVE"] == "own"
    assert not set(got.secret_names) & got.nodes[0].env.keys()


def test_neither_document_nor_spec_nor_warning_has_a_value() -> None:
    got = planned(secrets={"HF_TOKEN": Secret(VALUE), "NCCL_SOCKET_IFNAME": Secret(VALUE)})
    spec = node_specs(got, None, secret="s", created=1.0)["node1"]
    assert spec["secrets"] == ["HF_TOKEN", "NCCL_SOCKET_IFNAME"]
    assert not set(spec["secrets"]) & spec["env"].keys()
    document = got.document()
    assert document["nodes"][1]["env"]["HF_TOKEN"] == HIDDEN
    assert got.warnings == (
        "node1: NCCL_SOCKET_IFNAME=***, a secret, overrides the computed =eth0",
        "node2: NCCL_SOCKET_IFNAME=***, a secret, overrides the computed =enp26s0np0",
    )
    assert "c0ffee" not in json.dumps([document, spec]) + repr(got)


def test_a_plan_reads_nothing_and_a_launch_all_before_it_starts(tmp_path: Path) -> None:
    touched = tmp_path / "touched"
    sources = {"A": SecretSource(command=shell(f"touch {touched}; echo {VALUE!r}"))}
    got = planned(sources)
    assert "c0ffee" not in json.dumps(got.document()) + repr(got)
    refused = Draft(Launch(None, got, (), {}), (), NeverStarted("not fit"))  # type: ignore[arg-type]
    with pytest.raises(NeverStarted):
        refused.launch()
    assert not touched.exists()
    assert values(got) == {"A": VALUE}
    assert touched.exists()
    unreadable = planned({"A": SecretSource(env="MNT_NO_SUCH", line=3)})
    with pytest.raises(InventoryError, match=r"c.yaml:3: secrets.A: MNT_NO_SUCH is not set"):
        launched(unreadable)


def test_a_launch_reveals_nothing_before_it_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINE", VALUE)
    revealed: list[str] = []
    monkeypatch.setattr(Secret, "reveal", lambda self: revealed.append("x"))
    got = planned({"A": SecretSource(env="MINE")}, secrets={"B": Secret(VALUE)}, env={"B": "own"})
    launched(got)
    assert not revealed


def test_a_value_of_the_command_line_is_not_read_elsewhere(tmp_path: Path) -> None:
    sources = {"A": SecretSource(command=("false",)), "B": SecretSource(env="MNT_NO_SUCH")}
    got = planned(sources, env={"A": "own"}, secrets={"B": Secret("file's")})
    assert values(got) == {"A": "own", "B": "file's"}


def test_a_trial_gets_no_secrets() -> None:
    hosts = (NODE1, NODE2)
    sources = {"A": SecretSource(command=("false",))}
    inventory = Inventory("c", "c.yaml", hosts, network=Network(mode="tcp"), secrets=sources)
    facts = FleetFacts(inventory, hosts, PROBED)
    directories = {host.name: "/tmp/trial" for host in hosts}
    assert plan_trial(facts, decide(facts), hosts, directories, "x", job="j").secret_names == []
    assert plan().secret_names == []


# --- on a host ---------------------------------------------------------------------------------------------

SHOW_TOKEN = """
import glob, os, time
print("TOKEN", os.environ.get("TOKEN"), os.environ.get("MNT_JOB"), flush=True)
print("FILES", glob.glob("/tmp/mnt-*/" + os.environ["MNT_JOB"] + "/*/secrets.json"), flush=True)
time.sleep(600)
"""


def files_with(text: str, *directories: Path | str) -> set[str]:
    """The files below some directories whose content or name has the text."""
    found = set()
    for directory in directories:
        for path in Path(directory).rglob("*"):
            if text in path.name or (path.is_file() and text.encode() in path.read_bytes()):
                found.add(str(path))
    return found


def test_a_secret_is_in_one_local_file_until_the_job_starts(host: JobHost) -> None:
    host.script(SHOW_TOKEN)
    spec = host.spec(secrets=["TOKEN", "MNT_JOB"], env={"TOKEN": "weak"})
    host.jobs.append(spec["job"])
    host.call("stage", spec=spec, secrets={"TOKEN": "c0ffee ü", "MNT_JOB": "c0ffee"})
    local = host.local(spec["job"])
    assert files_with("c0ffee", host.jobs_dir, local) == {str(local / "secrets.json")}
    assert (local / "secrets.json").stat().st_mode & 0o777 == 0o600
    assert (local / "secrets.json").stat().st_uid == host.uid
    assert host.entry(spec["job"])["state"] == "pending"
    host.call("spawn", job=spec["job"], peer=None)
    wait_for(lambda: "FILES" in host.output(spec["job"]))
    assert host.output(spec["job"]) == f"TOKEN c0ffee ü {spec['job']}\nFILES []\n"
    (Path(host.jobs_dir) / spec["job"] / host.name / "output.log").unlink()
    assert files_with("c0ffee", host.jobs_dir, local) == set()
    assert host.stop(spec["job"])["status"] == "stopped"


def test_a_staged_job_that_is_stopped_leaves_no_secret(host: JobHost) -> None:
    host.script(SHOW_TOKEN)
    spec = host.spec(secrets=["TOKEN"])
    host.call("stage", spec=spec, secrets={"TOKEN": "c0ffee"})
    assert host.stop(spec["job"])["status"] == "none"
    assert not host.local(spec["job"]).parent.exists()


def test_a_job_does_not_start_without_its_secrets(host: JobHost) -> None:
    host.script(SHOW_TOKEN)
    spec = host.spec(secrets=["TOKEN"])
    host.call("stage", spec=spec, secrets={"TOKEN": "c0ffee"})
    (host.local(spec["job"]) / "secrets.json").unlink()
    answer = host.call("spawn", job=spec["job"], peer=None)
    assert answer["refused"]["message"].startswith("the job's secrets are not in /tmp/mnt-")
    assert not host.local(spec["job"]).parent.exists()
    assert os.listdir(host.jobs_dir) == []


def test_an_interpreter_on_the_path_of_a_secret_is_found(host: JobHost) -> None:
    host.script(SHOW_TOKEN)
    spec = host.spec(secrets=["PATH"], argv=["my-python", "train.py"])
    (host.directory / "my-python").symlink_to(host.python)
    host.jobs.append(spec["job"])
    assert "refused" not in host.call("stage", spec=spec, secrets={"PATH": str(host.directory)})
    assert "refused" in host.call("check", spec=spec)
    host.stop(spec["job"])


# --- a launch on this machine ------------------------------------------------------------------------------

WAIT_FOR_GO = """
import os, time
print("token has", len(os.environ["HF_TOKEN"]), os.environ["EMPTY"] == "", flush=True)
while not os.path.exists("go"):
    time.sleep(0.05)
"""


@pytest.fixture
def local(tmp_path: Path) -> Iterator[LocalMnt]:
    mnt = LocalMnt(tmp_path, make_python(tmp_path / "python"))
    yield mnt
    (mnt.cwd / "go").touch()
    mnt.clean_up()


def command_lines() -> str:
    """Those of all processes of this machine."""
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            lines.append(path.read_bytes().decode("utf-8", "replace"))
        except OSError:  # it has ended
            continue
    return "\n".join(lines)


def test_a_launch_with_an_environment_file(local: LocalMnt) -> None:
    local.script(WAIT_FOR_GO)
    file = make_file(local.cwd / "env", f"HF_TOKEN={VALUE}\nEMPTY=\n".encode())
    words = ("--env-file", file, "train.py")
    dry, document = local.launch("--dry-run", *words), local.launch("--dry-run", "--json", *words)
    assert (dry.returncode, document.returncode) == (0, 0), dry.stderr + document.stderr
    assert "  export HF_TOKEN='***'" in dry.stdout
    assert json.loads(document.stdout)["nodes"][0]["env"]["HF_TOKEN"] == HIDDEN
    started = local.launch("--json", "--detach", *words)
    assert started.returncode == 0, started.stderr
    job = json.loads(started.stdout)["job"]
    wait_for(lambda: f"token has {len(VALUE)} True" in local("logs").stdout)
    assert VALUE not in command_lines()
    said = [dry, document, started, *(local(*more) for more in (["status"], ["status", "--json"], ["logs"]))]
    (local.cwd / "env").unlink()
    assert files_with(VALUE, local.home, local.cwd, f"/tmp/mnt-{os.getuid()}/{job}") == set()
    (local.cwd / "go").touch()
    local.ended(job)
    said += [local("status", job), local("logs", job), local("stop", job)]
    assert VALUE not in "".join(done.stdout + done.stderr for done in said)
    assert files_with(VALUE, local.home, local.cwd) == set()


def test_a_file_that_others_can_read_is_a_warning(local: LocalMnt) -> None:
    local.script("print('done')")
    file = make_file(local.cwd / "env", b"HF_TOKEN=c0ffee", 0o644)
    done = local.launch("--env-file", file, "--env", "HF_TOKEN=own", "--dry-run", "train.py")
    assert done.returncode == 0, done.stderr
    assert f"warning: {file} is open to other users" in done.stderr
    assert "export HF_TOKEN='***'" in done.stdout
    wrong = local.launch("--env-file", make_file(local.cwd / "env", b"A=1\nc0ffee x"), "train.py")
    assert wrong.returncode == 2
    assert f"{file}:2: not a variable" in wrong.stderr
    assert "c0ffee" not in wrong.stderr
