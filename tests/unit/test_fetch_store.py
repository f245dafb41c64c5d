"""The directory of a host's files on the head: on a real disk, with everything in the way."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import resource
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mnt.errors import OutputError, UsageError
from mnt.fetch.places import PART_PREFIX
from mnt.fetch.plan import Here
from mnt.fetch.store import Store, Unfit, opened
from mnt.remote.common import owners
from mnt.tasks.fetch import Entry

_NOBODY = 65534
as_root = pytest.mark.skipif(os.getuid() != 0, reason="it needs another user's files, or a mount")


@pytest.fixture
def to(tmp_path: Path) -> Path:
    return tmp_path / "to"


@pytest.fixture
def public() -> Iterator[Path]:
    """A directory that all users can enter, unlike those of pytest."""
    with tempfile.TemporaryDirectory() as made:
        os.chmod(made, 0o755)
        yield Path(made)


@contextlib.contextmanager
def store_in(to: Path, host: str = "node1", umask: int = 0o022) -> Iterator[Store]:
    with (
        opened(str(to), shared=True) as directory,
        contextlib.closing(Store(directory, host, umask)) as store,
    ):
        yield store


@pytest.fixture
def store(to: Path) -> Iterator[Store]:
    with store_in(to) as made:
        yield made


@pytest.fixture
def outside(tmp_path: Path) -> Iterator[Path]:
    """A directory with a file; both are as before in the end."""
    directory = tmp_path / "outside"
    directory.mkdir()
    victim = directory / "victim"
    victim.write_text("mine")
    victim.chmod(0o600)
    before = victim.stat()
    yield directory
    after = victim.stat()
    assert [victim] == list(directory.iterdir())
    assert (victim.read_text(), after.st_mode, after.st_mtime_ns) == (
        "mine",
        before.st_mode,
        before.st_mtime_ns,
    )


def entry(path: str, data: bytes, mode: int = 0o644, mtime: int = 10**18) -> Entry:
    return Entry(0, path, "file", len(data), mtime, mode, None)


def put(store: Store, place: str, data: bytes = b"data", mode: int = 0o644, mtime: int = 10**18) -> None:
    store.write(place, 0, data)
    store.finish(place, entry(place, data, mode, mtime))


def part_of(directory: Path, name: str) -> Path:
    return directory / (PART_PREFIX + hashlib.sha256(os.fsencode(name)).hexdigest()[:32])


def names(directory: Path) -> list[str]:
    """But for the lock, which is there while a store is open."""
    return sorted(name for name in os.listdir(directory) if name != f"{PART_PREFIX}lock")


# --- ordinary files ----------------------------------------------------------------------------------------


def test_a_file_with_its_time_and_mode(store: Store, to: Path) -> None:
    assert store.here("a/b/x") is None
    put(store, "a/b/x", b"data", 0o751, 1_234_567_890_123_456_789)
    found = (to / "node1/a/b/x").stat()
    assert (to / "node1/a/b/x").read_bytes() == b"data"
    assert (found.st_mtime_ns, stat.S_IMODE(found.st_mode)) == (1_234_567_890_123_456_789, 0o751)
    assert store.here("a/b/x") == Here("file", 4, 1_234_567_890_123_456_789)
    assert names(to / "node1/a/b") == ["x"]
    put(store, "a/b/x", b"new")
    assert (to / "node1/a/b/x").read_bytes() == b"new"


def test_places_that_are_nothing_are_not_made(store: Store, to: Path) -> None:
    assert store.here("a/b") is None
    assert store.arrived("a/b", 9) == (0, "")
    assert names(to / "node1") == []


@pytest.mark.parametrize(
    ("umask", "mode", "expected"),
    [
        (0o022, 0o644, 0o644),
        (0o022, 0o777, 0o755),
        (0o000, 0o777, 0o755),
        (0o000, 0o7777, 0o755),  # no set-uid, no sticky bit
        (0o077, 0o755, 0o700),
        (0o077, 0o644, 0o600),
        (0o777, 0o755, 0o600),
        (0o022, 0o000, 0o600),
        (0o022, 0o444, 0o644),
        (0o002, 0o664, 0o644),
    ],
)
def test_modes(to: Path, umask: int, mode: int, expected: int) -> None:
    with store_in(to, umask=umask) as store:
        put(store, "d/x", mode=mode)
    assert stat.S_IMODE((to / "node1/d/x").stat().st_mode) == expected


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_directories_that_others_cannot_write_to(to: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        with store_in(to, umask=umask) as store:
            put(store, "a/b/x")
    finally:
        os.umask(before)
    for directory in (to, to / "node1", to / "node1/a", to / "node1/a/b"):
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700


def test_an_incomplete_file_is_nobody_elses(store: Store, to: Path) -> None:
    store.write("x", 0, b"secret")
    assert stat.S_IMODE(part_of(to / "node1", "x").stat().st_mode) == 0o600


@pytest.mark.parametrize("mtime", [2**63 - 1, -(2**63), -1, 0, 10**18 + 1, 253402300800 * 10**9 // 100])
def test_any_time(store: Store, mtime: int) -> None:
    put(store, "x", mtime=mtime)
    here = store.here("x")
    assert here is not None
    assert here.size == 4


@pytest.mark.parametrize(
    "name",
    ["x" * 255, "é" * 127, "caf\udce9", "a\nb", "\x1b[2J", "-rf", " ", "...", "*", "\udcff" * 255, "\\"],
)
def test_any_name(store: Store, to: Path, name: str) -> None:
    for place in (name, f"{name}/{name}/{name}"):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.fsencode(to / "node1" / name))
        put(store, place)
        here = store.here(place)
        assert here is not None
        assert here.kind == "file"
    assert names(to / "node1") == [os.fsdecode(name.encode("utf-8", "surrogateescape"))]


def test_a_name_that_is_too_long(store: Store) -> None:
    for place in ("x" * 256, f"{'x' * 256}/y", "\udcff" * 256):
        with pytest.raises(Unfit, match="too long"):
            put(store, place)
    deep = "/".join(["d" * 255] * 40)  # 10,000 bytes in all: each level is opened from the one above
    put(store, f"{deep}/x")
    assert store.here(f"{deep}/x") == Here("file", 4, 10**18)


def test_many_directories_in_turn_take_no_descriptors(store: Store) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for number in range(300):
        put(store, f"d{number % 7}/e{number % 3}/x{number}")
        with contextlib.suppress(Unfit):
            store.here(f"d{number % 7}/e{number % 3}/x{number}/y")
    assert len(os.listdir("/proc/self/fd")) <= before + 1


def test_closed_it_keeps_nothing_open(to: Path) -> None:
    before = sorted(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with store_in(to) as store:
            put(store, "x")
            put(store, "a/x")
            put(store, "y")
    assert len(os.listdir("/proc/self/fd")) == len(before)


# --- what has arrived in part -------------------------------------------------------------------------------


def test_a_file_in_pieces_and_its_rest(to: Path) -> None:
    with store_in(to) as store:
        store.write("d/x", 0, b"abc")
        store.write("d/x", 3, b"def")
    with store_in(to) as store:
        assert store.arrived("d/x", 6) == (6, hashlib.sha256(b"abcdef").hexdigest())
        assert store.arrived("d/x", 9) == (6, hashlib.sha256(b"abcdef").hexdigest())
        assert store.arrived("d/x", 5) == (0, "")  # of another file
        store.write("d/x", 6, b"ghi")
        store.finish("d/x", entry("d/x", b"abcdefghi"))
        assert store.arrived("d/x", 9) == (0, "")
    assert (to / "node1/d/x").read_bytes() == b"abcdefghi"
    assert names(to / "node1/d") == ["x"]


def test_a_file_that_begins_anew(store: Store, to: Path) -> None:
    store.write("x", 0, b"abcdef")
    store.write("x", 3, b"X")  # what was behind is cut off
    assert store.arrived("x", 9)[0] == 4
    store.write("x", 0, b"new")
    store.finish("x", entry("x", b"new"))
    assert (to / "node1/x").read_bytes() == b"new"


def test_an_empty_file(store: Store, to: Path) -> None:
    put(store, "x", b"")
    assert (to / "node1/x").read_bytes() == b""


@pytest.mark.parametrize("size", [0, 2, 4])
def test_an_incomplete_file_that_somebody_cuts(store: Store, to: Path, size: int) -> None:
    """No file ever has a hole of zeros where bytes of the host should be."""
    store.write("x", 0, b"abcdef")
    os.truncate(part_of(to / "node1", "x"), size)
    with pytest.raises(Unfit, match="run it again"):
        store.write("x", 6, b"ghi")
    with pytest.raises(Unfit, match="run it again"):
        store.finish("x", entry("x", b"abcdef"))
    part_of(to / "node1", "x").unlink()
    with pytest.raises(Unfit):
        store.write("x", 6, b"ghi")
    with pytest.raises(Unfit):
        store.finish("x", entry("x", b"abcdefghi"))
    assert store.here("x") is None


def test_one_process_at_a_time(store: Store, to: Path) -> None:
    with pytest.raises(OutputError, match="another mnt fetch writes there") as caught, store_in(to):
        raise AssertionError
    assert caught.value.fix
    with store_in(to, "node2") as other:
        put(other, "x")


def test_a_lock_that_others_hold_keeps_nobody_out(to: Path) -> None:
    """Of what others can open: a directory that was opened to them, and nothing else."""
    with store_in(to) as store:
        put(store, "x")
    assert os.listdir(to / "node1") == ["x"]
    left = to / "node1" / f"{PART_PREFIX}lock"
    left.touch()  # by a process that was killed
    for path in (to, to / "node1", left):
        path.chmod(0o755)
    with contextlib.ExitStack() as opened_by_others:
        for path in (to, to / "node1"):
            descriptor = os.open(path, os.O_RDONLY)
            opened_by_others.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        with store_in(to) as store:
            put(store, "y")
            assert stat.S_IMODE(left.stat().st_mode) == 0o600
    assert names(to / "node1") == ["x", "y"]
    assert not left.exists()


def test_a_lock_whose_file_is_removed_meanwhile(store: Store, to: Path) -> None:
    """As at the end of another process, which has just kept this one out."""
    (to / "node1" / f"{PART_PREFIX}lock").unlink()
    with store_in(to) as other:
        put(other, "x")


def test_the_next_process_may_go_on(to: Path) -> None:
    with store_in(to) as store:
        store.write("a/x", 0, b"abc")
    with store_in(to) as store:
        assert store.arrived("a/x", 3)[0] == 3


def fifo(path: Path, outside: Path) -> None:
    os.mkfifo(path)


def directory(path: Path, outside: Path) -> None:
    path.mkdir()


def link_to_a_file(path: Path, outside: Path) -> None:
    path.symlink_to(outside / "victim")


def link_to_nothing(path: Path, outside: Path) -> None:
    path.symlink_to(outside / "new")


def link_to_a_directory(path: Path, outside: Path) -> None:
    path.symlink_to(outside)


def hard_link(path: Path, outside: Path) -> None:
    os.link(outside / "victim", path)


def private(path: Path, outside: Path) -> None:
    path.write_text("data")
    path.chmod(0)


Plant = Callable[[Path, Path], None]
PLANTS: tuple[Plant, ...] = (fifo, link_to_a_file, link_to_nothing, link_to_a_directory, hard_link, private)


@pytest.mark.parametrize("plant", PLANTS)
def test_something_has_the_name_of_an_incomplete_file(
    store: Store, to: Path, outside: Path, plant: Plant
) -> None:
    plant(part_of(to / "node1", "x"), outside)
    found = store.arrived("x", 4)
    assert found == (0, "") or (plant is private and os.getuid() == 0)
    with pytest.raises(Unfit) if plant is not private else contextlib.nullcontext():
        store.write("x", 4, b"more")
    put(store, "x")
    assert (to / "node1/x").read_bytes() == b"data"
    assert names(to / "node1") == ["x"]


@pytest.mark.parametrize("plant", PLANTS)
def test_an_incomplete_file_is_exchanged_at_the_end(
    store: Store, to: Path, outside: Path, plant: Plant
) -> None:
    store.write("x", 0, b"data")
    part_of(to / "node1", "x").unlink()
    plant(part_of(to / "node1", "x"), outside)
    with contextlib.suppress(Unfit):
        store.finish("x", entry("x", b"data"))
        assert plant is private


def test_a_directory_has_the_name_of_an_incomplete_file(store: Store, to: Path, outside: Path) -> None:
    directory(part_of(to / "node1", "x"), outside)
    assert store.arrived("x", 4) == (0, "")
    with pytest.raises(Unfit, match="move that away"):
        store.write("x", 0, b"data")


# --- in the way --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("plant", [fifo, hard_link, link_to_a_file, link_to_nothing, link_to_a_directory])
def test_something_is_at_a_files_place(store: Store, to: Path, outside: Path, plant: Plant) -> None:
    """What is there is replaced, never written to or through."""
    (to / "node1/d").mkdir()
    plant(to / "node1/d/x", outside)
    here = store.here("d/x")
    assert here is not None
    assert here.kind == {"fifo": "other", "hard_link": "file"}.get(plant.__name__, "link")
    put(store, "d/x")
    assert not (to / "node1/d/x").is_symlink()
    assert (to / "node1/d/x").read_bytes() == b"data"


def test_a_directory_is_at_a_files_place(store: Store, to: Path) -> None:
    (to / "node1/x/y").mkdir(parents=True)
    assert store.here("x") is not None
    with pytest.raises(Unfit, match="in its way here: move that away"):
        put(store, "x")
    with pytest.raises(Unfit, match="in its way"):
        store.link("x", "y")
    assert (to / "node1/x/y").is_dir()
    assert all(not (to / "node1" / name).is_symlink() for name in names(to / "node1"))


@pytest.mark.parametrize(
    "plant", [fifo, hard_link, link_to_a_file, link_to_nothing, link_to_a_directory, private]
)
@pytest.mark.parametrize("level", ["a", "a/b", "a/b/c"])
def test_something_is_at_the_place_of_a_directory(
    store: Store, to: Path, outside: Path, plant: Plant, level: str
) -> None:
    top = to / "node1"
    (top / level).parent.mkdir(parents=True, exist_ok=True)
    plant(top / level, outside)
    for attempt in (
        lambda: store.write("a/b/c/victim", 0, b"evil"),
        lambda: store.write("a/b/c/victim", 4, b"evil"),
        lambda: store.finish("a/b/c/victim", entry("x", b"evil")),
        lambda: store.link("a/b/c/victim", "x"),
        lambda: store.here("a/b/c/victim"),
        lambda: store.arrived("a/b/c/victim", 4),
    ):
        with pytest.raises(Unfit, match="in its way here"):
            attempt()


def test_a_directory_that_becomes_a_link_meanwhile(store: Store, to: Path, outside: Path) -> None:
    put(store, "a/b/x")
    (to / "node1/a").rename(to / "node1/moved")
    (to / "node1/a").symlink_to(outside)
    with contextlib.suppress(Unfit):
        put(store, "a/b/y")  # the directory that is open stays the same one
    with pytest.raises(Unfit, match="in its way"):
        put(store, "a/y")


@pytest.mark.parametrize("plant", [fifo, link_to_a_file, link_to_nothing, link_to_a_directory, hard_link])
def test_something_is_at_the_place_of_a_host(to: Path, outside: Path, plant: Plant) -> None:
    to.mkdir()
    plant(to / "node1", outside)
    with pytest.raises(OutputError, match=r"/to/node1: something else is in its way") as caught, store_in(to):
        raise AssertionError
    assert caught.value.fix


# --- links -------------------------------------------------------------------------------------------------


def test_links(store: Store, to: Path, outside: Path) -> None:
    store.link("a/l", "../b")
    assert store.here("a/l") == Here("link", target="../b")
    store.link("a/l", "caf\udce9")
    assert os.readlink(os.fsencode(to / "node1/a/l")) == b"caf\xe9"
    (to / "node1/a/m").symlink_to(outside / "victim")
    store.link("a/m", "x")
    assert names(to / "node1/a") == ["l", "m"]
    link_to_a_file(part_of(to / "node1/a", "n"), outside)
    store.link("a/n", "x")
    assert os.readlink(to / "node1/a/n") == "x"


@pytest.mark.parametrize("target", ["x" * 5000, "a\0b"])
def test_a_link_that_cannot_be_made(store: Store, to: Path, target: str) -> None:
    with pytest.raises(Unfit):
        store.link("l", target)
    assert names(to / "node1") == []


# --- the directory, and the disk ----------------------------------------------------------------------------


def test_relative_and_deep_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with (
        opened("a/b/c", shared=True) as directory,
        contextlib.closing(Store(directory, "node1", 0o022)) as store,
    ):
        put(store, "x")
        assert store.shown == tmp_path / "a/b/c/node1"
    assert (tmp_path / "a/b/c/node1/x").exists()


def test_a_link_to_the_directory_is_the_users_own(to: Path, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    to.symlink_to("real")
    with store_in(to) as store:
        put(store, "x")
    assert (tmp_path / "real/node1/x").exists()


@pytest.mark.parametrize("name", ["file", "file/x", "x" * 300, "loop"])
def test_a_directory_that_cannot_be(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    Path("loop").symlink_to("loop")
    with pytest.raises(UsageError, match="--to"), opened(name, shared=True):
        raise AssertionError


def test_a_directory_that_all_users_can_write_to(public: Path) -> None:
    to = public / "to"
    to.mkdir()
    for mode in (0o777, 0o1777):
        to.chmod(mode)
        with pytest.raises(UsageError, match="can write to") as caught, opened(str(to), shared=True):
            raise AssertionError
        assert caught.value.fix
    with opened(str(to / "mine"), shared=True):  # in a directory like /tmp
        pass


@as_root
def test_a_directory_of_another_user(public: Path) -> None:
    to = public / "to"
    (to / "below").mkdir(parents=True)
    os.chown(to, _NOBODY, _NOBODY)
    for directory in (to, to / "below", to / "new"):
        with pytest.raises(UsageError, match="belongs to nobody"), opened(str(directory), shared=True):
            raise AssertionError


@as_root
def test_a_link_of_another_user(public: Path) -> None:
    to = public / "to"
    public.chmod(0o1777)
    (public / "real").mkdir()
    to.symlink_to("real")
    os.chown(to, _NOBODY, _NOBODY, follow_symlinks=False)
    with pytest.raises(UsageError, match="belongs to nobody"), opened(str(to), shared=True):
        raise AssertionError


@pytest.fixture
def team(public: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of this user's that a group shares, in which nobody is too."""
    group = 64998
    monkeypatch.setattr(owners, "_my_groups", lambda: (group,))
    monkeypatch.setattr(owners, "_is_member", lambda uid, of: uid == _NOBODY and of.id == group)
    to = public / "team"
    to.mkdir()
    os.chown(to, -1, group)
    to.chmod(0o2775)
    return to


