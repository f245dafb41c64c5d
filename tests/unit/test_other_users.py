"""Another user of this machine, who can write to a directory like /tmp, and a command or a push there."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from deep_trees import nest
from moments import moments
from test_receive import Host, survey
from waiting import PATIENCE

from mnt.errors import MntError, OutputError, UsageError
from mnt.fleet.login.hostkeys import HostKey, KnownHosts
from mnt.inventory import find
from mnt.push.manifest import build, read_steadily
from mnt.push.stream import spooled
from mnt.push.tree import walk
from mnt.remote.common.files import make_directories
from mnt.remote.job.files import JobPaths
from mnt.remote.push import releases
from mnt.remote.push.releases import remove_tree
from mnt.remote.ssh import authorize
from mnt.run import failed
from mnt.run.outputs import create, prepare
from mnt.trust import identity
from mnt.ui.files import write_file

EVE = 64999
KEY = HostKey("ssh-ed25519", b"key")

needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file to another user")


@pytest.fixture
def common() -> Iterator[Path]:
    """A directory like /tmp, which all users can enter: pytest's own are closed to others."""
    with tempfile.TemporaryDirectory(prefix="mnt-test-") as directory:
        os.chmod(directory, 0o1777)
        yield Path(directory)


def of_eve(path: Path) -> Path:
    os.chown(path, EVE, EVE, follow_symlinks=False)
    return path


# --- files that a command writes


