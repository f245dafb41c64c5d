"""A small image of a container, made of this machine's busybox."""

from __future__ import annotations

import hashlib
import io
import json
import re
import subprocess
import tarfile
from pathlib import Path

LOADER = "/lib64/ld-linux-x86-64.so.2"
DIRECTORIES = ("bin", "etc", "lib", "lib64", "lib/x86_64-linux-gnu")
WORDS = "tiny image\n"  # what /etc/which says


def root_file_system(path: Path, words: str = WORDS) -> Path:
    """A tar file with sh, cat and ls."""
    libraries = subprocess.run(["ldd", "/bin/busybox"], capture_output=True, text=True, check=True).stdout
    with tarfile.open(path, "w") as archive:
        for name in DIRECTORIES:
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(entry)
        for name in ("/bin/busybox", LOADER, *re.findall(r"=> (/lib\S+)", libraries)):
            add(archive, name.lstrip("/"), Path(name).read_bytes())
        for name in ("sh", "cat", "ls"):
            entry = tarfile.TarInfo(f"bin/{name}")
            entry.type, entry.linkname = tarfile.SYMTYPE, "busybox"
            archive.addfile(entry)
        add(archive, "etc/which", words.encode())
    return path


def docker_archive(path: Path, layer: Path, name: str = "localhost/tiny:1") -> str:
    """What `docker save` writes, of one layer. Returns the ID of the image."""
    content = layer.read_bytes()
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Cmd": ["/bin/sh"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(content).hexdigest()}"]},
    }
    text = json.dumps(config).encode()
    image = hashlib.sha256(text).hexdigest()
    manifest = [{"Config": f"{image}.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
    with tarfile.open(path, "w") as archive:
        add(archive, f"{image}.json", text)
        add(archive, "layer.tar", content)
        add(archive, "manifest.json", json.dumps(manifest).encode())
    return image


def add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), 0o755
    archive.addfile(entry, io.BytesIO(content))
