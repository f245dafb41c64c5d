"""The host's side of a push. Runs on a host: Python 3.8, standard library.

One run is one push: it reads lines of JSON from stdin, carries out each, and answers with a frame. Every step
registers how to undo it, and all are undone unless "commit" arrives: also if the input ends, which is how the
head calls a push off, if the connection drops, or if no sign of life comes (life.py), such as an empty line.

    open     (the program's arguments)               -> {"numbers": [inode, blocks] | null, "in_use": [id]}
    look     {"beacons": {host: beacon}, "likely": [host]}        -> {"sees": [host]}
    survey   {"sha"}                                 -> {"current": id, "previous": id, "pushed": {..},
                                                        "taken": [id], "holds": {id: intact}}
    offer    {"id", "manifest": bytes}, then these bytes  -> {"lacks": bits of the entries, in hexadecimal}
    stage    {"stream": bytes}, then these bytes     -> {}
    verify   {"id"}                                  -> {"sha": str | null, "intact": bool}
    adopt    {"id"}                                  -> {}
    wait     {"id", "sha"}                           -> {}
    switch   {"id"}                                  -> {}
    commit   {"pushed": see mnt.tasks.push.Pushed}   -> {}
    prune    (the arguments of `prune.prune`)        -> {"pruned": [id], "left": [..]}
    confirm  {"id", "patience": seconds}             -> {}

A line is the arguments with {"do": step} added, a frame is the answer with {"step": step} added. `wait` is
for hosts that share the workdir of another host: that host receives and switches, the others only look, also
after the switch (`confirm`).

The program answers when the input ends: {"current": id} after a commit; otherwise, after everything was
undone, {"refused": {"message", "fix"}, "called_off": bool, "current": id}. The program's arguments are
{"action": "push", "workdir", "group", "keep", "beacon", "who"}, or {"action", "workdir", "group", "keep"}
with the action "find", "list" or "enter", which only look: see mnt/tasks/push.py.
"""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import signal
import time
from typing import IO, Any, Callable, Dict, NamedTuple

from mnt.remote.common import life
from mnt.remote.common.files import strerror
from mnt.remote.common.forms import MOST_USES
from mnt.remote.common.life import LivelyInput, Silent
from mnt.remote.common.refusal import Refused
from mnt.remote.common.signals import ignored
from mnt.remote.common.writing import try_to_write
from mnt.remote.push.entries import Entry, parse_manifest, shown
from mnt.remote.push.lock import Lock, holder_of, take
from mnt.remote.push.prune import prune
from mnt.remote.push.releases import Releases, remove_tree
from mnt.remote.push.reuse import places_of
from mnt.remote.push.sharing import numbers_of
from mnt.remote.push.unpack import Window, assemble, check_space, check_tree, complete, set_modes

_PATIENCE = 5.0  # seconds until changes by one host show on another; NFS caches attributes for 3 or more
_LOOK_EVERY = 0.2  # seconds
_BUFFER = 1 << 16  # bytes
Emit = Callable[[Dict[str, Any]], None]
Answer = Dict[str, Any]


def main(args: dict[str, Any], emit: Emit, stdin: IO[bytes]) -> Answer:
    """Carry out args["action"]."""
    releases = None
    try:
        releases = Releases(args["workdir"], args.get("keep", ()), args.get("group"))
        if args["action"] == "find":
            return _find(releases)
        if args["action"] == "list":
            return _list(releases, emit)
        if args["action"] == "enter":
            return {"path": _place(releases)}
        return Push(releases, args["beacon"], args["who"], stdin).run(emit)
    except Refused as refusal:
        return _refusal(refusal, releases)
    except EOFError:
        return {**_refusal(Refused("the push was called off"), releases), "called_off": True}
    except Silent:
        problem = f"nothing was heard of mnt for {life.SILENCE:g} s; what was done here is undone"
        return _refusal(Refused(problem, "push again"), releases)
    except OSError as error:
        return _refusal(Refused(f"{_filename(error)}: {strerror(error)}"), releases)


def _refusal(refusal: Refused, releases: Releases | None) -> Answer:
    current = None
    with contextlib.suppress(Refused, OSError):
        current = None if releases is None else releases.current()
    return {"refused": refusal.document(), "called_off": False, "current": current}


def _filename(error: OSError) -> str:
    return shown(error.filename) if isinstance(error.filename, bytes) else str(error.filename)


def _find(releases: Releases) -> Answer:
    _check_settled(releases)
    current = releases.current()
    if current is not None:
        releases.check_code()
    return {
        "current": current,
        "path": None if current is None else os.fsdecode(releases.path(current)),
        "manifest_sha": None if current is None else releases.manifest_sha(current),
        "pushed": releases.pushed(current),
    }


def _place(releases: Releases) -> str | None:
    """The current release, else the workdir; None: there is neither. Raises Refused as a launch does."""
    current = releases.current()
    if current is not None:
        releases.check_code()
        return os.fsdecode(releases.path(current))
    return os.fsdecode(releases.workdir) if os.path.isdir(releases.workdir) else None


