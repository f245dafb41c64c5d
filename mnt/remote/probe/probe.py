"""Gather all facts that preflight and launch use, in one run, as one JSON document.

Runs on a host: standard library only, Python 3.8 and newer. It imports nothing that it measures, and removes
at once what it writes: a file in each place of `write`, and wherever a push or a job will write. Operations
that may hang (a dead file server, nvidia-smi on a broken GPU) have their own deadlines.

Arguments, all optional:
    packages: [name, ..]   distributions to look up, besides every nvidia-nccl-*
    mounts: [path, ..]     mount points to describe
    write: [path, ..]      those of them in which to create a file, and remove it
    paths: [path, ..]      paths to describe; `~` is the home of the user who logged in
    port: int              the master port, to find its listeners, and the next free one
    workdir: path          the directory of the releases; `~` as above, also in the next
    keep: [name, ..]       directories of its shared/ that are linked into releases
    workdir_group: name    the Unix group that shares it; none: it is this user's alone
    ulimit: mapping        limits of jobs, by name: see `mnt.remote.job.limits`
    jobs_dir: path         the directory of the jobs
    training: mapping      `activate`, and the interpreter if it is not the one that runs this ("elsewhere"):
                           see `mnt.remote.probe.training.look`
    extensions: path       where torch builds its extensions
    clock: bool            send the time, in a frame, as soon as standard input ends
    deadline: float        seconds for the paths, and all else that may hang there, together; default 5
    gpu_deadline: float    seconds for nvidia-smi; default 10

The answer's shape is that of `mnt.facts.host.HostFacts`.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import socket
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any, BinaryIO

from mnt.remote.common.activation import activated
from mnt.remote.common.files import read, strerror
from mnt.remote.common.forms import ADDRESSES
from mnt.remote.common.owners import check_owners, find_group
from mnt.remote.common.refusal import Refused
from mnt.remote.job.ports import free_port, holders
from mnt.remote.job.spec import session_environment
from mnt.remote.probe import rdma
from mnt.remote.probe.distributions import nccl_library, numa_binding, packages, torch_cuda
from mnt.remote.probe.filesystems import describe_mounts, look_at, parse_mounts
from mnt.remote.probe.interfaces import interfaces
from mnt.remote.probe.leftovers import artifacts, own_processes
from mnt.remote.probe.memory import memory
from mnt.remote.probe.neighbours import neighbours
from mnt.remote.probe.nvidia import gpus
from mnt.remote.probe.session import session
from mnt.remote.probe.settings import conf_files, logind
from mnt.remote.probe.training import look
from mnt.remote.probe.writes import collect, trials

EXTENSIONS = "~/.cache/torch_extensions"  # torch's default


def main(args: dict[str, Any], emit: Callable[[dict[str, Any]], None], stdin: BinaryIO) -> dict[str, object]:
    """The facts of this host. `emit` and `stdin` are used to compare the clocks."""
    own_session = session(args.get("ulimit", {}))  # first, because it measures the time until here
    if args.get("clock"):
        stdin.read()
        emit({"time": time.time()})
    deadline = float(args.get("deadline", 5.0))
    paths, mounts = args.get("paths", []), args.get("mounts", [])
    workdir, jobs_dir = args.get("workdir", "~/mnt"), args.get("jobs_dir", "~/.mnt/jobs")
    ours = (workdir, args.get("keep", ()), args.get("workdir_group"), jobs_dir)
    writes = trials(*ours)
    slow: dict[str, Callable[[], Any]] = {
        "artifacts": partial(artifacts, *ours, args.get("extensions", EXTENSIONS)),
        "resolved": partial(resolve, os.uname().nodename),
        **writes,
    }
    if "port" in args:
        slow["listeners"] = partial(holders, args["port"], jobs_dir)
        slow["free_port"] = partial(free_port, args["port"])
    # First, because it triggers automounts, which are then among the mounts.
    looked_at, answers = look_at([*paths, *mounts], deadline, args.get("write", []), slow)
    user = login()
    return {
        "hostname": os.uname().nodename,
        "kernel": os.uname().release,
        "machine": machine(),
        "os": os_release(read("/etc/os-release") or read("/usr/lib/os-release")),
        "login": user,
        "session": own_session,
        "logind": logind(user["user"]),
        **trains_with(args),
        "interfaces": interfaces(),
        "neighbours": neighbours(),
        "paths": looked_at,
        "mounts": describe_mounts(mounts, looked_at, parse_mounts(read("/proc/self/mounts"))),
        "gpus": gpus(float(args.get("gpu_deadline", 10.0))),
        "rdma": rdma.gather(),
        "ofed": rdma.ofed(),
        # NCCL, too, asks the user database for the home, not $HOME.
        "nccl_conf": conf_files(user["home"] if user["user"] else None),
        "listeners": answers.get("listeners"),
        "free_port": answers.get("free_port"),
        "memory": memory(),
        "processes": own_processes(),
        "artifacts": answers["artifacts"],
        "resolved": answers["resolved"],
        "writes": collect({name: answers[name] for name in writes}, workdir, jobs_dir),
    }


def machine() -> dict[str, object] | None:
    """What tells this host from all others, as `mnt.facts.host.Machine`; None without /proc."""
    boot = read("/proc/sys/kernel/random/boot_id").strip()
    try:
        return {"boot_id": boot, "network": os.stat("/proc/self/ns/net").st_ino} if boot else None
    except OSError:
        return None


def os_release(text: str) -> dict[str, str | None]:
    """The distribution and its release, from os-release(5)."""
    values = {}
    for line in text.splitlines():
        key, equals, value = line.partition("=")
        if equals:
            values[key.strip()] = value.strip().strip("\"'")
    return {
        "id": values.get("ID", "linux"),
        "version": values.get("VERSION_ID"),
    }


def login() -> dict[str, Any]:
    """The user of this session. A user of a directory service may be unknown to a static `pwd`."""
    uid = os.getuid()
    try:
        entry = pwd.getpwuid(uid)
        return {"uid": uid, "user": entry.pw_name, "home": entry.pw_dir, "shell": entry.pw_shell}
    except KeyError:
        return {"uid": uid, "user": None, "home": os.environ.get("HOME"), "shell": os.environ.get("SHELL")}


def resolve(name: str) -> dict[str, object]:
    """The first addresses of a name on this host. It may take long if a name server is down."""
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError as error:
        return {"addresses": [], "error": strerror(error)}
    return {"addresses": list(dict.fromkeys(entry[4][0] for entry in found))[:ADDRESSES], "error": None}


def trains_with(args: dict[str, Any]) -> dict[str, object]:
    """The interpreter of the inventory, and its packages: the one that runs this, or one to be looked at."""
    request, names = args.get("training"), args.get("packages", [])
    if request and request["elsewhere"]:
        return look(request, session_environment(), names)
    boot = args.get("_boot", {})
    if request and not boot.get("why"):  # only whether `activate` works
        try:
            activated(request["activate"], session_environment())
        except Refused as refusal:
            boot = {**boot, "configured": False, "why": refusal.message}
    return {
        "python": interpreter(boot, args.get("workdir_group")),
        "packages": packages(names, sys.path),
        "torch_cuda": torch_cuda(sys.path),
        "nccl_library": nccl_library(sys.path),
        "numa_binding": numa_binding(sys.path),
    }


def interpreter(boot: dict[str, Any], group: str | None) -> dict[str, object]:
    """The Python that runs this, whether it is the one of the inventory, and who else could exchange it."""
    argv, configured = boot.get("python", [sys.executable]), boot.get("configured", True)
    path = shutil.which(argv[0])
    return {
        "argv": argv,
        "configured": configured,
        "problem": boot.get("why") or None,
        "version": ".".join(str(part) for part in sys.version_info[:3]),
        "executable": sys.executable,
        "exposed": exposed_file(os.path.abspath(path), group) if configured and path else None,
    }


def exposed_file(path: str, group: str | None) -> dict[str, Any] | None:
    """Why others than this user, root and the group could exchange a file; None: they could not."""
    try:
        check_owners(path)
    except Refused as refusal:
        if group is not None:
            with contextlib.suppress(Refused):
                check_owners(path, find_group(group))
                return None
        return refusal.document()
    return None
