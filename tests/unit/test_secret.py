"""Secrets: where their values come from, what is refused without showing one, and where none appears."""

from __future__ import annotations

import copy
import json
import os
import pickle
import re
import signal
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from job_host import JobHost
from local_jobs import LocalMnt, make_python
from test_plan import FACTS, NODE1, NODE2, PROBED, plan
from waiting import PATIENCE, at_most, wait_for

from mnt.cli import cli
from mnt.errors import InventoryError, UsageError
from mnt.facts.fleet import FleetFacts
from mnt.inventory.loader import load
from mnt.inventory.model import Inventory, Network, SecretSource
from mnt.launch import secret as secrets
from mnt.launch.jobs import JobRecord
from mnt.launch.plan import LaunchOptions, plan_launch
from mnt.launch.run import Draft, Launch
from mnt.launch.secret import HIDDEN, Secret, open_to_others, read_env_file, unread
from mnt.launch.staging import node_specs
from mnt.network.decision import decide
from mnt.trial.plan import plan_trial

VALUE = "hf_c0ffee.token"
SOURCES = "expected {file: PATH}, {env: NAME} or {command: [PROGRAM, ARG..]}"


# --- in the inventory --------------------------------------------------------------------------------------


@pytest.fixture
def inventory_file(tmp_path: Path) -> Path:
    return tmp_path / "cluster.yaml"


def loaded(file: Path, text: str) -> Inventory:
    file.write_text("hosts: [node1]\n" + text)
    return load(file)


def test_where_a_value_comes_from(inventory_file: Path) -> None:
    text = "secrets:\n  A: {file: keys/a}\n  B: {file: ~/b}\n  C: {env: MINE}\n  D: {command: [pass, 0123]}\n"
    assert loaded(inventory_file, text).secrets == {
        "A": SecretSource(file=str(inventory_file.parent / "keys/a"), line=3),
        "B": SecretSource(file="~/b", line=4),
        "C": SecretSource(env="MINE", line=5),
        "D": SecretSource(command=("pass", "0123"), line=6),
    }
    assert loaded(inventory_file, "secrets:\n").secrets == {}


@pytest.mark.parametrize(
    ("written", "problem"),
    [
        (f'{{A: "{VALUE}"}}', f"secrets.A: {SOURCES}"),
        (f'{{A: {{"{VALUE}"}}}}', f"secrets.A: {SOURCES}"),
        (f'{{A: ["{VALUE}"]}}', f"secrets.A: {SOURCES}"),
        (f'{{A: {{value: "{VALUE}"}}}}', f"secrets.A: {SOURCES}"),
        (f'{{A: {{"{VALUE}": {{file: x}}}}}}', f"secrets.A: {SOURCES}"),
        (f'{{A: {{file: "-{VALUE}"}}}}', f"secrets.A: {SOURCES}"),
        (f'{{A: {{env: "{VALUE}"}}}}', f"secrets.A: {SOURCES}"),
        (f'{{A: {{command: "{VALUE}"}}}}', f"secrets.A: {SOURCES}"),
        (f'{{A: {{command: [["{VALUE}"]]}}}}', f"secrets.A: {SOURCES}"),
        (f'{{A: {{env: MINE, command: [echo, "{VALUE}"]}}}}', f"secrets.A: {SOURCES}"),
        ("{A: {command: []}}", f"secrets.A: {SOURCES}"),
        ("{A: }", f"secrets.A: {SOURCES}"),
        (f'{{"A={VALUE}": {{file: x}}}}', "secrets: this key is not a name for an environment variable"),
        (f'{{"{VALUE}"}}', "secrets: this key is not a name for an environment variable"),
        (f'["A={VALUE}"]', "secrets: expected a mapping"),
        (f'"{VALUE}"', "secrets: expected a mapping"),
        (f'{{A: {{file: "{VALUE}\\0"}}}}', "the text contains a character that cannot be passed"),
    ],
)
def test_a_value_in_the_inventory_is_refused_and_not_shown(
    inventory_file: Path, written: str, problem: str
) -> None:
    with pytest.raises(InventoryError) as refused:
        loaded(inventory_file, f"secrets: {written}")
    assert refused.value.line == 2
    assert problem in refused.value.message
    assert VALUE not in f"{refused.value.message} {refused.value.fix}"