def of_nobody(path: Path) -> None:
    os.chown(path, _NOBODY, -1)


def for_all(path: Path) -> None:
    path.chmod(0o777)


@as_root
@pytest.mark.parametrize("take", [of_nobody, for_all])
@pytest.mark.parametrize("level", ["node1", "node1/a", "node1/a/b"])
def test_a_directory_in_which_others_could_exchange_files(
    team: Path, level: str, take: Callable[[Path], None]
) -> None:
    """Whoever owns or exchanges an incomplete file would read what is written to it."""
    (team / "node1/a/b").mkdir(parents=True)
    take(team / level)
    with pytest.raises((Unfit, OutputError), match=r"belongs to nobody|all users can write"):  # noqa: SIM117
        with store_in(team) as store:
            put(store, "a/b/x")
    assert not list(team.rglob("x"))
    assert not list(team.rglob(f"{PART_PREFIX}*"))


@as_root
@pytest.mark.parametrize("take", [of_nobody, for_all])
def test_an_incomplete_file_of_somebody_else_is_not_continued(
    team: Path, take: Callable[[Path], None]
) -> None:
    with store_in(team) as store:
        store.write("x", 0, b"abc")
        take(part_of(team / "node1", "x"))
        assert store.arrived("x", 6) == (0, "")
        with pytest.raises(Unfit, match="has changed its incomplete file"):
            store.write("x", 3, b"def")
        assert part_of(team / "node1", "x").read_bytes() == b"abc"
        put(store, "x")
    assert (team / "node1/x").stat().st_uid == os.getuid()


