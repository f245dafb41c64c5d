"""boot.sh runs no interpreter that another user could exchange: by the rule of mnt.remote.common.owners."""

from __future__ import annotations

import grp
import os
import pwd
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from boot_host import answer, script
from waiting import PATIENCE

from mnt.inventory.model import ANYBODY
from mnt.remote.common.forms import EXPOSED
from mnt.remote.common.owners import check_owners
from mnt.remote.common.refusal import Refused
from mnt.tasks import bootstrap, wrapper
from mnt.tasks.wrapper import SCRIPT_PLACE, Command

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


# In a mount namespace of its own, with a file system mounted at $1, and $2 in place of `grep`,
# which reads the list of mounts.
MOUNTED = """
set -e
case $1 in */python) cp -p "$1" /mnt/python; mount -B /mnt/python "$1" ;; *)
    cp -a "$1" "$1.copy"; mount -t tmpfs -o mode=755 "$(printf 'e\\377')" "$1"; cp -a "$1.copy/." "$1" ;;
esac
cp /usr/bin/grep "$REAL"
mount -B "$2" /usr/bin/grep
shift 2
exec "$@"
"""
# It is a FUSE by its line in the list of mounts only.
GREP = """#!/bin/sh
case $* in *"$PLACE"*) [ "{early}" ] || exit 1 ;; *"^"*) {now} ;; esac
LC_ALL=C
export LC_ALL
"$REAL" "$@" | sed "s, $PLACE r\\(.*\\) - [^ ]* \\([^ ]*\\) .*, $PLACE r\\1 - fuse.x \\2 rw\\,user_id={uid},"
"""
STRANGER = '. "$1"; owner= group=; shift; stranger "$1" "$(id -u)"'
JUDGE = Path(bootstrap.__file__).parents[1] / "remote" / "boot" / "judge.sh"
UNKNOWN = "it is unknown who has mounted what is at {}"
HERS = "another user has mounted a file system on {}"


@pytest.mark.parametrize("at", ["env", "env/bin/python"])
@pytest.mark.parametrize(
    ("grep", "says"),
    [
        ({"uid": EVE}, HERS),
        ({"uid": EVE, "early": "yes"}, HERS),
        ({"uid": 0}, ""),
        ({"uid": 0, "early": "yes"}, ""),
        ({"uid": EVE, "now": 'umount -l "$PLACE" 2>/dev/null'}, UNKNOWN),
        ({"uid": 0, "now": "exit 2"}, UNKNOWN),
    ],
)
def test_a_file_system_that_a_user_has_mounted(
    tmp_path: Path, python: str, shell: list[str], at: str, grep: dict[str, str], says: str
) -> None:
    """Its owners are that user's word, who may unmount it (`umount -l`) when it was entered."""
    command = [*shell, "-c", STRANGER, "sh", str(JUDGE), python]
    words, env = mounted(tmp_path, tmp_path / at, grep, command)
    done = subprocess.run(words, env=env, capture_output=True, timeout=PATIENCE)
    assert done.stdout.decode().rstrip("\n") == says.format(tmp_path / at), done.stderr
    assert (done.returncode == 0) is (not says)


@pytest.mark.parametrize(
    ("grep", "taken"), [({"uid": EVE}, False), ({"uid": 0}, True), ({"uid": 0, "now": "exit 2"}, False)]
)
def test_a_script_is_in_no_file_of_a_file_system_that_a_user_has_mounted(
    tmp_path: Path, python: str, grep: dict[str, str], taken: bool
) -> None:
    """`mnt run --script`, with TMPDIR on it."""
    (tmp_path / "tools").mkdir()
    script(tmp_path / "tools/mktemp", f'#!/bin/sh\necho "$1" >>{tmp_path}/made\nexec /usr/bin/mktemp "$@"\n')
    env = {"PATH": f"{tmp_path}/tools:{os.environ['PATH']}", "TMPDIR": str(tmp_path / "env/bin")}
    words, given = mounted(tmp_path, tmp_path / "env", grep, ["sh", "-c", bootstrap.COMMAND])
    opening = wrapper.opening(Command((b"cat", SCRIPT_PLACE), b"text\n"), "mark", with_input=False)
    with subprocess.Popen(
        words, env={**given, **env}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(opening)
        process.stdin.flush()  # its end would mean that the head is gone
        said = process.stdout.read()
    assert b"text\n" in said
    assert (tmp_path / "made").read_text().startswith(f"{tmp_path}/env/bin/" if taken else "/tmp/mnt.")


def mounted(
    tmp_path: Path, place: Path, grep: dict[str, str], command: list[str]
) -> tuple[list[str], dict[str, str]]:
    """The words and the environment of a command where a file system is mounted: see MOUNTED and GREP."""
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode:
        pytest.skip("no mount namespaces here")
    before = script(tmp_path / "grep", GREP.format(**{"early": "", "now": "", **grep}))
    run = script(tmp_path / "run", f"#!/bin/sh{MOUNTED}")
    env = {**os.environ, "LANG": "C.UTF-8", "PLACE": str(place), "REAL": f"{before}.real"}
    return ["unshare", "--mount", run, str(place), before, *command], env


def test_a_directory_that_may_be_entered_but_not_listed(shell: list[str]) -> None:
    """As a colleague's home, with mode 0711: its descriptor cannot be had."""
    with tempfile.TemporaryDirectory(prefix="mnt-test-") as top:
        os.chmod(top, 0o755)
        home, judge = Path(top, "home"), Path(top, "judge.sh")
        home.mkdir()
        (home / "python").touch()
        home.chmod(0o711)
        judge.write_bytes(JUDGE.read_bytes())
        sh = shutil.which(shell[-1], path=shell[1].partition("=")[2].partition(":")[0])
        Path(str(sh)).parent.chmod(0o755)
        words = Path(str(sh)).read_text().split()[2:-1]  # the shell itself
        for change, says in (
            (lambda: None, ""),
            (lambda: os.chown(home, EVE + 1, 0), f"{home} belongs to UNKNOWN (uid {EVE + 1})"),
        ):
            change()
            command = [
                "setpriv",
                f"--reuid={EVE}",
                "--clear-groups",
                *words,
                "-c",
                STRANGER,
                "sh",
                judge,
                home / "python",
            ]
            done = subprocess.run(command, capture_output=True, text=True)
            assert (done.stdout.rstrip("\n"), done.stderr) == (says, "")
