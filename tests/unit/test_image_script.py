"""playbooks/tasks/image.sh, which root runs: images that others have made, and directories of others."""

from __future__ import annotations

import hashlib
import io
import os
import stat
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from waiting import PATIENCE

SCRIPT = Path(__file__).parents[2] / "playbooks" / "tasks" / "image.sh"
JUDGE = SCRIPT.with_name("judge.sh")
EVE = 64999

needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file to another user")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    found = tmp_path / "images"
    found.mkdir(0o755)
    return found


@pytest.fixture
def common() -> Iterator[Path]:
    """A directory like /tmp, which all users can enter."""
    with tempfile.TemporaryDirectory(prefix="mnt-test-") as found:
        os.chmod(found, 0o1777)
        yield Path(found)


def entry(name: str, kind: bytes = tarfile.REGTYPE, mode: int = 0o755, target: str = "") -> tarfile.TarInfo:
    found = tarfile.TarInfo(name)
    found.type, found.mode, found.linkname = kind, mode, target
    found.devmajor, found.devminor = 1, 3
    return found


BIN = entry("bin", tarfile.DIRTYPE)


def packed(path: Path, *entries: tarfile.TarInfo) -> Path:
    with tarfile.open(path, "w") as archive:
        for each in entries:
            each.size = 2 if each.isreg() else 0
            archive.addfile(each, io.BytesIO(b"x\n"))
    return path


def run(word: str, directory: Path, command: Sequence[str] = (), **variables: str) -> str:
    """What it says: its last line."""
    own = {"PATH": os.defpath, "MNT_DIRECTORY": str(directory), "MNT_JUDGE": JUDGE.read_text()}
    environment: Mapping[str, str] = {**own, **variables}
    command = command or ["/bin/sh", SCRIPT, word]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, umask=0, timeout=PATIENCE)
    assert done.stderr == ""
    return done.stdout


def unpack(archive: Path, directory: Path, *, sha256: str = "", copy: str = "no") -> str:
    copy = str(archive.stat().st_size) if copy == "yes" else copy
    content = sha256 or hashlib.sha256(archive.read_bytes()).hexdigest()
    names = {"MNT_NAME": "tiny", "MNT_UNPACKED": ".tiny-0", "MNT_ARCHIVE": str(archive)}
    return run("unpack", directory, MNT_SHA256=content, MNT_COPY=copy, **names)


def modes(top: Path) -> dict[str, str]:
    return {str(path.relative_to(top)): stat.filemode(path.lstat().st_mode) for path in top.rglob("*")}


@pytest.mark.parametrize("copy", ["no", "yes"])
def test_an_image_gives_no_rights(tmp_path: Path, directory: Path, copy: str) -> None:
    special = [entry("pipe", tarfile.FIFOTYPE)]
    if os.getuid() == 0:
        special += [entry("srv-null", tarfile.CHRTYPE, 0o666), entry("srv-disk", tarfile.BLKTYPE, 0o666)]
    archive = packed(
        tmp_path / "tiny.tar",
        entry("./", tarfile.DIRTYPE, 0o777),
        BIN,
        entry("bin/rootsh", mode=0o6755),
        entry("app", tarfile.DIRTYPE, 0o3777),
        entry("app/train.py", mode=0o666),
        entry("app/same.py", tarfile.LNKTYPE, target="app/train.py"),
        *special,
    )
    assert unpack(archive, directory, copy=copy) == "mnt-done\n"
    assert os.readlink(directory / "tiny") == ".tiny-0"
    found = modes(directory / ".tiny-0")
    assert {name: found[name] for name in ("bin/rootsh", "app", "app/train.py", "app/same.py")} == {
        "bin/rootsh": "-rwxr-xr-x",
        "app": "drwxr-xr-x",
        "app/train.py": "-rw-r--r--",
        "app/same.py": "-rw-r--r--",
    }
    assert {each[0] for each in found.values()} == {"-", "d"}
    assert {each for each in found.values() if each[5] == "w" or each[8] == "w"} == set()
    assert stat.S_IMODE((directory / ".tiny-0").stat().st_mode) == 0o755
    assert sorted(os.listdir(directory)) == [".tiny-0", "tiny"]