@needs_root
def test_a_link_that_she_made_is_not_followed(common: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("important")
    link = common / "hostfile"
    link.symlink_to(precious)
    of_eve(link)
    with pytest.raises(UsageError, match=f"{link} is not written: {link} belongs to uid {EVE}"):
        write_file(link, "node1 slots=8\n")
    assert precious.read_text() == "important"
    link.unlink()
    os.mkfifo(link)
    of_eve(link)
    with pytest.raises(UsageError, match=f"belongs to uid {EVE}"):
        write_file(link, "node1 slots=8\n")


def test_ones_own_link_is_followed(common: Path) -> None:
    (common / "link").symlink_to("file")
    for text in ("text", "other text"):
        write_file(common / "link", text)
        assert (common / "file").read_text() == text
        assert (common / "link").is_symlink()


@needs_root
@pytest.mark.parametrize("name", ["hostfile", "out/hostfile"])
def test_a_link_that_she_makes_at_any_moment_is_not_followed(common: Path, name: str) -> None:
    """Of the name itself, and of the directory in which it is; the kernel may not protect links in /tmp."""
    for moment in moments(step=2):
        victim, place = common / "victim", common / "place"
        for directory in (victim, place, place / "out"):
            directory.mkdir(mode=0o700)
            (directory / "hostfile").touch()
        (place / "hostfile").unlink()
        place.chmod(0o1777)
        (victim / "hostfile").write_text("important")
        taken, target = place / Path(name).parts[0], victim / ("" if "/" in name else "hostfile")

        def attack(taken: Path = taken, target: Path = target, aside: Path = common / "aside") -> None:
            if taken.exists():
                taken.rename(aside)
            taken.symlink_to(target)
            of_eve(taken)

        with moment.before(attack), suppress(UsageError):
            write_file(place / name, "node1 slots=8\n")
        assert (victim / "hostfile").read_text() == "important"
        for directory in (victim, place, common / "aside"):
            remove_tree(os.fsencode(directory))
            directory.unlink(missing_ok=True)


@needs_root
def test_ones_own_link_that_she_could_exchange(common: Path) -> None:
    """In a directory of hers, also one of a colleague: she can move the user's links."""
    (common / "shared").mkdir()
    (common / "shared" / "link").symlink_to(common / "file")
    for uid, mode, problem in ((0, 0o777, "all users can write to"), (EVE, 0o755, "belongs to uid")):
        os.chown(common / "shared", uid, 0)
        (common / "shared").chmod(mode)
        with pytest.raises(
            UsageError, match=f"shared/link is a link, and {common}/shared {problem}|{problem}"
        ):
            write_file(common / "shared" / "link", "text")
    assert not (common / "file").exists()
    (common / "shared").chmod(0o777)
    write_file(common / "shared" / "file", "text")  # without a link, it can only be there
    assert (common / "shared" / "file").read_text() == "text"


def test_a_place_that_does_not_exist(common: Path) -> None:
    for name in ("missing/hostfile", "file/hostfile", "."):
        (common / "file").touch()
        with pytest.raises(UsageError, match=r"cannot be written: (No such file|Not a dir|Is a dir|Dev)"):
            write_file(common / name, "text")
    assert [path.name for path in common.iterdir()] == ["file"]


def test_a_pipe_and_a_device_are_written(common: Path) -> None:
    write_file("/dev/null", "text")
    os.mkfifo(common / "pipe")
    reading = os.open(common / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    write_file(common / "pipe", "text")
    assert os.read(reading, 10) == b"text"
    os.close(reading)
    assert not stat.S_ISREG(os.stat("/dev/null").st_mode)


@needs_root
@pytest.mark.parametrize("mode", [0o700, 0o755, 0o777])
def test_a_directory_of_hers_gets_no_output(common: Path, mode: int) -> None:
    directory = common / "out"
    directory.mkdir()
    directory.chmod(mode)
    of_eve(directory)
    with ExitStack() as opened, pytest.raises(UsageError, match=f"--outdir .*belongs to uid {EVE}"):
        prepare(str(directory), ["node1"], opened)
    os.chown(directory, 1, 1)  # a user who is known here is a member of the own group
    with ExitStack() as opened, pytest.raises(UsageError, match=r"--outdir .*belongs to daemon"):
        prepare(str(directory), ["node1"], opened)


@needs_root
def test_a_directory_for_output_that_is_exchanged_at_any_moment(common: Path) -> None:
    """Its group may write to the directory above, so its members can put a link there."""
    for moment in moments(step=3):
        place, results = common / "place", common / "results"
        for directory in (place, place / "out", results):
            directory.mkdir()
        place.chmod(0o775)
        (place / "out").chmod(0o775)
        (results / "node1.out").write_text("of last week")

        def attack(out: Path = place / "out", aside: Path = common / "aside", target: Path = results) -> None:
            out.rename(aside)
            out.symlink_to(target)
            of_eve(out)

        with moment.before(attack), ExitStack() as opened, suppress(UsageError):
            for file in create(prepare(str(place / "out"), ["node1"], opened), "node1", opened):
                file.write(b"new")
        assert [file.read_text() for file in results.iterdir()] == ["of last week"]
        for directory in (place, results, common / "aside"):
            remove_tree(os.fsencode(directory))


def test_a_directory_to_which_she_can_write_gets_no_output(common: Path) -> None:
    (common / "out").mkdir()
    (common / "out").chmod(0o777)
    with ExitStack() as opened, pytest.raises(UsageError, match="all users can write"):
        prepare(str(common / "out"), ["node1"], opened)


def test_output_goes_to_new_files(tmp_path: Path) -> None:
    with ExitStack() as opened:
        directory = prepare(str(tmp_path), ["node1"], opened)
        os.mkfifo(tmp_path / "node1.out")
        with pytest.raises(OutputError, match="File exists"):
            create(directory, "node1", opened)


@pytest.mark.parametrize(
    "make",
    [
        lambda home: failed.remember("inventory.yaml", ["node1"]),
        lambda home: identity.make(f"{home}/.ssh/keys/id_ed25519"),
        lambda home: KnownHosts().record("node1", KEY, f"{home}/.ssh/keys/known_hosts"),
        lambda home: authorize.Account(dry_run=False).directory(f"{home}/.ssh/mnt/cluster"),
        lambda home: prepare(f"{home}/results/today", ["node1"], ExitStack()),
        lambda home: make_directories(home / "labs" / "mine", 0o755),
    ],
)
def test_no_directory_is_open_to_her_whatever_the_umask_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], object]
) -> None:
    """In ~/.local, made with umask 0, she could put start-up files of Python."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    before = os.umask(0)
    try:
        make(tmp_path / "home")
    finally:
        os.umask(before)
    made = [tmp_path / "home", *(tmp_path / "home").rglob("*")]
    assert len(made) > 2
    assert [path for path in made if path.stat().st_mode & 0o022] == []


# --- files that a command reads


def test_an_inventory_that_is_gone_when_it_is_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """She takes it away for a moment."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MNT_INVENTORY", raising=False)
    monkeypatch.setattr(find, "named", lambda: {"default": "inventories/default.yaml"})
    with pytest.raises(UsageError, match="no inventory"):
        find.locate(None)


