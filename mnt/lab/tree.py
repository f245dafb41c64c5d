"""Create the files of a lab in the lab's own tmpfs.

netns/switch         the switch's network namespace
nodes, binds, own, readonly, enter.sh, net/     read by the anchor and the hosts while they start
layer/               replaces files of the machine on all hosts: the middle layer of the overlay
hosts/NAME/upper     the files of one host, and everything that it writes
shared/, home/       common to all hosts
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path

from mnt.keys import KeyPair
from mnt.lab import extensions, files, network
from mnt.lab.spec import LabSpec

_SCRIPTS = Path(__file__).with_name("sh")

# Directories of the machine that a host does not see: homes, logs, devices, SSH configuration.
_OPAQUE = {"dev": 0o755, "etc/ssh": 0o755, "home": 0o755, "root": 0o700, "var/log": 0o755}
_EXTENSIONS = "torch_extensions"  # in MNT_CACHE
_MOUNT_POINTS = ("dev/pts", "dev/shm", "proc", "run", "shared", "sys", "tmp")

# Paths of which each host has its own version: no mount of the machine may cover them.
_HIDDEN = (
    *("/dev", "/home", "/proc", "/root", "/run", "/shared", "/sys", "/tmp", "/var/log", "/etc/ssh"),  # noqa: S108 - a path of a lab host
    *("/etc/hostname", "/etc/hosts", "/etc/resolv.conf"),
)

# Patterns of the machine's devices in /dev. All hosts share its NVIDIA GPUs: nvidia0, nvidiactl and others.
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty", "nvidia*")
_DEVICE_LINKS = {
    "ptmx": "pts/ptmx",
    "fd": "/proc/self/fd",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
}


def lay(
    tree: Path, lab: LabSpec, *, mounts: str, login: KeyPair, host_keys: Mapping[str, KeyPair], cache: str
) -> None:
    """Fill the lab's empty tmpfs.

    Args:
        tree: the path of the tmpfs, as this process sees it.
        lab: the lab.
        mounts: /proc/PID/mounts of the lab's anchor: the machine's may have changed meanwhile.
        login: the key pair for logins to all hosts.
        host_keys: a key pair for each host.
        cache: the machine's cache for training (MNT_CACHE).
    """
    for name in ("netns", "net", "shared"):
        _directory(tree / name)
    (tree / "netns" / network.SWITCH).touch()
    _start_files(tree, lab, mounts, own=[f"/{name}" for name in _OPAQUE] + [f"{cache}/{_EXTENSIONS}"])
    known_hosts = files.known_hosts(lab, {name: key.public for name, key in host_keys.items()})
    _layer(tree / "layer", lab)
    _extensions(tree / "layer", cache, lab.uid)
    own_home = tree / "layer" / files.HOME.lstrip("/")
    _directory(own_home)
    home = tree / "home" if lab.shared_home else own_home
    _home(home, lab.uid, login, known_hosts)
    for host in lab.hosts:
        _host(tree / "hosts" / host.name, host.name, host_keys[host.name])


def _start_files(tree: Path, lab: LabSpec, mounts: str, *, own: Iterable[str]) -> None:
    binds, everything = files.bind_mounts(mounts, _HIDDEN)
    _write(tree / "binds", "".join(f"{how} {path}\n" for how, path in binds))
    _write(tree / "own", "".join(f"{path}\n" for path in files.covered(own, everything)))
    _write(tree / "readonly", "".join(f"{path}\n" for path in everything))
    _write(tree / "nodes", "".join(f"{host.name}\n" for host in lab.hosts))
    _write(tree / "enter.sh", (_SCRIPTS / "enter.sh").read_text())
    _write(tree / "net" / network.SWITCH, network.bridges())
    for host in lab.hosts:
        _write(tree / "net" / host.name, network.host_links(lab, host))
        if lab.rate is not None:
            _write(tree / "net" / f"{host.name}.tc", network.host_shaping(host, lab.rate))


def _layer(layer: Path, lab: LabSpec) -> None:
    for name, mode in _OPAQUE.items():
        _directory(layer / name, mode)
        _hide_machines(layer / name)
    for name in _MOUNT_POINTS:
        _directory(layer / name)
    for device in (device for pattern in _DEVICES for device in Path("/dev").glob(pattern)):
        if device.is_char_device():
            os.mknod(layer / "dev" / device.name, stat.S_IFCHR, device.stat().st_rdev)
            (layer / "dev" / device.name).chmod(0o666)
    for name, target in _DEVICE_LINKS.items():
        (layer / "dev" / name).symlink_to(target)

    etc = layer / "etc"
    _directory(etc / "ssh" / "sshd_config.d")
    _directory(etc / "mnt-lab" / "old-root")
    _write(etc / "mnt-lab" / "init.sh", (_SCRIPTS / "init.sh").read_text())
    _write(etc / "ssh" / "sshd_config", files.SSHD_CONFIG)
    _write(etc / "nsswitch.conf", files.NSSWITCH)
    _write(etc / "resolv.conf", "")
    _write(etc / "fstab", files.FSTAB)
    _write(etc / "hosts", files.etc_hosts(lab))
    _write(etc / "passwd", files.passwd(Path("/etc/passwd").read_text(), lab.uid))
    _write(etc / "group", files.group(Path("/etc/group").read_text(), lab.uid))
    _write(etc / "shadow", files.shadow(), 0o600)


def _extensions(layer: Path, cache: str, uid: int) -> None:
    """Give the hosts' user a copy of DeepSpeed's compiled ops, in place of the machine's."""
    source = Path(cache, _EXTENSIONS)
    target = layer / source.relative_to("/")
    _directory(target)
    _hide_machines(target)
    extensions.copy(str(source), target, uid)


def _hide_machines(directory: Path) -> None:
    """Let hosts see nothing of what this directory is on the machine: the Documentation's overlayfs.rst."""
    os.setxattr(directory, "trusted.overlay.opaque", b"y")


def _home(home: Path, uid: int, login: KeyPair, known_hosts: str) -> None:
    ssh = home / ".ssh"
    _directory(home)
    _directory(ssh, 0o700)
    _write(ssh / "id_ed25519", login.private, 0o600)
    _write(ssh / "authorized_keys", login.public + "\n", 0o600)
    _write(ssh / "known_hosts", known_hosts, 0o600)
    for path in (home, ssh, *ssh.iterdir()):
        os.chown(path, uid, uid)


def _host(directory: Path, name: str, key: KeyPair) -> None:
    for part in ("upper", "work", "root"):
        _directory(directory / part)
    etc = directory / "upper" / "etc"
    _directory(etc / "ssh")
    _write(etc / "hostname", f"{name}\n")
    _write(etc / "ssh" / "ssh_host_ed25519_key", key.private, 0o600)
    _write(etc / "ssh" / "ssh_host_ed25519_key.pub", key.public + "\n")


def _directory(path: Path, mode: int = 0o755) -> None:
    """Create the directory and its parents, independent of the umask."""
    for parent in reversed(path.parents):
        if not parent.exists():
            parent.mkdir()
            parent.chmod(0o755)
    path.mkdir(exist_ok=True)
    path.chmod(mode)


def _write(path: Path, text: str, mode: int = 0o644) -> None:
    path.write_text(text)
    path.chmod(mode)
