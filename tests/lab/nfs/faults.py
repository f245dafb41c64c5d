"""Ways to break a node's mount of the shared storage: each concerns that node alone, and `heal` mends any."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING

from nfs.files import EXPORT, FILER, MOUNT_POINT, OTHER_EXPORT, READ_ONLY_EXPORT, SECOND_NAME, export

if TYPE_CHECKING:
    from nfs.lab import NfsNode

_NOBODY = "02:00:de:ad:00:01"  # a MAC that no NIC of the lab has


def mount(node: NfsNode, *, options: str = "vers=4.2,hard", source: str = f"{FILER}:{EXPORT}") -> None:
    """Mount `source` at MOUNT_POINT."""
    node.guest.run(f"timeout 20 mount -t nfs -o {options} {source} {MOUNT_POINT}")


def heal(node: NfsNode) -> None:
    """The mount as the inventory has it, on whatever was there before."""
    node.filer.run(f"ip neigh del {node.address} dev eth0 2>/dev/null; {_export(node)}")
    _unmount(node)
    mount(node)


def inject(node: NfsNode, fault: str) -> None:
    """Bring a healthy node into the state of one of FAULTS."""
    FAULTS[fault](node)


def _unmount(node: NfsNode) -> None:
    """-f ends what waits for the server, -l what still has files open."""
    node.guest.run(f"while mountpoint -q {MOUNT_POINT}; do umount -f -l {MOUNT_POINT} || exit; done")


def _export(node: NfsNode, fsid: int | None = None) -> str:
    """The command that exports EXPORT to the node; another fsid makes another file system of it."""
    options = export() if fsid is None else export(fsid)
    return f"exportfs -o {options} {node.address}:{EXPORT} && exportfs -f"


def _remount(**how: str) -> Callable[[NfsNode], None]:
    def inject(node: NfsNode) -> None:
        _unmount(node)
        mount(node, **how)

    return inject


def _stacked(node: NfsNode) -> None:
    node.guest.run(f"mount -t tmpfs -o mode=1777 tmpfs {MOUNT_POINT}")


def _stale(node: NfsNode) -> None:
    """The export is replaced under the mount."""
    node.filer.run(f"exportfs -u {node.address}:{EXPORT} && {_export(node, 100 + secrets.randbelow(2**30))}")


def _hang(node: NfsNode) -> None:
    """The filer's answers to the node go to nobody; the node itself can be reached as ever."""
    node.filer.run(f"ip neigh replace {node.address} lladdr {_NOBODY} dev eth0 nud permanent")


def _soft_hang(node: NfsNode) -> None:
    """A mount that gives up: EIO after 2 s."""
    _unmount(node)
    mount(node, options="vers=4.2,soft,timeo=10,retrans=1")
    _hang(node)


FAULTS: dict[str, Callable[[NfsNode], None]] = {
    "v3": _remount(options="vers=3,nolock,hard"),
    "unmounted": _unmount,
    "wrong-server": _remount(source=f"{SECOND_NAME}:{EXPORT}"),
    "wrong-export": _remount(source=f"{FILER}:{OTHER_EXPORT}"),
    "ro": _remount(options="vers=4.2,hard,ro"),
    "ro-server": _remount(source=f"{FILER}:{READ_ONLY_EXPORT}"),
    "stacked": _stacked,
    "estale": _stale,
    "hang": _hang,
    "soft-hang": _soft_hang,
}