@pytest.mark.parametrize(
    ("elsewhere", "place"),
    [
        ("env: {A: x}", "env.A"),
        ("defaults: {env: {A: x}}", "defaults.env.A"),
        ("groups: {g: {hosts: node1, env: {A: x}}}", "groups.g.env.A"),
    ],
)
def test_a_variable_has_one_place(inventory_file: Path, elsewhere: str, place: str) -> None:
    with pytest.raises(InventoryError) as refused:
        loaded(inventory_file, f"{elsewhere}\nsecrets: {{A: {{env: MINE}}}}")
    assert refused.value.message == f"{inventory_file}:3: secrets.A: {place}, in line 2, sets it too"


def test_a_variable_has_one_place_also_for_a_host(inventory_file: Path) -> None:
    inventory_file.write_text("hosts:\n  node1:\n    env: {A: x}\nsecrets:\n  A: {env: MINE}\n")
    with pytest.raises(InventoryError, match=re.escape(":5: secrets.A: hosts.node1.env.A, in line 3")):
        load(inventory_file)


def test_other_keys_of_the_same_name_are_no_variables(inventory_file: Path) -> None:
    text = "groups: {env: {hosts: node1}}\nrequire: {torch: '>=2'}\n"
    names = ("env", "hosts", "torch", "file")
    known = loaded(
        inventory_file, text + f"secrets: {{{', '.join(f'{name}: {{env: E}}' for name in names)}}}"
    )
    assert tuple(known.secrets) == names


def test_inventory_show_tells_only_the_kind(inventory_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touched = inventory_file.parent / "touched"
    command = json.dumps(["sh", "-c", f"touch {touched}; echo {VALUE}"])
    loaded(inventory_file, f"secrets: {{A: {{command: {command}}}, B: {{env: MINE}}, C: {{file: c}}}}")
    monkeypatch.setenv("MINE", VALUE)
    words = ["inventory", "show", "-i", str(inventory_file)]
    text, document = (CliRunner().invoke(cli, [*words, *more]) for more in ([], ["--json"]))
    assert (text.exit_code, document.exit_code) == (0, 0)
    assert json.loads(document.stdout)["secrets"] == {"A": "command", "B": "env", "C": "file"}
    assert "c0ffee" not in text.output + document.output
    assert not touched.exists()


# --- the type ----------------------------------------------------------------------------------------------


def test_a_secret_is_not_shown_by_accident() -> None:
    secret = Secret(VALUE)
    assert secret.reveal() == VALUE
    assert [str(secret), repr(secret), f"{secret}", f"{secret!r}", f"{[secret]}"] == [
        *[HIDDEN] * 4,
        f"[{HIDDEN}]",
    ]
    for spill in (json.dumps, pickle.dumps, copy.copy, copy.deepcopy, vars):
        with pytest.raises(TypeError):
            spill(secret)
    assert VALUE not in repr(LaunchOptions(secrets={"A": secret}))


def test_a_secret_is_read_once_and_only_if_it_is_revealed() -> None:
    reads = iter([VALUE])
    secret = Secret(lambda: next(reads))
    assert str(secret) == HIDDEN
    assert (secret.reveal(), secret.reveal()) == (VALUE, VALUE)


# --- the sources -------------------------------------------------------------------------------------------


def read(inventory_file: Path, **source: Any) -> str:
    inventory = Inventory("c", str(inventory_file), (), secrets={"A": SecretSource(line=7, **source)})
    return unread(inventory)["A"].reveal()


def refusal(inventory_file: Path, **source: Any) -> str:
    """What is said of a source from which no value comes."""
    with pytest.raises(InventoryError) as refused:
        read(inventory_file, **source)
    error = refused.value
    assert error.message.startswith(f"{inventory_file}:7: secrets.A: ")
    assert error.fix
    assert "c0ffee" not in f"{error.message} {error.fix} {error.__context__ and error.__suppress_context__}"
    assert error.__cause__ is None
    return error.message.partition("secrets.A: ")[2]


def shell(text: str) -> tuple[str, ...]:
    return ("sh", "-c", text)


def make_file(path: Path, data: bytes, mode: int = 0o600) -> str:
    path.write_bytes(data)
    path.chmod(mode)
    return str(path)


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b"token", "token"),
        (b"token\n", "token"),
        (b"token\n\n", "token\n"),
        (b" t k \r\n", " t k \r"),
        ("schlüssel\n".encode(), "schlüssel"),
        (b"x" * 131_068, "x" * 131_068),
    ],
)
def test_the_value_of_a_file_or_of_a_command(inventory_file: Path, data: bytes, value: str) -> None:
    file = make_file(inventory_file.parent / "token", data)
    assert read(inventory_file, file=file) == value
    assert read(inventory_file, command=("cat", file)) == value


