"""playbooks/tasks/image.sh, which root runs: images that others have made, and directories of others."""

from __future__ import annotations

import hashlib
import io
import os
import stat
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "playbooks" / "tasks" / "image.sh"
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


def run(word: str, directory: Path, **variables: str) -> str:
    """What it says: its last line."""
    environment: Mapping[str, str] = {"PATH": os.defpath, "MNT_DIRECTORY": str(directory), **variables}
    done = subprocess.run(["/bin/sh", SCRIPT, word], env=environment, capture_output=True, text=True, umask=0)
    assert done.stderr == ""
    return done.stdout


def unpack(archive: Path, directory: Path, *, sha256: str = "", copy: str = "no") -> str:
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
        level = common if place == common else hers
        refused = f"mnt-error: another user has made {level}, or can write to it (ls -ld {level}): choose"
        assert run("make", place).startswith(refused)
        if place.exists():
            assert unpack(archive, place).startswith(refused)
        assert run("look", place) == f"mnt-owner: {'root' if place == common else 'user'}\nmnt-done\n"
    assert sorted(os.listdir(hers)) == ["images"]
    assert os.listdir(hers / "images") == []


@needs_root
def test_where_root_made_the_directory_the_name_is_hers_no_more(common: Path) -> None:
    """In a directory like /tmp: what is there is root's."""
    assert run("look", common / "images") == "mnt-owner: root\nmnt-done\n"
    assert run("make", common / "images").endswith("mnt-done\n")
    archive = packed(common / "tiny.tar", BIN)
    assert unpack(archive, common / "images") == "mnt-done\n"
