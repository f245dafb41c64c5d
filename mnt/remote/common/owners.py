"""Refuse files that another user of this host made, or could replace. Runs on a host: Python 3.8.

The rule is that of sshd's StrictModes (OpenSSH 9, sshd_config(5)), for every level of a path: it belongs to
this user or to root, and no other user can write to it. A directory in which all users may make files of
their own (the sticky bit, like /tmp) may be on the way to a path, but not its end. In addition:

* This user's own group is no other user: with umask 002, Debian and Red Hat make home directories that it can
  write to. It is the primary group of the user, has the user's name (useradd(8), USERGROUPS_ENAB), and lists
  no other member. Any other group may have members that this host cannot list: a directory service (SSSD,
  LDAP) finds a user by name, but lists none, and a user's primary group does not list the user.
* Users and groups in an access control list (acl(5)) are other users. (Lists of NFSv4 are not read.)
* The members of a group that the caller names may own files and write to them.
* What another user has mounted by FUSE is not even asked: its owners and modes are that user's word.
* In a user namespace (a container), root's files may be shown as nobody's.

Each level is opened from the one above it, without following links, and judged by its descriptor. What was
accepted can be used by its path afterwards: only the users that were accepted can replace any part of it.
"""

from __future__ import annotations

import contextlib
import errno
import grp
import itertools
import os
import pwd
import shlex
import stat
import tempfile
from collections.abc import Iterator
from typing import NamedTuple

from mnt.remote.common.files import read, strerror, whole_number
from mnt.remote.common.levels import Acl, Level, acl_of, levels, tree
from mnt.remote.common.mounts import mount_id, mounted_by
from mnt.remote.common.refusal import Refused

_ALL = "all users"
_TEMPORARY = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108 - all users must be able to make files there
_TMP = _TEMPORARY[0]  # of private directories
_WRITE, _EXECUTE = 0o2, 0o1
_ACL_USER, _ACL_GROUP_OBJ, _ACL_GROUP = 0x02, 0x04, 0x08  # linux/posix_acl.h
_ALL_USERS = 4294967295  # in the map of a user namespace that is the machine's own: user_namespaces(7)


class Group(NamedTuple):
    """A Unix group that shares files on purpose."""

    name: str
    id: int


def find_group(name: str) -> Group:
    """Raises Refused if this host has no such group, or this user is not in it."""
    try:
        found = Group(name, grp.getgrnam(name).gr_gid)
    except KeyError:
        raise Refused(
            f"this host has no group {name}", "make the group here, or correct workdir_group in the inventory"
        ) from None
    if os.getuid() != 0 and found.id not in _my_groups():
        raise Refused(f"{_user(os.getuid())} is not in the group {name}", f"as root: usermod -aG {name} USER")
    return found


def check_owners(
    path: str | bytes, group: Group | None = None, *, private: int = 0, inside_closed: bool = False
) -> bool:
    """Whether `path`, which is absolute, exists. What exists of it is checked, from the root directory on.

    Args:
        group: its members are accepted, as this user is.
        private: number of levels at the end that must be directories (not links) of this user, which no other
            user can enter.
        inside_closed: below a directory that other users cannot enter, accept any mode.

    Raises Refused, naming the level and its owner, also if a level cannot be entered.
    """
    with contextlib.ExitStack() as opened:
        return _end(path, group, private, inside_closed, opened, own_links=False) is not None


@contextlib.contextmanager
def checked_directory(
    path: str | bytes, group: Group | None = None, *, inside_closed: bool = False
) -> Iterator[int]:
    """A descriptor (O_PATH) of a directory that `check_owners` accepts, to use names relative to it.

    It stays the same directory, also if a member of the group exchanges it. No member can lead to another
    directory by a link: see `_judge_link`.

    Raises Refused, as `check_owners`, and OSError if it does not exist, or is no directory.
    """
    with contextlib.ExitStack() as opened:
        end = _end(path, group, 0, inside_closed, opened, own_links=True)
        problem = errno.ENOENT if end is None else 0 if stat.S_ISDIR(os.fstat(end).st_mode) else errno.ENOTDIR
        if end is None or problem:
            raise OSError(problem, os.strerror(problem), os.fsdecode(path))
        yield end


