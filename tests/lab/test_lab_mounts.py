"""What another user of the machine has mounted, and where, changes nothing in a lab."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import sessions
from waiting import PATIENCE

from mnt.lab.lab import Lab, LabHost, down

EVE = 64999

# Mounts each directory as fusermount3(1) does for an ordinary user. Nobody answers: who asks, waits for ever.
MOUNT = f"""
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
end = sys.argv.index("--")
for path in map(os.fsencode, sys.argv[1:end]):
    os.makedirs(path)
    device = os.open("/dev/fuse", os.O_RDWR)
    os.set_inheritable(device, True)
    options = f"fd={{device}},rootmode=40000,user_id={EVE},group_id={EVE},allow_other".encode()
    if libc.mount(b"eve", path, b"fuse.evil", 6, options):  # nosuid, nodev
        raise OSError(ctypes.get_errno(), "mount")
os.execvp(sys.argv[end + 1], sys.argv[end + 1:])
"""
ROOTS = (
    "mount -n -t tmpfs tmpfs /srv && mkdir /srv/deep && mount -n -t tmpfs tmpfs /srv/deep &&"
    'echo seen > /srv/file && echo seen > /srv/deep/file && exec "$@"'
)


@pytest.fixture
def directory() -> Iterator[Path]:
    """A directory that a host does not have for itself, as /tmp."""
    found = Path(tempfile.mkdtemp(prefix="mnt-test-", dir="/opt"))
    found.chmod(0o755)
    yield found
    shutil.rmtree(found)


@pytest.fixture
def name(lab_support: None) -> Iterator[str]:
    name = sessions.new_name()
    yield name
    down(name)


def output(host: LabHost, *argv: str) -> str:
    done = host.exec(argv, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(not os.path.exists("/dev/fuse"), reason="the kernel has no FUSE")
def test_a_lab_beside_mounts_of_another_user(name: str, directory: Path) -> None:
    """Below / and below a mount of root's; on a name that is two lines, of which the second is /home."""
    inside = ("m", "x\n/home", "y\r/home", "z\x85/root", "t\t", os.fsdecode(b"b\xff"))
    mounts = [*(f"{directory}/{point}" for point in inside), "/srv/u/m", "/srv/u/n\n/home"]
    up = [sys.executable, "-m", "mnt", "lab", "up", "1", "--name", name]
    fuse = [sys.executable, "-c", MOUNT, *mounts, "--", *up]
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", ROOTS, "sh", *fuse],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr

    host = Lab.find(name).host("node1")
    seen = output(host, "cat", "/proc/mounts")
    assert "fuse.evil" not in seen
    assert str(directory) not in seen
    assert output(host, "ls", "/home", "/root", "/srv/u/m", f"{directory}/m") == (
        f"/home:\nmnt\n\n{directory}/m:\n\n/root:\n\n/srv/u/m:\n"
    )
    for place in ("/srv", "/srv/deep"):
        assert output(host, "cat", f"{place}/file") == "seen\n"
        assert "Read-only" in host.exec(["touch", f"{place}/file"]).stderr
