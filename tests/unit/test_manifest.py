"""The manifest, and the stream that is made of it."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import tarfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from mnt.errors import MntError
from mnt.keys import generate
from mnt.push import manifest as manifests
from mnt.push import tree as tree_module
from mnt.push.manifest import Manifest
from mnt.push.stream import spooled
from mnt.push.tree import open_inside, walk


@pytest.fixture
def source(tmp_path: Path) -> Path:
    root = tmp_path / "source"
    (root / "sub" / "empty").mkdir(parents=True)
    (root / "a.py").write_text("print(1)\n")
    (root / "sub" / "run.sh").write_text("exit\n")
    (root / "sub" / "run.sh").chmod(0o755)
    (root / "link").symlink_to("sub/run.sh")
    (root / os.fsdecode(b"caf\xe9\n" + b"x" * 120)).write_bytes(b"\0\1\2")
    return root


def build(root: Path) -> Manifest:
    return manifests.build(walk(root))


def test_says_what_the_tree_is_made_of(source: Path) -> None:
    entries = {entry.path: entry for entry in build(source).entries}
    assert entries["a.py"].value == hashlib.sha256(b"print(1)\n").hexdigest()
    assert (entries["a.py"].kind, entries["a.py"].size) == ("file", 9)
    assert (entries["sub/run.sh"].mode, entries["sub/empty"].kind) == (0o755, "dir")
    assert (entries["link"].kind, entries["link"].value) == ("link", "sub/run.sh")


def test_counts_files_and_bytes(source: Path) -> None:
    manifest = build(source)
    assert (manifest.files, manifest.size) == (3, 9 + 5 + 3)


def test_is_the_same_for_the_same_tree(source: Path, tmp_path: Path) -> None:
    subprocess.run(["cp", "-a", str(source), str(tmp_path / "copy")], check=True)
    os.utime(tmp_path / "copy" / "a.py", (1, 1))
    assert build(source).document == build(tmp_path / "copy").document


@pytest.mark.parametrize(
    "change",
    [
        lambda root: (root / "a.py").write_text("print(2)\n"),
        lambda root: (root / "a.py").chmod(0o755),
        lambda root: (root / "sub").chmod(0o700),
        lambda root: (root / "a.py").rename(root / "b.py"),
        lambda root: (root / "sub" / "empty").rmdir(),
        lambda root: [(root / "link").unlink(), (root / "link").symlink_to("a.py")],
        lambda root: root.chmod(0o700),
    ],
)
def test_differs_for_another_tree(source: Path, change: Callable[[Path], object]) -> None:
    before = build(source).sha
    change(source)
    assert build(source).sha != before


@pytest.mark.parametrize(
    "change",
    [
        lambda path: path.write_bytes(b"y" * (3 << 20)),
        lambda path: path.open("ab").write(b"more"),
        lambda path: os.truncate(path, 10),
    ],
)
def test_a_file_that_changes_while_it_is_read(source: Path, change: Callable[[Path], object]) -> None:
    path = source / "big"
    path.write_bytes(b"x" * (3 << 20))
    blocks = manifests.read_steadily(source, "big")
    next(blocks)
    change(path)
    with pytest.raises(MntError, match="big changed while it was read"):
        list(blocks)


def test_a_file_that_grows_for_ever(source: Path) -> None:
    """Whoever may write below the top need not stop: a sparse file costs nothing."""
    path = source / "big"
    path.write_bytes(b"x" * (3 << 20))
    read = 0

    def read_on() -> None:
        nonlocal read
        for block in manifests.read_steadily(source, "big"):
            read += len(block)
            os.truncate(path, read + (8 << 20))

    with pytest.raises(MntError, match="big changed while it was read"):
        read_on()
    assert read <= 3 << 20


def test_a_file_that_is_gone_before_it_is_read(source: Path) -> None:
    tree = walk(source)
    (source / "a.py").unlink()
    with pytest.raises(MntError, match=r"a\.py: No such file"):
        manifests.build(tree)


def test_a_file_that_became_a_link_is_not_followed(source: Path) -> None:
    tree = walk(source)
    (source / "a.py").unlink()
    (source / "a.py").symlink_to("/etc/passwd")
    with pytest.raises(MntError, match=r"a\.py changed"):
        manifests.build(tree)


def test_a_file_that_becomes_a_pipe_while_the_tree_is_read(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each file is read once: keys are searched in the bytes that are hashed."""
    (source / "a.py").write_text(generate().private)
    opened: list[str] = []

    def open_once(root: Path, path: str) -> int:
        descriptor = open_inside(root, path)
        opened.append(path)
        (root / path).unlink()
        os.mkfifo(root / path)
        return descriptor

    tree = walk(source)
    monkeypatch.setattr(manifests, "open_inside", open_once)
    monkeypatch.setattr(tree_module, "open_inside", open_once)
    manifest = manifests.build(tree)
    assert manifest.keys == ("a.py",)
    assert sorted(opened) == sorted(entry.path for entry in manifest.entries if entry.kind == "file")


def files_of(manifest: Manifest) -> list[int]:
    """The indexes of all files."""
    return [index for index, entry in enumerate(manifest.entries) if entry.kind == "file"]


def test_a_stream_is_a_tar_of_what_is_wanted(source: Path, tmp_path: Path) -> None:
    """Each host gets its own, out of one file."""
    manifest = build(source)
    files = files_of(manifest)
    assert len(files) > 1
    with spooled(source, manifest, files) as spool:
        for number, wanted in enumerate((files, files[1:], files[:1], files[::2])):
            data = b"".join(spool.chunks(wanted))
            assert len(data) == spool.size(wanted)
            assert data == b"".join(spool.chunks(wanted))
            copy = tmp_path / str(number)
            subprocess.run(
                ["tar", "-x", "-C", str(tmp_path), f"--one-top-level={number}"], input=data, check=True
            )
            there = {
                str(path.relative_to(copy)): path.read_bytes() for path in copy.rglob("*") if path.is_file()
            }
            paths = [manifest.entries[index].path for index in wanted]
            assert there == {path: (source / path).read_bytes() for path in paths}
        assert (spool.size([]), list(spool.chunks([]))) == (0, [])


def test_the_stream_says_nothing_of_this_machine(source: Path) -> None:
    with (
        spooled(source, build(source), files_of(build(source))) as spool,
        tarfile.open(fileobj=io.BytesIO(b"".join(spool.chunks(files_of(build(source)))))) as tar,
    ):
        assert {(m.uid, m.gid, m.uname, m.gname, m.mtime) for m in tar.getmembers()} == {(0, 0, "", "", 0)}


def test_the_stream_is_not_made_of_a_tree_that_has_changed(source: Path) -> None:
    manifest = build(source)
    (source / "a.py").write_text("print(2)\n")
    with pytest.raises(MntError, match=r"a\.py changed"), spooled(source, manifest, files_of(manifest)):
        pass


def test_no_room_for_the_stream(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = build(source)
    monkeypatch.setattr("tempfile.TemporaryFile", partial(Path("/dev/full").open, "wb"))
    with (
        pytest.raises(MntError, match="No space left on device") as caught,
        spooled(source, manifest, files_of(manifest)),
    ):
        pass
    assert "TMPDIR" in str(caught.value.fix)