def _end(
    path: str | bytes,
    group: Group | None,
    private: int,
    inside_closed: bool,
    opened: contextlib.ExitStack,
    *,
    own_links: bool,
) -> int | None:
    """See `check_owners`; a descriptor (O_PATH) of what `path` is, None if it does not exist."""
    end, closed, doubt = None, None, None
    try:
        for level in levels(os.fsdecode(path), opened, judge_mount):
            if level.found is None:
                return None
            if level.after < private:
                _judge_private(level.path, level.found)
            else:
                _judge_owner(level.path, level.found, group)
                if not level.is_link and not (closed and level.path.startswith(closed)):
                    acl = level.acl()
                    _judge_mode(level.path, level.found, acl, group, last=not level.after)
                    is_closed = inside_closed and _is_closed(level.found, acl, group)
                    closed = f"{level.path}/" if is_closed else None
            if own_links:
                doubt = _judge_link(level, doubt)
            end = None if level.after or level.is_link else level.descriptor
    except OSError as error:
        raise Refused(f"cannot enter {os.fsdecode(path)}: {strerror(error)}", "check the path") from error
    return end


@contextlib.contextmanager
def place_to_write(path: str) -> Iterator[Level]:
    """What `path`, which is absolute, stands for when a file is written there. It may not exist.

    Use its `name` in the directory `above`: a path may lead elsewhere in the next moment. Others may write to
    the directory, but links are followed only as `_judge_link` says.

    Raises Refused, also if another user made what is there, and OSError if there is no such directory.
    """
    doubt = None
    with contextlib.ExitStack() as opened:
        for level in levels(path, opened, judge_mount):
            doubt = _judge_link(level, doubt)
            if level.found is not None and not level.after:
                _judge_owner(level.path, level.found, None)
            elif level.after and level.found is None:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), level.path)
        yield level


def make_private_directory(prefix: str) -> str:
    """A new directory in /tmp, whatever TMPDIR is: no other user can enter it, or put another in its place.

    Raises Refused, and OSError.
    """
    directory = tempfile.mkdtemp(prefix=prefix, dir=_TMP)
    try:
        check_owners(directory, private=1)
    except Refused:
        with contextlib.suppress(OSError):  # by now, another user's may have its name
            os.rmdir(directory)
        raise
    return directory


def make_own_directory(path: str, mode: int) -> None:
    """Make a directory, and those above it that do not exist. Each link on the way is judged first.

    Raises Refused, as `place_to_write`, and OSError.
    """
    while True:
        doubt = None
        with contextlib.ExitStack() as opened:
            for level in levels(path, opened, judge_mount):
                doubt = _judge_link(level, doubt)
            if level.found is not None:
                return
            with contextlib.suppress(FileExistsError):  # made meanwhile: judged in the next round
                os.mkdir(level.name, mode, dir_fd=level.above)


def _judge_link(level: Level, doubt: Refused | None) -> Refused | None:
    """Raises Refused for a link, unless this user or root made it where no other user could exchange it.

    Members of a group that shares a directory count as other users: the link leads out of it.

    Args:
        doubt: why others could exchange what is in a level above; None: they cannot.

    Returns the doubt for the next level.
    """
    if level.found is None or (doubt is not None and not level.is_link):
        return doubt
    if level.is_link and doubt is not None:
        raise Refused(f"{level.path} is a link, and {doubt.message}", doubt.fix)
    try:
        _judge_owner(level.path, level.found, None)
        if not level.is_link:
            _judge_mode(level.path, level.found, level.acl(), None, last=False)
    except Refused as refusal:
        if level.is_link:
            raise
        return refusal
    return None


def shared_group(path: str | os.PathLike[str]) -> Group | None:
    """The group with which this user shares a directory: its own group, which can write to it.

    None if it cannot, or this user is not in it: then it is other users, as the group of another user's own
    directory, or if it does not exist. Raises Refused, as `status`, and OSError.
    """
    found = status(os.path.join(os.getcwd(), path))
    if found is None or not found.st_mode & stat.S_IWGRP or found.st_gid not in _my_groups():
        return None
    return Group(_group_name(found.st_gid), found.st_gid)


def status(path: str | bytes, *, follow: bool = True) -> os.stat_result | None:
    """The status of what is at `path`, which is absolute; None: nothing is there.

    Args:
        follow: if it is a link, that of its target.

    Raises Refused for what another user has mounted on the way, which might never answer, and OSError.
    """
    with contextlib.ExitStack() as opened:
        for level in levels(os.fsdecode(path), opened, judge_mount):
            if not level.after and not (follow and level.is_link):
                break
        return level.found


def unnamed_status(path: str | os.PathLike[str], *, follow: bool = True) -> os.stat_result | None:
    """The same for a place that nobody has named; None: nothing is there that this user can see.

    Args:
        path: may be relative to the current directory.

    Raises Refused, as `status`.
    """
    try:
        return status(os.path.abspath(path), follow=follow)
    except OSError:
        return None


