"""What is wrong with a mount of the inventory's `storage`, on which hosts. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import replace

from mnt.facts.fleet import FleetFacts
from mnt.facts.host import HostFacts, Mounted, MountPoint, PathFacts
from mnt.inventory.model import Mount
from mnt.preflight.findings import Problem, Severity
from mnt.preflight.parity import Subject, by_majority

# Options that mount(8), systemd or an init script read, and the kernel never shows: mount(8), nfs(5).
_NOT_SHOWN = {
    *("defaults", "auto", "noauto", "user", "nouser", "users", "owner", "group"),
    *("_netdev", "nofail", "bg", "fg", "intr", "nointr"),
}
# Options that hold unless another is shown.
_UNLESS = {
    "exec": "noexec",
    "suid": "nosuid",
    "dev": "nodev",
    "atime": "noatime",
    "diratime": "nodiratime",
    "async": "sync",
}
_SPELT = {"tcp": "proto=tcp", "udp": "proto=udp", "rdma": "proto=rdma", "nfsvers": "vers"}
# What a server that does not answer gives once a soft mount has lost patience: nfs(5).
_GAVE_UP = ("EIO", "ETIMEDOUT")


def problems(mount: Mount, fleet: FleetFacts) -> dict[str, Problem]:
    """What is wrong with it, by host, in rank order; at most one thing a host."""
    known = {host.name: facts for host, facts in fleet.answers() if mount.path in facts.mounts}
    writes = wants_write(mount, known)
    found: dict[str, Problem] = {}
    for host, facts in known.items():
        found.update((host, problem) for problem in _own(host, mount, facts, writes))
    usable = {host: facts for host, facts in known.items() if not fails(found.get(host))}
    for problem in (*_other_source(mount, usable), *_no_permission(mount, usable, writes)):
        for host in problem.hosts:
            found[host] = replace(problem, hosts=(host,))
    return {host: found[host] for host in known if host in found}


def fails(problem: Problem | None) -> bool:
    """Whether the mount is of no use; one that has a mere warning is."""
    return problem is not None and problem.severity is not Severity.WARN


def wants_write(mount: Mount, known: Mapping[str, HostFacts]) -> bool:
    """Whether it is to be written to: by the inventory's options, else as soon as one host can."""
    if "rw" in mount.options or "ro" in mount.options:
        return "rw" in mount.options
    return any(facts.paths[mount.path].write == "ok" for facts in known.values() if mount.path in facts.paths)


def layers(point: MountPoint) -> tuple[Mounted, ...]:
    """The mounts at a path, the last on top, without the trap that an automounter leaves below."""
    return tuple(layer for layer in point.stack if layer.type != "autofs")


def describe(mount: Mount) -> str:
    """What the inventory wants."""
    origin = f" from {mount.source}" if mount.source else ""
    options = f" ({','.join(mount.options)})" if mount.options else ""
    return f"{mount.type or 'a mount'}{origin}{options}"


def _own(host: str, mount: Mount, facts: HostFacts, writes: bool) -> Iterator[Problem]:
    """What one host's facts tell without the others'."""
    stack = layers(facts.mounts[mount.path])
    seen = facts.paths.get(mount.path, PathFacts("dir"))
    severity = None
    if not stack:
        there = facts.mounts[mount.path].inside
        held = f"; it lies on {there.point} ({there.type}, {there.source})" if there else ""
        message, found, fix = f"{mount.path} is not mounted", f"not mounted{held}", _mount(mount)
    elif seen.kind in ("hung", "unreadable", "missing"):
        message, fix = _unusable(mount, seen, stack[-1])
        found = f"{seen.error}; {_shown(stack)}"
    elif wrong := _differences(mount, stack[-1], writes):
        message, fix = _replaced(mount, stack, wrong, writes)
        found = _shown(stack)
    elif writes and seen.write == "EROFS":
        message = f"{mount.path} is read-only on the server, though the mount says rw"
        found, fix = f"writing fails: EROFS; {_shown(stack)}", _export(mount, stack[-1])
    elif len(stack) > 1:
        message = f"{mount.path} is mounted {len(stack)} times, one over the other"
        found, fix, severity = _shown(stack), f"sudo umount {shlex.quote(mount.path)}", Severity.WARN
    else:
        return
    yield Problem((host,), message, found, describe(mount), fix, severity)


