"""Secrets: where their values come from, what is refused without showing one, and where none appears."""

from __future__ import annotations

import copy
import json
import os
import pickle
import re
import signal
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from waiting import PATIENCE, at_most, wait_for

from mnt.cli import cli
from mnt.errors import InventoryError, UsageError
from mnt.inventory.loader import load
from mnt.inventory.model import Inventory, SecretSource
from mnt.launch import secret as secrets
from mnt.launch.plan import LaunchOptions
from mnt.launch.secret import HIDDEN, Secret, check_private, read_env_file, read_secrets

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


_scalar = st.sampled_from(
    [VALUE, f"-{VALUE}", f"{VALUE}\n{VALUE}", f"{VALUE} x", "", 5, None, f"{VALUE}\x7f"]
)
_word = st.sampled_from(["A", "file", "env", "command", VALUE, f"{VALUE}=x"])
_anything = st.recursive(_scalar, lambda inner: st.lists(inner) | st.dictionaries(_word, inner), max_leaves=6)


@given(_anything)
def test_whatever_is_written_there_is_not_shown(written: Any) -> None:
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(yaml.safe_dump({"hosts": ["node1"], "secrets": written}))
        file.flush()
        try:
            shown = " ".join(load(file.name).secrets)
        except InventoryError as refused:
            shown = f"{refused.message} {refused.fix}"
    assert VALUE not in shown


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


# --- the sources -------------------------------------------------------------------------------------------


def read(inventory_file: Path, **source: Any) -> str:
    return read_secrets(str(inventory_file), {"A": SecretSource(line=7, **source)})["A"].reveal()


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
        (b" t k \r\n", " t k "),
        (b"t\r", "t\r"),
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


def test_the_fix_names_the_file_that_it_changes(inventory_file: Path) -> None:
    """Whoever wrote the inventory may have made the link."""
    file = make_file(inventory_file.parent / "token", VALUE.encode(), 0o644)
    link = inventory_file.parent / "link"
    link.symlink_to(file)
    with pytest.raises(UsageError) as refused:
        check_private(link, os.stat(link))
    assert refused.value.fix == f"chmod 600 {os.path.realpath(file)}"


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
        assert refusal(inventory_file, file=str(pipe)) == f"{pipe} cannot be read: not a regular file"
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


@given(st.lists(st.sampled_from([b"A", b"=", b"c0ffee", b"\n", b"\r", b" ", b"#", b"\0", b"\xff", b"'"])))
def test_any_environment_file_is_read_or_refused_without_its_text(parts: list[bytes]) -> None:
    with tempfile.NamedTemporaryFile() as file:
        file.write(b"".join(parts))
        file.flush()
        try:
            variables = read_env_file(file.name, {"A": "own"})
        except UsageError as refused:
            text = f"{refused.message} {refused.fix}"
        else:
            text = repr(variables.values())
    assert "c0ffee" not in text


def test_environment_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        read_env_file(tmp_path / "none", {})
    with pytest.raises(UsageError, match="cannot be read: Is a directory"):
        read_env_file(tmp_path, {})
    with at_most(PATIENCE), pytest.raises(UsageError, match="cannot be read: larger than 1,048,576 bytes"):
        read_env_file("/dev/zero", {})


def test_an_environment_file_may_be_a_pipe(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.write(writing, b"A=1\n")
    os.close(writing)
    assert read_env_file(f"/dev/fd/{reading}", {})["A"].reveal() == "1"
    check_private(f"/dev/fd/{reading}", os.stat(f"/dev/fd/{reading}"))
    check_private("/dev/null", os.stat("/dev/null"))
    os.close(reading)