def own_unnamed_status(path: str | os.PathLike[str], *, follow: bool = True) -> os.stat_result | None:
    """The same; None also for what another user made, or has mounted on the way."""
    try:
        found = unnamed_status(path, follow=follow)
    except Refused:
        return None
    return found if found is not None and accepts(found.st_uid) else None


def check_owner(path: str | bytes, group: Group | None = None) -> None:
    """Raises Refused if another user made what is at `path`, in a directory that was accepted."""
    found = status(path, follow=False)
    if found is not None:
        _judge_owner(os.fsdecode(path), found, group)


def check_opened(descriptor: int, path: str, above: int | None = None) -> None:
    """Judge what was opened in a directory that was accepted, by its descriptor, which may be an O_PATH one.

    Args:
        path: for people.
        above: of a directory, which was opened without following a link: the descriptor of that directory.

    Raises Refused if another user made it, can write to it, or has mounted it.
    """
    if above is not None and not ((mount := mount_id(descriptor)) and mount == mount_id(above)):
        judge_mount(path, mount)
    found = os.fstat(descriptor)
    _judge_owner(path, found, None)
    _judge_mode(path, found, acl_of(f"/proc/self/fd/{descriptor}"), None, last=True)


def is_closed(path: str | bytes, group: Group | None = None) -> bool:
    """Whether `path`, which was accepted, is a directory that other users cannot enter; the group may."""
    return os.path.isdir(path) and _is_closed(os.stat(path), acl_of(os.fsdecode(path)), group)


def check_tree(top: str | bytes, group: Group | None = None) -> None:
    """Check a path as `check_owners`, and everything in it if it is a directory.

    Links in it are not followed. What this user cannot enter or list is left out. Raises Refused.
    """
    with contextlib.ExitStack() as opened:
        end = _end(top, group, 0, False, opened, own_links=False)
        if end is None:
            return
        path = os.readlink(f"/proc/self/fd/{end}")  # asks nothing of its file system
        for level in tree(end, path, judge_mount):
            if level.found is not None:
                _judge_owner(level.path, level.found, group)
                if not level.is_link:
                    _judge_mode(level.path, level.found, level.acl(), group, last=True)


def is_own_tree(top: str | bytes, group: Group | None = None) -> bool:
    """Whether no other user made a directory, or anything in it. Links in it are not followed.

    Raises Refused if another user has mounted a file system there, and OSError.
    """
    with contextlib.ExitStack() as opened:
        for level in levels(os.fsdecode(top), opened, judge_mount):
            end = level
        return end.found is not None and all(
            level.found is not None and accepts(level.found.st_uid, group)
            for level in itertools.chain([end], tree(end.descriptor, end.path, judge_mount))
        )


def accepts(uid: int, group: Group | None = None) -> bool:
    """Whether this user, or root, or a member of the group has this uid."""
    if uid in (0, *_own_uids()) or (uid == _nobody() and _in_user_namespace()):
        return True
    return group is not None and _is_member(uid, group)


def _own_uids() -> tuple[int, ...]:
    """This user, and the one who became root by sudo(8), as for git (git-config(1), safe.directory)."""
    uid = os.getuid()
    caller = whole_number(os.environ.get("SUDO_UID", "")) if uid == 0 else None
    return (uid,) if caller is None else (uid, caller)


def judge_mount(path: str, mount: str) -> None:
    """Raises Refused if another user has mounted a file system there, or it is unknown who has.

    Owners and modes there are that user's word. A `levels.JudgeMount`.
    """
    try:
        uid = mounted_by(mount)
    except LookupError:
        raise Refused(
            f"it cannot be found out who has mounted what is on {path}: it is not in /proc/self/mountinfo",
            f"wait until nobody mounts or unmounts there, and run this again: findmnt -T {shlex.quote(path)}",
        ) from None
    if uid is not None and not accepts(uid):
        raise Refused(
            f"{_user(uid)} has mounted a file system (FUSE) on {path}",
            f"use another directory, or let that user or root unmount it: umount {shlex.quote(path)}",
        )


def _judge_mode(path: str, found: os.stat_result, acl: Acl, group: Group | None, *, last: bool) -> None:
    """Raises Refused if another user can write to it."""
    mode = found.st_mode
    sticky = stat.S_ISDIR(mode) and bool(mode & stat.S_ISVTX)
    if sticky and not last:
        return
    where = shlex.quote(path)
    others = list(_others(found, acl, group, _WRITE))
    for who in others:
        problem = f"{who} can write to {path} (mode {_octal(mode)})"
        if sticky:
            raise Refused(problem, "use a directory of your own below it")
        if acl and who != _ALL:
            raise Refused(problem, f"remove it from the access control list: getfacl {where}")
        sudo = "" if found.st_uid == os.getuid() else "sudo "
        if who == _ALL and path in _TEMPORARY:
            raise Refused(problem, f"{sudo}chmod +t {where}")
        if who == _ALL:
            also_group = "g" if len(others) > 1 and not acl else ""
            raise Refused(problem, f"{sudo}chmod {also_group}o-w {where}")
        hint = "(only a workdir may be shared with a group: workdir_group in the inventory)"
        raise Refused(problem, f"{sudo}chmod g-w {where} {hint}")


