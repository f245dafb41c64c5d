"""boot.sh runs no interpreter that another user could exchange: by the rule of mnt.remote.common.owners."""

from __future__ import annotations

import grp
import os
import pwd
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from boot_host import answer, script

from mnt.inventory.model import ANYBODY
from mnt.remote.common.forms import EXPOSED
from mnt.remote.common.owners import check_owners
from mnt.remote.common.refusal import Refused

EVE, CREW = 64999, 64998  # no such user or group here
_NOBODY = 0xFFFFFFFF  # in an entry of a list that names no user or group (linux/posix_acl.h)
SHELLS = ["dash", "bash", "busybox", "ksh"]
ECHO = "def main(args, emit, stdin):\n    return args['_boot']\n"
Change = Callable[[Path], object]

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file to another user")


@pytest.fixture
def python(tmp_path: Path) -> str:
    """An interpreter in a directory of its own, which leaves a file where it has run."""
    (tmp_path / "env" / "bin").mkdir(parents=True)
    return script(tmp_path / "env/bin/python", f'#!/bin/sh\nid >{tmp_path}/ran\nexec {sys.executable} "$@"\n')


@pytest.fixture(params=SHELLS)
def shell(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A login shell on whose PATH `sh` is one of them."""
    found = shutil.which(request.param)
    if found is None:
        pytest.skip(f"{request.param} is not installed")
    tools = tmp_path_factory.mktemp("tools")
    words = f"{found} sh" if request.param == "busybox" else found
    script(tools / "sh", f'#!/bin/sh\nexec {words} "$@"\n')
    return ["env", f"PATH={tools}:{os.environ['PATH']}", "sh"]


def give(path: Path, uid: int, gid: int = EVE, mode: int | None = None) -> None:
    os.chown(path, uid, gid, follow_symlinks=False)
    if mode is not None:
        path.chmod(mode)


def linked(place: Path, way: str) -> None:
    """The environment is behind a link, in a directory like /tmp."""
    (place / "env").rename(place / "real")
    (place / "x").mkdir()
    place.chmod(0o1777)
    (place / "env").symlink_to(way)


def second_link(place: Path) -> None:
    """The link leads to one that eve has made, and that to what is in order."""
    linked(place, "x/link")
    give(place / "x", EVE)
    (place / "x/link").symlink_to(place / "real")


def listed(place: Path) -> None:
    """An access control list in which eve may write; its mask shows as the mode of the group."""
    give(place / "env/bin", 0, 0, 0o775)
    entries = [(0x01, 7, _NOBODY), (0x02, 7, EVE), (0x04, 5, _NOBODY), (0x10, 7, _NOBODY), (0x20, 5, _NOBODY)]
    data = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *each) for each in entries)
    os.setxattr(place / "env/bin", "system.posix_acl_access", data)


EXPOSED_BY: dict[str, tuple[Change, str]] = {
    "owner": (lambda place: give(place / "env", EVE), "{}/env belongs to UNKNOWN (uid 64999)"),
    "file": (lambda place: give(place / "env/bin/python", EVE), "{}/env/bin/python belongs to "),
    "all users": (lambda place: (place / "env/bin").chmod(0o777), "all users can write to {}/env/bin"),
    "group": (
        lambda place: give(place / "env", 0, CREW, 0o775),
        "its group (gid 64998) can write to {}/env",
    ),
    "list": (listed, "its access control list lets others write to {}/env/bin"),
    "above": (lambda place: place.chmod(0o777), "all users can write to {}"),
    "link": (
        lambda place: [linked(place, "real"), give(place / "env", EVE)],
        "{}/env belongs to ",
    ),
    "second link": (second_link, "{}/x belongs to "),
    "way": (
        lambda place: [linked(place, f"{place}/x/../real"), give(place / "x", EVE)],
        "{}/x belongs to ",
    ),
}
OWN: dict[str, Change] = {
    "own": lambda place: None,
    "link": lambda place: linked(place, "./x/..//real/"),
    "like /tmp": lambda place: place.chmod(0o1777),
    "own group": lambda place: (place / "env/bin").chmod(0o775),
    "odd name": lambda place: [
        (place / "env").rename(place / "a b*\n?\\c\n"),
        (place / "env").symlink_to("a b*\n?\\c\n"),
    ],
}


def judged_by_python(path: str) -> bool:
    try:
        check_owners(path)
    except Refused:
        return False
    return True


@pytest.mark.parametrize("how", EXPOSED_BY)
def test_what_another_user_could_exchange(tmp_path: Path, python: str, how: str, shell: list[str]) -> None:
    change, why = EXPOSED_BY[how]
    change(tmp_path)
    assert not judged_by_python(python)
    boot = answer(ECHO, python=[python], shell=shell)
    assert not boot["configured"]
    assert boot["why"].startswith(f"{EXPOSED}: {why.format(tmp_path)}")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("how", OWN)
def test_what_only_this_user_and_root_could_exchange(
    tmp_path: Path, python: str, how: str, shell: list[str]
) -> None:
    OWN[how](tmp_path)
    assert judged_by_python(python)
    boot = answer(ECHO, python=[python], shell=shell)
    assert boot["configured"], boot["why"]


def test_whom_the_inventory_names(tmp_path: Path, python: str) -> None:
    user = next(user for user in pwd.getpwall() if user.pw_name == "daemon")
    group = grp.getgrgid(user.pw_gid).gr_name
    env = tmp_path / "env"

    def runs(**trusted: str) -> bool:
        configured: bool = answer(ECHO, python=[python], **trusted)["configured"]
        return configured

    give(env, user.pw_uid, 0)
    assert not runs()
    assert not runs(owner="mail", group="mail")
    assert not runs(owner="no-such", group="no-such")
    assert runs(owner=user.pw_name)
    assert runs(group=group)  # of which the user is a member
    give(env / "bin", 0, user.pw_gid, 0o775)
    assert runs(group=group)
    assert not runs(owner=user.pw_name)
    give(env, EVE)
    assert not runs(owner=user.pw_name, group=group)
    assert runs(owner=ANYBODY)


@pytest.mark.parametrize(("uid", "configured"), [(EVE, False), (0, True)])
def test_a_file_system_that_a_user_has_mounted(
    tmp_path: Path, python: str, uid: int, configured: bool
) -> None:
    """Its owners are that user's word, so nothing on it is asked. Here it is only a line of /proc."""
    tools = tmp_path / "tools"
    tools.mkdir()
    line = f"x {tmp_path}/env fuse.x rw,nosuid,user_id={uid},group_id=0,allow_other 0 0"
    script(tools / "grep", f"#!/bin/sh\necho '{line}'\n")
    shell = ["unshare", "--mount", "sh", "-c", f'mount -B {tools}/grep /usr/bin/grep; exec "$@"', "sh", "sh"]
    if subprocess.run([*shell[:-1], "true"], capture_output=True).returncode:
        pytest.skip("no mount namespaces here")
    boot = answer(ECHO, python=[python], shell=shell)
    assert boot["configured"] is configured, boot["why"]
    if not configured:
        assert boot["why"] == f"{EXPOSED}: another user has mounted a file system on {tmp_path}/env"
