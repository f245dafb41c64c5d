"""The playbooks, without a host: their syntax and style, their list, and their documentation."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from mnt.preflight.registry import all_checks
from mnt.setup.playbooks import PLAYBOOKS

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "playbooks").glob("*.yml"))
NAMES = [playbook.name for playbook in PLAYBOOKS]
LINT = shutil.which("ansible-lint", path=os.path.dirname(sys.executable)) or shutil.which("ansible-lint")


def run(tmp_path: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    """Without settings of the user, and without files in the tree."""
    settings = tmp_path / "ansible.cfg"
    settings.touch()
    directories = {name: str(tmp_path) for name in ("HOME", "ANSIBLE_HOME", "XDG_CACHE_HOME")}
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)])
    return subprocess.run(
        argv,
        cwd=ROOT,
        env={**os.environ, **directories, "PATH": path, "ANSIBLE_CONFIG": str(settings), "NO_COLOR": "1"},
        capture_output=True,
        text=True,
    )


@pytest.mark.skipif(importlib.util.find_spec("ansible") is None, reason="pip install 'mnt-cluster[setup]'")
def test_ansible_reads_them(tmp_path: Path) -> None:
    check = [sys.executable, "-m", "ansible", "playbook", "--syntax-check", "--inventory", "node1,"]
    done = run(tmp_path, *check, *map(str, FILES))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(LINT is None, reason="pip install ansible-lint")
def test_they_have_the_style_of_production(tmp_path: Path) -> None:
    assert LINT is not None
    done = run(tmp_path, LINT, "--profile", "production", "--offline", *map(str, FILES))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", [file.stem for file in FILES])
def test_each_file_is_in_the_list(name: str) -> None:
    assert name in NAMES


@pytest.mark.parametrize("name", NAMES)
def test_each_of_the_list_is_a_file_with_a_section(name: str) -> None:
    assert ROOT / "playbooks" / f"{name}.yml" in FILES
    sections = re.findall(r"(?m)^## (.*)$", (ROOT / "docs" / "setup.md").read_text())
    assert name in sections


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_its_first_comment_says_how_to_run_it(file: Path) -> None:
    comment = file.read_text().partition("\n\n")[0]
    assert f"mnt setup {file.stem}" in comment
    assert f"playbooks/{file.name}" in comment


def test_checks_name_playbooks_that_there_are() -> None:
    assert {check.playbook for check in all_checks() if check.playbook} <= {*NAMES}


# What Ansible defines itself; all else that begins with `ansible_` may be a fact, which a host has chosen.
MAGIC = "check_mode|play_hosts|play_hosts_all|playbook_python|facts|host|user|port|no_target_syslog"


@pytest.mark.parametrize("file", [*FILES, *sorted((ROOT / "playbooks" / "tasks").glob("*.yml"))], ids=str)
def test_facts_are_used_by_their_full_names(file: Path) -> None:
    text = re.sub("(?m)#.*$", "", file.read_text())
    assert [name for name in re.findall(r"\bansible_(\w+)", text) if not re.fullmatch(MAGIC, name)] == []


@pytest.mark.parametrize("file", [*FILES, *sorted((ROOT / "playbooks" / "tasks").glob("*.yml"))], ids=str)
def test_what_runs_once_runs_on_the_head(file: Path) -> None:
    """All hosts get the answer, with its facts: no host may choose those of the others."""
    for task in tasks(yaml.safe_load(file.read_text())):
        if task.get("run_once"):
            assert task.get("delegate_to") == "localhost" or "ansible.builtin.assert" in task, task["name"]


@pytest.mark.parametrize("file", [*FILES, *sorted((ROOT / "playbooks" / "tasks").glob("*.yml"))], ids=str)
def test_programs_are_files_of_their_own(file: Path) -> None:
    """There ruff reads them, and tests can run them."""
    for task in tasks(yaml.safe_load(file.read_text())):
        module = task.get("ansible.builtin.command")
        words = module.get("argv", []) if isinstance(module, dict) else []
        assert not [word for word in words if isinstance(word, str) and "\n" in word], task["name"]


def tasks(tree: object) -> Iterator[dict[str, Any]]:
    """All tasks and blocks in a file, at any depth."""
    if isinstance(tree, dict):
        yield tree
        tree = [
            each for key in ("tasks", "block", "rescue", "always", "handlers") for each in tree.get(key, [])
        ]
    if isinstance(tree, list):
        for each in tree:
            yield from tasks(each)