def _differences(mount: Mount, top: Mounted, writes: bool) -> list[str]:
    wrong = []
    if mount.type and top.type != mount.type and (mount.type, top.type) != ("nfs", "nfs4"):
        wrong.append(f"type {top.type}")
    if mount.source and not _same_source(mount.source, top):
        wrong.append(_source_difference(mount.source, top.source))
    if writes and "ro" in top.options:
        wrong.append("mounted read-only")
    missing = [
        option
        for option in mount.options
        if not _in_force(option, top.options) and not (option == "rw" and "ro" in top.options)
    ]
    if missing:
        wrong.append(f"without {','.join(missing)}")
    return wrong


def _same_source(wanted: str, top: Mounted) -> bool:
    """An NFS server may be named by the address that the mount shows as `addr=`."""
    server, _, export = wanted.rstrip("/").partition(":/")
    shown, _, shown_export = top.source.rstrip("/").partition(":/")
    return export == shown_export and (server == shown or f"addr={server.strip('[]')}" in top.options)


def _source_difference(wanted: str, found: str) -> str:
    """Names the half of an NFS source that is wrong."""
    server, colon, export = wanted.rstrip("/").partition(":/")
    other_server, other_colon, other_export = found.rstrip("/").partition(":/")
    if colon and other_colon and server == other_server:
        return f"export /{other_export} instead of /{export}"
    if colon and other_colon and export == other_export:
        return f"server {other_server} instead of {server}"
    return f"source {found}"


def _in_force(option: str, shown: tuple[str, ...]) -> bool:
    if option in _NOT_SHOWN or option.startswith("x-"):
        return True
    if option in _UNLESS:
        return _UNLESS[option] not in shown
    key, equals, value = option.partition("=")
    option = _SPELT.get(key, key) + equals + value
    # `vers=4` leaves the minor version to the server.
    return option in shown or (key in ("vers", "nfsvers") and any(o.startswith(f"{option}.") for o in shown))


def _replaced(mount: Mount, stack: tuple[Mounted, ...], wrong: list[str], writes: bool) -> tuple[str, str]:
    """Message and fix of a mount that is another than the inventory's."""
    path = shlex.quote(mount.path)
    if any(not _differences(mount, layer, writes) for layer in stack[:-1]):
        top = stack[-1]
        return (
            f"{mount.path} is hidden: {top.type} from {top.source} is mounted over it",
            f"sudo umount {path}",
        )
    message = f"{mount.path} is not what it should be: {', '.join(wrong)}"
    if wrong == ["mounted read-only"]:
        return f"{mount.path} is mounted read-only", f"sudo mount -o remount,rw {path}"
    return message, f"sudo umount {path} && {_mount(mount)}"


def _unusable(mount: Mount, seen: PathFacts, top: Mounted) -> tuple[str, str]:
    """Message and fix of a mount that is the right one, and does not work."""
    again = f"sudo umount -f -l {shlex.quote(mount.path)} && {_mount(mount)}"
    server = _server(top)
    of = f"its server, {server}," if server else "its file system"
    if seen.kind == "hung":
        return (
            f"{mount.path} hangs: {of} does not answer",
            f"see that {server or top.source} lives and can be reached{_reach(server)}; "
            f"what waits for it goes on then. If it is gone for good: {again}",
        )
    if seen.code == "ESTALE":
        return f"{mount.path} is stale: what was mounted is no longer there on {server or top.source}", again
    if server and seen.code in _GAVE_UP:
        return (
            f"{mount.path} gives I/O errors: {of} does not answer, and a soft mount gives up",
            f"see that {server} lives and can be reached{_reach(server)}; then: {again}",
        )
    return f"{mount.path} is mounted and cannot be used: {seen.error}", again


