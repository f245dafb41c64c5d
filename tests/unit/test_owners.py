"""Which paths are refused because another user made a level of them, or can write to it."""

from __future__ import annotations

import grp
import os
import pwd
import re
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest
from deep_trees import nest

import mnt
from mnt.remote.common.mounts import mount_id, mounted_by, owner_of
from mnt.remote.common.owners import (
    Group,
    check_owners,
    check_tree,
    find_group,
    is_closed,
    is_own_tree,
    make_own_directory,
)
from mnt.remote.common.refusal import Refused

OTHER = 64999  # no such user here
GROUP = Group("crew", 64998)

needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file to another user")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A path of three levels: a, b, c."""
    found = tmp_path / "a" / "b" / "c"
    found.mkdir(parents=True)
    return found


def give(path: Path, uid: int = OTHER, gid: int = OTHER, mode: int | None = None) -> None:
    os.chown(path, uid, gid, follow_symlinks=False)
    if mode is not None:
        path.chmod(mode)


def refusal(path: Path, **options: bool | int | Group) -> str:
    with pytest.raises(Refused) as caught:
        check_owners(str(path), **options)  # type: ignore[arg-type]
    assert caught.value.fix
    return caught.value.message


def test_ones_own_path(path: Path) -> None:
    assert check_owners(str(path))
    assert check_owners(os.fsencode(path))
    assert check_owners(f"{path}/./../c//")
    assert check_owners("/")
    assert not check_owners(str(path / "missing" / "deeper"))
    (path / "file").touch()
    assert check_owners(str(path / "file"))
    assert not check_owners(str(path / "file" / "below"))


@pytest.mark.parametrize("mode", [0o777, 0o757, 0o2777, 0o702])
@pytest.mark.parametrize("level", [0, 1, 2])
def test_a_level_to_which_all_users_can_write(path: Path, level: int, mode: int) -> None:
    taken = [path, *path.parents][level]
    taken.chmod(mode)
    assert f"all users can write to {taken} " in refusal(path)
    assert f"all users can write to {taken} " in refusal(path / "missing")


def test_the_sticky_bit_protects_what_is_below_and_not_the_directory_itself(path: Path) -> None:
    path.parent.chmod(0o1777)
    assert check_owners(str(path))
    assert f"all users can write to {path.parent} " in refusal(path.parent)


@needs_root
@pytest.mark.parametrize("level", [0, 1, 2])
def test_a_level_of_another_user(path: Path, level: int) -> None:
    taken = [path, *path.parents][level]
    path.parents[1].chmod(0o1777)
    give(taken)
    assert refusal(path).startswith(f"{taken} belongs to uid {OTHER}, not to root (uid 0) or root")