@as_root
def test_a_group_shares_a_directory_only_if_the_user_has_named_it(team: Path) -> None:
    of_nobody(team)
    with store_in(team) as store:
        put(store, "x")
    with pytest.raises(UsageError, match="belongs to nobody"), opened(str(team), shared=False):
        raise AssertionError


@as_root
def test_a_user_who_may_not_write(public: Path) -> None:
    """As nobody, with files of root in the way."""
    own = public / "to"
    (own / "node1/locked").mkdir(parents=True)
    (own / "node1/locked/x").write_text("roots")
    for path in (own, own / "node1"):
        os.chown(path, _NOBODY, _NOBODY)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.setgroups([])
            os.setgid(_NOBODY)
            os.setuid(_NOBODY)
            with store_in(own) as store:
                with pytest.raises(Unfit, match="Permission denied"):
                    put(store, "locked/x")
                with pytest.raises(Unfit, match="Permission denied"):
                    store.link("locked/l", "x")
                put(store, "mine/x")
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0
    assert (own / "node1/locked/x").read_text() == "roots"


@as_root
def test_a_full_disk(to: Path) -> None:
    to.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k,mode=755", "t", str(to)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("nothing can be mounted here")
    try:
        with store_in(to) as store:
            put(store, "small", b"x" * 1000)
            store.write("d/x", 0, b"x" * (1 << 16))
            with pytest.raises(OutputError, match=r"/to/node1/d/x: .*No space left") as caught:
                store.write("d/x", 1 << 16, b"x" * (1 << 20))
            assert caught.value.fix
            arrived, digest = store.arrived("d/x", 1 << 20)
            assert 0 < arrived < 1 << 20
            assert digest == hashlib.sha256(b"x" * arrived).hexdigest()
            assert (to / "node1/small").stat().st_size == 1000
    finally:
        subprocess.run(["umount", str(to)], check=True)