@needs_root
def test_a_git_directory_that_she_made_above_the_tree(common: Path) -> None:
    """Her .git would make her ignore files valid, and those of the tree's own git invalid."""
    tree = common / "project" / "code"
    tree.mkdir(parents=True)
    (tree / "train.py").touch()
    (common / ".mntignore").write_text("train.py\n")
    (common / ".git").mkdir()
    with pytest.raises(UsageError, match="nothing to push"):
        walk(tree)
    of_eve(common / ".git")
    assert [entry.path for entry in walk(tree).entries] == ["", "train.py"]


@pytest.mark.parametrize("level", [0, 1])
def test_a_tree_to_which_she_can_write(common: Path, level: int) -> None:
    """While it is read, she could put links to the user's keys there."""
    tree = common / "project" / "code"
    tree.mkdir(parents=True)
    (tree / "train.py").touch()
    taken = [tree, tree.parent][level]
    taken.chmod(0o777)
    with pytest.raises(UsageError, match=f"all users can write to {taken} "):
        walk(tree)
    taken.chmod(0o775)  # a group that shares a tree does so on purpose
    assert walk(tree).entries


@needs_root
def test_a_tree_of_hers(common: Path) -> None:
    """She is a member of her own group; a group of this user's would be another matter."""
    tree = common / "tree"
    tree.mkdir()
    (tree / "train.py").touch()
    os.chown(tree, 1, 1)
    for mode in (0o755, 0o775):
        tree.chmod(mode)
        with pytest.raises(UsageError, match=f"{tree} belongs to daemon"):
            walk(tree)
    os.chown(tree, 0, 1)
    with pytest.raises(UsageError, match=f"the group daemon can write to {tree}"):
        walk(tree)
    os.chown(tree, 0, os.getegid())
    assert walk(tree).entries


@needs_root
@pytest.mark.parametrize("taken", ["", "data", "data/up"])
def test_a_directory_of_a_tree_that_becomes_a_link_at_any_moment(common: Path, taken: str) -> None:
    """She can write to the directory above it: one like /tmp in the tree, or one of its group."""
    keys = common / "keys"
    for directory in (keys, keys / "up", keys / "data" / "up"):
        directory.mkdir(parents=True)
        (directory / "id").write_text("PRIVATE KEY")
        (directory / ".gitignore").write_text("nothing\n")
    for moment in moments(step=11):  # of some thousand
        tree = common / "tree"
        (tree / "data" / "up").mkdir(parents=True)
        for file in ("train.py", "data/up/id", "data/.gitignore"):
            (tree / file).write_text("harmless")
        sent = b""

        def attack(place: Path = tree / taken, aside: Path = common / "aside") -> None:
            place.rename(aside)
            place.symlink_to(keys)
            of_eve(place)

        with moment.before(attack), suppress(MntError, UsageError):
            found = walk(tree)
            manifest = build(found)
            wanted = [index for index, entry in enumerate(manifest.entries) if entry.kind == "file"]
            with spooled(found.root, manifest, wanted) as spool:
                sent = b"".join(spool.chunks(wanted))
        assert b"PRIVATE" not in sent
        for left in (tree, common / "aside"):
            left.unlink() if left.is_symlink() else remove_tree(os.fsencode(left))


# In a mount namespace of its own, with eve's FUSE mounts, whose program never answers.
FUSE = f"""
import ctypes, os, sys
from pathlib import Path
from types import SimpleNamespace
from mnt.cli import cli
from mnt.cli.fetch import _left_out_of
from mnt.errors import MntError
from mnt.fleet.login.identities import _load
from mnt.fleet.login.includes import Includes
from mnt.fleet.login.own import check_own
from mnt.inventory import find
from mnt.launch.env_files import is_file
from mnt.push import origin
from mnt.push.manifest import build
from mnt.push.tree import walk
from mnt.remote.push.contents import files_of
from mnt.remote.push.releases import remove_tree

libc = ctypes.CDLL(None, use_errno=True)
assert libc.unshare(0x20000) == 0  # CLONE_NEWNS
assert libc.mount(b"none", b"/", None, 0x44000, None) == 0  # MS_REC | MS_PRIVATE

def mount(place):
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={{device}},rootmode=40755,user_id={EVE},group_id={EVE},allow_other".encode()
    assert libc.mount(b"eve", place.encode(), b"fuse.eve", 6, options) == 0  # nosuid, nodev

JOB_HERE = SimpleNamespace(record=SimpleNamespace(backend="local"))

def mnt(*words):
    cli(words, standalone_mode=False)

def commit_without_git():
    origin.subprocess = None
    return origin.here(Path("code"), 0.0).commit

def made(place):
    os.mkdir(place)
    return place

def paths(tree):
    return [entry.path for entry in tree.entries]

try:
    exec(sys.argv[1])
except MntError as error:
    print(error, error.fix)
"""