def _check_settled(releases: Releases) -> None:
    """Raises Refused if a push is changing the workdir, or has left a switch that is not committed."""
    where, holder, switch = shown(releases.workdir), holder_of(releases), releases.switching()
    if holder is not None:
        fix = f"launch again after its end; one that was cut off ends within {life.SILENCE:g} s"
        raise Refused(f"a push to {where} is running: {holder.who}", fix)
    if switch is not None:
        who = switch["who"] or "it is unknown whose"
        raise Refused(f"a push has switched `current` in {where}, and was never committed: {who}", "mnt push")


def _list(releases: Releases, emit: Emit) -> Answer:
    """Emit a frame for each release, newest first."""
    used = releases.uses()
    for release in releases.ids():
        contents = releases.contents(release)
        emit(
            {
                "release": release,
                "files": contents.files,
                "bytes": contents.bytes,
                "foreign": contents.foreign(),
                "pushed": releases.pushed(release),
                "uses": [use.document() for use in used if use.release == release][:MOST_USES],
            }
        )
    return {"current": releases.current(), "previous": releases.previous()}


class _Offered(NamedTuple):
    """A release that is being made."""

    id: str
    document: bytes
    entries: list[Entry]
    incoming: bytes  # its tree
    lacking: list[int]  # indexes of the entries whose bytes the head must send


