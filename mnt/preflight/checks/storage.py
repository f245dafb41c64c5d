"""Is the shared storage there, does it work, and is it the same for all?"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import PurePosixPath

from mnt.facts.fleet import FleetFacts
from mnt.facts.host import HostFacts, PathFacts
from mnt.facts.nonces import Nonce
from mnt.inventory.model import Mount, RequiredPath
from mnt.preflight import mounts
from mnt.preflight.findings import Problem, Severity
from mnt.preflight.registry import Needs, check

_GIB = 2**30
_LEAST = _GIB  # bytes: less does not hold the smallest checkpoint
_LITTLE = 0.05  # of what there is
_NOTICEABLE = 1.0  # seconds

# Where every job writes: releases and job files, sockets and temporary files.
LOCAL_DISKS = ("~", "/tmp")
_LOCAL_LEAST, _LOCAL_LITTLE = _GIB // 16, _GIB  # bytes


@check("storage-mount")
def storage_mount(fleet: FleetFacts) -> Iterator[Problem]:
    """Every mount of the inventory's `storage` is there, works, has the type, source and options it names.

    `type: nfs` takes any version, as in fstab(5); `nfs4` is exact. Where no `source` is named, all hosts must
    have the same network file system there: the majority rules. Where several mounts lie on one path, the
    last counts, for that is what a job sees; that they do is a warning. A stale handle fails, and a server
    that does not answer within 5 s: statfs(2) asks it, where stat(2) would answer from the cache. Each host
    also creates a file and removes it, for only a write tells of an export that is read-only on the server.
    `options: [ro]` spares it that; where neither `ro` nor `rw` is named, one host that can write tells that
    all should.
    """
    for mount in fleet.inventory.storage:
        yield from mounts.problems(mount, fleet).values()


@check("storage-space")
def storage_space(fleet: FleetFacts) -> Iterator[Problem]:
    """There is room on the inventory's `storage`, in bytes and in inodes.

    Fails below 1 GiB, without a free inode, and where a write says that the file system is full or the
    user's quota is used up; warns below 5 %. File systems that do not count inodes are not asked for any.
    Left out is storage that `storage-mount` finds wrong, or that the inventory wants read-only.
    """
    for mount in fleet.inventory.storage:
        if "ro" in mount.options:
            continue
        wrong = mounts.problems(mount, fleet)
        for host, facts in fleet.answers():
            seen = facts.paths.get(mount.path)
            if seen is not None and not mounts.fails(wrong.get(host.name)):
                yield from _judge_space(host.name, mount.path, seen)


def _judge_space(host: str, path: str, seen: PathFacts) -> Iterator[Problem]:
    space = seen.space
    bytes_left = f"{_human(space.free)} of {_human(space.size)} free" if space else "unknown"
    if seen.write in ("ENOSPC", "EDQUOT"):
        why = "the user's quota is used up" if seen.write == "EDQUOT" else "no space is left"
        message, found, severity = f"nothing can be written to {path}: {why}", seen.write, Severity.FAIL
    elif space is None or space.size == 0:
        return
    elif space.free < _LEAST:
        message, found, severity = f"{path} is full: {bytes_left}", bytes_left, Severity.FAIL
    elif space.inodes and not space.inodes_free:
        message, found, severity = f"{path} has no inode left", f"0 of {space.inodes} inodes", Severity.FAIL
    elif space.free < _LITTLE * space.size:
        message, found, severity = f"{path} is nearly full: {bytes_left}", bytes_left, Severity.WARN
    elif space.inodes and space.inodes_free < _LITTLE * space.inodes:
        found = f"{space.inodes_free} of {space.inodes} inodes free"
        message, severity = f"{path} has few inodes left: {found}", Severity.WARN
    else:
        return
    yield Problem(
        hosts=(host,),
        message=message,
        found=found,
        expected="5 % of the bytes and of the inodes, and 1 GiB",
        fix=f"find what can go: du -xh --max-depth=2 {shlex.quote(path)} | sort -h | tail",
        severity=severity,
    )


@check("local-space")
def local_space(fleet: FleetFacts) -> Iterator[Problem]:
    """There is room in the home directory and in /tmp of every host.

    Releases, job files and logs go to the one, sockets and temporary files to the other. Fails below 64 MiB
    and without a free inode, warns below 1 GiB. What lies on the inventory's `storage` is the matter of
    `storage-space`.
    """
    shared = [mount.path for mount in fleet.inventory.storage]
    for host, facts in fleet.answers():
        for disk in LOCAL_DISKS:
            seen = facts.paths.get(disk)
            if seen is None or seen.space is None or seen.space.size == 0:
                continue
            if seen.real and any(PurePosixPath(seen.real).is_relative_to(path) for path in shared):
                continue
            space, name = seen.space, "the home directory" if disk == "~" else disk
            full = space.free < _LOCAL_LEAST or (space.inodes and not space.inodes_free)
            if full or space.free < _LOCAL_LITTLE:
                left = f"{_human(space.free)} of {_human(space.size)} free"
                if space.inodes and not space.inodes_free:
                    left += ", no inode free"
                yield Problem(
                    hosts=(host.name,),
                    message=f"{name} is {'full' if full else 'nearly full'}: {left}",
                    found=left,
                    expected="1 GiB free, and inodes",
                    fix=f"find what can go: du -xh --max-depth=2 {disk} | sort -h | tail",
                    severity=None if full else Severity.WARN,
                )


def _human(size: int) -> str:
    """Bytes for people, to three digits: `1.5 TiB`."""
    value = float(size)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1000:
            return f"{value:.3g} {unit}"
        value /= 1024
    return f"{value:.3g} PiB"


@check("storage-visible", needs=Needs.NONCES)
def storage_visible(fleet: FleetFacts) -> Iterator[Problem]:
    """What one host writes to the inventory's `storage`, every other host reads.

    The first host whose mount is well writes a file with a nonce in it; the others look for it for up to
    5 s, for attribute caches may take a while: more than 1 s is a warning. This tells apart servers that look
    the same. Hosts on which `storage-mount` fails take no part; storage that the inventory wants read-only is
    left out. The writer removes the file, also when it loses the connection.
    """
    for path, nonce in (fleet.nonces or {}).items():
        yield from _judge_nonce(path, nonce)


def _judge_nonce(path: str, nonce: Nonce) -> Iterator[Problem]:
    expected = f"a file that {nonce.writer} writes there is read within {_NOTICEABLE:g} s"
    compare = f"compare on both: findmnt {shlex.quote(path)}; df {shlex.quote(path)}; getent hosts SERVER"
    if nonce.error is not None:
        yield Problem(
            hosts=(nonce.writer,),
            message=f"not known whether {path} is the same for all: no file can be written there",
            found=nonce.error,
            expected=f"a directory that the user may write to: {path}, or a workdir below it",
            fix=f"let the user write to {shlex.quote(path)}, or set workdir to a directory below it",
            severity=Severity.INFO,
        )
        return
    blind = {host: seen.error for host, seen in nonce.seen.items() if seen.error is not None}
    if len(blind) == len(nonce.seen) > 1:
        yield Problem(
            hosts=(nonce.writer,),
            message=f"no other host sees what it writes to {path}",
            found=next(iter(blind.values())),
            expected=f"a file written there is read by the others within {_NOTICEABLE:g} s",
            fix=compare,
        )
        return
    for host, seen in nonce.seen.items():
        if seen.error is not None:
            message = f"what {nonce.writer} writes to {path} is not seen here: it is other storage"
            yield Problem((host,), message, seen.error, expected, compare)
        elif seen.delay is not None and seen.delay > _NOTICEABLE:
            yield Problem(
                hosts=(host,),
                message=f"what {nonce.writer} writes to {path} is seen here only after {seen.delay:.1f} s",
                found=f"{seen.delay:.1f} s",
                expected=expected,
                fix="mount it with shorter attribute caches, as actimeo=1, or find what slows the server",
                severity=Severity.WARN,
            )


@check("path")
def path(fleet: FleetFacts) -> Iterator[Problem]:
    """Every path of the inventory's `paths` exists on every host, is of its kind, and can be read there.

    One that lies on storage which `storage-mount` finds wrong is left to that check.
    """
    wrong = {mount: mounts.problems(mount, fleet) for mount in fleet.inventory.storage}
    for required in fleet.inventory.paths:
        for host, facts in fleet.answers():
            seen = facts.paths.get(required.path)
            lies_on = [mount for mount in wrong if _lies_on(required, mount)]
            if seen is not None and not any(mounts.fails(wrong[mount].get(host.name)) for mount in lies_on):
                yield from _judge_path(host.name, required, seen, facts)


def _lies_on(required: RequiredPath, mount: Mount) -> bool:
    return PurePosixPath(required.path).is_relative_to(mount.path)


def _judge_path(host: str, required: RequiredPath, seen: PathFacts, facts: HostFacts) -> Iterator[Problem]:
    user = facts.login.user if facts.login and facts.login.user else "the user who logs in"
    quoted = shlex.quote(required.path)
    if seen.kind == "missing":
        problem, fix = f"{required.path} does not exist", "put it there, or mend `paths` in the inventory"
    elif seen.kind == "unreadable":
        problem, fix = (
            f"{user} cannot read {required.path}: {seen.error}",
            f"ls -ld {quoted}; let {user} read it",
        )
    elif seen.kind == "hung":
        problem = f"{required.path} does not answer: {seen.error}"
        fix = f"see what it is on, and whether that server lives: findmnt -T {quoted}"
    elif required.kind not in ("any", seen.kind):
        problem, fix = f"{required.path} is no {required.kind}", "put the right thing there, or mend `paths`"
    else:
        return
    yield Problem(
        hosts=(host,),
        message=problem,
        found=seen.kind,
        expected=required.kind if required.kind != "any" else "file or dir",
        fix=fix,
    )
