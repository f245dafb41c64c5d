"""RDMA devices, their ports and GIDs, from sysfs. Runs on a host: Python 3.8, standard library.

Layout: Documentation/ABI/stable/sysfs-class-infiniband of the Linux kernel, 4.10 and newer (`gid_attrs`).
"""

from __future__ import annotations

import os

from mnt.remote.common.files import entries, read

# An empty slot of a GID table; it cannot be used, and reading its type or netdev gives EINVAL.
EMPTY_GID = "0000:0000:0000:0000:0000:0000:0000:0000"


def gather(root: str = "/") -> dict[str, object]:
    """As `mnt.facts.rdma.RdmaFacts`. `root` is the directory that contains /sys, /dev and /proc."""
    classes = os.path.join(root, "sys/class")
    infiniband = os.path.join(classes, "infiniband")
    names = sorted(entries(infiniband), key=_by_number)
    return {
        "devices": [_device(root, os.path.join(infiniband, name), name) for name in names],
        # Only on a host with a device it matters which interface is on top of which.
        "lowers": _lowers(os.path.join(classes, "net")) if names else {},
        "peermem": _peermem(root),
        "open_driver": _open_driver(read(os.path.join(root, "proc/driver/nvidia/version"), 4096)),
    }


def _device(root: str, path: str, name: str) -> dict[str, object]:
    ports = os.path.join(path, "ports")
    return {
        "name": name,
        "netdevs": sorted(entries(os.path.join(path, "device/net"))),
        "usable": _usable(root, name),
        "ports": [
            _port(os.path.join(ports, number), int(number))
            for number in sorted(filter(str.isdigit, entries(ports)), key=int)
        ],
    }


def _port(path: str, number: int) -> dict[str, object]:
    return {
        "number": number,
        "state": _word(read(os.path.join(path, "state"))),
        "phys_state": _word(read(os.path.join(path, "phys_state"))),
        "link_layer": read(os.path.join(path, "link_layer")).strip() or None,
        "rate": _rate(read(os.path.join(path, "rate"))),
        "gids": _gids(path),
    }


def _gids(port: str) -> list[dict[str, object]]:
    """The slots in use. Tables are sparse: the only one may be the last."""
    table = os.path.join(port, "gids")
    attributes = os.path.join(port, "gid_attrs")
    found: list[dict[str, object]] = []
    for index in sorted(filter(str.isdigit, entries(table)), key=int):
        gid = read(os.path.join(table, index)).strip()
        if gid and gid != EMPTY_GID:
            found.append(
                {
                    "index": int(index),
                    "gid": gid,
                    "type": read(os.path.join(attributes, "types", index)).strip() or None,
                    "netdev": read(os.path.join(attributes, "ndevs", index)).strip() or None,
                }
            )
    return found


def _usable(root: str, device: str) -> bool | None:
    """Whether this user may open the device; None if it has no verbs device."""
    classes = os.path.join(root, "sys/class/infiniband_verbs")
    for verbs in entries(classes):
        if read(os.path.join(classes, verbs, "ibdev")).strip() == device:
            return os.access(os.path.join(root, "dev/infiniband", verbs), os.R_OK | os.W_OK)
    return None


def _lowers(directory: str) -> dict[str, list[str]]:
    """The interfaces directly below each bond, VLAN or bridge: {"bond0": ["eth0", "eth1"]}."""
    found = {}
    for name in entries(directory):
        below = [entry[6:] for entry in entries(os.path.join(directory, name)) if entry.startswith("lower_")]
        if below:
            found[name] = sorted(below)
    return found


def _peermem(root: str) -> bool:
    """Whether a module of the driver, or an older one of the NIC, lets the NIC access GPU memory."""
    modules = ("sys/module/nvidia_peermem", "sys/module/nv_peer_mem", "sys/kernel/mm/memory_peers/nv_mem")
    return any(os.path.exists(os.path.join(root, module)) for module in modules)


def _open_driver(version: str) -> bool | None:
    """Whether NVIDIA's kernel modules are the open ones, which DMA-BUF needs; None if there are none."""
    return "Open Kernel Module" in version if version else None


def _word(text: str) -> str | None:
    """`ACTIVE` of `4: ACTIVE`."""
    return text.partition(":")[2].strip() or None


def _rate(text: str) -> float | None:
    """Gbit/s, from `400 Gb/sec (4X NDR)`; of a port that is down it may be 2.5."""
    number = text.partition(" ")[0]
    try:
        return float(number)
    except ValueError:
        return None


def _by_number(name: str) -> tuple[str, int]:
    """mlx5_2 before mlx5_10."""
    letters = name.rstrip("0123456789")
    return letters, int(name[len(letters) :] or 0)


def ofed(root: str = "/") -> dict[str, str | None] | None:
    """The software for RDMA, as `mnt.facts.system.Ofed`; None without an RDMA device."""
    if not entries(os.path.join(root, "sys/class/infiniband")):
        return None
    module = read(os.path.join(root, "sys/module/mlx5_core/version")).strip()
    return {"libibverbs": _libibverbs(root), "mlx5_core": module or None}


def _libibverbs(root: str) -> str | None:
    """The library's version, `1.14.39.0`, from the name of the file that its soname points to."""
    machine = os.uname().machine
    for directory in (f"usr/lib/{machine}-linux-gnu", "usr/lib64", "usr/lib"):
        target = os.path.realpath(os.path.join(root, directory, "libibverbs.so.1"))
        version = os.path.basename(target).partition(".so.")[2]
        if os.path.exists(target) and version.count("."):
            return version
    return None
