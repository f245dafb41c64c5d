"""The problems of the places where a push, a job and its end write. Pure."""

from __future__ import annotations

import errno
import os
import shlex
from collections.abc import Collection, Iterator, Mapping

from mnt.facts.fleet import FleetFacts
from mnt.facts.host import HostFacts, WriteTest
from mnt.inventory.model import Host
from mnt.paths import is_below
from mnt.preflight import mounts
from mnt.preflight.findings import Problem

FULL = ("ENOSPC", "EDQUOT")
_OF_A_FILE_SYSTEM = (*FULL, "EROFS", "EIO", "ESTALE", "hung")  # otherwise it is the matter of one directory
_DENIED = ("EACCES", "EPERM")
_OPEN_TO_ALL = ("/tmp", "/dev/shm")  # noqa: S108 - it is looked at


def problems(fleet: FleetFacts) -> Iterator[Problem]:
    """What cannot be written, by host; each file system, or directory, is one problem."""
    failing = {mount.path: mounts.failing(mount, fleet) for mount in fleet.inventory.storage}
    for host, facts in fleet.answers():
        failed: dict[tuple[str, str], list[WriteTest]] = {}
        for test in facts.writes:
            if test.result != "ok" and not _told_of_the_mount(test, host, facts, failing):
                whole = test.result in _OF_A_FILE_SYSTEM and test.mount
                failed.setdefault((test.result, whole or test.directory), []).append(test)
        for tests in failed.values():
            yield _problem(host, facts, tests)


def full_below(facts: HostFacts, directory: str | None) -> bool:
    """Whether a place in this directory could not be written for want of room."""
    return directory is not None and any(
        test.result in FULL and is_below(test.directory, directory) for test in facts.writes
    )


def _told_of_the_mount(
    test: WriteTest, host: Host, facts: HostFacts, failing: Mapping[str, Collection[str]]
) -> bool:
    """Whether `storage-mount` or `storage-space` names the reason.

    Args:
        failing: the hosts on which a mount is unusable, by its path.
    """
    for path, hosts in failing.items():
        if is_below(test.directory, path):
            state = facts.paths.get(path)
            is_full = test.result in FULL and state is not None and state.write == test.result
            if is_full or host.name in hosts:
                return True
    return False


def _problem(host: Host, facts: HostFacts, tests: list[WriteTest]) -> Problem:
    first = tests[0]
    reason = _reason(first)
    where = f"{first.directory}: {reason}"
    return Problem(
        hosts=(host.name,),
        message=f"cannot write to {', '.join(test.path for test in tests)}: {reason}",
        found=where if first.mount is None else f"{where}; on the file system at {first.mount}",
        expected="the user can make a file there",
        fix=_fix(first, host, facts),
    )


def _reason(test: WriteTest) -> str:
    if test.result == "hung":
        return "the file system does not answer"
    if test.result == "ENOSPC" and test.space and test.space.inodes and not test.space.inodes_free:
        return f"no inode left ({test.space.inodes} in use)"
    known = getattr(errno, test.result, None) if test.result in errno.errorcode.values() else None
    return os.strerror(known).lower() if isinstance(known, int) else test.result


def _fix(test: WriteTest, host: Host, facts: HostFacts) -> str:
    where, mount = shlex.quote(test.directory), shlex.quote(test.mount or test.directory)
    if test.result == "EROFS":
        return f"find out why: sudo dmesg | tail; then: sudo mount -o remount,rw {mount}"
    if test.result in FULL:
        inodes = "--inodes " if "inode" in _reason(test) else ""
        quota = ", or raise the quota of the user" if test.result == "EDQUOT" else ""
        return f"delete what is not needed{quota}: du {inodes}-xh --max-depth=2 {mount} | sort -h | tail"
    if test.result in _DENIED and test.directory in _OPEN_TO_ALL:
        return f"sudo chmod 1777 {where}"
    if test.result in _DENIED:
        return _given(test, host, facts)
    if test.result == "ENOTDIR":
        return f"move it away: mv {where} {shlex.quote(test.directory + '.old')}"
    return f"check its file system and its server: findmnt -T {where}"


def _given(test: WriteTest, host: Host, facts: HostFacts) -> str:
    """Make the directory the user's own, and not those above it."""
    user = shlex.quote(facts.login.user) if facts.login and facts.login.user else "USER"
    group = f"-g {shlex.quote(host.workdir_group)} -m 2775 " if host.workdir_group else ""
    return f"sudo install -d -o {user} {group}{shlex.quote(test.path)}"
