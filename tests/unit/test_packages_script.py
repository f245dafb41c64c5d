"""playbooks/tasks/packages.sh where it cannot be run for real: on Rocky, and on what it does not know.

tests/lab/test_playbook_system.py runs it with apt-get. Here dnf and rpm only write down what they are asked.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "playbooks" / "tasks" / "packages.sh"
TOOLS = ["awk", "cat", "chmod", "cut", "date", "grep", "head", "mktemp", "paste", "rm", "sed", "tail", "tr"]


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A PATH with a few tools, and without apt-get."""
    for tool in TOOLS:
        found = shutil.which(tool)
        assert found is not None
        (tmp_path / tool).symlink_to(found)
    return tmp_path


def program(machine: Path, name: str, text: str) -> None:
    (machine / name).write_text(f"#!/bin/sh\n{text}\n")
    (machine / name).chmod(0o755)


def run(machine: Path, word: str, *, names: str = "pdsh make") -> tuple[int, str]:
    environment = {"PATH": str(machine), "MNT_DEBIAN": "none", "MNT_REDHAT": names, "MNT_LOCK": "1"}
    done = subprocess.run(["/bin/sh", SCRIPT, word], env=environment, capture_output=True, text=True)
    assert done.stderr == ""
    return done.returncode, done.stdout


def rocky(machine: Path, *, installs: bool = True) -> Path:
    """dnf and rpm, whose database is a directory; dnf's arguments are in a file."""
    have = machine / "have"
    have.mkdir()
    (have / "make").touch()
    program(machine, "rpm", f'for name; do :; done; [ -e "{have}/$name" ]')
    install = (
        f'for name; do : >"{have}/$name"; done'
        if installs
        else "echo 'Error: Unable to find a match: pdsh'; exit 1"
    )
    program(machine, "dnf", f'echo "$@" >>"{machine}/asked"; {install}')
    return machine / "asked"


def test_what_is_missing_on_rocky(machine: Path) -> None:
    rocky(machine)
    assert run(machine, "missing") == (0, "mnt-missing: pdsh\n")


def test_only_that_is_installed_and_epel_before_pdsh(machine: Path) -> None:
    asked = rocky(machine)
    assert run(machine, "install") == (0, "mnt-done\n")
    assert asked.read_text() == (
        "--assumeyes install epel-release\n--assumeyes --setopt=install_weak_deps=False install pdsh\n"
    )
    assert run(machine, "missing") == (0, "mnt-missing:\n")
    assert run(machine, "install") == (0, "mnt-done\n")
    assert len(asked.read_text().splitlines()) == 2


def test_what_dnf_says(machine: Path) -> None:
    rocky(machine, installs=False)
    assert run(machine, "install") == (1, "mnt-error: Error: Unable to find a match: pdsh\n")


def test_another_distribution(machine: Path) -> None:
    said = "mnt-error: this host has neither apt-get nor dnf: it is no Debian, Ubuntu or Rocky\n"
    assert run(machine, "missing") == (1, said)
