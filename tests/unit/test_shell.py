"""The command of `mnt shell`, as login shells pass it on to sh; the login: tests/lab/test_launch.py."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from test_plan import plan

from mnt.launch.secret import Secret
from mnt.launch.shell import shell_of, shell_without_plan

SHOW = """#!/bin/sh
pwd
env
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with a shell that shows where it runs, and with what."""
    show = tmp_path / "show"
    show.write_text(SHOW)
    show.chmod(0o700)
    return tmp_path


def opened(command: str, home: Path, login: str = "/bin/sh") -> tuple[str, dict[str, str]]:
    """The directory and the environment of the shell that a login shell opens for the command."""
    env = {"PATH": "/usr/bin:/bin", "HOME": str(home), "SHELL": str(home / "show")}
    done = subprocess.run(
        [login, "-c", command], env=env, capture_output=True, text=True, check=True, cwd="/"
    )
    directory, *lines = done.stdout.splitlines()
    return directory, dict(line.split("=", 1) for line in lines if "=" in line)


@pytest.mark.parametrize("shell", ["sh", "bash", "zsh", "fish", "tcsh", "ksh"])
def test_it_is_where_a_job_runs_with_a_jobs_variables_and_no_secret(home: Path, shell: str) -> None:
    login = shutil.which(shell)
    if login is None:
        pytest.skip(f"{shell} is not installed")
    tree = home / "a tree's"
    tree.mkdir()
    planned = plan(env={"ODD": "a 'b' $HOME `x` !", "PYTHONPATH": "/own"}, secrets={"TOKEN": Secret("x")})
    node = replace(planned.nodes[1], cwd=str(tree), python_path=(str(tree),))
    directory, env = opened(shell_of(node), home, login)
    assert directory == str(tree)
    assert env["PATH"] == "/opt/env/bin:/usr/bin:/bin"
    assert (env["GLOO_SOCKET_IFNAME"], env["ODD"]) == ("enp26s0np0", "a 'b' $HOME `x` !")
    assert env["PYTHONPATH"] == f"{tree}:/own"
    assert "TOKEN" not in env


def test_without_a_plan_it_is_where_the_host_says_else_in_the_home(home: Path) -> None:
    (home / "a work's").mkdir()
    for place, directory in ((home / "a work's", home / "a work's"), (home / "gone", home), (None, home)):
        told = None if place is None else str(place)
        found, env = opened(shell_without_plan(told, {"A": "1"}, ["~/env/bin"]), home)
        assert found == str(directory)
        assert (env["A"], env["PATH"].split(":")[0]) == ("1", f"{home}/env/bin")


def test_a_release_that_is_gone(home: Path) -> None:
    gone = replace(plan().nodes[0], cwd="/nonexistent")
    assert opened(shell_of(gone), home)[0] == str(home)
