"""Whether hosts may share a workdir. Runs on a host: Python 3.8, standard library."""

from __future__ import annotations

import os

from mnt.remote.common.files import read, unix_lines

# File systems that are either not shared, or show changes at once.
_COHERENT = ("ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "tmpfs", "overlay")


def numbers_of(directory: bytes) -> list[int] | None:
    """Numbers that are the same on all hosts that share the directory: its inode, and the size of the disk.

    None if beacons appear at once there, so that there is no need to wait for them.
    """
    found = os.stat(directory)
    if _file_system_type(found.st_dev) in _COHERENT:
        return None
    return [found.st_ino, os.statvfs(directory).f_blocks]


def _file_system_type(device: int) -> str | None:
    """The type of the mount with that device number, from /proc/self/mountinfo (proc(5))."""
    number = f"{os.major(device)}:{os.minor(device)}"
    for line in unix_lines(read("/proc/self/mountinfo")):
        fields = line.split(" ")
        if fields[2] == number:
            return fields[fields.index("-") + 1]
    return None
