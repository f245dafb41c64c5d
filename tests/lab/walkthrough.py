"""Runs the commands of a page of docs/ as a reader would: as written, line by line, on a terminal."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from terminals import Said, on_a_terminal
from waiting import PATIENCE

from mnt.lab.lab import Lab

ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def commands(page: str) -> list[str]:
    """The lines of all blocks for a shell."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return [line for block in _BLOCK.findall(text) for line in block.splitlines() if line.strip()]


def addresses(lab: Lab) -> dict[str, str]:
    """Where a lab's hosts are, by name."""
    return {host.name: host.spec.management for host in lab.hosts}


class Reader:
    """Somebody at the head, with a home directory, an ssh_config and a tree of code of their own."""

    def __init__(self, place: Path, hosts: Mapping[str, str], *, user: str = "mnt") -> None:
        """`hosts`: by name, the address, which ssh_config has."""
        self.project = place / "project"
        home, programs = place / "home", place / "bin"
        (home / ".ssh").mkdir(parents=True, mode=0o700)
        programs.mkdir()
        program = programs / "mnt"
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -m mnt "$@"\n')
        program.chmod(0o755)
        names = "".join(f"Host {name}\n  HostName {address}\n" for name, address in hosts.items())
        ssh = home / ".ssh"
        # OpenSSH would look for these in root's home, whatever $HOME says.
        files = f"  IdentityFile {ssh}/id_ed25519\n  UserKnownHostsFile {ssh}/known_hosts\n"
        (ssh / "config").write_text(f"{names}Host *\n  User {user}\n{files}")
        shutil.copytree(ROOT / "train", self.project / "train", ignore=shutil.ignore_patterns("__pycache__"))
        self.env = {
            "HOME": str(home),
            "PATH": f"{programs}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "SSH_AUTH_SOCK": "",
            "MNT_INVENTORY": "",
            "XDG_STATE_HOME": "",
            "TERM": "dumb",
        }

    @property
    def inventory(self) -> Path:
        """The one that `mnt init` writes."""
        return self.project / "inventories" / "default.yaml"

    def types(
        self, line: str, answers: Sequence[tuple[str, str]] = (), *, patience: float = PATIENCE
    ) -> Said:
        """A command in the project's directory, with what `on_a_terminal` takes."""
        command = ["bash", "-c", f"cd {shlex.quote(str(self.project))} && {line}"]
        return on_a_terminal(command, answers, self.env, patience=patience)
