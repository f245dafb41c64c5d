"""File systems that a user has mounted, who decides what owners and modes they show.

With FUSE (mount.fuse3(8)), an ordinary user can mount a file system on a directory of his own, and, if
/etc/fuse.conf has `user_allow_other`, show it to all users. Its program may say that every file belongs to
somebody else, exchange the files at any time, and never answer. Runs on a host: Python 3.8.
"""

from __future__ import annotations

import os

from mnt.remote.common.files import read, unix_lines, whole_number


def mount_id(descriptor: int) -> str:
    """The mount on which an open file is, "" if unknown; nothing of the file system itself is asked.

    It is asked for each file of a tree: so in three system calls, which take a third of the time of `read`.
    """
    try:
        info = os.open(f"/proc/self/fdinfo/{descriptor}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        _, _, rest = os.read(info, 4096).partition(b"mnt_id:")  # proc(5), since Linux 3.15
    finally:
        os.close(info)
    return rest.partition(b"\n")[0].strip().decode("ascii")


def mounted_by(mount: str) -> int | None:
    """The uid of the user who has mounted it by FUSE; None: it is no such mount.

    Args:
        mount: that of an open file, which keeps its id from another mount.

    Raises LookupError if it is unknown: what was unmounted (umount -l) goes on for those who have entered it,
    but is in no list.
    """
    for _ in range(2):  # before Linux 5.8, an unmount meanwhile could hide another mount from the list
        for line in unix_lines(read("/proc/self/mountinfo")):
            fields = line.split(" ")
            if fields[0] == mount:
                kind, _, options = fields[fields.index("-") + 1 :][:3]
                return owner_of(kind, options)
    if mount and mount == _root():
        return None  # of a chroot, which shows only what is mounted below it
    raise LookupError(mount)


def _root() -> str:
    root = os.open("/", os.O_PATH | os.O_CLOEXEC)
    try:
        return mount_id(root)
    finally:
        os.close(root)


def owner_of(kind: str, options: str) -> int | None:
    """The same for the type and the super options of a mount."""
    if kind != "fuse" and not kind.startswith(("fuse.", "fuseblk")):
        return None
    uids = [option.partition("=")[2] for option in options.split(",") if option.startswith("user_id=")]
    return whole_number(uids[0]) if uids else None