@needs_root
def test_links(path: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to("a/b")
    assert check_owners(str(link / "c"))
    absolute = path / "absolute"
    absolute.symlink_to(link)
    assert check_owners(str(absolute / "c"))
    path.chmod(0o777)  # the end of both
    assert f"all users can write to {path} " in refusal(link / "c")
    path.chmod(0o755)
    give(link)
    assert refusal(link / "c").startswith(f"{link} belongs to")
    assert refusal(absolute / "c").startswith(f"{link} belongs to")
    link.unlink()
    link.symlink_to("link")
    assert "Too many levels" in refusal(link)
    link.unlink()
    link.symlink_to("nowhere")
    assert not check_owners(str(link))


@needs_root
def test_files(path: Path) -> None:
    script = path / "train.py"
    script.touch()
    script.chmod(0o666)
    assert f"all users can write to {script} " in refusal(script)
    give(script, mode=0o644)
    assert f"{script} belongs to uid {OTHER}" in refusal(script)


@needs_root
def test_groups(path: Path) -> None:
    give(path, 0, GROUP.id, 0o775)
    assert f"the group {GROUP.id} can write to {path} (mode 0775)" in refusal(path)
    assert check_owners(str(path), GROUP)
    give(path, 0, OTHER, 0o775)
    assert f"the group {OTHER} can write to {path}" in refusal(path, group=GROUP)
    give(path, 0, GROUP.id, 0o777)
    assert "all users can write" in refusal(path, group=GROUP)
    give(path, OTHER, GROUP.id, 0o755)  # of somebody who is not a member
    assert "belongs to" in refusal(path, group=GROUP)


@needs_root
def test_files_of_members_of_the_group(path: Path) -> None:
    named = next(entry for entry in grp.getgrall() if entry.gr_name == "daemon")
    give(path, 1, named.gr_gid, 0o775)  # daemon's own group
    assert check_owners(str(path), find_group("daemon"))
    assert "belongs to daemon" in refusal(path)


def test_the_group_that_has_only_this_user(path: Path) -> None:
    me = os.getgid()
    os.chown(path, -1, me)
    path.chmod(0o775)
    assert check_owners(str(path))  # root's group, or that of a user who has one of the same name


def test_no_such_group() -> None:
    with pytest.raises(Refused, match="no group no-such-group"):
        find_group("no-such-group")


@pytest.mark.parametrize(
    ("take", "message"),
    [
        (lambda path: path.chmod(0o750), "is open to other users (mode 0750)"),
        (lambda path: path.chmod(0o701), "is open to other users"),
        (lambda path: (path.rename(path.with_name("x")), path.symlink_to("x")), "is not a directory"),
        (lambda path: (path.rename(path.with_name("x")), path.touch()), "is not a directory"),
    ],
)
@pytest.mark.parametrize("level", [0, 1])
def test_private_levels(path: Path, level: int, take: Callable[[Path], object], message: str) -> None:
    taken = [path, path.parent][level]
    for each in (path, path.parent):
        each.chmod(0o700)
    assert check_owners(str(path), private=2)
    take(taken)
    assert f"{taken} {message}" in refusal(path, private=2)


def test_a_directory_that_others_cannot_enter() -> None:
    # pytest's own directories are closed to others.
    with tempfile.TemporaryDirectory(prefix="mnt-test-") as top:
        os.chmod(top, 0o755)
        path = Path(top, "a", "b", "c")
        path.mkdir(parents=True)
        closed_to_others(path)


def closed_to_others(path: Path) -> None:
    path.chmod(0o777)
    (path / "train.py").touch()
    (path / "train.py").chmod(0o666)
    (path / "link").symlink_to("train.py")
    path.parent.chmod(0o700)
    for name in ("train.py", "link"):
        assert check_owners(str(path / name), inside_closed=True)
        assert "all users can write" in refusal(path / name)
    path.parent.chmod(0o701)
    assert "all users can write" in refusal(path / "train.py", inside_closed=True)
    path.parent.chmod(0o700)
    outside = path.parents[1] / "outside"
    outside.touch()
    outside.chmod(0o666)
    (path / "out").symlink_to("../../outside")
    assert f"all users can write to {outside}" in refusal(path / "out", inside_closed=True)


def test_a_level_that_this_user_cannot_enter() -> None:
    message = refusal(Path("/proc/1/task/1/cwd/" + "x" * 300)) if os.getuid() == 0 else "File name too long"
    assert re.search("File name too long|Permission", message)


NOBODY = 0xFFFFFFFF  # the id of an entry that has none


def grant(path: Path, permissions: int, *, user: int | None = None, group: int | None = None) -> None:
    """As `setfacl -m u:USER:rwx` on a file: the mode shows the mask as the permissions of its group."""
    named = (2, permissions, user) if user is not None else (8, permissions, group)
    mask = permissions | 5
    entries = sorted([(1, 7, NOBODY), (4, 5, NOBODY), named, (16, mask, NOBODY), (32, 0, NOBODY)])
    data = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
    try:
        os.setxattr(path, "system.posix_acl_access", data)
    except OSError as error:
        pytest.skip(f"no access control lists here: {error}")


@pytest.mark.parametrize("who", [{"user": OTHER}, {"group": OTHER}])
@pytest.mark.parametrize("level", [0, 1, 2])
def test_an_access_control_list(path: Path, level: int, who: dict[str, int]) -> None:
    """The mode alone says that the group can write, and the group has no other member."""
    taken = [path, *path.parents][level]
    grant(taken, 7, **who)
    assert refusal(path).startswith(f"the {next(iter(who))} ")
    assert f"{OTHER} can write to {taken} " in refusal(path).replace("uid ", "").replace("(", "")
    grant(taken, 5, **who)
    assert check_owners(str(path))
    if "user" in who:
        grant(taken, 7, user=os.getuid())
        assert check_owners(str(path))


def test_a_closed_directory_has_no_access_control_list(path: Path) -> None:
    path.chmod(0o700)
    assert is_closed(str(path))
    grant(path, 5, user=OTHER)
    assert not is_closed(str(path))


def test_a_tree(path: Path) -> None:
    (path / "train.py").touch()
    (path / "link").symlink_to("/tmp")
    check_tree(str(path.parent))
    (path / "train.py").chmod(0o666)
    with pytest.raises(Refused, match=f"all users can write to {path}/train.py "):
        check_tree(str(path.parent))
    (path / "train.py").chmod(0o644)
    path.chmod(0o777)
    with pytest.raises(Refused, match=f"all users can write to {path} "):
        check_tree(str(path.parent))
    with pytest.raises(Refused, match=f"all users can write to {path} "):
        check_tree(str(path / "train.py"))  # the way to it counts


@needs_root
def test_a_tree_that_this_user_made(path: Path) -> None:
    (path / "train.py").touch()
    (path / "link").symlink_to("/tmp")
    path.chmod(0o777)
    assert is_own_tree(str(path.parent))
    assert not is_own_tree(str(path / "missing"))
    for name in ("link", "train.py", "."):
        give(path / name)
        assert not is_own_tree(str(path.parent))
        give(path / name, os.getuid())


def test_a_tree_without_end(path: Path) -> None:
    nest(path)
    check_tree(str(path))
    assert is_own_tree(str(path))
    subprocess.run(["rm", "-rf", path], check=True)  # Python's own functions cannot


ME = pwd.getpwuid(os.getuid())


def user(name: str, uid: int, gid: int) -> pwd.struct_passwd:
    return pwd.struct_passwd((name, "x", uid, gid, "", "/", "/bin/sh"))


def unix_group(name: str, gid: int, *members: str) -> grp.struct_group:
    return grp.struct_group((name, "x", gid, list(members)))


@needs_root
@pytest.mark.parametrize(
    ("groups", "users", "accepted"),
    [
        ([unix_group(ME.pw_name, OTHER)], [], True),
        ([unix_group(ME.pw_name, OTHER, ME.pw_name)], [user("eve", 1, 1)], True),
        # A directory service lists neither users nor members: nothing says that eve has the group too.
        ([unix_group("research", OTHER)], [], False),
        ([unix_group("research", OTHER, ME.pw_name)], [], False),
        ([unix_group("", OTHER)], [], False),
        # Members that are listed.
        ([unix_group(ME.pw_name, OTHER)], [user("eve", 1, OTHER)], False),
        ([unix_group(ME.pw_name, OTHER, ME.pw_name, "eve")], [], False),
        ([unix_group(ME.pw_name, OTHER), unix_group("team", OTHER, "eve")], [], False),
        # A group of the user's name that is not the primary one: somebody joined it on purpose.
        ([unix_group(ME.pw_name, OTHER + 1), unix_group("users", OTHER)], [], False),
        ([], [], False),
    ],
)
def test_the_group_that_counts_as_this_user(
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    groups: list[grp.struct_group],
    users: list[pwd.struct_passwd],
    accepted: bool,
) -> None:
    def find(gid: int) -> grp.struct_group:
        try:
            return next(entry for entry in groups if entry.gr_gid == gid)
        except StopIteration:
            raise KeyError(gid) from None

    me = user(ME.pw_name, ME.pw_uid, OTHER)
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: me)
    monkeypatch.setattr(pwd, "getpwall", lambda: users)
    monkeypatch.setattr(grp, "getgrgid", find)
    monkeypatch.setattr(grp, "getgrall", lambda: groups)
    for gid in {OTHER, *(entry.gr_gid for entry in groups)}:
        give(path, os.getuid(), gid, 0o775)
        if accepted and gid == OTHER:
            assert check_owners(str(path))
        else:
            assert "can write to" in refusal(path)


