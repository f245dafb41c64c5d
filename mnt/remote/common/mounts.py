"""File systems that a user has mounted, who decides what owners and modes they show.

With FUSE (mount.fuse3(8)), an ordinary user can mount a file system on a directory of his own, and, if
/etc/fuse.conf has `user_allow_other`, show it to all users. Its program may say that every file belongs to
somebody else, exchange the files at any time, and never answer. Runs on a host: Python 3.8.
"""

from __future__ import annotations

from mnt.remote.common.files import read, whole_number


def mount_id(descriptor: int) -> str:
    """The mount on which an open file is, "" if unknown; nothing of the file system itself is asked."""
    for line in read(f"/proc/self/fdinfo/{descriptor}", 4096).splitlines():  # proc(5), since Linux 3.15
        if line.startswith("mnt_id:"):
            return line.split()[1]
    return ""


def mounted_by(mount: str) -> int | None:
    """The uid of the user who has mounted it by FUSE; None: it is no such mount."""
    for line in read("/proc/self/mountinfo").splitlines():
        fields = line.split(" ")
        if fields[0] == mount:
            kind, _, options = fields[fields.index("-") + 1 :][:3]
            return owner_of(kind, options)
    return None


def owner_of(kind: str, options: str) -> int | None:
    """The same for the type and the super options of a mount."""
    if kind != "fuse" and not kind.startswith(("fuse.", "fuseblk")):
        return None
    uids = [option.partition("=")[2] for option in options.split(",") if option.startswith("user_id=")]
    return whole_number(uids[0]) if uids else None