def _other_source(mount: Mount, known: Mapping[str, HostFacts]) -> Iterator[Problem]:
    """Where the inventory names no source, all hosts must have the same network file system there."""
    path = shlex.quote(mount.path)
    tops = {host: layers(facts.mounts[mount.path])[-1] for host, facts in known.items()}
    if mount.source is None and any(_server(top) for top in tops.values()):
        subject = Subject(
            name=f"the source of {mount.path}",
            pin="storage",
            fix=lambda host, source: f"sudo umount {path} && sudo mount {shlex.quote(source or '')} {path}",
            exactly=str,
            settle=lambda source: f'storage: [{{path: {mount.path}, source: "{source}"}}]',
        )
        yield from by_majority(subject, _sources(tops))


def _sources(tops: Mapping[str, Mounted]) -> dict[str, str]:
    """The source of each host's mount; that of an earlier host where it is the same by another name."""
    firsts: list[Mounted] = []
    sources = {}
    for host, top in tops.items():
        same = next((first for first in firsts if _one_server(first, top)), top)
        firsts.append(same)
        sources[host] = same.source
    return sources


def _one_server(one: Mounted, other: Mounted) -> bool:
    """The same export of the same server: by its name, for it may have many addresses, or by the address."""
    if one.source == other.source:
        return True
    export, other_export = (mounted.source.partition(":/")[2] for mounted in (one, other))
    addresses, others = (
        {option for option in mounted.options if option.startswith("addr=")} for mounted in (one, other)
    )
    return export == other_export and bool(addresses & others)


def _no_permission(mount: Mount, known: Mapping[str, HostFacts], writes: bool) -> Iterator[Problem]:
    """Who may not write where others may: that is how user ids that differ look."""
    tried = {
        host: facts.paths[mount.path].write for host, facts in known.items() if mount.path in facts.paths
    }
    able = [host for host, answer in tried.items() if answer == "ok"]
    for host, answer in tried.items():
        if writes and able and answer in ("EACCES", "EPERM"):
            yield Problem(
                hosts=(host,),
                message=f"the user may not write to {mount.path}; on {len(able)} of {len(tried)} it may",
                found=f"writing fails: {answer}",
                expected="the same rights on every host",
                fix=f"compare the hosts' `id` and `ls -ldn {shlex.quote(mount.path)}`: NFS goes by numbers",
            )


def _server(top: Mounted) -> str | None:
    """The server of an NFS or CIFS mount (`server:/export`, `//server/share`)."""
    if top.source.startswith("//"):
        return top.source[2:].partition("/")[0]
    server, colon, _ = top.source.partition(":/")
    return server if colon and server else None


def _reach(server: str | None) -> str:
    return f" (nc -vz {shlex.quote(server.strip('[]'))} 2049)" if server else ""


def _shown(stack: tuple[Mounted, ...]) -> str:
    return ", over ".join(
        f"{layer.type} from {layer.source} ({','.join(layer.options)})" for layer in reversed(stack)
    )


def _mount(mount: Mount) -> str:
    if mount.source is None:
        return f"sudo mount {shlex.quote(mount.path)}"
    kind = ["-t", mount.type] if mount.type else []
    options = ["-o", ",".join(mount.options)] if mount.options else []
    return shlex.join(["sudo", "mount", *kind, *options, mount.source, mount.path])


def _export(mount: Mount, top: Mounted) -> str:
    server, _, export = top.source.partition(":/")
    if not export:
        return f"let {top.source} be written to; then: sudo mount -o remount,rw {shlex.quote(mount.path)}"
    return f"on {server}: write rw for /{export} in /etc/exports, then sudo exportfs -ra"