@needs_root
def test_a_member_that_only_a_directory_service_knows(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The group lists no members, as with `ignore_group_members` of sssd.conf(5)."""
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: user("eve", uid, 1))
    monkeypatch.setattr(os, "getgrouplist", lambda name, gid: [gid, *([GROUP.id] if name == "eve" else [])])
    give(path, OTHER, GROUP.id, 0o775)
    assert check_owners(str(path), GROUP)
    assert "belongs to eve" in refusal(path, group=Group("other", OTHER))


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be called by sudo")
@pytest.mark.parametrize(("caller", "accepted"), [("1234", True), ("1235", False), ("", False), ("x", False)])
def test_root_acts_for_the_user_who_called_sudo(
    path: Path, monkeypatch: pytest.MonkeyPatch, caller: str, accepted: bool
) -> None:
    """Labs need root: `sudo mnt push` of one's own clone."""
    monkeypatch.setenv("SUDO_UID", caller)
    os.chown(path, 1234, 1234)
    with nullcontext() if accepted else pytest.raises(Refused, match="belongs to"):
        check_owners(str(path))


FUSE = """
import ctypes, os, sys
from mnt.remote.common.owners import check_owners, check_tree, is_own_tree
from mnt.remote.common.refusal import Refused
from mnt.remote.push.workdir import Workdir
libc = ctypes.CDLL(None, use_errno=True)
place, uid, does = sys.argv[1].encode(), sys.argv[2], sys.argv[3]
assert libc.unshare(0x20000) == 0  # CLONE_NEWNS
assert libc.mount(b"none", b"/", None, 0x44000, None) == 0  # MS_REC | MS_PRIVATE
device = os.open("/dev/fuse", os.O_RDWR)
options = f"fd={device},rootmode=40755,user_id={uid},group_id=0,allow_other".encode()
assert libc.mount(b"evil", place, b"fuse.evil", 0, options) == 0, os.strerror(ctypes.get_errno())
try:
    print(eval(does))
except Refused as refusal:
    print(refusal)
"""


@needs_root
@pytest.mark.parametrize(
    "does",
    [
        "check_owners(place + b'/inside')",
        "check_tree(place)",
        "check_tree(os.path.dirname(place))",
        "is_own_tree(place)",
        "is_own_tree(os.path.dirname(place))",
        "Workdir(os.path.dirname(os.path.dirname(os.path.dirname(place)))).check_code()",
    ],
)
def test_what_another_user_has_mounted_is_not_even_asked(tmp_path: Path, does: str) -> None:
    """Nobody answers for this file system: whatever asks it anything waits for ever."""
    if not os.path.exists("/dev/fuse"):
        pytest.skip("this kernel has no FUSE")
    place = tmp_path / "releases" / "a" / "mounted"  # in a release that other users could enter
    place.mkdir(parents=True)
    (tmp_path / "current").symlink_to("releases/a")
    (tmp_path / "releases" / ".opened").write_text("a")
    command = [sys.executable, "-c", FUSE, str(place), str(OTHER), does]
    env = {**os.environ, "PYTHONPATH": str(Path(mnt.__file__).parents[1])}
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, env=env)
    assert f"has mounted a file system (FUSE) on {place}" in done.stdout, done.stderr


