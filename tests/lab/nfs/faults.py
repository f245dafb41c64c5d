"""Ways to break a node's mount of the shared storage: each concerns that node alone, and `heal` mends any."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from nfs.files import EXPORT, FILER, MOUNT_POINT, OTHER_EXPORT, SECOND_NAME, export

if TYPE_CHECKING:
    from nfs.lab import NfsNode

_NOBODY = "02:00:de:ad:00:01"  # a MAC that no NIC of the lab has


def mount(node: NfsNode, *, options: str = "vers=4.2,hard", source: str = f"{FILER}:{EXPORT}") -> None:
    """Mount `source` at MOUNT_POINT."""
    node.guest.run(f"timeout 100 mount -t nfs -o {options} {source} {MOUNT_POINT}")


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


def _export(node: NfsNode, **how: Any) -> str:
    """The command that exports EXPORT to the node, as healthy unless told otherwise."""
    return f"exportfs -o {export(**how)} {node.address}:{EXPORT} && exportfs -f"


def _remount(**how: str) -> Callable[[NfsNode], None]:
    def inject(node: NfsNode) -> None:
        _unmount(node)
        mount(node, **how)

    return inject


def _stacked(node: NfsNode) -> None:
    node.guest.run(f"mount -t tmpfs -o mode=1777 tmpfs {MOUNT_POINT}")


def _read_only_export(node: NfsNode) -> None:
    """The server takes writes no more; the mount says rw as ever."""
    node.filer.run(_export(node, write=False))


def _stale(node: NfsNode) -> None:
    """The export is replaced under the mount: another fsid makes another file system of it."""
    replaced = _export(node, fsid=100 + secrets.randbelow(2**30))
    node.filer.run(f"exportfs -u {node.address}:{EXPORT} && {replaced}")


def _hang(node: NfsNode) -> None:
    """The filer's answers to the node go to nobody; the node itself can be reached as ever."""
    node.filer.run(f"ip neigh replace {node.address} lladdr {_NOBODY} dev eth0 nud permanent")


def _soft_hang(node: NfsNode) -> None:
    """A mount that gives up: EIO after a second; under version 4 the first time takes over a minute."""
    _unmount(node)
    mount(node, options="vers=3,nolock,soft,timeo=5,retrans=1")
    _hang(node)


FAULTS: dict[str, Callable[[NfsNode], None]] = {
    "v3": _remount(options="vers=3,nolock,hard"),
    "unmounted": _unmount,
    "wrong-server": _remount(source=f"{SECOND_NAME}:{EXPORT}"),
    "wrong-export": _remount(source=f"{FILER}:{OTHER_EXPORT}"),
    "ro": _remount(options="vers=4.2,hard,ro"),
    "ro-server": _read_only_export,
    "stacked": _stacked,
    "estale": _stale,
    "hang": _hang,
    "soft-hang": _soft_hang,
}
