"""`mnt setup` on lab hosts, for the tests of the playbooks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import faults

from mnt.lab.lab import Lab, LabHost

LIMIT = 600.0  # seconds of one playbook: this machine may be busy with something else


def allow_sudo(lab: Lab) -> None:
    """The hosts' ordinary user may become root."""
    for host in lab.hosts:
        faults.write_file(host, "/etc/sudoers.d/mnt", "mnt ALL=(ALL) NOPASSWD: ALL\n")


def setup(lab: Lab | Path, name: str, *words: str, ok: bool = True, **variables: str) -> dict[str, Any]:
    """What `mnt setup NAME -e VARIABLE=VALUE ..` says in JSON of that playbook: `{"hosts": ..}`.

    Args:
        lab: or an inventory.
        ok: whether it must succeed; else a host must have failed.
    """
    inventory = lab if isinstance(lab, Path) else lab.inventory_path
    extra = [word for key, value in variables.items() for word in ("-e", f"{key}={value}")]
    done = subprocess.run(
        [sys.executable, "-m", "mnt", "setup", name, "--json", *words, *extra],
        env={**os.environ, "MNT_INVENTORY": str(inventory)},
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    assert done.returncode == (0 if ok else 1), done.stdout + done.stderr
    played: dict[str, Any] = json.loads(done.stdout)["playbooks"][name]
    return played


def unjudged(text: str) -> str:
    """A value of a variable that the playbook alone can judge, as by hand."""
    return f"{{{{ '{text}' }}}}"


def changed(played: dict[str, Any]) -> dict[str, int]:
    """How many tasks changed something, by host."""
    return {host: result["changed"] for host, result in played["hosts"].items()}


def problem(played: dict[str, Any], host: str = "node1") -> str:
    """Why a host failed."""
    return str(played["hosts"][host]["problem"])


def output(host: LabHost, *argv: str, user: bool = False) -> str:
    """What a command that succeeds on a host prints, on both streams."""
    done = host.exec(argv, user=user, timeout=LIMIT)
    assert done.returncode == 0, f"{host.name}: {' '.join(argv)}: {done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def snapshot(host: LabHost, *places: str) -> str:
    """All files below some directories, with size, time and owner: to see that nothing has changed."""
    look = 'find "$@" -printf "%p %y %s %T@ %U %m %l\\n" 2>/dev/null | sort'
    return host.exec(["sh", "-c", look, "sh", *places], timeout=LIMIT).stdout
