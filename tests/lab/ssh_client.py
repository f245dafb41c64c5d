"""OpenSSH's own client, on a lab's key and known hosts."""

from __future__ import annotations

import subprocess

from waiting import PATIENCE

from mnt.lab.lab import Lab


def ssh(
    lab: Lab, host: str, *command: str, user: str = "mnt", identity: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command on a host by SSH, without a prompt. `identity`: a key file, the lab's own if None."""
    options = (
        *("BatchMode=yes", "ConnectTimeout=60", "IdentitiesOnly=yes", "StrictHostKeyChecking=yes"),
        f"IdentityFile={identity or lab.directory / 'identity'}",
        f"UserKnownHostsFile={lab.directory / 'known_hosts'}",
    )
    address = lab.host(host).spec.management
    return subprocess.run(
        ["ssh", "-F", "none", *(f"-o{option}" for option in options), f"{user}@{address}", *command],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        stdin=subprocess.DEVNULL,
    )
