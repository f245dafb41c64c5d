"""Is the shared storage there, and what must lie on it?"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import PurePosixPath

from mnt.inventory.model import Mount, RequiredPath
from mnt.preflight.facts import FleetFacts, HostFacts, Mounted, PathFacts
from mnt.preflight.findings import Problem
from mnt.preflight.registry import check


@check("storage-mount")
def storage_mount(fleet: FleetFacts) -> Iterator[Problem]:
    """Every mount of the inventory's `storage` is there, with the type, source and options that it names.

    `type: nfs` takes any version, as in fstab(5); `nfs4` is exact. Where several lie on one path, the last
    mounted counts, for that is what a job sees. One that does not answer in time fails, and holds up nothing.
    """
    for mount in fleet.inventory.storage:
        for host, facts in fleet.answers():
            if mount.path in facts.mounts:
                yield from _judge_mount(host.name, mount, facts)


def _judge_mount(host: str, mount: Mount, facts: HostFacts) -> Iterator[Problem]:
    point = facts.mounts[mount.path]
    seen = facts.paths.get(mount.path)
    if not point.stack:
        there = point.inside
        held = f"; it lies on {there.point} ({there.type}, {there.source})" if there else ""
        problem, found, fix = f"{mount.path} is not mounted", f"not mounted{held}", _mount_command(mount)
    elif wrong := _differences(mount, point.stack[-1]):
        top = point.stack[-1]
        problem = f"{mount.path} is not what it should be: {', '.join(wrong)}"
        found = f"{top.type} from {top.source} ({','.join(top.options)})"
        fix = f"sudo umount {shlex.quote(mount.path)} && {_mount_command(mount)}"
    elif seen is not None and seen.kind in ("hung", "unreadable", "missing"):
        problem = f"{mount.path} is mounted and cannot be used: {seen.error}"
        found, fix = f"{seen.error}", _revive(mount, point.stack[-1])
    else:
        return
    yield Problem(hosts=(host,), message=problem, found=found, expected=_wanted(mount), fix=fix)


def _differences(mount: Mount, top: Mounted) -> list[str]:
    wrong = []
    if mount.type and top.type != mount.type and (mount.type, top.type) != ("nfs", "nfs4"):
        wrong.append(f"type {top.type}")
    if mount.source and top.source.rstrip("/") != mount.source.rstrip("/"):
        wrong.append(f"source {top.source}")
    missing = [option for option in mount.options if option not in top.options]
    if missing:
        wrong.append(f"without {','.join(missing)}")
    return wrong


def _wanted(mount: Mount) -> str:
    origin = f" from {mount.source}" if mount.source else ""
    options = f" ({','.join(mount.options)})" if mount.options else ""
    return f"{mount.type or 'a mount'}{origin}{options}"


def _mount_command(mount: Mount) -> str:
    if mount.source is None:
        return f"sudo mount {shlex.quote(mount.path)}"
    kind = ["-t", mount.type] if mount.type else []
    options = ["-o", ",".join(mount.options)] if mount.options else []
    return shlex.join(["sudo", "mount", *kind, *options, mount.source, mount.path])


def _revive(mount: Mount, top: Mounted) -> str:
    path = shlex.quote(mount.path)
    return f"see that {top.source} serves it; then: sudo umount -f -l {path} && {_mount_command(mount)}"


@check("path")
def path(fleet: FleetFacts) -> Iterator[Problem]:
    """Every path of the inventory's `paths` exists on every host, is of its kind, and can be read there.

    One that lies on storage which `storage-mount` finds wrong is left to that check.
    """
    for required in fleet.inventory.paths:
        for host, facts in fleet.answers():
            seen = facts.paths.get(required.path)
            if seen is not None and not _on_wrong_storage(required, fleet, facts):
                yield from _judge_path(host.name, required, seen, facts)


def _on_wrong_storage(required: RequiredPath, fleet: FleetFacts, facts: HostFacts) -> bool:
    return any(
        PurePosixPath(required.path).is_relative_to(mount.path) and any(_judge_mount("", mount, facts))
        for mount in fleet.inventory.storage
        if mount.path in facts.mounts
    )


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
