"""Values derived from a node's spec (`mnt.tasks.job.NodeSpec`), and the job of a process."""

from __future__ import annotations

import fcntl
import os
import pwd
import socket
import struct
from collections.abc import Mapping
from typing import Any

from mnt.remote.common.files import encode, read
from mnt.remote.job.files import JobPaths, temporary_directory

_SIOCGIFFLAGS = 0x8913  # netdevice(7)
_IFF_RUNNING = 0x40  # it is up, and has a link

SESSION_VARIABLES = ("HOME", "USER", "LOGNAME", "SHELL", "PATH", "LANG")


def session_environment() -> dict[str, str]:
    """The part of this login's environment that a supervisor, and then its job, gets."""
    user = pwd.getpwuid(os.getuid())
    fallback = {"HOME": user.pw_dir, "USER": user.pw_name, "LOGNAME": user.pw_name, "SHELL": user.pw_shell}
    return {**fallback, **{name: os.environ[name] for name in SESSION_VARIABLES if name in os.environ}}


def job_variables(job: str, host: str) -> dict[str, str]:
    """The environment variables that identify every process of a node's part of a job."""
    return {"MNT_JOB": job, "MNT_HOST": host}


def temporary_variables() -> dict[str, str]:
    """The variables that keep what a job writes out of places where another user can be first.

    torch (2.13) loads compiled code from $TMPDIR/torchinductor_USER, whoever made that directory, and some
    from other guessable names in $TMPDIR; the first has a variable of its own, for a TMPDIR of the user's.
    """
    top = temporary_directory()
    return {"TMPDIR": top, "TORCHINDUCTOR_CACHE_DIR": os.path.join(top, "torchinductor")}


def job_of(pid: int) -> tuple[str, str] | None:
    """(job, host) from `job_variables` in a process's environment; None: it has none, or is unreadable."""
    text = read(f"/proc/{pid}/environ")
    if "MNT_JOB=" not in text:  # most processes
        return None
    variables = dict(entry.partition("=")[::2] for entry in text.split("\0"))
    return (variables["MNT_JOB"], variables.get("MNT_HOST", "")) if variables.get("MNT_JOB") else None


def job_environment(
    spec: Mapping[str, Any], session: Mapping[str, str], secrets: Mapping[str, str]
) -> dict[bytes, bytes]:
    """The job's environment: SESSION_VARIABLES, or what `activate` has made of them, and what its starter
    passes, `temporary_variables`, the spec's, `secrets`, and `job_variables`; no others, and later ones win.

    PYTHONPATH is the directory of `python_files`, then the spec's `python_path`, then the user's own value.
    """
    activated = spec.get("activated")
    passed = (*(SESSION_VARIABLES if activated is None else ()), *spec.get("passes", ()))
    environment = {**(activated or {}), **{name: session[name] for name in passed if name in session}}
    environment.update(temporary_variables())
    environment.update(spec["env"])
    environment.update(secrets)
    path = [*spec.get("path_prepend", ()), *environment.get("PATH", os.defpath).split(os.pathsep)]
    environment["PATH"] = os.pathsep.join(dict.fromkeys(path))
    python = [*spec.get("python_path", ()), environment.get("PYTHONPATH")]
    if spec.get("python_files"):
        python.insert(0, JobPaths.of(spec).python)
    if any(python):
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, python))
    environment["MNT_NODE_RANK"] = str(spec["node_rank"])
    environment.update(job_variables(spec["job"], spec["host"]))
    for name in spec.get("unset", ()):
        environment.pop(name, None)
    return {encode(name): encode(value) for name, value in environment.items()}


def training_nic_down(spec: Mapping[str, Any]) -> str | None:
    """The name of the node's training NIC if it is down or has no link; None: it has one, or is not known."""
    nic = spec["env"].get("GLOO_SOCKET_IFNAME", "")
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
            found = fcntl.ioctl(any_socket, _SIOCGIFFLAGS, struct.pack("16sh14x", encode(nic), 0))
    except (OSError, struct.error):
        return None
    return None if struct.unpack("16sh14x", found)[1] & _IFF_RUNNING else nic


def first_rank(spec: Mapping[str, Any]) -> int:
    """The global rank of local rank 0."""
    return sum(int(node["nproc"]) for node in spec["nodes"] if node["node_rank"] < spec["node_rank"])


def world_size(spec: Mapping[str, Any]) -> int:
    """The number of ranks on all nodes."""
    return sum(int(node["nproc"]) for node in spec["nodes"])


def rank_count(spec: Mapping[str, Any]) -> int:
    """The number of ranks on this node."""
    return sum(int(node["nproc"]) for node in spec["nodes"] if node["node_rank"] == spec["node_rank"])
