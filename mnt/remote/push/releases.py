"""The releases in a workdir, and the names of their files. Runs on a host: Python 3.8, standard library.

    workdir/releases/<id>/                    the tree, with links to shared/
    workdir/releases/<id>.manifest.json       the entries of the tree; without it, it is not a release
    workdir/releases/.incoming-*, .removing-* incomplete; useless once the push has ended
    workdir/releases/.beacon-*                the hosts that see it share the workdir
    workdir/releases/.lock                    held by the running push
    workdir/releases/.opened                  names of the releases that other users could once enter

workdir.py has the other names. Paths are bytes.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import shutil
import stat
import time
from typing import Any, Callable, Iterable, Iterator, Sequence

from mnt.remote.common.files import replace_file
from mnt.remote.common.owners import accepts, check_owners, is_closed
from mnt.remote.common.refusal import Refused
from mnt.remote.push.entries import differs, parse_manifest, same_bytes, shown
from mnt.remote.push.workdir import Workdir

RELEASE_ID = r"\A[0-9]{8}-[0-9]{6}-[0-9a-f]{8}\Z"
_ID = re.compile(RELEASE_ID)
_MANIFEST = ".manifest.json"
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)  # NFS mounted with `nolock`, FUSE
_STALE = 24 * 3600.0  # seconds after which leftovers are removed if locks do not work
_BEACONS = (b".beacon-", b".nonce-")  # the second of an older mnt
_STALE_BEACON = 3600.0  # seconds; a push looks for beacons long before


class Releases(Workdir):
    """The releases in one workdir.

    Raises Refused, as Workdir, and if another user made, or could replace, something in the workdir.
    """

    def __init__(self, workdir: str, keep: Sequence[str] = (), group: str | None = None) -> None:
        super().__init__(workdir, keep, group)
        self.check_owners()

    # --- reading --------------------------------------------------------------------------------------------

    def path(self, release: str) -> bytes:
        return os.path.join(self.directory, os.fsencode(release))

    def manifest_path(self, release: str) -> bytes:
        return self.path(release) + os.fsencode(_MANIFEST)

    def current_target(self) -> bytes | None:
        """The target of `current`; None if there is no `current`. Raises Refused if it is not a link."""
        try:
            return os.readlink(self.link)
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            raise Refused(
                f"{shown(self.link)} is not a link that mnt made", "move it away, then push again"
            ) from error

    def current(self) -> str | None:
        """The release that `current` points to."""
        parent, _, name = (self.current_target() or b"").rpartition(b"/")
        return shown(name) if parent == b"releases" and _ID.fullmatch(shown(name)) else None

    def ids(self) -> list[str]:
        """All releases, newest first."""
        try:
            names = [shown(name) for name in os.listdir(self.directory)]
        except FileNotFoundError:
            return []
        return sorted((name for name in names if _ID.fullmatch(name)), reverse=True)

    def manifest(self, release: str) -> bytes | None:
        """The manifest's document; None unless both it and the tree exist."""
        try:
            with open(self.manifest_path(release), "rb") as file:
                return file.read() if os.path.isdir(self.path(release)) else None
        except FileNotFoundError:
            return None

    def manifest_sha(self, release: str) -> str | None:
        document = self.manifest(release)
        return None if document is None else hashlib.sha256(document).hexdigest()

    def intact(self, release: str) -> bool:
        """Whether every entry of the manifest exists as it was sent, and is ours; hashes all files again.

        Files that jobs have added since (byte code, logs) do not count. A release that other users could
        enter is not intact: they may hold its files open.
        """
        document = self.manifest(release)
        if document is None or os.fsencode(release) in self.opened():
            return False
        entries = [entry for entry in parse_manifest(document) if not self.is_kept(entry.path)]
        top = self.path(release)
        try:
            return self._is_ours(top) and all(
                differs(top, entry) is None and same_bytes(top, entry) for entry in entries
            )
        except OSError:
            return False

    def _is_ours(self, top: bytes) -> bool:
        """Whether no other user made a file in a tree, also none that jobs may have added."""
        return all(
            accepts(os.lstat(os.path.join(directory, name)).st_uid, self.group)
            for directory, directories, files in os.walk(top)
            for name in (b"", *directories, *files)
        )

    def is_kept(self, path: bytes) -> bool:
        """Whether a path of a release is a link to shared/, or inside one."""
        return any(path == name or path.startswith(name + b"/") for name in self.keep)

    def in_use(self) -> list[str]:
        """The releases in which a process of this user on this host has its working directory."""
        top = os.path.realpath(self.directory) + b"/"
        found = set()
        for pid in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                cwd = os.readlink(b"/proc/%s/cwd" % pid.encode())
                if cwd.startswith(top):
                    found.add(shown(cwd[len(top) :].split(b"/")[0]))
        return sorted(found)

    # --- changing -------------------------------------------------------------------------------------------

    def make(self, undo: Callable[..., Any]) -> None:
        """Make the directory of the releases, as `make_directories`, and close it to other users.

        Then the modes of the code in it, which are those on the head, give others no access. What is there
        already is recorded if others had access to it.
        """
        self.make_directories(self.directory, undo)
        if not is_closed(self.directory, self.group) and self.ids():
            replace_file(os.fsdecode(self.opened_list), "\n".join(self.ids()), mode=0o644)
        if os.stat(self.directory).st_uid == os.getuid():
            os.chmod(self.directory, 0o700)
            self._share(self.directory, 0o2770)

    def make_directories(self, path: bytes, undo: Callable[..., Any]) -> None:
        """Make a directory and those above it; `undo` gets the removal of each new one, if still empty.

        Other users cannot write to them; with `group`, its members can. Raises Refused if another user was
        faster, and made one of them.
        """
        made = _make_directories(path, undo)
        check_owners(path, self.group)
        for directory in made:
            self._share(directory, 0o2775)

    def _share(self, directory: bytes, mode: int) -> None:
        """Give a directory, which was checked, to the group, if there is one."""
        if self.group is not None:
            os.chown(directory, -1, self.group.id)
            os.chmod(directory, mode)

    def switch(self, target: bytes | None) -> None:
        """Point `current` to `target` by one rename; None removes it. Raises OSError, Refused."""
        self.current_target()
        if target is None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.link)
            return
        scratch = b"%s.%d" % (self.link, os.getpid())
        with contextlib.suppress(FileNotFoundError):
            os.unlink(scratch)
        os.symlink(target, scratch)
        try:
            os.replace(scratch, self.link)
        except OSError:
            os.unlink(scratch)
            raise

    def link_shared(self, top: bytes, undo: Callable[..., Any]) -> None:
        """Make links in the release at `top` to the kept directories of shared/.

        Each replaces a directory of that name in the tree if it is empty, or contains only a .gitkeep. `undo`
        is called with the function that undoes each step. Raises Refused if anything else has that name.
        """
        for name in self.keep:
            shared = os.path.join(self.shared, name)
            self.make_directories(shared, undo)
            place = os.path.join(top, name)
            target = os.path.relpath(shared, os.path.dirname(place))
            if os.path.islink(place) and os.readlink(place) == target:
                continue
            with _writable(top):
                _make_directories(os.path.dirname(place), undo)
            with _writable(os.path.dirname(place)):
                _clear(place, name)
                os.symlink(target, place)
                undo(_attempt, os.unlink, place)

    def lock(self, who: str, undo: Callable[..., Any], at_end: Callable[..., Any]) -> bool:
        """Lock the workdir for one push, until `at_end`. False: this file system has no locks.

        Raises Refused, naming who holds the lock, if another push is running.
        """
        path = os.path.join(self.directory, b".lock")
        while True:
            is_new = not os.path.exists(path)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            at_end(os.close, descriptor)
            if self.group is not None and os.fstat(descriptor).st_uid == os.getuid():
                os.fchmod(descriptor, 0o660)
            if not self._take(descriptor):
                return False
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                    break  # otherwise a push that was called off has just removed it
        if is_new:
            undo(_attempt, os.unlink, path)
        os.ftruncate(descriptor, 0)
        os.write(descriptor, who.encode("utf-8", "replace"))
        return True

    def _take(self, descriptor: int) -> bool:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _NO_LOCKS:
                return False
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise
            holder = os.read(descriptor, 1000).decode("utf-8", "replace")
            raise Refused(
                f"another push to {shown(self.workdir)} is running: {holder or 'its owner is unknown'}",
                "wait for its end, then push again",
            ) from error
        return True

    def sweep(self, locked: bool) -> None:
        """Remove what interrupted pushes left. If the lock is held, no other push is using it."""
        for name in os.listdir(self.directory):
            path = os.path.join(self.directory, name)
            if name.startswith((b".incoming-", b".removing-")):
                if locked or _age(path) > _STALE:
                    remove_tree(path)
            elif name.startswith(_BEACONS) and _age(path) > _STALE_BEACON:
                _attempt(os.unlink, path)

    def add(self, release: str, document: bytes, tree: bytes) -> None:
        """Make a complete tree in this directory a release, by a rename."""
        path = self.manifest_path(release)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644), "wb") as file:
            file.write(document)
        os.rename(tree, self.path(release))

    def remove(self, release: str) -> None:
        """Remove a release: hide it by a rename first, then delete it."""
        hidden = os.path.join(self.directory, b".removing-" + os.fsencode(release))
        _attempt(os.rename, self.path(release), hidden)
        _attempt(os.unlink, self.manifest_path(release))
        remove_tree(hidden)

    def prune(self, keep: int, protect: Iterable[str]) -> list[str]:
        """Remove all releases except the `keep` newest and those in `protect`; returns the removed ones."""
        protected = set(protect)
        doomed = [release for release in self.ids()[keep:] if release not in protected]
        for release in doomed:
            self.remove(release)
        return doomed