def _bitmap(indexes: list[int], count: int) -> str:
    """The indexes as bits, in hexadecimal: bit 0 of byte 0 is index 0."""
    bits = bytearray(-(-count // 8))
    for index in indexes:
        bits[index // 8] |= 1 << index % 8
    return bits.hex()


class Push:
    """One push to one workdir."""

    def __init__(self, releases: Releases, beacon: str, who: str, stdin: IO[bytes]) -> None:
        self._releases = releases
        self._beacon = beacon
        self._who = who
        self._lock: Lock | None = None
        self._stdin = io.BufferedReader(LivelyInput(stdin, self._note_sign_of_life), _BUFFER)
        self._offered: _Offered | None = None
        self._committed = False
        self._switched_to: str | None = None
        self._replaced: str | None = None  # the release that was current before the switch
        self._undo = contextlib.ExitStack()  # undoes each step, the last one first
        self._always = contextlib.ExitStack()  # runs at the end in any case

    def run(self, emit: Emit) -> Answer:
        """Carry out the commands of the input; at the end, undo what was not committed."""
        try:
            emit({"step": "open", **self.open()})
            while True:
                command = self.next_command()
                if command is None:
                    return {"current": self._releases.current()}
                step = command.pop("do")
                emit({"step": step, **_STEPS[step](self, **command)})
        finally:
            # When the head is gone, boot sends SIGTERM, and then leaves us some time to clean up.
            with ignored(signal.SIGTERM), self._always:
                self._undo.close()

    def next_command(self) -> dict[str, Any] | None:
        """None: the input has ended after a commit. Raises EOFError if it ends without one, Silent."""
        line = b"\n"
        while line == b"\n":  # a sign of life
            line = self._stdin.readline()
        if not line.endswith(b"\n"):
            if self._committed:
                return None
            raise EOFError
        command: dict[str, Any] = json.loads(line.decode())
        return command

    # --- which hosts share this workdir ---------------------------------------------------------------------

    def open(self) -> Answer:
        """Make the workdir, and a beacon in it: a file that all hosts see that share it."""
        self._releases.make(self._undo.callback)
        result = try_to_write(self._releases.workdir)
        if result != "ok":
            fix = "mnt preflight --only writable shows the way out; or choose another workdir"
            reason = os.strerror(getattr(errno, result)).lower()
            raise Refused(f"cannot write to {shown(self._releases.workdir)}: {reason}", fix)
        path = self._beacon_path(self._beacon)
        self._undo.callback(_remove_file, path)  # before the directory that contains it
        self._always.callback(_remove_file, path)
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        return {"numbers": numbers_of(self._releases.directory), "in_use": self._in_use()}

    def _note_sign_of_life(self) -> None:
        if self._lock is not None:
            self._lock.touch()

    def _now(self) -> float:
        """The time as the file system of the workdir has it."""
        path = self._beacon_path(self._beacon)
        os.utime(path)
        return os.stat(path).st_mtime

    def _in_use(self) -> list[str]:
        return sorted({use.release for use in self._releases.uses()})

    def look(self, beacons: dict[str, str], likely: list[str]) -> Answer:
        """Find the hosts whose beacons are in this workdir; wait for those of the `likely` ones.

        The names are looked up, not listed: an NFS client may show an old listing, but asks the server for a
        name that it has never looked up.
        """
        sees = {host for host, beacon in beacons.items() if os.path.exists(self._beacon_path(beacon))}
        missing = {host: self._beacon_path(beacons[host]) for host in likely if host not in sees}
        _wait_for(lambda: all(map(os.path.exists, missing.values())), _PATIENCE)
        sees.update(host for host, path in missing.items() if os.path.exists(path))
        return {"sees": sorted(sees)}

    def _beacon_path(self, beacon: str) -> bytes:
        return os.path.join(self._releases.directory, b".beacon-" + beacon.encode())

    # --- the release ----------------------------------------------------------------------------------------

    def survey(self, sha: str) -> Answer:
        """Lock the workdir, and report what is there. Releases of the manifest `sha` are hashed again."""
        self._lock = take(self._releases, self._who, self._undo.callback, self._always.callback, self._now)
        self._releases.sweep(self._lock.works)
        taken = self._releases.ids()
        same = [release for release in taken if self._releases.manifest_sha(release) == sha]
        return {
            "current": self._releases.current(),
            "previous": self._releases.previous(),
            "pushed": self._releases.pushed(self._releases.current()),
            "taken": taken,
            "holds": {release: self._releases.intact(release) for release in same},
        }

    def offer(self, id: str, manifest: int) -> Answer:
        """Begin a release, whose manifest has so many bytes: make what earlier releases have of it."""
        document = Window(self._stdin, manifest).read()
        entries = parse_manifest(document)
        releases = self._releases
        incoming = os.path.join(releases.directory, b".incoming-%s-%s" % (id.encode(), self._beacon.encode()))
        check_space(releases.directory, entries)
        self._undo.callback(remove_tree, incoming)
        wanted = {entry.value for entry in entries if entry.kind == "file"}
        lacking = assemble(incoming, entries, places_of(wanted, releases.trees()))
        self._offered = _Offered(id, document, entries, incoming, lacking)
        return {"lacks": _bitmap(lacking, len(entries))}

    def stage(self, stream: int) -> Answer:
        """Complete the release that was offered, with `stream` bytes of the input."""
        assert self._offered is not None  # noqa: S101 - the head has offered it
        id, document, entries, incoming, lacking = self._offered
        releases, window = self._releases, Window(self._stdin, stream)
        complete(incoming, entries, lacking, window)
        window.drain()
        set_modes(incoming, entries)
        check_tree(incoming, entries)
        releases.link_shared(incoming, self._undo.callback)
        self._undo.callback(self._take_back, id)
        releases.add(id, document, incoming)
        return {}

    def adopt(self, id: str) -> Answer:
        """Use a release that is here and intact."""
        self._releases.link_shared(self._releases.path(id), self._undo.callback)
        return {}

    def verify(self, id: str) -> Answer:
        """Whether a release is as it was sent; all of it is hashed again."""
        return {"sha": self._releases.manifest_sha(id), "intact": self._releases.intact(id)}

    def wait(self, id: str, sha: str) -> Answer:
        """Wait until a release that another host made appears here."""
        if not _wait_for(lambda: self._releases.manifest_sha(id) == sha, _PATIENCE):
            raise Refused(
                f"{shown(self._releases.workdir)} is shared, but release {id} does not appear here",
                "check the mounts of the shared file system",
            )
        return {}

    def _take_back(self, id: str) -> None:
        """Remove a release of this push, unless a job already uses it or has written into it."""
        with contextlib.suppress(Refused):  # `current` is no link
            if self._releases.current() == id:
                return
        if not self._releases.contents(id).foreign_files:
            self._releases.remove(id)

    # --- the switch -----------------------------------------------------------------------------------------

    def switch(self, id: str) -> Answer:
        """Point `current` to the release."""
        self._replaced, self._switched_to = self._releases.current(), id
        self._releases.begin_switch(id, self._who, self._undo.callback)
        return {}

    def commit(self, pushed: dict[str, Any] | None = None) -> Answer:
        """Keep everything, and note who pushed the release, if it was not current before."""
        self._undo.pop_all()
        self._releases.end_switch()
        with contextlib.suppress(OSError):  # a full disk: what is noted is only shown, or a default
            if pushed is not None and self._switched_to is not None:
                self._releases.note_pushed(self._switched_to, pushed)
            if self._replaced is not None:
                self._releases.remember(self._replaced)
        self._committed = True
        return {}

    def prune(self, **how: Any) -> Answer:
        """Remove old releases; the lock is held."""
        return prune(self._releases, **how)

    def confirm(self, id: str, patience: float) -> Answer:
        """Wait until `current` is the release to which another host switched it; the final answer tells."""

        def switched() -> bool:
            os.listdir(self._releases.workdir)  # an NFS client asks the server then
            return self._releases.current() == id

        _wait_for(switched, patience)
        return {}


_AFTER_OPEN = (
    Push.look,
    Push.survey,
    Push.offer,
    Push.stage,
    Push.verify,
    Push.adopt,
    Push.wait,
    Push.switch,
)
_STEPS: dict[str, Callable[..., Answer]] = {
    step.__name__: step for step in (*_AFTER_OPEN, Push.commit, Push.prune, Push.confirm)
}


def _wait_for(condition: Callable[[], bool], patience: float) -> bool:
    deadline = time.monotonic() + patience
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(_LOOK_EVERY)
    return True


def _remove_file(path: bytes) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
