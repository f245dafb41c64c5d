"""The problems of a mount of the inventory's `storage`, by host. Pure."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace

from mnt.facts.fleet import FleetFacts
from mnt.facts.host import HostFacts, Mounted, MountPoint, PathFacts
from mnt.inventory.model import Mount
from mnt.preflight.findings import Problem, Severity
from mnt.preflight.parity import Subject, by_majority

# Options for mount(8), systemd or init scripts, which the kernel never shows: mount(8), nfs(5).
_NOT_SHOWN = {
    *("defaults", "auto", "noauto", "user", "nouser", "users", "owner", "group"),
    *("_netdev", "nofail", "bg", "fg", "intr", "nointr"),
}
# Options that are in force unless the kernel shows the opposite option.
_OPPOSITES = {
    "exec": "noexec",
    "suid": "nosuid",
    "dev": "nodev",
    "atime": "noatime",
    "diratime": "nodiratime",
    "async": "sync",
}
# Options that root of a server could use to be root of its clients, and those that prevent it.
_RIGHTS = {"suid": "nosuid", "dev": "nodev"}
_SYNONYMS = {"tcp": "proto=tcp", "udp": "proto=udp", "rdma": "proto=rdma", "nfsvers": "vers"}
# The errors of a soft mount after its timeout, when the server does not answer: nfs(5).
_TIMED_OUT = ("EIO", "ETIMEDOUT")


def problems(mount: Mount, fleet: FleetFacts) -> dict[str, Problem]:
    """The problem of each host that has one, in rank order."""
    known = {host.name: facts for host, facts in fleet.answers() if mount.path in facts.mounts}
    writable = must_be_writable(mount, known)
    found = {
        host: replace(problem, hosts=(host,))
        for host, facts in known.items()
        if (problem := _problem(mount, facts, writable))
    }
    usable = {host: facts for host, facts in known.items() if host not in found or not _fails(found[host])}
    for problem in (*_other_source(mount, usable), *_no_permission(mount, usable, writable)):
        for host in problem.hosts:
            found[host] = replace(problem, hosts=(host,), playbook=None)
    return {host: found[host] for host in known if host in found}


def failing(mount: Mount, fleet: FleetFacts) -> set[str]:
    """The hosts on which the mount is unusable. A mount with a warning is usable."""
    return {host for host, problem in problems(mount, fleet).items() if _fails(problem)}


def _fails(problem: Problem) -> bool:
    return problem.severity is not Severity.WARN


def missing_protection(mount: Mount, facts: HostFacts) -> list[str]:
    """Which of `nosuid` and `nodev` a mount from a server lacks, unless the inventory's options allow it."""
    top = layers(facts.mounts[mount.path])[-1]
    return [option for option in _protection(mount) if option not in top.options] if _server(top) else []


def _protection(mount: Mount) -> list[str]:
    """`nosuid` and `nodev`, without those whose opposite the inventory requires."""
    return [no for yes, no in _RIGHTS.items() if yes not in mount.options]


def must_be_writable(mount: Mount, known: Mapping[str, HostFacts]) -> bool:
    """Whether hosts must be able to write there: by the inventory's options, else if half of them can."""
    if "rw" in mount.options or "ro" in mount.options:
        return "rw" in mount.options
    tried = [facts.paths[mount.path].write for facts in known.values() if mount.path in facts.paths]
    return 0 < len(tried) <= 2 * tried.count("ok")


def layers(point: MountPoint) -> tuple[Mounted, ...]:
    """The mounts at a path, the last on top, without the autofs mount of an automounter."""
    return tuple(layer for layer in point.stack if layer.type != "autofs")


def describe(mount: Mount) -> str:
    """The mount that the inventory requires, for people."""
    origin = f" from {mount.source}" if mount.source else ""
    options = f" ({','.join(mount.options)})" if mount.options else ""
    return f"{mount.type or 'a mount'}{origin}{options}"


