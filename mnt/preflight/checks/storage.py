"""Is the storage mounted, does it work, and is it the same on all hosts?"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import NamedTuple

from mnt.errors import said
from mnt.facts.fleet import FleetFacts, Visibility
from mnt.facts.host import HostFacts, PathFacts
from mnt.inventory.model import Host, RequiredPath
from mnt.paths import is_below
from mnt.preflight import mounts, writes
from mnt.preflight.findings import Problem, Severity
from mnt.preflight.registry import Needs, check, host_check

_GIB = 2**30
_NOTICEABLE = 1.0  # seconds

# The directories where every job writes: releases and job files; sockets and temporary files.
LOCAL_DISKS = ("~", "/tmp")  # noqa: S108 - it is looked at


class _Limits(NamedTuple):
    """Less free space than this is a problem. `little` is a part of the whole, of bytes and of inodes."""

    full: int  # bytes
    little_bytes: int
    little: float
    expected: str


# The smallest checkpoint needs more than 1 GiB.
_STORAGE = _Limits(_GIB, _GIB, 0.05, "at least 5 % of the bytes and of the inodes, and 1 GiB")
_LOCAL = _Limits(_GIB // 16, _GIB, 0.0, "1 GiB and some inodes free")


@check("storage-mount", playbook="nfs")
def storage_mount(fleet: FleetFacts) -> Iterator[Problem]:
    """Every path of the inventory's `storage` is mounted as required (type, source, options), and works.

    `type: nfs` matches any version, as in fstab(5); `nfs4` matches exactly. If `source` is not set, all hosts
    must have the same network file system there, and the majority decides. If several mounts are on one path,
    the last one counts, because jobs see that one; this is a warning. A stale handle is a failure, and so is
    a server that does not answer within 5 s. (The check uses statfs(2), which asks the server; stat(2) may
    answer from the cache.) Each host also creates and removes a file, because only a write detects an export
    that is read-only on the server. With `options: [ro]` no file is created. If neither `ro` nor `rw` is set,
    all hosts must be able to write if at least half of them can.
    """
    for mount in fleet.inventory.storage:
        yield from mounts.problems(mount, fleet).values()


@check("storage-nosuid", severity=Severity.INFO)
def storage_nosuid(fleet: FleetFacts) -> Iterator[Problem]:
    """What is mounted from a server, of the inventory's `storage`, has the options `nosuid` and `nodev`.

    Without them, root of the server can become root of every host, by a setuid program or a device that it
    makes there; and so can whoever can answer in the server's place. `suid` or `dev` in the storage's options
    says that this is wanted. Storage on which `storage-mount` fails is left out.
    """
    for mount in fleet.inventory.storage:
        failing = mounts.failing(mount, fleet)
        for host, facts in fleet.answers():
            if mount.path not in facts.mounts or host.name in failing:
                continue
            if missing := ",".join(mounts.missing_protection(mount, facts)):
                remount = f"sudo mount -o remount,{missing} {shlex.quote(mount.path)}"
                yield Problem(
                    hosts=(host.name,),
                    message=f"{mount.path} is mounted without {missing}: root of its server can be root here",
                    found=f"without {missing}",
                    expected="nosuid,nodev; or suid,dev in the options of the inventory",
                    fix=f"add {missing} to its line in /etc/fstab; then: {remount}",
                )


@check("storage-space")
def storage_space(fleet: FleetFacts) -> Iterator[Problem]:
    """The inventory's `storage` has free space and free inodes.

    Less than 1 GiB is a failure, and so are no free inode, a full file system and an exhausted quota of the
    user. Less than 5 % is a warning. Inodes are not judged on file systems that do not count them. Storage on
    which `storage-mount` fails, and read-only storage, is left out.
    """
    for mount in fleet.inventory.storage:
        if "ro" in mount.options:
            continue
        failing = mounts.failing(mount, fleet)
        for host, facts in fleet.answers():
            state = facts.paths.get(mount.path)
            if state is not None and host.name not in failing:
                yield from _judge_space(host, mount.path, shlex.quote(mount.path), state, _STORAGE)


def _judge_space(host: Host, name: str, path: str, state: PathFacts, limits: _Limits) -> Iterator[Problem]:
    """The problem of a path, `name` for people and `path` for a shell; at most one."""
    space, severity = state.space, Severity.FAIL
    pasted = path if path == "~" else shlex.quote(path)
    fix = f"delete what is not needed: du -xh --max-depth=2 {pasted} | sort -h | tail"
    if state.write in ("ENOSPC", "EDQUOT"):
        reason = "the user's quota is exhausted" if state.write == "EDQUOT" else "no space is left"
        message, found = f"{name} cannot be written to: {reason}", state.write
    elif space is None or space.size == 0:
        return
    elif space.inodes and not space.inodes_free:
        message, found = f"{name} has no inode left", f"0 of {space.inodes} inodes"
    elif space.free < max(limits.little_bytes, limits.little * space.size):
        found = f"{_human(space.free)} of {_human(space.size)} free"
        severity = Severity.FAIL if space.free < limits.full else Severity.WARN
        message = f"{name} is {'full' if severity is Severity.FAIL else 'nearly full'}: {found}"
        if 2 * space.free > space.size:
            message, fix = f"{name} is small: {found}", f"give {name} a larger file system"
            if path == LOCAL_DISKS[1]:
                fix += f"; if it is a tmpfs (findmnt {path}): sudo mount -o remount,size=2G {path}"
    elif space.inodes and space.inodes_free < limits.little * space.inodes:
        found, severity = f"{space.inodes_free} of {space.inodes} inodes free", Severity.WARN
        message = f"{name} has few inodes left: {found}"
    else:
        return
    yield Problem(
        hosts=(host.name,),
        message=message,
        found=found,
        expected=limits.expected,
        fix=fix,
        severity=severity,
    )


@check("local-space")
def local_space(fleet: FleetFacts) -> Iterator[Problem]:
    """The home directory and /tmp of every host have free space.

    Releases, job files and logs are in the home directory, sockets and temporary files in /tmp. Less than 64
    MiB or no free inode is a failure, less than 1 GiB a warning. The check `storage-space` judges a directory
    on the inventory's `storage`, and `writable` tells of one that is full.
    """
    shared = [mount.path for mount in fleet.inventory.storage]
    for host, facts in fleet.answers():
        for disk in LOCAL_DISKS:
            state = facts.paths.get(disk)
            if state is None or writes.full_below(facts, state.real):
                continue
            if not any(state.real and is_below(state.real, path) for path in shared):
                name = "the home directory" if disk == "~" else disk
                yield from _judge_space(host, name, disk, state, _LOCAL)


@check("writable")
def writable(fleet: FleetFacts) -> Iterator[Problem]:
    """The user can write everywhere that a push, a job and its end write.

    A file is made, written and removed in the workdir, its `releases` and the `keep` directories of its
    `shared`, in the directory of jobs, in /tmp and `/tmp/mnt-UID`, and in /dev/shm. Where one of them does
    not exist yet, this is done in the directory in which it will be made. The finding has the system's
    reason: a read-only file system, missing permission, no space, no inode, an exhausted quota. Places that
    another user could replace are not tried, because `file-owner` fails for them, and neither are those on
    storage where `storage-mount` fails.
    """
    yield from writes.problems(fleet)


# The only command that is taken from a host as it is: it gives no right to anybody.
_TAKES_RIGHTS = re.compile(
    r"(?:sudo )?chmod (?:(?:[go]|go)-w|\+t) /[\w/.@%+-]*|chmod 700 /tmp/mnt-(?:tmp-)?[0-9]+"
)


@host_check("file-owner")
def file_owner(host: Host, facts: HostFacts) -> Iterator[Problem]:
    """Only the user who logs in, and root, can write to the workdir, to the directory of jobs and above them.

    Another user who can replace code, a job's files or a directory above them can run commands as this user.
    A push, a launch and a stop refuse such a directory. `workdir_group` in the inventory allows a Unix group
    to share the workdir. The node-local directories `/tmp/mnt-UID` and `/tmp/mnt-tmp-UID` must belong to this
    user alone. The rule is that of sshd's StrictModes. `python-version` applies it to the interpreter.
    """
    for exposed in facts.artifacts.exposed if facts.artifacts else ():
        yield Problem(
            message=exposed.message,
            found=exposed.message,
            expected="only this user and root can write there",
            fix=(exposed.fix if _TAKES_RIGHTS.fullmatch(exposed.fix or "") else said(host.name, exposed.fix))
            or "correct `workdir` or `jobs_dir` in the inventory",
        )


def _human(size: int) -> str:
    """Bytes for people, to three digits: `1.5 TiB`."""
    value = float(size)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1000:
            return f"{value:.3g} {unit}"
        value /= 1024
    return f"{value:.3g} PiB"


@check("storage-visible", needs=Needs.VISIBILITY)
def storage_visible(fleet: FleetFacts) -> Iterator[Problem]:
    """Every host can read what another host writes to the inventory's `storage`.

    The first host on which the mount works writes a file with a random content. The other hosts look for it
    for up to 5 s, because attribute caches can delay it. More than 1 s is a warning. This detects different
    servers that look the same. Hosts on which `storage-mount` fails take no part, and read-only storage is
    left out. The writer removes the file, even if it loses the connection.
    """
    for path, test in fleet.visibility.items():
        yield from _judge_visibility(path, test)


def _judge_visibility(path: str, test: Visibility) -> Iterator[Problem]:
    expected = f"the host can read a file of {test.writer} within {_NOTICEABLE:g} s"
    compare = f"compare both hosts: findmnt {shlex.quote(path)}; df {shlex.quote(path)}; getent hosts SERVER"
    if test.error is not None:
        yield Problem(
            hosts=(test.writer,),
            message=f"unknown whether {path} is the same on all hosts: no file can be written there",
            found=test.error,
            expected=f"a directory that the user may write to: {path}, or a workdir below it",
            fix=f"give the user write access to {shlex.quote(path)}, or set workdir to a directory below it",
            severity=Severity.INFO,
        )
        return
    errors = {host: seen["error"] for host, seen in test.sightings.items() if seen["error"] is not None}
    if len(errors) == len(test.sightings) > 1:
        yield Problem(
            hosts=(test.writer,),
            message=f"no other host sees the files that it writes to {path}",
            found=next(iter(errors.values())),
            expected=f"the other hosts can read its file within {_NOTICEABLE:g} s",
            fix=compare,
        )
        return
    # Of two hosts either may have other storage, or lie; of more, most see the files.
    alone = (test.writer,) if len(test.sightings) == 1 else ()
    for host, seen in test.sightings.items():
        if seen["error"] is not None:
            where = f" on {host}" if alone else ""
            yield Problem(
                hosts=(*alone, host),
                message=f"the files that {test.writer} writes to {path} are not visible{where}: "
                "it is other storage",
                found=seen["error"],
                expected=expected,
                fix=compare,
            )
        elif seen["delay"] is not None and seen["delay"] > _NOTICEABLE:
            yield Problem(
                hosts=(host,),
                message=f"the files that {test.writer} writes to {path} are visible only after "
                f"{seen['delay']:.1f} s",
                found=f"{seen['delay']:.1f} s",
                expected=expected,
                fix="mount it with shorter attribute caches (actimeo=1), or find what slows the server",
                severity=Severity.WARN,
            )


@check("path")
def path(fleet: FleetFacts) -> Iterator[Problem]:
    """Every path of the inventory's `paths` exists on every host, has the required kind, and is readable.

    Paths on storage where `storage-mount` fails are left out.
    """
    failing = {mount.path: mounts.failing(mount, fleet) for mount in fleet.inventory.storage}
    for required in fleet.inventory.paths:
        below = [path for path in failing if is_below(required.path, path)]
        for host, facts in fleet.answers():
            state = facts.paths.get(required.path)
            if state is not None and not any(host.name in failing[path] for path in below):
                yield from _judge_path(host.name, required, state, facts)


def _judge_path(host: str, required: RequiredPath, state: PathFacts, facts: HostFacts) -> Iterator[Problem]:
    user = shlex.quote(facts.login.user) if facts.login and facts.login.user else "the user who logs in"
    quoted = shlex.quote(required.path)
    if state.kind == "missing":
        problem, fix = f"{required.path} does not exist", "create it, or correct `paths` in the inventory"
    elif state.kind == "unreadable":
        problem = f"{user} cannot read {required.path}: {state.error}"
        fix = f"give {user} read access: ls -ld {quoted}"
    elif state.kind == "hung":
        problem = f"{required.path} does not answer: {state.error}"
        fix = f"check the mount and its server: findmnt -T {quoted}"
    elif required.kind not in ("any", state.kind):
        problem = f"{required.path} is not a {required.kind}"
        fix = f"replace it by a {required.kind}, or correct `paths` in the inventory"
    else:
        return
    yield Problem(
        hosts=(host,),
        message=problem,
        found=state.kind,
        expected=required.kind if required.kind != "any" else "file or dir",
        fix=fix,
    )