def test_its_links_lead_nowhere_on_the_host(tmp_path: Path, directory: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    links = {
        "etc/resolv.conf": outside / "made-by-touch",
        "mnt": outside,
        "home": "gone",
        "tmp": "../../../outside",
    }
    archive = packed(
        tmp_path / "tiny.tar",
        BIN,
        entry("etc", tarfile.DIRTYPE),
        *(entry(name, tarfile.SYMTYPE, target=str(target)) for name, target in links.items()),
    )
    assert unpack(archive, directory) == "mnt-done\n"
    assert os.listdir(outside) == []
    image = directory / "tiny"
    assert {name: os.readlink(image / name) for name in links} == {k: str(v) for k, v in links.items()}
    assert sorted(os.listdir(image / "etc")) == ["group", "hosts", "passwd", "resolv.conf"]


@pytest.mark.parametrize(
    "entries",
    [
        [entry("x", tarfile.SYMTYPE, target="{}"), entry("x/y")],
        [entry("x", tarfile.SYMTYPE, target="../../../outside"), entry("x/y")],
        [entry("{}/y"), entry("../../../outside/y")],
        [entry("x", tarfile.LNKTYPE, target="{}/precious"), entry("x")],
        [entry("x", tarfile.LNKTYPE, target="../../../outside/precious"), entry("x")],
        [
            entry("l", tarfile.SYMTYPE, target="{}"),
            entry("x", tarfile.LNKTYPE, target="l/precious"),
            entry("x"),
        ],
    ],
)
def test_nothing_is_written_outside(tmp_path: Path, directory: Path, entries: list[tarfile.TarInfo]) -> None:
    """By a link of the archive, or by a name that leads out of it."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("mine")
    (outside / "precious").chmod(0o4666)
    for each in entries:
        each.name, each.linkname = each.name.format(outside), each.linkname.format(outside)
    unpack(packed(tmp_path / "tiny.tar", BIN, *entries), directory)
    assert os.listdir(outside) == ["precious"]
    assert (outside / "precious").read_text() == "mine"
    assert (outside / "precious").stat().st_mode & 0o7777 == 0o4666
    assert (outside / "precious").stat().st_nlink == 1


@pytest.mark.parametrize("copy", ["no", "yes"])
def test_an_archive_that_was_exchanged_is_not_taken(tmp_path: Path, directory: Path, copy: str) -> None:
    archive = packed(tmp_path / "tiny.tar", BIN)
    said = unpack(archive, directory, sha256="0" * 64, copy=copy)
    assert said == f"mnt-error: {archive} is not what it was: somebody writes to it; run this again later\n"
    assert os.listdir(directory) == []


OTHER_THAN_SEEN: dict[str, Callable[[Path], object]] = {
    "pipe": lambda path: os.mkfifo(path),
    "link": lambda path: path.symlink_to("/dev/zero"),
    "longer": lambda path: [path.touch(), os.truncate(path, 1 << 40)],
}


@pytest.mark.parametrize("what", OTHER_THAN_SEEN)
def test_an_archive_on_shared_storage_that_is_something_else_by_now(
    tmp_path: Path, directory: Path, what: str
) -> None:
    """Root waits for none, and copies no more than was seen."""
    archive = tmp_path / "tiny.tar"
    OTHER_THAN_SEEN[what](archive)
    assert unpack(archive, directory, sha256="0" * 64, copy="10240").startswith("mnt-error: ")
    assert os.listdir(directory) == []


def test_only_the_devices_of_an_image_are_left_out(tmp_path: Path, directory: Path) -> None:
    archive = packed(
        tmp_path / "tiny.tar",
        *(BIN, entry("dev/null2"), entry("./dev/null3"), entry("app/dev/train.py"), entry("usr/dev/x")),
    )
    assert unpack(archive, directory) == "mnt-done\n"
    found = {path for path in modes(directory / ".tiny-0") if "dev" in path}
    assert found == {"dev", "app/dev", "app/dev/train.py", "usr/dev", "usr/dev/x"}


def test_what_is_no_image(tmp_path: Path, directory: Path) -> None:
    (tmp_path / "tiny.tar").write_text("no archive at all")
    assert unpack(tmp_path / "tiny.tar", directory).startswith("mnt-error: tar: ")
    archive = packed(tmp_path / "tiny.tar", entry("README"))
    assert unpack(archive, directory).endswith("has no root file system: neither bin nor usr/bin\n")
    assert os.listdir(directory) == []


# --- the directory -----------------------------------------------------------------------------------------


def test_the_directory_is_made_once(tmp_path: Path) -> None:
    place = tmp_path / "a" / "images"
    assert run("make", place) == f"mnt-changed\nmnt-directory: {place}\nmnt-done\n"
    assert run("make", place) == f"mnt-directory: {place}\nmnt-done\n"
    assert stat.S_IMODE(place.stat().st_mode) == 0o755
    assert run("look", place) == f"mnt-owner: {'root' if os.getuid() == 0 else 'user'}\nmnt-done\n"


@needs_root
def test_root_writes_only_where_nobody_else_can(tmp_path: Path, common: Path) -> None:
    archive = packed(tmp_path / "tiny.tar", BIN)
    planted, hers = common / "planted", common / "hers"
    hers.mkdir()
    os.chown(hers, EVE, EVE)
    (hers / "images").mkdir()
    planted.symlink_to(hers)
    for place in (common, hers, hers / "images", hers / "new" / "images", planted, planted / "new"):
        why = f"others can write to {common}" if place == common else f"{hers} belongs to "
        refused = f"mnt-error: another user could change what is in {place}: {why}"
        assert run("make", place).startswith(refused)
        if place.exists():
            assert unpack(archive, place).startswith(refused)
        assert run("look", place) == f"mnt-owner: {'root' if place == common else 'user'}\nmnt-done\n"
    assert sorted(os.listdir(hers)) == ["images"]
    assert os.listdir(hers / "images") == []


@needs_root
def test_no_link_of_hers_is_followed(tmp_path: Path, common: Path) -> None:
    """Her link to a directory of root's: what is there is in order, until she exchanges the link."""
    own, link = tmp_path / "own", common / "images"
    own.mkdir()
    link.symlink_to(own)
    os.chown(link, EVE, EVE, follow_symlinks=False)
    archive = packed(tmp_path / "tiny.tar", BIN)
    for place in (link, link / "new"):
        assert run("look", place) == "mnt-owner: user\nmnt-done\n"
        for said in (run("make", place), unpack(archive, place)):
            assert said.startswith(
                f"mnt-error: another user could change what is in {place}: {link} belongs to"
            )
    assert os.listdir(own) == []
    os.chown(link, 0, 0, follow_symlinks=False)
    assert run("make", link / "new").endswith(f"mnt-directory: {own}/new\nmnt-done\n")


@needs_root
@pytest.mark.skipif(not os.path.exists("/dev/fuse"), reason="this kernel has no FUSE")
@pytest.mark.parametrize("word", ["look", "make", "unpack"])
def test_what_she_has_mounted_is_not_asked(common: Path, word: str) -> None:
    """Its program never answers, or says that all is root's."""
    (common / "images").mkdir()
    options = f"fd=9,rootmode=40000,user_id={EVE},group_id={EVE},allow_other"
    command = (
        f'exec 9<>/dev/fuse; mount -i -t fuse -o {options} eve "$MNT_DIRECTORY"; exec sh {SCRIPT} {word}'
    )
    said = run(word, common / "images", command=["unshare", "--mount", "sh", "-c", command])
    if word == "look":
        assert said == "mnt-owner: user\nmnt-done\n"
    else:
        assert f"another user has mounted a file system on {common}/images" in said


@needs_root
def test_where_root_made_the_directory_the_name_is_hers_no_more(common: Path) -> None:
    """In a directory like /tmp: what is there is root's."""
    assert run("look", common / "images") == "mnt-owner: root\nmnt-done\n"
    assert run("make", common / "images").endswith("mnt-done\n")
    archive = packed(common / "tiny.tar", BIN)
    assert unpack(archive, common / "images") == "mnt-done\n"
