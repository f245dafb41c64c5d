"""The releases in a workdir, and the names of their files. Runs on a host: Python 3.8, standard library.

    workdir/releases/<id>/                    the tree, with links to shared/
    workdir/releases/<id>.pushed.json         who pushed it, from where; it may be missing
    workdir/releases/<id>.manifest.json       the entries of the tree; without it, it is not a release
    workdir/releases/.incoming-*, .removing-* incomplete; useless once the push has ended
    workdir/releases/.beacon-*                the hosts that see it share the workdir
    workdir/releases/.lock                    held by the running push: see lock.py
    workdir/releases/.switching               `current` was switched by a push that is not committed
    workdir/releases/.previous -> <id>        the release that was current before the last switch
    workdir/releases/.opened                  names of the releases that other users could once enter

workdir.py has the other names. Paths are bytes.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
import stat
import time
from typing import Any, Callable, Iterator, Sequence

from mnt.remote.common.files import read_json, replace_file
from mnt.remote.common.levels import enter, tree
from mnt.remote.common.mounts import mount_id
from mnt.remote.common.owners import check_owners, is_closed, is_own_tree, judge_mount
from mnt.remote.common.refusal import Refused
from mnt.remote.push.contents import Contents, look_into
from mnt.remote.push.entries import Entry, differs, parse_manifest, same_bytes, shown
from mnt.remote.push.pushed import read_pushed, write_pushed
from mnt.remote.push.uses import Use, uses
from mnt.remote.push.workdir import Workdir

RELEASE_ID = r"\A[0-9]{8}-[0-9]{6}-[0-9a-f]{8}\Z"
_ID = re.compile(RELEASE_ID)
_FORMAT = 1  # of what is stored beside the releases
_STALE = 24 * 3600.0  # seconds after which leftovers are removed if locks do not work
_STALE_SWITCH = 300.0  # the same for a switch, which is committed or undone within seconds
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

    def trees(self) -> Iterator[tuple[bytes, list[Entry]]]:
        """The tree and the entries of every release that has a readable manifest, newest first."""
        for release in self.ids():
            with contextlib.suppress(Refused):
                document = self.manifest(release)
                if document is not None:
                    yield self.path(release), parse_manifest(document)

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
            return is_own_tree(top, self.group) and all(  # also what jobs may have added
                differs(top, entry) is None and same_bytes(top, entry) for entry in entries
            )
        except (OSError, Refused):
            return False

    def is_kept(self, path: bytes) -> bool:
        """Whether a path of a release is a link to shared/, or inside one."""
        return any(path == name or path.startswith(name + b"/") for name in self.keep)

    def pushed(self, release: str | None) -> dict[str, Any] | None:
        """Who pushed a release, as `note_pushed` got it; None: unknown."""
        if release is None:
            return None
        return read_pushed(self._pushed_path(release))

    def uses(self) -> list[Use]:
        """What uses the releases on this host."""
        return uses(self.directory, self.group)

    def previous(self) -> str | None:
        """The release that was current before the last switch; if that is unknown, the next older one."""
        current, ids = self.current(), self.ids()
        with contextlib.suppress(OSError):
            previous = shown(os.readlink(self._previous))
            if previous in ids and previous != current:
                return previous
        return next((release for release in ids if current is not None and release < current), None)

    def contents(self, release: str, *, thorough: bool = False) -> Contents:
        """What is in a release, and which of it is foreign to its manifest.

        Args:
            thorough: read all files, also those that seem unchanged by their times.
        """
        document, made = self.manifest(release), None
        if document is not None and not thorough:
            made = os.stat(self.manifest_path(release)).st_ctime
        entries: list[Entry] = [] if document is None else parse_manifest(document)
        return look_into(self.path(release), entries, self.shared, made=made)

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
        _replace_link(self.link, target)

    def remember(self, previous: str) -> None:
        """Note which release was current before the switch. Raises OSError."""
        _replace_link(self._previous, os.fsencode(previous))

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

    def begin_switch(self, release: str, who: str, undo: Callable[..., Any]) -> None:
        """Point `current` to a release, and note that this is not final until `end_switch`.

        `undo` gets what points it back, unless somebody else has moved it meanwhile.
        """
        before = self.current_target()
        was = None if before is None else os.fsdecode(before)
        note = {"format": _FORMAT, "release": release, "before": was, "who": who}
        undo(_attempt, os.unlink, self._switching)
        replace_file(os.fsdecode(self._switching), json.dumps(note), 0o644)
        target = b"releases/" + os.fsencode(release)
        _replace_link(self.link, target, lambda made: undo(self._switch_back, before, made))

    def end_switch(self) -> None:
        """Make the switch final."""
        _attempt(os.unlink, self._switching)

    def _switch_back(self, before: bytes | None, made: os.stat_result) -> None:
        """Point `current` back, if it is still the link that was made."""
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.lstat(self.link), made):
                self.switch(before)

    def switching(self) -> dict[str, Any] | None:
        """The note of a switch that is not final: `release`, `before`, `who`; None: there is none."""
        if not os.path.lexists(self._switching):
            return None
        note = read_json(os.fsdecode(self._switching)) or {}
        return {name: str(note[name]) if note.get(name) else None for name in ("release", "before", "who")}

    def _end_interrupted_switch(self) -> None:
        """Point `current` back if a push was killed between switch and commit."""
        note = self.switching()
        if note is None:
            return
        if note["release"] is not None and self.current() == note["release"]:
            before = os.fsencode(note["before"] or "")
            there = before and os.path.isdir(os.path.join(self.workdir, before))
            if there or not before:
                self.switch(before or None)
        self.end_switch()

    def sweep(self, locked: bool) -> None:
        """Remove what interrupted pushes left. If the lock is held, no other push is using it."""
        if locked or _age(self._switching) > _STALE_SWITCH:
            self._end_interrupted_switch()
        used = [b".removing-" + os.fsencode(use.release) for use in self.uses()]
        for name in os.listdir(self.directory):
            path = os.path.join(self.directory, name)
            if name in used:
                continue
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

    def note_pushed(self, release: str, note: dict[str, Any]) -> None:
        """Store who pushed a release. Raises OSError."""
        write_pushed(self._pushed_path(release), note)

    def remove(self, release: str) -> bool:
        """Remove a release: hide it by a rename first, then delete it. False: it is in use, and stays."""
        if self._is_used(release):
            return False
        hidden = os.path.join(self.directory, b".removing-" + os.fsencode(release))
        _attempt(os.rename, self.path(release), hidden)
        if self._is_used(release):  # since just now; from here on nothing can begin to use it
            _attempt(os.rename, hidden, self.path(release))
            return False
        _attempt(os.unlink, self.manifest_path(release))
        _attempt(os.unlink, self._pushed_path(release))
        remove_tree(hidden)
        return True

    def _is_used(self, release: str) -> bool:
        return any(use.release == release for use in self.uses())

    def _pushed_path(self, release: str) -> bytes:
        return self.path(release) + b".pushed.json"

    @property
    def _switching(self) -> bytes:
        return os.path.join(self.directory, b".switching")

    @property
    def _previous(self) -> bytes:
        return os.path.join(self.directory, b".previous")


def _replace_link(
    link: bytes, target: bytes, on_made: Callable[[os.stat_result], object] = lambda made: None
) -> None:
    """Point a link to `target` by one rename. Raises OSError.

    Args:
        on_made: called with the status of the new link, before the rename.
    """
    scratch = b"%s.%d" % (link, os.getpid())
    with contextlib.suppress(FileNotFoundError):
        os.unlink(scratch)
    os.symlink(target, scratch)
    try:
        on_made(os.lstat(scratch))
        os.replace(scratch, link)
    except OSError:
        os.unlink(scratch)
        raise


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
    """Remove a tree at an absolute path, also with read-only directories. What cannot be removed stays.

    Links are not followed. A tree in which another user has mounted a file system stays too: that one might
    never answer.
    """
    with contextlib.suppress(OSError, Refused, RecursionError):  # a job may have made directories without end
        with contextlib.ExitStack() as opened:
            above = os.open(os.path.dirname(path), os.O_PATH | os.O_CLOEXEC)
            opened.callback(os.close, above)
            top, _ = enter(os.path.basename(path), above, mount_id(above), shown(path), judge_mount)
            opened.callback(os.close, top)
            _attempt(os.chmod, f"/proc/self/fd/{top}", 0o700)
            for level in tree(top, os.fsdecode(path), judge_mount):
                if level.is_directory:
                    _attempt(os.chmod, f"/proc/self/fd/{level.descriptor}", 0o700)
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