def _make_directories(path: bytes, undo: Callable[..., Any]) -> list[bytes]:
    """As `Releases.make_directories`, unchecked; returns the new ones."""
    if os.path.isdir(path):
        return []
    made = _make_directories(os.path.dirname(path), undo)
    with contextlib.suppress(FileExistsError):  # another host, on a shared file system, was faster
        os.mkdir(path, 0o755)
        undo(_attempt, os.rmdir, path)
        made.append(path)
    if not os.path.isdir(path):
        raise Refused(f"{shown(path)} is not a directory", "move it away, or choose another workdir")
    return made


def remove_tree(path: bytes) -> None:
    """Remove a tree, also with read-only directories. What cannot be removed stays for the next sweep."""
    with contextlib.suppress(RecursionError):  # a job may have made directories without end
        for directory, _, _ in os.walk(path):
            _attempt(os.chmod, directory, 0o700)
        shutil.rmtree(path, ignore_errors=True)


def _clear(place: bytes, name: bytes) -> None:
    """Make room for a link to shared/. Raises Refused if files would be lost."""
    if not os.path.lexists(place):
        return
    if os.path.isdir(place) and not os.path.islink(place) and os.listdir(place) in ([], [b".gitkeep"]):
        remove_tree(place)
        return
    raise Refused(
        f"{shown(name)}: the tree contains it, but `keep` makes it a link to shared/{shown(name)}",
        "list it in .mntignore, or remove it from `keep` in the inventory",
    )


@contextlib.contextmanager
def _writable(directory: bytes) -> Iterator[None]:
    """Make a directory of ours writable during the block."""
    mode = stat.S_IMODE(os.stat(directory).st_mode)
    if not mode & stat.S_IWUSR:
        os.chmod(directory, mode | stat.S_IWUSR)
    try:
        yield
    finally:
        if not mode & stat.S_IWUSR:
            os.chmod(directory, mode)


def _age(path: bytes) -> float:
    try:
        return time.time() - os.lstat(path).st_mtime
    except FileNotFoundError:
        return 0.0


def _attempt(function: Callable[..., Any], *args: Any) -> None:
    with contextlib.suppress(OSError):
        function(*args)
