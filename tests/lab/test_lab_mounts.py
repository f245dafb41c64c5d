"""What another user of the machine has mounted, or has put into the cache, changes nothing in a lab."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
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
    os.makedirs(path, exist_ok=True)
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


needs_fuse = pytest.mark.skipif(not os.path.exists("/dev/fuse"), reason="the kernel has no FUSE")


@needs_fuse
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


@pytest.fixture
def cache(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An op in a directory that is open to all, as earlier versions of scripts/train-venv.sh left it."""
    op = directory / "torch_extensions" / "op"
    op.mkdir(parents=True)
    (op / "op.so").write_text("code")
    for path, mode in ((op.parent, 0o755), (op, 0o1777), (op / "op.so", 0o644)):
        path.chmod(mode)
    monkeypatch.setenv("MNT_CACHE", str(directory))
    return op


PLANT = "cd $0; ln -s $1 link; ln -s /dev/zero zero; mkfifo fifo; : > lock; mkdir dir; ln -s $1 dir/link"


def as_eve(*argv: str | Path) -> list[str]:
    return ["setpriv", f"--reuid={EVE}", f"--regid={EVE}", "--clear-groups", *map(str, argv)]


@needs_fuse
def test_a_cache_in_which_another_user_has_files(name: str, directory: Path, cache: Path) -> None:
    secret = directory / "secret"
    secret.write_text("root's")
    secret.chmod(0o600)
    subprocess.run(as_eve("sh", "-c", PLANT, cache, secret), check=True)
    up = [sys.executable, "-m", "mnt", "lab", "up", "1", "--name", name]
    mounted = ["unshare", "--mount", sys.executable, "-c", MOUNT, str(cache / "m"), "--", *up]
    done = subprocess.run(mounted, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr

    host = Lab.find(name).host("node1")
    assert output(host, "find", str(cache), "-mindepth", "1") == f"{cache}/op.so\n"
    assert output(host, "stat", "-c", "%U %a", str(cache)) == "mnt 755\n"
    assert host.exec(["touch", str(cache / "lock")], user=True).returncode == 0
    assert host.exec(["rm", str(cache / "lock")], user=True).returncode == 0


def test_a_lock_in_the_cache_is_not_in_the_hosts(make_lab: Callable[..., Lab], cache: Path) -> None:
    """DeepSpeed's jobs would wait for its end."""
    host = make_lab(count=1).host("node1")
    subprocess.run(as_eve("touch", cache / "lock"), check=True)
    assert output(host, "ls", str(cache)) == "op.so\n"
    done = host.exec(as_eve("touch", cache / "lock"))
    assert "Permission denied" in done.stderr


def test_the_hosts_own_directories_below_a_mount_of_the_machine(
    name: str, directory: Path, cache: Path
) -> None:
    """As where /var is a file system of its own."""
    up = [sys.executable, "-m", "mnt", "lab", "up", "2", "--name", name]
    bind = 'mount -n --bind /var /var && mount -n --bind "$0" "$0" && exec "$@"'
    subprocess.run(["unshare", "--mount", "sh", "-c", bind, str(directory), *up], check=True)
    one, two = Lab.find(name).hosts
    assert output(one, "ls", "/var/log") == ""
    assert "Read-only" in one.exec(["touch", "/var/x"]).stderr
    output(one, "touch", "/var/log/x")
    assert output(two, "ls", "/var/log") == ""
    assert output(one, "stat", "-c", "%U %a", str(cache.parent), str(cache)) == "mnt 755\n" * 2
    assert one.exec(["touch", str(cache.parent / "new"), str(cache / "lock")], user=True).returncode == 0
    assert output(two, "ls", str(cache)) == "op.so\n"