def _others(found: os.stat_result, acl: Acl, group: Group | None, permission: int) -> Iterator[str]:
    """Who else has this permission for it: all users, and those of its groups and ACL.

    Users and groups are looked up only if they have it: on a network, the user database may be slow.
    """
    if found.st_mode & permission:
        yield _ALL
    most = found.st_mode >> 3  # with an ACL this is its mask
    for tag, permissions, id in acl or [(_ACL_GROUP, most, found.st_gid)]:
        gid = found.st_gid if tag == _ACL_GROUP_OBJ else id
        if not permissions & most & permission:
            continue
        if tag == _ACL_USER and not accepts(id, group):
            yield f"the user {_user(id)}"
        elif tag in (_ACL_GROUP, _ACL_GROUP_OBJ) and not _is_accepted_group(gid, group):
            yield f"the group {_group_name(gid)}"


def _judge_owner(path: str, found: os.stat_result, group: Group | None) -> None:
    if accepts(found.st_uid, group):
        return
    raise Refused(
        f"{path} belongs to {_user(found.st_uid)}, not to {_user(os.getuid())} or root",
        f"use a directory of your own, or let its owner or root remove this one: ls -ld {shlex.quote(path)}",
    )


def _is_closed(found: os.stat_result, acl: Acl, group: Group | None) -> bool:
    """Whether other users cannot enter a directory."""
    return stat.S_ISDIR(found.st_mode) and not any(_others(found, acl, group, _EXECUTE))


def _judge_private(path: str, found: os.stat_result) -> None:
    """Raises Refused unless it is a real directory of this user, closed to all others."""
    if not stat.S_ISDIR(found.st_mode):
        raise Refused(
            f"{path} is not a directory", f"find out who made it (ls -ld {shlex.quote(path)}), and remove it"
        )
    if found.st_uid != os.getuid():
        raise Refused(
            f"{path} belongs to {_user(found.st_uid)}, not to {_user(os.getuid())}",
            f"ask its owner, or root, to remove it: ls -ld {shlex.quote(path)}",
        )
    if found.st_mode & 0o077:
        raise Refused(
            f"{path} is open to other users (mode {_octal(found.st_mode)})", f"chmod 700 {shlex.quote(path)}"
        )


def _is_accepted_group(gid: int, group: Group | None) -> bool:
    """Whether its members are accepted: the named group, or this user's own."""
    return (group is not None and gid == group.id) or any(_has_only(gid, uid) for uid in _own_uids())


def _has_only(gid: int, uid: int) -> bool:
    """Whether a group is the user's own, and has no other member."""
    try:
        me, found = pwd.getpwuid(uid), grp.getgrgid(gid)
    except KeyError:
        return False
    if gid != me.pw_gid or found.gr_name != me.pw_name:
        return False
    # Several names may have one id. Where users and groups are listed, a name that somebody else has counts.
    members = {name for entry in (found, *grp.getgrall()) if entry.gr_gid == gid for name in entry.gr_mem}
    return members <= {me.pw_name} and all(
        user.pw_gid != gid or user.pw_uid == me.pw_uid for user in pwd.getpwall()
    )


def _is_member(uid: int, group: Group) -> bool:
    """Whether the user would get the group at a login: a directory service may not list a group's members."""
    try:
        user = pwd.getpwuid(uid)
    except KeyError:
        return False
    return group.id in os.getgrouplist(user.pw_name, user.pw_gid)


def _my_groups() -> tuple[int, ...]:
    return (os.getegid(), *os.getgroups())


def _in_user_namespace() -> bool:
    return [int(number) for number in read("/proc/self/uid_map").split()] != [0, 0, _ALL_USERS]


def _nobody() -> int:
    """The uid that stands for all users that this user namespace does not know."""
    return int(read("/proc/sys/kernel/overflowuid") or 65534)


def _user(uid: int) -> str:
    try:
        return f"{pwd.getpwuid(uid).pw_name} (uid {uid})"
    except KeyError:
        return f"uid {uid}"


def _group_name(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def _octal(mode: int) -> str:
    return f"{stat.S_IMODE(mode):04o}"