UNMOUNTED = """
import ctypes, os, sys
from mnt.remote.common import owners
from mnt.remote.common.levels import open_without_links
libc = ctypes.CDLL(None, use_errno=True)
place, judge = sys.argv[1].encode(), owners.judge_mount
assert libc.unshare(0x20000) == 0  # CLONE_NEWNS
assert libc.mount(b"none", b"/", None, 0x44000, None) == 0  # MS_REC | MS_PRIVATE
assert libc.mount(b"none", place, b"tmpfs", 0, None) == 0, os.strerror(ctypes.get_errno())
os.mkdir(place + b"/inside")
assert owners.check_owners(place + b"/inside")

def judge_mount(path, mount):
    assert libc.umount2(place, 2) == 0  # MNT_DETACH: it was entered before
    judge(path, mount)

owners.judge_mount = judge_mount
try:
    print(eval(sys.argv[2]))
except owners.Refused as refusal:
    print(refusal)
"""


@needs_root
@pytest.mark.parametrize(
    "does",
    [
        "owners.check_owners(place + b'/inside')",
        "owners.status(place + b'/inside')",
        "owners.check_tree(os.path.dirname(place))",
        "owners.is_own_tree(os.path.dirname(place))",
        "open_without_links(place + b'/inside', os.O_RDONLY, judge_mount)",
        "owners.check_opened(os.open(place, os.O_PATH), '/x', os.open(os.path.dirname(place), os.O_PATH))",
    ],
)
def test_what_is_unmounted_when_it_was_entered(tmp_path: Path, does: str) -> None:
    """Whoever has mounted it can take it from the list of mounts before that is read, and still shows it."""
    (tmp_path / "a" / "mounted").mkdir(parents=True)
    place = tmp_path / "a" / "mounted"
    env = {**os.environ, "PYTHONPATH": str(Path(mnt.__file__).parents[1])}
    command = [sys.executable, "-c", UNMOUNTED, str(place), does]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, env=env)
    assert "cannot be found out who has mounted" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize("hidden", ["list", "ids"])