@as_root
def test_a_disk_that_is_read_only(to: Path) -> None:
    to.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "t", str(to)], capture_output=True, check=False).returncode:
        pytest.skip("nothing can be mounted here")
    try:
        to.chmod(0o755)
        with store_in(to):
            pass
        subprocess.run(["mount", "-o", "remount,ro", str(to)], check=True)
        with pytest.raises(OutputError, match=r"/to/node1: .*Read-only file system"), store_in(to):
            raise AssertionError
    finally:
        subprocess.run(["umount", str(to)], check=True)


# A file that is larger than this process, or the file system, allows.
_LIMITED = """
import contextlib, resource, sys
sys.path[:0] = sys.argv[2:]
from test_fetch_store import put, store_in
from pathlib import Path
from mnt.fetch.store import Unfit
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
with store_in(Path(sys.argv[1])) as store:
    put(store, "small", b"x" * 1000)
    try:
        put(store, "large", b"x" * 1001)
    except Unfit as unfit:
        print(unfit)
    print(store.arrived("large", 5000)[0])
"""


def test_a_file_that_is_too_large(to: Path) -> None:
    here = Path(__file__).parent
    command = [sys.executable, "-c", _LIMITED, str(to), str(here), str(here.parent)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == ["File too large", "1000"], done.stderr


def test_no_descriptor_is_left(store: Store) -> None:
    """The head's own limit is no attack, and no reason for a traceback."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) - 1, hard))
    try:
        with pytest.raises(Unfit, match="Too many open files"):
            put(store, "a/b/x")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    put(store, "a/b/x")
