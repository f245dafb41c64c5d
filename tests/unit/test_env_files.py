"""`.deepspeed_env`, as DeepSpeed's launcher finds it: read with that engine, or refused by name."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mnt.errors import UsageError
from mnt.launch.engines import ENGINES
from mnt.launch.env_files import with_engine_file
from mnt.launch.plan import LaunchOptions
from mnt.launch.secret import Secret

DEEPSPEED = LaunchOptions(engine=ENGINES["deepspeed"])


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """The home and the working directory."""
    home, cwd = tmp_path / "home", tmp_path / "tree"
    home.mkdir()
    cwd.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(cwd)
    return home, cwd


def values(options: LaunchOptions) -> dict[str, str]:
    return {name: secret.reveal() for name, secret in options.secrets.items()}


def test_the_tree_overrides_the_home_and_the_command_line_both(places: tuple[Path, Path]) -> None:
    home, cwd = places
    (home / ".deepspeed_env").write_text("# mine\nA=home\nB=home\nC=home\nMINE\n\n")
    (cwd / ".deepspeed_env").write_text("B=tree\nC=tree\n")
    given = LaunchOptions(engine=ENGINES["deepspeed"], secrets={"C": Secret("file")})
    got = with_engine_file(given, {"MINE": "own"}, here=False)
    assert values(got) == {"A": "home", "B": "tree", "C": "file", "MINE": "own"}
    assert got.notes == (f"{home}/.deepspeed_env sets A, B, C, MINE", f"{cwd}/.deepspeed_env sets B, C")
    assert got.unread is None


def test_a_tree_takes_no_value_of_the_caller(places: tuple[Path, Path]) -> None:
    """The project may be somebody else's, and its code gets the variables."""
    file = places[1] / ".deepspeed_env"
    file.write_text("A=1\nHF_TOKEN\n")
    caller = {"HF_TOKEN": "head-only"}
    for environment in (caller, {}):
        with pytest.raises(UsageError) as caught:
            with_engine_file(DEEPSPEED, environment, here=True)
        assert caught.value.message.startswith(f"{file}:2: not NAME=VALUE: it would take the value")
        assert "--env-file FILE" in (caught.value.fix or "")
        assert "HF_TOKEN" not in caught.value.message, "it may be the rest of a value"
    for given in ({"secrets": {"HF_TOKEN": Secret("given")}}, {"env": {"HF_TOKEN": "given"}}):  # on purpose
        got = with_engine_file(LaunchOptions(engine=ENGINES["deepspeed"], **given), caller, here=True)  # type: ignore[arg-type]
        assert {**values(got), **got.env}["HF_TOKEN"] == "given"


@pytest.mark.parametrize("target", ["../home/.env", ".env", "/proc/self/environ"])
def test_a_link_in_a_tree_is_not_followed(places: tuple[Path, Path], target: str) -> None:
    home, cwd = places
    (home / ".env").write_text("AWS_SECRET_ACCESS_KEY=topsecret\n")
    (cwd / ".env").write_text("A=1\n")
    (cwd / ".deepspeed_env").symlink_to(target)
    with pytest.raises(UsageError, match=r"/\.deepspeed_env is a link") as caught:
        with_engine_file(DEEPSPEED, {}, here=True)
    assert "DS_ENV_FILE= mnt launch --env-file" in (caught.value.fix or "")
    (cwd / "sub").symlink_to(home)
    with pytest.raises(UsageError, match=r"/sub/\.env is a link"):
        with_engine_file(DEEPSPEED, {"DS_ENV_FILE": "sub/.env"}, here=True)


def test_what_the_user_has_named_or_made_may_be_a_link(
    places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    home = places[0]
    (home / "dotfiles").write_text("A=1\nMINE\n")
    (home / ".deepspeed_env").symlink_to("dotfiles")
    wanted = {"A": "1", "MINE": "own"}
    assert values(with_engine_file(DEEPSPEED, {"MINE": "own"}, here=False)) == wanted
    caller = {"MINE": "own", "DS_ENV_FILE": str(home / ".deepspeed_env")}
    assert values(with_engine_file(DEEPSPEED, caller, here=False)) == wanted
    monkeypatch.chdir(home)
    assert values(with_engine_file(DEEPSPEED, {"MINE": "own"}, here=False)) == wanted


def test_only_deepspeed_reads_it(places: tuple[Path, Path]) -> None:
    (places[1] / ".deepspeed_env").write_text("A=1\n")
    options = LaunchOptions()
    assert with_engine_file(options, {}, here=False) is options


@pytest.mark.parametrize(
    ("name", "here", "unread"),
    [
        (None, False, ".deepspeed_env"),
        (None, True, None),
        ("ds.env", False, "ds.env"),
        ("/etc/ds.env", False, None),
        ("", False, None),
    ],
)
def test_a_file_of_the_tree_that_was_not_read_is_the_hosts_to_refuse(
    places: tuple[Path, Path], name: str | None, here: bool, unread: str | None
) -> None:
    caller = {} if name is None else {"DS_ENV_FILE": name}
    got = with_engine_file(DEEPSPEED, caller, here=here)
    assert (got.unread, values(got)) == (unread, {})


def test_another_name(places: tuple[Path, Path]) -> None:
    (places[1] / "ds.env").write_text("A=1\n")
    (places[1] / ".deepspeed_env").write_text("A=2\n")
    assert values(with_engine_file(DEEPSPEED, {"DS_ENV_FILE": "ds.env"}, here=False)) == {"A": "1"}


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('A="a b"', "the value of A has a quote"),
        ("A='x'", "the value of A has a quote"),
        ("A=$HOME/x", "the value of A has a quote"),
        ("A=`hostname`", "the value of A has a quote"),
        ("A=a\\\\b", "the value of A has a quote"),
        ("export A=1", ".deepspeed_env:1: not a variable"),
        ("A", ".deepspeed_env:1: not NAME=VALUE"),
    ],
)
def test_what_needs_a_shell_is_refused_by_name(places: tuple[Path, Path], line: str, problem: str) -> None:
    (places[1] / ".deepspeed_env").write_text(f"{line}\n")
    with pytest.raises(UsageError) as caught:
        with_engine_file(DEEPSPEED, {}, here=True)
    assert problem in caught.value.message
    assert str(places[1]) in caught.value.message
    assert caught.value.fix


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file to another user")
@pytest.mark.parametrize("mode", [0o600, 0o666])
def test_a_file_of_another_user(places: tuple[Path, Path], mode: int) -> None:
    """In a directory like /tmp, anybody can make one."""
    file = places[1] / ".deepspeed_env"
    file.write_text("PYTHONPATH=/tmp/evil\n")
    file.chmod(mode)
    if mode == 0o600:
        os.chown(file, 64999, 64999)
    with pytest.raises(UsageError) as caught:
        with_engine_file(DEEPSPEED, {}, here=False)
    assert caught.value.message.startswith(f"{file} may be another user's: ")
    assert "start it in a directory of your own" in (caught.value.fix or "")


def test_a_directory_of_all_users(places: tuple[Path, Path]) -> None:
    (places[1] / ".deepspeed_env").write_text("A=1\n")
    places[1].chmod(0o777)
    with pytest.raises(UsageError, match="all users can write to"):
        with_engine_file(DEEPSPEED, {}, here=False)
