"""playbooks/tasks/image_id.py: the ID of an image, from an archive that anybody may have made."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "playbooks" / "tasks" / "image_id.py"
ID, OTHER = "0123456789abcdef" * 4, "f" * 64


def archive(path: Path, **files: Any) -> Path:
    """A tar file of these files; what is no text or bytes is JSON."""
    with tarfile.open(path, "w") as tar:
        for name, value in files.items():
            content = value if isinstance(value, bytes) else json.dumps(value).encode()
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return path


def run(path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, SCRIPT, path], capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    "files",
    [
        {"manifest.json": [{"Config": f"{ID}.json"}]},
        {"manifest.json": [{"Config": f"blobs/sha256/{ID}"}], "index.json": {}},
        {
            "index.json": {"manifests": [{"digest": f"sha256:{OTHER}"}]},
            f"blobs/sha256/{OTHER}": {"config": {"digest": f"sha256:{ID}"}},
        },
    ],
)
def test_the_id(tmp_path: Path, files: dict[str, Any]) -> None:
    done = run(archive(tmp_path / "image.tar", **files))
    assert (done.stdout, done.stderr) == (f"{ID}\n", "")


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"manifest.json": [[1]]},
        {"manifest.json": [{"Config": "x/--help.json"}]},
        {"manifest.json": [{"Config": f"--{ID}"}]},
        {"manifest.json": [{"Config": f"{ID}\n"}]},
        {"manifest.json": [{"Config": 1}]},
        {"manifest.json": b"[" * 200_000},
        {"manifest.json": b" " * (1 << 20) + b"[]"},
        {"index.json": {"manifests": [{"digest": "sha256:../../etc/shadow"}]}},
        {"index.json": {"manifests": {}}},
    ],
    ids=lambda files: str(files)[:60],
)
def test_what_is_no_image(tmp_path: Path, files: dict[str, Any]) -> None:
    is_refused(run(archive(tmp_path / "image.tar", **files)))


def test_a_link_is_no_manifest(tmp_path: Path) -> None:
    path = tmp_path / "image.tar"
    with tarfile.open(path, "w") as tar:
        entry = tarfile.TarInfo("manifest.json")
        entry.type, entry.linkname = tarfile.SYMTYPE, "manifest.json"
        tar.addfile(entry)
    is_refused(run(path))


@pytest.mark.parametrize("kind", [tarfile.REGTYPE, tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME])
def test_a_header_takes_no_memory(tmp_path: Path, kind: bytes) -> None:
    """A file of holes: it has 3 GiB, and needs no space."""
    path = tmp_path / "image.tar"
    entry = tarfile.TarInfo("manifest.json")
    entry.type, entry.size = kind, 3 << 30
    with path.open("wb") as file:
        file.write(entry.tobuf(tarfile.GNU_FORMAT))
        file.truncate((3 << 30) + 10240)
    is_refused(run(path))


def test_nor_does_a_sparse_file(tmp_path: Path) -> None:
    with (tmp_path / "manifest.json").open("wb") as file:
        file.truncate(3 << 30)
    make = ["tar", "--sparse", "-C", tmp_path, "-cf", tmp_path / "image.tar", "manifest.json"]
    subprocess.run(make, check=True)
    assert (tmp_path / "image.tar").stat().st_size < 20_000
    is_refused(run(tmp_path / "image.tar"))


def is_refused(done: subprocess.CompletedProcess[str]) -> None:
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert "image.tar is no archive of an image, as podman save writes it: " in line