def test_the_value_of_a_variable_is_as_it_is(inventory_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINE", f"{VALUE}\n")
    assert read(inventory_file, env="MINE") == f"{VALUE}\n"


def test_a_file_in_the_home_directory(inventory_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_file(inventory_file.parent / "token", b"mine")
    monkeypatch.setenv("HOME", str(inventory_file.parent))
    assert read(inventory_file, file="~/token") == "mine"


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "the value is empty"),
        (b"\n", "the value is empty"),
        (b"c0ffee\0x", "the value contains a NUL byte"),
        (b"c0ffee\xff", "the value is not UTF-8"),
        (b"c0ffee\xed\xa0\x80", "the value is not UTF-8"),
        (b"c0ffee" + b"x" * 131_072, "the value is longer than 131072 bytes"),
    ],
)
def test_a_value_that_no_job_can_have(
    inventory_file: Path, data: bytes, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = make_file(inventory_file.parent / "token", data)
    assert refusal(inventory_file, file=file) == problem
    printed = refusal(inventory_file, command=("cat", file))
    assert printed in (problem, "it prints more than 131072 bytes")
    if b"\0" not in data and data != b"\n":  # execve(2) passes no NUL
        monkeypatch.setitem(os.environ, "MINE", os.fsdecode(data[:100_000]))
        if len(data) < 100_000:
            assert refusal(inventory_file, env="MINE") == problem


@pytest.mark.parametrize("mode", [0o604, 0o640, 0o620, 0o602, 0o610, 0o644, 0o666])
def test_a_file_that_is_open_to_others_is_refused(inventory_file: Path, mode: int) -> None:
    file = make_file(inventory_file.parent / "token", VALUE.encode(), mode)
    assert refusal(inventory_file, file=file) == f"{file} is open to other users (mode {mode:04o})"


def test_a_file_of_another_user_is_refused(inventory_file: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can make a file of another user")
    file = make_file(inventory_file.parent / "token", VALUE.encode())
    os.chown(file, 65534, 65534)
    assert refusal(inventory_file, file=file) == f"{file} belongs to uid 65534, not to you or root"
    link = inventory_file.parent / "link"
    link.symlink_to(file)
    assert refusal(inventory_file, file=str(link)) == f"{link} belongs to uid 65534, not to you or root"


def test_what_is_no_file_is_refused_at_once(inventory_file: Path) -> None:
    pipe = inventory_file.parent / "pipe"
    os.mkfifo(pipe, 0o600)
    with at_most(PATIENCE):
        assert refusal(inventory_file, file=str(pipe)) == f"{pipe} is not a file"
    assert refusal(inventory_file, file=str(pipe.parent)) == f"{pipe.parent} cannot be read: Is a directory"
    missing = str(pipe.parent / "none")
    assert refusal(inventory_file, file=missing) == f"{missing} cannot be read: No such file or directory"
    assert refusal(inventory_file, env="MNT_NO_SUCH") == "MNT_NO_SUCH is not set in your environment"


def test_a_command_gets_no_shell_no_input_and_no_terminal(inventory_file: Path) -> None:
    assert read(inventory_file, command=("echo", "$HOME;", "`id`", "*")) == "$HOME; `id` *"
    assert read(inventory_file, command=("sh", "-c", 'echo "$(cat)$(basename $PWD)"')) == (
        inventory_file.parent.name
    )
    own_session = "import os; print(os.getsid(0) == os.getpid())"  # so it has no terminal
    assert read(inventory_file, command=(sys.executable, "-c", own_session)) == "True"


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        (shell("echo c0ffee; echo locked >&2; exit 3"), "sh: exit code 3: locked"),
        (shell("echo c0ffee; exit 1"), "sh: exit code 1: it does not say why"),
        (shell("echo c0ffee; kill -9 $$"), "sh: killed by signal 9: it does not say why"),
        (("mnt-no-such-program", "c0ffee"), "mnt-no-such-program cannot be run: No such file or directory"),
        (("./none", "c0ffee"), "./none cannot be run: No such file or directory"),
        (("yes", "c0ffee"), "it prints more than 131072 bytes"),
    ],
)
def test_a_command_that_fails(inventory_file: Path, command: tuple[str, ...], problem: str) -> None:
    with at_most(PATIENCE):
        assert refusal(inventory_file, command=command) == problem


