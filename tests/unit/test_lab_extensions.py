"""What is copied of the machine's compiled ops into a lab, whatever other users have put among them."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from waiting import at_most

from mnt.lab import extensions

EVE = 64999

needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file to another user")


def status(mode: int, links: int = 1) -> os.stat_result:
    return os.stat_result((mode, 1, 1, links, 0, 0, 0, 0, 0, 0))


@pytest.mark.parametrize(
    ("name", "found", "own", "copied"),
    [
        ("x.so", status(stat.S_IFREG | 0o755), True, True),
        (".ninja_log", status(stat.S_IFREG | 0o644), True, True),
        ("op", status(stat.S_IFDIR | 0o755, 2), True, True),
        ("op", status(stat.S_IFDIR | 0o1777, 2), True, True),  # each file in it is judged
        ("x.so", status(stat.S_IFREG | 0o755), False, False),
        ("op", status(stat.S_IFDIR | 0o755, 2), False, False),
        ("lock", status(stat.S_IFREG | 0o644), True, False),
        ("x.so", status(stat.S_IFREG | 0o600), True, False),  # not everybody's to read
        ("x.so", status(stat.S_IFREG | 0o777), True, False),  # others' to write
        ("x.so", status(stat.S_IFREG | 0o664), True, False),
        ("x.so", status(stat.S_IFREG | 0o644, 2), True, False),  # also elsewhere
        ("x.so", status(stat.S_IFLNK | 0o777), True, False),
        ("x.so", status(stat.S_IFIFO | 0o644), True, False),
        ("x.so", status(stat.S_IFSOCK | 0o644), True, False),
        ("x.so", status(stat.S_IFCHR | 0o644), True, False),
    ],
)
def test_what_is_copied(name: str, found: os.stat_result, own: bool, copied: bool) -> None:
    assert extensions.is_copied(name, found, own=own) is copied


@pytest.fixture
def cache() -> Iterator[Path]:
    """A cache with one op, whose directory is open to all, in a place that others can enter."""
    top = Path(tempfile.mkdtemp(prefix="mnt-test-", dir="/var/tmp"))
    top.chmod(0o755)
    op = top / "torch_extensions" / "op"
    op.mkdir(parents=True)
    (op / "op.so").write_text("code")
    (op / "op.so").chmod(0o755)
    (op / "build.ninja").write_text("rules")
    (op / "build.ninja").chmod(0o644)
    os.utime(op / "op.so", ns=(1, 2))
    op.parent.chmod(0o755)
    op.chmod(0o1777)
    yield op.parent
    shutil.rmtree(top)


def copied(cache: Path, target: Path) -> dict[str, str]:
    """The files of the copy, all of which ends in a few seconds."""
    target.mkdir()
    with at_most(10):
        extensions.copy(str(cache), target, os.getuid())
    found = [path for path in target.rglob("*") if not path.is_dir()]
    assert all(path.is_file() and not path.is_symlink() for path in found)
    return {str(path.relative_to(target)): path.read_text() for path in found}


WHOLE = {"op/op.so": "code", "op/build.ninja": "rules"}


def test_an_op_is_copied_with_its_times(cache: Path, tmp_path: Path) -> None:
    assert copied(cache, tmp_path / "copy") == WHOLE
    found = (tmp_path / "copy" / "op" / "op.so").stat()
    assert (found.st_mtime_ns, stat.S_IMODE(found.st_mode)) == (2, 0o755)


def test_others_cannot_write_to_the_copy(cache: Path, tmp_path: Path) -> None:
    """A `lock` of theirs would make each load wait for ever."""
    (cache / "op" / "lock").touch()
    assert copied(cache, tmp_path / "copy") == WHOLE
    for path in (tmp_path / "copy").rglob("*"):
        assert not path.stat().st_mode & 0o022, path


def test_nothing_that_is_not_a_file_is_copied(cache: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    os.symlink(secret, cache / "op" / "link")
    os.symlink(tmp_path, cache / "op" / "way")
    os.symlink("/dev/zero", cache / "op" / "zero")
    os.symlink("nowhere", cache / "op" / "dangling")
    os.mkfifo(cache / "op" / "fifo")
    os.link(cache / "op" / "op.so", cache / "op" / "second")
    assert copied(cache, tmp_path / "copy") == {"op/build.ninja": "rules"}


def test_a_link_instead_of_the_cache(cache: Path, tmp_path: Path) -> None:
    """Root's own link is followed; what is not there is no error."""
    os.symlink(cache, cache.parent / "link")
    assert copied(cache.parent / "link", tmp_path / "copy") == WHOLE
    assert copied(cache.parent / "none", tmp_path / "none") == {}


def test_the_copy_is_bounded(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (cache / "op" / "huge").open("wb") as file:
        file.truncate(1 << 40)
    (cache / "op" / "huge").chmod(0o644)
    assert copied(cache, tmp_path / "copy") == WHOLE
    monkeypatch.setattr(extensions, "_MOST_FILES", 1)
    assert len(copied(cache, tmp_path / "fewer")) == 1


def test_not_too_deep(cache: Path, tmp_path: Path) -> None:
    deep = cache.joinpath(*["d"] * 40)
    deep.mkdir(parents=True)
    (deep / "x").touch()
    assert copied(cache, tmp_path / "copy") == WHOLE


def as_eve(script: str, *args: str | Path) -> None:
    become = f"import os, sys; os.setgroups([]); os.setgid({EVE}); os.setuid({EVE}); "
    subprocess.run([sys.executable, "-c", become + script, *map(str, args)], check=True)


@needs_root
def test_nothing_of_another_user_is_copied(cache: Path, tmp_path: Path) -> None:
    secret = cache.parent / "secret"
    secret.write_text("secret")
    secret.chmod(0o600)
    as_eve(
        "os.chdir(sys.argv[1]); os.mkdir('dir'); open('dir/x', 'w'); open('op2.so', 'w'); os.mkfifo('fifo');"
        "os.symlink(sys.argv[2], 'link'); os.symlink('/dev/zero', 'zero'); open('lock', 'w')",
        cache / "op",
        secret,
    )
    assert copied(cache, tmp_path / "copy") == WHOLE


@needs_root
def test_a_crowd_of_names_of_another_user(cache: Path, tmp_path: Path) -> None:
    as_eve("os.chdir(sys.argv[1]); [os.symlink('x', str(n)) for n in range(12000)]", cache / "op")
    assert copied(cache, tmp_path / "copy").items() <= WHOLE.items()


@needs_root
@pytest.mark.parametrize("level", ["torch_extensions", "."])
def test_a_cache_that_another_user_could_exchange(cache: Path, tmp_path: Path, level: str) -> None:
    os.chown(cache.parent / level, EVE, EVE)
    assert copied(cache, tmp_path / "copy") == {}