def _problem(mount: Mount, facts: HostFacts, writable: bool) -> Problem | None:
    """The problem that the facts of one host show, without those of the other hosts."""
    stack = layers(facts.mounts[mount.path])
    state = facts.paths.get(mount.path, PathFacts("dir"))
    severity = None
    if not stack:
        parent = facts.mounts[mount.path].inside
        on = f"; the directory is on {parent.point} ({parent.type}, {parent.source})" if parent else ""
        message, found, fix = f"{mount.path} is not mounted", f"not mounted{on}", _mount(mount)
    elif state.kind in ("hung", "unreadable", "missing"):
        message, fix = _unusable(mount, state, stack[-1])
        found = f"{state.error}; {_shown(stack)}"
    elif differences := _differences(mount, stack[-1], writable):
        message, fix = _replaced(mount, stack, differences, writable)
        found = _shown(stack)
    elif writable and state.write == "EROFS":
        message = f"{mount.path} is read-only on the server, but mounted rw"
        found, fix = f"writing fails: EROFS; {_shown(stack)}", _export(mount)
    elif len(stack) > 1:
        message = f"{mount.path} has {len(stack)} mounts on top of each other"
        found, fix, severity = _shown(stack), f"sudo umount {shlex.quote(mount.path)}", Severity.WARN
    else:
        return None
    # A playbook mounts what is not there; it replaces nothing.
    playbook = "nfs" if not stack and _is_nfs(mount) else None
    return Problem(message, found, describe(mount), fix, severity, playbook=playbook)


def _is_nfs(mount: Mount) -> bool:
    return mount.type in ("nfs", "nfs4") or (mount.type is None and ":/" in (mount.source or ""))


def _differences(mount: Mount, top: Mounted, writable: bool) -> list[str]:
    wrong = []
    if mount.type and top.type != mount.type and (mount.type, top.type) != ("nfs", "nfs4"):
        wrong.append(f"type {top.type}")
    if mount.source and (difference := _source_difference(mount.source, top)):
        wrong.append(difference)
    if writable and "ro" in top.options:
        wrong.append("mounted read-only")
    missing = [
        option
        for option in mount.options
        if not _in_force(option, top.options) and not (option == "rw" and "ro" in top.options)
    ]
    if missing:
        wrong.append(f"without {','.join(missing)}")
    return wrong


def _source_difference(required: str, top: Mounted) -> str | None:
    """What is wrong with the source: of NFS the server or the export. None: nothing.

    An NFS server may also be named by the address in the mount's `addr=`.
    """
    server, colon, export = required.rstrip("/").partition(":/")
    found, found_colon, found_export = top.source.rstrip("/").partition(":/")
    same_server = server == found or f"addr={server.strip('[]')}" in top.options
    if same_server and export == found_export:
        return None
    if colon and found_colon and same_server:
        return f"export /{found_export} instead of /{export}"
    if colon and found_colon and export == found_export:
        return f"server {found} instead of {server}"
    return f"source {top.source}"


def _in_force(option: str, shown: tuple[str, ...]) -> bool:
    if option in _NOT_SHOWN or option.startswith("x-"):
        return True
    if option in _OPPOSITES:
        return _OPPOSITES[option] not in shown
    key, equals, value = option.partition("=")
    option = _SYNONYMS.get(key, key) + equals + value
    # With `vers=4` the server chooses the minor version.
    return option in shown or (key in ("vers", "nfsvers") and any(o.startswith(f"{option}.") for o in shown))


def _replaced(
    mount: Mount, stack: tuple[Mounted, ...], differences: list[str], writable: bool
) -> tuple[str, str]:
    """Message and fix for a mount that differs from the inventory."""
    path = shlex.quote(mount.path)
    if any(not _differences(mount, layer, writable) for layer in stack[:-1]):
        over = f"{stack[-1].type} from {stack[-1].source}"
        return f"{mount.path} is hidden: {over} is mounted over it", f"sudo umount {path}"
    if differences == ["mounted read-only"]:
        return f"{mount.path} is mounted read-only", f"sudo mount -o remount,rw {path}"
    message = f"{mount.path} differs from the inventory: {', '.join(differences)}"
    return message, f"sudo umount {path} && {_mount(mount)}"


def _unusable(mount: Mount, state: PathFacts, top: Mounted) -> tuple[str, str]:
    """Message and fix for a mount that does not work."""
    remount = f"sudo umount -f -l {shlex.quote(mount.path)} && {_mount(mount)}"
    server = _server(top)
    of = f"its server, {server}," if server else "its file system"
    test = f" (test: nc -vz {shlex.quote(server.strip('[]'))} 2049)" if server else ""
    back = f"bring {shlex.quote((server or top.source).strip('[]'))} back{test}"
    if state.kind == "hung":
        fix = f"{back}, and waiting processes continue; if it does not come back: {remount}"
        return f"{mount.path} hangs: {of} does not answer", fix
    if state.code == "ESTALE":
        return f"{mount.path} is stale: its directory no longer exists on {server or top.source}", remount
    if server and state.code in _TIMED_OUT:
        message = f"{mount.path} returns I/O errors: {of} does not answer, and the soft mount has timed out"
        return message, f"{back}; then: {remount}"
    return f"{mount.path} is mounted but not usable: {state.error}", remount