def test_a_mount_that_is_unknown(monkeypatch: pytest.MonkeyPatch, hidden: str) -> None:
    if hidden == "list":
        monkeypatch.setattr("mnt.remote.common.mounts.read", lambda path: "")
    else:
        monkeypatch.setattr("mnt.remote.common.levels.mount_id", lambda descriptor: "")
    assert "cannot be found out who has mounted" in refusal(Path("/proc/self"))


def test_a_chroot_may_list_only_what_is_mounted_below_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mnt.remote.common.mounts.read", lambda path: "")
    root = os.open("/", os.O_PATH)
    assert mounted_by(mount_id(root)) is None
    os.close(root)


@pytest.mark.parametrize(
    ("kind", "options", "uid"),
    [
        ("fuse", "rw,user_id=1001,group_id=1001,allow_other", 1001),
        ("fuse.sshfs", "rw,user_id=0,group_id=0", 0),
        ("fuseblk", "rw,user_id=12,group_id=12,blksize=4096", 12),
        ("fusectl", "rw", None),
        ("fuse.lxcfs", "rw", None),
        ("nfs4", "rw,user_id=1001", None),
        ("fuse.x", "rw,user_id=-1", None),
    ],
)
def test_who_has_mounted_it(kind: str, options: str, uid: int | None) -> None:
    assert owner_of(kind, options) == uid


@needs_root
def test_no_directory_is_made_behind_a_link_of_another_user(tmp_path: Path) -> None:
    shared, target = tmp_path / "shared", tmp_path / "target"
    shared.mkdir()
    target.mkdir()
    shared.chmod(0o1777)
    (shared / "link").symlink_to(target)
    os.lchown(shared / "link", OTHER, OTHER)
    with pytest.raises(Refused, match=f"{shared}/link belongs to"):
        make_own_directory(str(shared / "link" / "new" / "deep"), 0o700)
    assert list(target.iterdir()) == []
    make_own_directory(str(shared / "own" / "deep"), 0o700)
    assert (shared / "own" / "deep").is_dir()
