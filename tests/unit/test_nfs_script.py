"""playbooks/tasks/nfs.sh, which root runs: directories and links of other users.

Nothing is exported or mounted here: tests/lab/test_playbook_nfs.py does so.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

TASKS = Path(__file__).parents[2] / "playbooks" / "tasks"
SCRIPT = TASKS / "nfs.sh"
EVE = 64999
OPTIONS = "rw,sync,root_squash"

pytestmark = pytest.mark.skipif(
    os.getuid() != 0, reason="it is run by root, and judges what root could be led to"
)


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that only root can write to, in one like /tmp."""
    with tempfile.TemporaryDirectory(prefix="mnt-test-") as found:
        os.chmod(found, 0o755)
        yield Path(found)


def run(word: str, **variables: str) -> str:
    """What it says where it may change nothing."""
    environment = {"MNT_JUDGE": (TASKS / "judge.sh").read_text(), "MNT_CHECK": "yes", **variables}
    done = subprocess.run(
        ["/bin/sh", SCRIPT, word], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.stderr == ""
    return done.stdout


def serve(path: Path) -> str:
    served = {"MNT_EXPORTS": str(path), "MNT_CLIENTS": "192.0.2.0/24", "MNT_ONLY": "no"}
    return run("serve", MNT_OPTIONS=OPTIONS, MNT_OWNER="nobody", **served)


def mount(path: Path) -> str:
    return run("mount", MNT_MOUNTS=f"{path}|192.0.2.1:/srv/x|nfs4|rw,hard")


def refused(path: Path, why: str) -> str:
    exchange = f"mnt-error: another user of this host could exchange {path}: {why}: choose one in directories"
    return f"{exchange} that only root can write to\n"


def hers(path: Path) -> Path:
    path.mkdir(exist_ok=True)
    os.chown(path, EVE, EVE)
    return path


def test_nobody_leads_root_to_another_directory(place: Path) -> None:
    """By what may be a link in a moment, or is one: /home/eve/data -> /etc."""
    home = hers(place / "eve")
    (home / "data").symlink_to("/etc")
    (home / "own").mkdir()
    (place / "planted").symlink_to(home)
    os.lchown(place / "planted", EVE, EVE)
    (place / "good").symlink_to(home)
    theirs = f"{home} belongs to UNKNOWN (uid {EVE})"
    for path in (home / "data", home / "data" / "x", home / "own", home / "new", place / "good" / "x"):
        assert serve(path) == refused(path, theirs)
        assert mount(path) == refused(path, theirs)
    for path in (place / "planted", place / "planted" / "x"):
        why = f"{place}/planted belongs to UNKNOWN (uid {EVE})"
        assert (serve(path), mount(path)) == (refused(path, why), refused(path, why))
    assert sorted(os.listdir(home)) == ["data", "own"]


def test_where_all_may_make_files_the_directory_is_roots(place: Path) -> None:
    """Of one in /tmp, its owner makes another one."""
    common = place / "common"
    common.mkdir()
    common.chmod(0o1777)
    path = hers(common / "x")
    why = f"{path} belongs to UNKNOWN (uid {EVE})"
    assert (serve(path), mount(path)) == (refused(path, why), refused(path, why))
    assert serve(common / "new") == refused(common / "new", f"others can write to {common}")
    assert mount(common / "new").startswith(f"mnt-changed: {common}/new is mounted\n")
    common.chmod(0o777)
    assert mount(common / "new") == refused(common / "new", f"all users can write to {common}")


def test_a_directory_in_one_of_roots_may_be_anybodys(place: Path) -> None:
    (place / "link").symlink_to(place)
    for path in (hers(place / "x"), place / "new", place / "new" / "er", place / "link" / "x"):
        made = "" if path.exists() else f"mnt-changed: {path} is made, for nobody\n"
        said = serve(path)
        assert said.startswith(f"{made}mnt-changed: /etc/exports.d/mnt.exports is written\n")
        assert said.endswith("mnt-done\n")
        assert mount(path).startswith(f"mnt-changed: {path} is mounted\n")
    (place / "file").touch()
    assert serve(place / "file") == f"mnt-error: {place}/file is no directory\n"
    assert sorted(os.listdir(place)) == ["file", "link", "x"]


@pytest.mark.parametrize(
    ("path", "options", "exported"),
    [
        # A handle that is made up names any file of the file system.
        ("{}", OPTIONS, f"{OPTIONS},subtree_check"),
        ("{}/new", OPTIONS, f"{OPTIONS},subtree_check"),
        # There is no other file in it.
        ("/proc", OPTIONS, f"{OPTIONS},no_subtree_check"),
        ("{}/link", OPTIONS, f"{OPTIONS},no_subtree_check"),
        ("/proc/self", OPTIONS, f"{OPTIONS},subtree_check"),
        # Who decides otherwise.
        ("{}", "rw,no_subtree_check", "rw,no_subtree_check"),
        ("/proc", "subtree_check,rw", "subtree_check,rw"),
    ],
)
def test_only_what_is_exported_is_given_away(place: Path, path: str, options: str, exported: str) -> None:
    (place / "link").symlink_to("/proc")
    program = f'set -- look; . {SCRIPT} >/dev/null; options_of "$PLACE"'
    environment = {"PLACE": path.format(place), "MNT_OPTIONS": options, "MNT_CHECK": "yes"}
    done = subprocess.run(["/bin/sh", "-c", program], env=environment, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == (f"{exported}\n", "")
