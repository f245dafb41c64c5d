"""The names in a workdir, and whether another user could change it. Runs on a host: Python 3.8.

Its layout:

    workdir/current -> releases/<id>          replaced by one rename
    workdir/releases/                         closed to other users
    workdir/shared/<name>/                    outlives the releases
"""

from __future__ import annotations

import os
from typing import Sequence

from mnt.remote.common.files import read
from mnt.remote.common.owners import Group, check_owner, check_owners, check_tree, find_group, is_closed
from mnt.remote.common.refusal import Refused


class Workdir:
    """The paths in one workdir, as bytes: names may be no valid text, and do not depend on the host's locale.

    Args:
        workdir: `~` and `~user` in it are expanded here, on the host.
        keep: names of directories in shared/ to which every release has links.
        group: the Unix group whose members share the workdir; None: it is this user's alone.

    Raises Refused if the workdir is then not absolute, a name in `keep` leads out of shared/, or there is no
    such group.
    """

    def __init__(self, workdir: str, keep: Sequence[str] = (), group: str | None = None) -> None:
        self.workdir = os.path.expanduser(os.fsencode(workdir))
        if not os.path.isabs(self.workdir):
            raise Refused(f"workdir {workdir} is not an absolute path", "begin it with / or ~")
        self.directory = os.path.join(self.workdir, b"releases")
        self.shared = os.path.join(self.workdir, b"shared")
        self.link = os.path.join(self.workdir, b"current")
        self.lock = os.path.join(self.directory, b".lock")
        self.opened_list = os.path.join(self.directory, b".opened")
        self.keep = [os.fsencode(name) for name in keep]
        for name in self.keep:
            if os.path.isabs(name) or b".." in name.split(b"/") or os.path.normpath(name) in (b".", b""):
                shown = name.decode("utf-8", "backslashreplace")
                raise Refused(f"keep: {shown} is not the name of a directory in shared/")
        self.group: Group | None = None if group is None else find_group(group)

    def path(self, release: str) -> bytes:
        """The tree of a release."""
        return os.path.join(self.directory, os.fsencode(release))

    def manifest_path(self, release: str) -> bytes:
        """Its manifest, without which it is none."""
        return self.path(release) + b".manifest.json"

    def check_owners(self) -> None:
        """Raises Refused if another user made, or could replace, something in the workdir.

        Of a release, only its owner is looked at; see `check_code`.
        """
        shared = [os.path.join(self.shared, name) for name in self.keep]
        for path in (self.workdir, self.directory, self.shared, *shared):
            check_owners(path, self.group)
        found = os.listdir(self.directory) if os.path.isdir(self.directory) else []
        for path in (self.link, *(os.path.join(self.directory, name) for name in found)):
            check_owner(path, self.group)

    def check_code(self) -> None:
        """Raises Refused if other users can change the code of the current release.

        After a push they cannot enter the releases, whatever the modes of the code are.
        """
        try:
            release = os.readlink(self.link)
        except OSError:  # it is no link
            release = self.link
        if is_closed(self.directory, self.group) and os.path.basename(release) not in self.opened():
            return
        try:
            check_tree(self.link, self.group)
        except Refused as refusal:
            raise Refused(refusal.message, "push again") from None

    def opened(self) -> set[bytes]:
        """The releases that other users could enter: they may still hold files open, to write to them."""
        return set(read(os.fsdecode(self.opened_list)).encode().split())


def workdir_of(release: bytes) -> Workdir:
    """The workdir in which the tree of a release is."""
    return Workdir(os.fsdecode(os.path.dirname(os.path.dirname(release))))