def _other_source(mount: Mount, known: Mapping[str, HostFacts]) -> Iterator[Problem]:
    """If the inventory names no source, all hosts must have the same network file system there."""
    path = shlex.quote(mount.path)
    tops = {host: layers(facts.mounts[mount.path])[-1] for host, facts in known.items()}
    counted = Counter(top.source for top in tops.values())
    decide = f'set the source in the inventory: storage: [{{path: {mount.path}, source: "SERVER:/EXPORT"}}]'
    if mount.source is None and any(_server(top) for top in tops.values()):
        subject = Subject(
            name=f"the source of {mount.path}",
            # A source that only one host has may be a server of its own.
            fix=lambda host, source: (
                f"sudo umount {path} && sudo mount {shlex.quote(source)} {path}"
                if source is not None and counted[source] > 1
                else decide
            ),
            pin_value=str,
            tie_fix=decide,
        )
        yield from by_majority(subject, _sources(tops))


def _sources(tops: Mapping[str, Mounted]) -> dict[str, str]:
    """The source of each host's mount. The same storage gets the same name: the one on the first host."""
    firsts: list[Mounted] = []
    sources = {}
    for host, top in tops.items():
        same = next((first for first in firsts if _same_storage(first, top)), top)
        firsts.append(same)
        sources[host] = same.source
    return sources


def _same_storage(one: Mounted, other: Mounted) -> bool:
    """Whether both are the same export of the same server, by the server's name or by its address."""
    if one.source == other.source:
        return True
    export, other_export = (mounted.source.partition(":/")[2] for mounted in (one, other))
    addresses, others = (
        {option for option in mounted.options if option.startswith("addr=")} for mounted in (one, other)
    )
    return export == other_export and bool(addresses & others)


def _no_permission(mount: Mount, known: Mapping[str, HostFacts], writable: bool) -> Iterator[Problem]:
    """Hosts that may not write although others may: a typical effect of different user ids."""
    tried = {
        host: facts.paths[mount.path].write for host, facts in known.items() if mount.path in facts.paths
    }
    able = [host for host, answer in tried.items() if answer == "ok"]
    for host, answer in tried.items():
        if writable and able and answer in ("EACCES", "EPERM"):
            yield Problem(
                hosts=(host,),
                message=f"the user cannot write to {mount.path}; on {len(able)} of {len(tried)} hosts it can",
                found=f"writing fails: {answer}",
                expected="the same permissions on every host",
                fix=f"compare the numeric user ids of the hosts: id; ls -ldn {shlex.quote(mount.path)}",
            )


def _server(top: Mounted) -> str | None:
    """The server of an NFS or CIFS mount (`server:/export`, `//server/share`)."""
    if top.source.startswith("//"):
        return top.source[2:].partition("/")[0]
    server, colon, _ = top.source.partition(":/")
    return server if colon and server else None


def _shown(stack: tuple[Mounted, ...]) -> str:
    return ", over ".join(
        f"{layer.type} from {layer.source} ({','.join(layer.options)})" for layer in reversed(stack)
    )


def _mount(mount: Mount) -> str:
    if mount.source is None:
        return f"sudo mount {shlex.quote(mount.path)}"
    kind = ["-t", mount.type] if mount.type else []
    more = [option for option in _protection(mount) if _is_nfs(mount) and option not in mount.options]
    options = ["-o", ",".join([*mount.options, *more])] if mount.options or more else []
    return shlex.join(["sudo", "mount", *kind, *options, mount.source, mount.path])


def _export(mount: Mount) -> str:
    """What makes the mount's source writable. It is named only if the inventory names it."""
    server, _, export = (mount.source or "").partition(":/")
    if not export:
        remount = f"sudo mount -o remount,rw {shlex.quote(mount.path)}"
        return f"make its source writable, on the server of an NFS mount in /etc/exports; then: {remount}"
    where, pasted = shlex.quote(server.strip("[]")), shlex.quote(f"/{export}")
    return f"on {where}, set rw for {pasted} in /etc/exports; then: sudo exportfs -ra"
