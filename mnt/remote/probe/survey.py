"""What an inventory names and only a search finds: Python environments, storage, routes between the hosts.

Runs on a host: standard library only, Python 3.8 and newer. It starts no interpreter that it finds. It writes
an empty file on each storage, and removes it at once.

Arguments, all optional:
    packages: [name, ..]     distributions to look up in each environment, by canonical name (PEP 503)
    peers: [address, ..]     numeric addresses of the other hosts
    deadline: float          seconds for all that may hang, together; default 5

The answer's shape is that of `mnt.facts.survey.Survey`.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, BinaryIO

from mnt.remote.common.files import entries, read
from mnt.remote.common.forms import ENVIRONMENTS, LONGEST_PATH, STORAGE
from mnt.remote.common.mounts import owner_of
from mnt.remote.common.owners import accepts, check_owners
from mnt.remote.common.refusal import Refused
from mnt.remote.probe.distributions import packages
from mnt.remote.probe.filesystems import Answer, holder, look_at, parse_mounts

_MOST_ENTRIES = 200  # of a directory of environments
_SAID = 200  # characters of why an environment is not to be trusted

# Where people, conda's and mnt's own installers put environments, or directories of them.
_HOMES = ("~", "~/venvs", "~/envs", "~/.virtualenvs", "~/.venvs", "~/.pyenv/versions", "~/.conda/envs")
_PLACES = ("/opt", "/usr/local", "/srv", "/var/cache/mnt")
_CONDAS = ("miniconda3", "anaconda3", "miniforge3", "mambaforge", "micromamba", "conda")

# File systems that are served over a network, by their names in /proc/self/mounts.
_NETWORK = re.compile(
    r"nfs4?|cifs|smb3|lustre|gpfs|beegfs(_nodev)?|ceph|glusterfs|wekafs|pvfs2|orangefs|panfs|9p|afs"
    r"|fuse\.(ceph|glusterfs|sshfs|juicefs|lustre|mfs|s3fs|gcsfuse|weka|dfuse)"
)
# Those that may hold data of several hosts, although their type does not say so; the hosts try it.
_DATA = ("ext4", "ext3", "xfs", "btrfs", "zfs", "tmpfs", "f2fs", "gfs2", "ocfs2", "bcachefs")
_SYSTEM = re.compile(r"/|/(bin|boot|dev|etc|lib|lib64|proc|root|run|sbin|snap|sys|tmp|usr|var)(/.*)?")


def main(args: dict[str, Any], emit: Callable[[dict[str, Any]], None], stdin: BinaryIO) -> dict[str, object]:
    """What this host has."""
    names, deadline = args.get("packages", []), float(args.get("deadline", 5.0))
    mounts = parse_mounts(read("/proc/self/mounts"))
    storage = shareable(mounts)
    homes = [os.path.expanduser(home) for home in _HOMES]
    # Each place in a child of its own: it may be on a file server that is dead.
    places = [*homes, *_PLACES, *(mount["point"] for mount in storage)]
    searches = {f"environments in {place}": partial(environments, place, names) for place in places}
    listed = {"environments of conda": partial(of_conda, names)}
    writable = [mount["point"] for mount in storage if "ro" not in mount["options"]]
    points = [mount["point"] for mount in storage]
    looked_at, found = look_at(points, deadline, writable, {**searches, **listed})
    by_path = {each["path"]: each for some in found.values() for each in some or []}
    return {
        "environments": [by_path[path] for path in sorted(by_path)][:ENVIRONMENTS],
        "storage": storage,
        "paths": looked_at,
        "home": holder(mounts, os.path.realpath(os.path.expanduser("~"))),
        "routes": {peer: source(peer) for peer in args.get("peers", [])},
    }


def shareable(mounts: Iterable[Answer]) -> list[Answer]:
    """The mounts whose files several hosts may have, one for each mount point: the last one is on top."""
    found: dict[str, Answer] = {}
    for mount in mounts:
        found.pop(mount["point"], None)
        if len(mount["point"]) > LONGEST_PATH:  # no program can open it, but any user can mount there (FUSE)
            continue
        uid = owner_of(mount["type"], ",".join(mount["options"]))
        if uid is not None and not accepts(uid):  # what is there is that user's word, who may never answer
            continue
        network = _NETWORK.fullmatch(mount["type"])
        if network or (mount["type"] in _DATA and not _SYSTEM.fullmatch(mount["point"])):
            found[mount["point"]] = mount
    return list(found.values())[:STORAGE]


def environments(place: str, names: Iterable[str]) -> list[dict[str, object]]:
    """The environments in a directory, and in those directly below it and in their `envs`."""
    found = []
    for directory in _candidates(place):
        environment = describe(directory, names)
        if environment is not None:
            found.append(environment)
    return found[:ENVIRONMENTS]


def _candidates(place: str) -> Iterator[str]:
    below = [place, *(os.path.join(place, name) for name in sorted(entries(place))[:_MOST_ENTRIES])]
    for directory in below:
        yield directory
        several = os.path.basename(directory) in (*_CONDAS, "envs", "venvs")
        for inner in (directory, os.path.join(directory, "envs")) if several else ():
            yield from (os.path.join(inner, name) for name in sorted(entries(inner))[:_MOST_ENTRIES])


def of_conda(names: Iterable[str]) -> list[dict[str, object]]:
    """The environments that conda has listed for this user."""
    lines = read(os.path.expanduser("~/.conda/environments.txt"), 1 << 16).splitlines()
    found = (describe(line.strip(), names) for line in lines[:_MOST_ENTRIES] if line.startswith("/"))
    return [environment for environment in found if environment is not None]


def describe(directory: str, names: Iterable[str]) -> dict[str, object] | None:
    """The environment in this directory (venv, virtualenv, conda); None: there is none that could run."""
    python = os.path.join(directory, "bin", "python")
    if not os.access(python, os.X_OK):
        return None
    settings = read(os.path.join(directory, "pyvenv.cfg"), 4096)
    conda = [name for name in entries(os.path.join(directory, "conda-meta")) if name.startswith("python-3")]
    libraries = [
        name for name in entries(os.path.join(directory, "lib")) if re.fullmatch(r"python3\.\d+", name)
    ]
    version = re.search(r"^version(?:_info)?[ \t]*=[ \t]*([0-9.]+)", settings, re.MULTILINE) or re.match(
        r"python-([0-9.]+)-", next(iter(conda), "")
    )
    if not libraries or not (settings or conda):
        return None
    search = [os.path.join(directory, "lib", name, "site-packages") for name in libraries]
    return {
        "path": python,
        "kind": "conda" if conda else "venv",
        "version": version[1].rstrip(".") if version else libraries[0].replace("python", ""),
        "packages": packages(names, search),
        "exposed": exposed(python, *search),
    }


def exposed(*places: str) -> str | None:
    """Why another user could have written what is at these places, or on the way; None: nobody could."""
    try:
        for place in places:
            check_owners(place)
    except Refused as refusal:
        return refusal.message[:_SAID]
    return None


def source(peer: str) -> str | None:
    """The own address from which packets go to a peer; None: there is no route. Nothing is sent."""
    family = socket.AF_INET6 if ":" in peer else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((peer, 9))  # of a datagram socket: it only looks up the route
            address: str = probe.getsockname()[0]
            return address
    except OSError:
        return None
