"""The text files of a lab host, and the lab's inventory. Pure."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath
from typing import Any

import yaml

from mnt.lab.spec import USER, HostSpec, LabSpec
from mnt.remote.common.files import unix_lines
from mnt.remote.common.mounts import owner_of
from mnt.remote.probe.filesystems import parse_mounts

SHARED = "/shared"  # the directory common to all hosts
HOME = f"/home/{USER}"
_SHELL = "/bin/bash"

_UNPRINTED = ("Cc", "Cs", "Zl", "Zp")  # kinds of characters: controls, bytes that are no text, ends of lines

# Names are looked up in files only: no DNS, no NIS, no systemd.
NSSWITCH = "".join(
    f"{database}: files\n"
    for database in ("passwd", "group", "shadow", "hosts", "networks", "services", "protocols", "rpc")
)

SSHD_CONFIG = """\
# The first value of a keyword has precedence, so the files that tests add come first.
Include /etc/ssh/sshd_config.d/*.conf
HostKey /etc/ssh/ssh_host_ed25519_key
PermitRootLogin no
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
UseDNS no
PrintMotd no
PidFile /run/sshd.pid
Subsystem sftp internal-sftp
"""

FSTAB = """\
sysfs /sys sysfs ro,nosuid,nodev,noexec 0 0
devpts /dev/pts devpts newinstance,gid=5,mode=620,ptmxmode=666 0 0
tmpfs /dev/shm tmpfs nosuid,nodev,mode=1777 0 0
tmpfs /run tmpfs nosuid,nodev,mode=755 0 0
tmpfs /tmp tmpfs nosuid,nodev,mode=1777 0 0
"""


def etc_hosts(lab: LabSpec) -> str:
    """Every host, including this one, with its management address; 127.0.1.1 is not used."""
    lines = ["127.0.0.1 localhost", "::1 localhost ip6-localhost ip6-loopback"]
    lines += [f"{host.management} {host.name}" for host in lab.hosts]
    return "".join(f"{line}\n" for line in lines)


def passwd(machine: str, uid: int) -> str:
    """The machine's /etc/passwd and the lab's user."""
    return _without_user(machine) + f"{USER}:x:{uid}:{uid}:lab user:{HOME}:{_SHELL}\n"


def group(machine: str, uid: int) -> str:
    """The machine's /etc/group and the lab user's group."""
    return _without_user(machine) + f"{USER}:x:{uid}:\n"


def shadow() -> str:
    """No passwords: `*` allows no password login, but logins by key work."""
    return "".join(f"{name}:*:19000:0:99999:7:::\n" for name in ("root", USER))


def known_hosts(lab: LabSpec, host_keys: Mapping[str, str]) -> str:
    """Every host's public key, under its name and both its addresses."""
    return "".join(
        f"{host.name},{host.management},{host.training} {host_keys[host.name]}\n" for host in lab.hosts
    )


def bind_mounts(mounts: str, hidden: Iterable[str]) -> tuple[list[tuple[str, str]], list[str]]:
    """The machine's mounts that hosts see read-only: their overlay of `/` does not include other mounts.

    Other users choose some of them (FUSE): those, and names that are more than a line, are left out, with all
    that is mounted below.

    Args:
        mounts: /proc/self/mounts (proc(5)).
        hidden: paths of which each host has its own version; mounts on or below them are left out.

    Returns:
        What to bind: `rbind` (with all below) or `bind` (without), and the mount point; and all mount points.
    """
    own = [PurePosixPath(path) for path in hidden]
    found: dict[PurePosixPath, bool] = {}  # whether each may be seen, with all that is mounted on top of it
    for mount in parse_mounts(mounts):
        point = PurePosixPath(mount["point"])
        found[point] = found.get(point, True) and _may_be_seen(
            mount["point"], mount["type"], mount["options"]
        )
    found.pop(PurePosixPath("/"), None)
    refused = {point for point, seen in found.items() if not seen}
    points = [
        point
        for point in found
        if not any(point.is_relative_to(path) for path in own) and refused.isdisjoint((point, *point.parents))
    ]
    parted = {above for point in refused for above in point.parents}
    whole = {point for point in points if point not in parted}  # nothing below is left out
    binds = [
        ("rbind" if point in whole else "bind", str(point))
        for point in points
        if whole.isdisjoint(point.parents)
    ]
    return binds, [str(point) for point in points]


def covered(directories: Iterable[str], points: Iterable[str]) -> list[str]:
    """Those of a host's own directories that are below one of the machine's mounts, which would hide them."""
    mounted = [PurePosixPath(point) for point in points]
    return [path for path in directories if any(point in PurePosixPath(path).parents for point in mounted)]


def _may_be_seen(point: str, kind: str, options: Iterable[str]) -> bool:
    """Whether root has mounted it, on a path that is one line of text."""
    one_line = not any(unicodedata.category(character) in _UNPRINTED for character in point)
    return one_line and owner_of(kind, ",".join(options)) in (None, 0)


def inventory(lab: LabSpec, directory: str, cache: str) -> str:
    """The lab's inventory, as docs/inventory.md defines it.

    Args:
        lab: the lab.
        directory: where the lab keeps its key and known_hosts.
        cache: the machine's cache for training (MNT_CACHE), which every host sees.
    """
    document: dict[str, Any] = {
        "cluster": lab.name,
        "ssh": {
            "user": USER,
            "identity": f"{directory}/identity",
            "known_hosts": f"{directory}/known_hosts",
            "config": None,
            "host_keys": "accept-new",
        },
        "defaults": {"python": lab.python, "workdir": "~/project", "gpus": 0},
        "hosts": {host.name: _settings(host) for host in lab.hosts},
        "network": {"mode": "tcp", "subnet": str(lab.training), "master_port": 29500},
        "storage": [{"path": SHARED, "type": "tmpfs", "source": lab.source}],
        "env": {"OMP_NUM_THREADS": "1", **({} if lab.gpus else _without_gpus(cache))},
    }
    head = f"# Written by `mnt lab up`; `mnt lab down --name {lab.name}` removes it.\n"
    return head + yaml.safe_dump(document, sort_keys=False)


def _settings(host: HostSpec) -> dict[str, Any]:
    """A host of the inventory: with its share of the machine's GPUs, of which it sees no other."""
    settings: dict[str, Any] = {"address": host.management}
    if host.gpus:
        devices = ",".join(map(str, host.gpus))
        settings |= {"gpus": len(host.gpus), "env": {"CUDA_VISIBLE_DEVICES": devices}}
    return settings


def _without_gpus(cache: str) -> dict[str, str]:
    """The variables with which DeepSpeed and accelerate train on CPUs, the first with its ops compiled."""
    extensions = f"{cache}/torch_extensions"
    return {"ACCELERATE_USE_CPU": "true", "DS_ACCELERATOR": "cpu", "TORCH_EXTENSIONS_DIR": extensions}


def _without_user(table: str) -> str:
    return "".join(f"{line}\n" for line in unix_lines(table) if not line.startswith(f"{USER}:"))