@needs_root
@pytest.mark.skipif(not os.path.exists("/dev/fuse"), reason="the kernel has no FUSE")
@pytest.mark.parametrize(
    ("does", "says"),
    [
        ("mount('.git'); print(paths(walk('code')))", "['', '.mntignore', 'data', 'data/x', 'train.py']\n"),
        ("mount('code/data'); walk('code')", "eve has mounted"),
        ("mount('code/x'); print(paths(walk('code')))", "['', '.mntignore', 'data', 'data/x', 'train.py']\n"),
        ("mount('code'); walk('code')", "eve has mounted"),
        ("tree = walk('code'); mount('code/data'); build(tree)", "eve has mounted"),
        ("mount('inventories'); find.locate(None)", "inventories/ is not looked at: eve has mounted"),
        ("mount('inventories'); find.locate('pair')", "inventories/ is not looked at: eve has mounted"),
        ("mount('code'); is_file('code/train.py')", "eve has mounted"),
        ("mount('code'); check_own('code/known_hosts')", "eve has mounted"),
        ("mount('code'); Includes().files(os.path.abspath('*/config'), 'x:1')", "Include looks where eve"),
        ("mount('code'); Includes().files(os.path.abspath('code/*'), 'x:1')", "Include looks where eve"),
        ("mount('code'); print([_load('code/key').reason])", "['eve has mounted"),
        ("mount('code/data'); print([path for path, found in files_of(b'code') if not found])", "[b'data']"),
        ("mount('code/data'); remove_tree(os.path.abspath(b'code')); print(['stays'])", "['stays']"),
        ("mount('code'); remove_tree(os.path.abspath(b'code')); print(['stays'])", "['stays']"),
        (
            "mount('inventories'); mnt('init', '-n', '127.0.0.1', '--yes')",
            "inventories/ is not looked at: eve has mounted",
        ),
        (
            "mount('fetched'); mnt('fetch', '-i', './x.yaml', '/etc/os-release')",
            "not looked at: eve has mounted",
        ),
        ("mount('fetched'); _left_out_of(JOB_HERE, None, [])", "fetched/ is not looked at: eve has mounted"),
        ("mount('.git'); mount('code/.git'); print([commit_without_git()])", "[None]\n"),
        (r"mount(made('code/a\vb')); walk('code')", "eve has mounted"),  # Python, not the kernel, ends a line
        (r"mount(made('code/a\rb')); walk('code')", "eve has mounted"),
        (r"mount(made('code/a\u2028b')); walk('code')", "eve has mounted"),
    ],
)
def test_what_she_has_mounted_is_not_asked(common: Path, does: str, says: str) -> None:
    """In, beside and above the tree, and in the current directory: who asks it waits, deaf to Ctrl-C."""
    for name in (".git", "inventories", "fetched", "code", "code/data", "code/x", "code/.git"):
        (common / name).mkdir()
    for name in ("code/train.py", "code/data/x"):
        (common / name).touch()
    (common / "code" / ".mntignore").write_text("/x/\n")
    (common / "x.yaml").write_text("hosts: {node1: {address: 127.0.0.1}}\n")
    env = {**os.environ, "PYTHONPATH": str(Path(find.__file__).parents[2]), "MNT_INVENTORY": ""}
    command = [sys.executable, "-c", FUSE, does]
    done = subprocess.run(command, cwd=common, env=env, capture_output=True, text=True, timeout=PATIENCE)
    said = done.stdout.replace(f"uid {EVE}", "eve")
    assert says in said, done.stdout + done.stderr
    assert "umount" in said or says.startswith("[")


def test_a_file_that_becomes_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "weights")
    with pytest.raises(MntError, match="weights changed while it was read"):
        list(read_steadily(tmp_path, "weights"))


def test_a_tree_without_end(tmp_path: Path) -> None:
    deep = tmp_path
    for _ in range(250):
        deep = deep / "d"
    deep.mkdir(parents=True)
    with pytest.raises(MntError, match="more than 200 directories deep"):
        walk(tmp_path)