def test_only_the_end_of_what_a_command_says_is_kept(inventory_file: Path) -> None:
    said = refusal(inventory_file, command=shell("seq 100000 >&2; exit 1"))
    assert said.endswith("99999\n100000")
    assert len(said) < 3000


@pytest.mark.parametrize("script", ["sleep 600; echo c0ffee", "exec >&- 2>&-; sleep 600", "yes >&2"])
def test_a_command_that_does_not_end_is_killed_with_its_children(
    inventory_file: Path, script: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(secrets, "_PATIENCE", 0.5)
    pids = inventory_file.parent / "pids"
    script = f"echo $$ >{pids}; {script}"
    with at_most(PATIENCE):
        assert refusal(inventory_file, command=shell(script)) == "sh: no end within 0.5 s"
    group = int(pids.read_text())
    wait_for(lambda: not any_in_group(group))


def any_in_group(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def test_an_interrupt_ends_the_command(inventory_file: Path) -> None:
    pid = inventory_file.parent / "pid"
    main_thread = threading.main_thread().ident
    assert main_thread is not None

    def interrupt() -> None:
        wait_for(lambda: pid.exists() and pid.read_text())
        signal.pthread_kill(main_thread, signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with at_most(PATIENCE), pytest.raises(KeyboardInterrupt):
        read(inventory_file, command=shell(f"echo $$ >{pid}; sleep 600; echo c0ffee"))
    wait_for(lambda: not any_in_group(int(pid.read_text())))


# --- environment files -------------------------------------------------------------------------------------


def env_file(file: Path, data: bytes, **caller: str) -> dict[str, str]:
    file.write_bytes(data)
    return {name: secret.reveal() for name, secret in read_env_file(file, caller).items()}


def test_an_environment_file_is_read_as_docker_does(tmp_path: Path) -> None:
    text = (
        "\ufeff# a comment\n\n   \n"
        "A=1\nB=\"quoted\"\nC='single' \nD=$HOME `id` # no comment\n  E=x=y\nF=\nA=2\nG=a\\\nWINDOWS=w\r\n"
        "MINE\n\t# indented\nH=\u2028line\x0bfeed\n_1=é"
    )
    assert env_file(tmp_path / "env", text.encode(), MINE="own") == {
        "A": "2",
        "B": '"quoted"',
        "C": "'single' ",
        "D": "$HOME `id` # no comment",
        "E": "x=y",
        "F": "",
        "G": "a\\",
        "WINDOWS": "w",
        "MINE": "own",
        "H": "\u2028line\x0bfeed",
        "_1": "é",
    }


@pytest.mark.parametrize(
    ("data", "line", "problem"),
    [
        (b"A=1\nc0ffee", 2, "not NAME=VALUE, nor a variable of your environment"),
        (b"KEY=-----BEGIN\nc0ffee/+==\n", 2, "not a variable"),
        (b"c0ffee b=1", 1, "not a variable"),
        (b"export c0ffee=1", 1, "not a variable"),
        (b"1c0ffee=x", 1, "not a variable"),
        (b"=c0ffee", 1, "not a variable"),
        (b"\n\nA=c0ffee\0", 3, "the value contains a NUL byte"),
        (b"A=c0ffee\xff", 1, "the value is not UTF-8"),
        (b"\xffc0ffee=x", 1, "not a variable"),
        (b"#\nA=c0ffee" + b"x" * 131_072, 2, "the value is longer than 131072 bytes"),
    ],
)
def test_a_line_that_is_wrong_is_named_and_not_shown(
    tmp_path: Path, data: bytes, line: int, problem: str
) -> None:
    with pytest.raises(UsageError) as refused:
        env_file(tmp_path / "env", data)
    assert refused.value.message == f"{tmp_path / 'env'}:{line}: {problem}"
    assert "c0ffee" not in f"{refused.value.fix}"


def test_environment_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        read_env_file(tmp_path / "none", {})
    with pytest.raises(UsageError, match="cannot be read: Is a directory"):
        read_env_file(tmp_path, {})
    with at_most(PATIENCE), pytest.raises(UsageError, match="has more than 1048576 bytes"):
        read_env_file("/dev/zero", {})


def test_which_files_are_open_to_others(tmp_path: Path) -> None:
    assert [open_to_others(make_file(tmp_path / "env", b"", mode)) for mode in (0o600, 0o640, 0o602)] == [
        False,
        True,
        True,
    ]
    assert not open_to_others("/dev/null")


# --- the plan ----------------------------------------------------------------------------------------------


def planned(sources: dict[str, SecretSource] | None = None, **options: Any) -> Any:
    hosts = (replace(NODE1, env={"PLAIN": "seen", "FROM_FILE": "weak"}), NODE2)
    inventory = Inventory("c", "c.yaml", hosts, network=Network(mode="tcp"), secrets=sources or {})
    decided = decide(FleetFacts(inventory, hosts, PROBED))
    return plan_launch(inventory, hosts, decided, FACTS, LaunchOptions(**options), JobRecord("j"))


def values(plan: Any) -> dict[str, str]:
    return {name: secret.reveal() for name, secret in plan.secrets.items()}


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
    assert not got.secrets.keys() & got.nodes[0].env.keys()


def test_neither_document_nor_spec_nor_warning_has_a_value() -> None:
    got = planned(secrets={"HF_TOKEN": Secret(VALUE), "NCCL_SOCKET_IFNAME": Secret(VALUE)})
    spec = node_specs(got, secret="s", created=1.0)["node1"]
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
    launch = Launch(None, got, (), {})  # type: ignore[arg-type]
    assert not touched.exists()
    assert values(Draft(launch, (), None).launch().plan) == {"A": VALUE}
    assert touched.exists()
    unreadable = Launch(None, planned({"A": SecretSource(env="MNT_NO_SUCH", line=3)}), (), {})  # type: ignore[arg-type]
    with pytest.raises(InventoryError, match=r"c.yaml:3: secrets.A: MNT_NO_SUCH is not set"):
        Draft(unreadable, (), None).launch()


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
    assert plan_trial(facts, decide(facts), hosts, directories, "x", job="j").secrets == {}
    assert plan().secrets == {}


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
    host.call("spawn", job=spec["job"], peer=None, wait_for_port=False, timeout=PATIENCE)
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
    answer = host.call("spawn", job=spec["job"], peer=None, wait_for_port=False, timeout=PATIENCE)
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
