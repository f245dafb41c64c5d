"""Hosts for Ansible without SSH: `ssh` is a script that runs commands on this machine, or lies."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from mnt.setup.play import Played, play
from mnt.setup.playbooks import Playbook

# A host is its address. What it runs by sudo is a module for its Python.
SSH = r"""#!/bin/bash
printf '%s\n' "$*" >> "$HOSTS/argv"
address=${*: -2:1} command=${*: -1}
if [ -e "$HOSTS/$address" ] && [[ $command =~ BECOME-SUCCESS-[a-z]+ ]]; then
    echo "${BASH_REMATCH[0]}"
    cat > /dev/null
    exec sh "$HOSTS/$address"
fi
PATH=$HOSTS/bin:/usr/bin:/bin exec sh -c "$command"
"""
SUDO = r"""#!/bin/sh
while [ "${1#-}" != "$1" ]; do
    case $1 in -u | -p) shift ;; esac
    shift
done
exec "$@"
"""


@dataclass
class AnsibleHosts:
    """node1, node2, .. at 127.0.0.1, .. Who has a lie answers each module with what this script prints."""

    place: Path
    count: int = 3
    tasks: list[str] = field(default_factory=list)  # those that were told

    def __post_init__(self) -> None:
        (self.place / "bin").mkdir()
        for name, text in {"ssh": SSH, "sudo": SUDO}.items():
            (self.place / "bin" / name).write_text(text)
            (self.place / "bin" / name).chmod(0o755)
        (self.place / "bin" / "python3").symlink_to(os.path.realpath(sys.executable))

    def lie(self, host: str, script: str) -> None:
        (self.place / self.address(host)).write_text(script)

    def answer(self, host: str, text: str) -> None:
        """A lie: this text."""
        (self.place / f"{host}.answer").write_text(text)
        self.lie(host, f"cat {self.place}/{host}.answer")

    def address(self, host: str) -> str:
        return f"127.0.0.{host.removeprefix('node')}"

    @property
    def argv(self) -> list[str]:
        """The command lines of ssh."""
        return (self.place / "argv").read_text().splitlines()

    @property
    def log(self) -> str:
        return (self.place / "log").read_text(errors="replace")

    def play(self, text: str, *, seconds: int = 600, memory: int | None = None, **more: Any) -> Played:
        file = self.place / "play.yml"
        file.write_text(text)
        names = [f"node{number}" for number in range(1, self.count + 1)]
        document = {
            "hosts": {name: {"ansible_host": self.address(name)} for name in names},
            "vars": {"mnt_cluster": "c"},
        }
        options = {
            "variables": {},
            "check": False,
            "become_password": None,
            "tell": self.tasks.append,
            **more,
        }
        playbook = Playbook("p", "a playbook of a test", seconds, memory)
        return play(playbook, file, {"all": document}, self.place / "log", **options)


def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int = 3) -> AnsibleHosts:
    """Skips the test without Ansible, or with one that is older than the extra `setup` allows."""
    pytest.importorskip("ansible_runner", reason="pip install 'mnt-cluster[setup]'")
    pytest.importorskip("ansible", "2.19", reason="pip install 'mnt-cluster[setup]'")
    hosts = AnsibleHosts(tmp_path, count)
    monkeypatch.setenv("HOSTS", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", os.pathsep.join([str(tmp_path / "bin"), os.environ["PATH"]]))
    return hosts