# --- a workdir, and the files of a job


def test_a_workdir_that_she_makes_in_the_moment_before(common: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not there when it is checked; then it is hers, and `releases/.lock` leads to a user's file."""
    precious = common / "precious"
    precious.mkdir(mode=0o700)
    (precious / "thesis.tex").write_text("important")
    workdir, real = common / "project", os.mkdir

    def mkdir(path: bytes, mode: int = 0o777) -> None:
        if os.fsdecode(path) == str(workdir):
            real(workdir)
            real(workdir / "releases")
            (workdir / "releases" / ".lock").symlink_to(precious / "thesis.tex")
            for made in (workdir, workdir / "releases"):
                made.chmod(0o777)
        real(path, mode)

    monkeypatch.setattr(releases.os, "mkdir", mkdir)
    answer, _ = Host(workdir).say(survey())
    assert f"all users can write to {workdir} " in answer["refused"]["message"]
    assert (precious / "thesis.tex").read_text() == "important"


@needs_root
def test_releases_of_another_group_are_given_to_the_one_that_shares_them(tmp_path: Path) -> None:
    host = Host(tmp_path / "work")
    host.releases.mkdir(parents=True)
    os.chown(host.releases, -1, EVE)
    host.releases.chmod(0o755)
    found = releases.Releases(str(host.workdir), (), "daemon")
    found.make(lambda *undo: None)
    status = host.releases.stat()
    assert (status.st_mode & 0o7777, status.st_gid) == (0o2770, found.group.id if found.group else None)


def test_a_tree_that_a_job_made_without_end_is_no_end_of_a_push(tmp_path: Path) -> None:
    top = tmp_path / ".removing-x"
    top.mkdir()
    nest(top)
    remove_tree(os.fsencode(top))  # as far as it gets
    subprocess.run(["rm", "-rf", top], check=True)  # Python's own functions cannot


@needs_root
def test_a_directory_that_becomes_a_link_while_its_tree_is_removed(common: Path) -> None:
    """She is still in one of an old release, to which all could write. The user's own keeps its mode."""
    public = common / "public"
    (public / "html").mkdir(parents=True)
    for moment in moments():
        tree = common / "tree"
        (tree / "open" / "in").mkdir(parents=True)

        def attack(place: Path = tree / "open" / "in", aside: Path = common / "aside") -> None:
            with suppress(FileNotFoundError):  # it is gone already
                place.rename(aside)
                place.symlink_to(public)
                of_eve(place)

        with moment.before(attack):
            remove_tree(os.fsencode(tree))
        assert [stat.S_IMODE(place.stat().st_mode) for place in (public, public / "html")] == [0o755, 0o755]
        remove_tree(os.fsencode(tree))  # it may have stayed
        assert not tree.exists()
        remove_tree(os.fsencode(common / "aside"))


def test_read_only_directories_are_removed(tmp_path: Path) -> None:
    deep = tmp_path / "tree" / "a" / "b"
    deep.mkdir(parents=True)
    (deep / "file").touch()
    for place in (deep, deep.parent, deep.parents[1]):
        place.chmod(0o555 if place != deep else 0)
    remove_tree(os.fsencode(tmp_path / "tree"))
    assert not (tmp_path / "tree").exists()
    remove_tree(os.fsencode(tmp_path / "tree"))


def test_a_directory_that_is_gone_gets_no_file(tmp_path: Path) -> None:
    """She could make it in the next moment."""
    paths = JobPaths(str(tmp_path / "jobs"), "j1", "node1")
    with pytest.raises(FileNotFoundError):
        paths.write(paths.state, {})
    os.makedirs(paths.directory)
    paths.write(paths.state, {"a": 1})
    assert json.loads(Path(paths.state).read_text()) == {"a": 1}


@needs_root
def test_a_full_disk_is_no_wrong_place(tmp_path: Path) -> None:
    """Exit code 1, as wherever the head cannot write; a wrong place is bad usage, 2."""
    full = tmp_path / "full"
    full.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k,mode=755", "full", full], check=True)
    try:
        with pytest.raises(OutputError, match=r"page\.html: cannot be written: No space left"):
            write_file(full / "page.html", "x" * 200_000)
        assert list(full.iterdir()) == []
    finally:
        subprocess.run(["umount", full], check=True)
    with pytest.raises(UsageError, match="No such file or directory"):
        write_file(tmp_path / "gone" / "page.html", "x")
