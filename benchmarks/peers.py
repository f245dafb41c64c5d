"""How each peer runs one command on all hosts of a lab: same keys, no shared connections, all at once."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mnt.lab.lab import Lab

USER = "mnt"


@dataclass(frozen=True)
class Peer:
    """A command line, and what it needs in its environment."""

    argv: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)


def commands(lab: Lab, venv: Path, scratch: Path, command: str) -> dict[str, Peer]:
    """Every peer by its name.

    Args:
        venv: has asyncssh, ansible-core and ClusterShell in it.
        scratch: a directory for what they want to have in files.
    """
    addresses = [host.spec.management for host in lab.hosts]
    key, known_hosts = str(lab.directory / "identity"), str(lab.directory / "known_hosts")
    ssh = f"-F none -i {key} -o UserKnownHostsFile={known_hosts} -o ControlMaster=no -o ControlPath=none"
    hosts, fanout = ",".join(addresses), str(len(addresses))
    bare = str(Path(__file__).with_name("bare_asyncssh.py"))
    return {
        "mnt run": Peer([sys.executable, "-m", "mnt", "run", "-i", str(lab.inventory_path), "--", command]),
        "asyncssh, bare": Peer([f"{venv}/bin/python", bare, command, USER, key, known_hosts, *addresses]),
        "pdsh": Peer(
            ["pdsh", "-S", "-f", fanout, "-l", USER, "-w", hosts, command],
            {"PDSH_RCMD_TYPE": "ssh", "PDSH_SSH_ARGS_APPEND": ssh},
        ),
        "clush": Peer([f"{venv}/bin/clush", "-S", "-f", fanout, "-l", USER, "-o", ssh, "-w", hosts, command]),
        "ansible raw": Peer(
            [f"{venv}/bin/ansible", "all", "-i", f"{hosts},", "-f", fanout, "-m", "raw", "-a", command],
            {
                "ANSIBLE_HOME": str(scratch),
                "ANSIBLE_REMOTE_USER": USER,
                "ANSIBLE_SSH_ARGS": ssh,
                "ANSIBLE_LOCALHOST_WARNING": "0",
            },
        ),
    }


def versions(venv: Path) -> dict[str, str]:
    """Of the peers, as far as they tell."""
    packages = ("asyncssh", "ansible-core", "ClusterShell")
    ask = "import sys; from importlib.metadata import version; print(*map(version, sys.argv[1:]))"
    said = subprocess.run(
        [f"{venv}/bin/python", "-c", ask, *packages], capture_output=True, text=True, check=True
    )
    pdsh = subprocess.run(["pdsh", "-V"], capture_output=True, text=True, check=True).stdout.split()[0]
    return {**dict(zip(packages, said.stdout.split(), strict=True)), "pdsh": pdsh}
