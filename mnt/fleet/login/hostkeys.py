"""Host keys: what known_hosts files say, what follows from it, and recording keys that are new.

The format is that of sshd(8), SSH_KNOWN_HOSTS FILE FORMAT, OpenSSH 9: several keys a host, patterns, hashed
names, `[host]:port`, @revoked. @cert-authority lines are skipped: mnt asks for plain keys.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import fcntl
import fnmatch
import hashlib
import hmac
import os
import shutil
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from mnt.errors import MntError
from mnt.files import replace_file
from mnt.fleet.login.destination import Destination

_HASH_MARK = "|1|"
_WILDCARDS = frozenset("*?!")


@dataclass(frozen=True)
class HostKey:
    """A public key: its type, `ssh-ed25519`, and its wire form (RFC 4253, 6.6)."""

    type: str
    blob: bytes

    @property
    def fingerprint(self) -> str:
        """As ssh-keygen shows it: SHA256:..."""
        digest = base64.b64encode(hashlib.sha256(self.blob).digest()).decode().rstrip("=")
        return f"SHA256:{digest}"


@dataclass(frozen=True)
class KnownKey:
    """A line of a known_hosts file."""

    names: str  # patterns with commas, or one hashed name
    key: HostKey
    revoked: bool
    file: str
    line: int

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line}"

    def is_for(self, name: str) -> bool:
        """Whether the line speaks of `name`, given as a name, an address, or [name]:port."""
        if self.names.startswith(_HASH_MARK):
            salt = self.names[len(_HASH_MARK) :].partition("|")[0]
            return hmac.compare_digest(self.names, _hashed(name, salt))
        patterns = self.names.lower().split(",")
        name = name.lower()
        if _WILDCARDS.isdisjoint(self.names):  # as nearly all are: each host looks at the lines of all others
            return name in patterns
        if any(_fits(name, pattern[1:]) for pattern in patterns if pattern.startswith("!")):
            return False
        return any(_fits(name, pattern) for pattern in patterns if not pattern.startswith("!"))


class HostKeyRefused(Exception):
    """A host's key is not the one that it has to be. `fix` says how to mend it."""

    def __init__(self, message: str, fix: str) -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix


_ASK = "ask who looks after the host"


def judge(known: Sequence[KnownKey], key: HostKey, *, strict: bool) -> bool:
    """Whether a key that a host has shown is new, and to be recorded.

    Args:
        known: the lines that speak of the host.
        strict: refuse a host of which no key is known.

    Raises HostKeyRefused where the key is revoked, is not the one that is known, or is unknown and `strict`.
    """
    for line in known:
        if line.revoked and line.key == key:
            message = f"{key.type} {key.fingerprint} is revoked by {line.place}"
            raise HostKeyRefused(message, f"{_ASK}: this key is not to be used any more")
    good = [line for line in known if not line.revoked]
    if any(line.key == key for line in good):
        return False
    if not good:
        if strict:
            message = f"no key of this host is known; it shows {key.type} {key.fingerprint}"
            raise HostKeyRefused(message, f"{_ASK} whether that is its fingerprint, then: mnt trust")
        return True
    old = next((line for line in good if line.key.type == key.type), good[0])
    raise HostKeyRefused(
        f"changed: {old.place} has {old.key.type} {old.key.fingerprint}, "
        f"the host shows {key.type} {key.fingerprint}",
        f"it may be another machine: {_ASK} whether it was installed anew; if so: mnt trust --replace",
    )


class KnownHosts:
    """Known_hosts files, each parsed once and shared by all hosts of a fleet; for any number of threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._files: dict[str, list[KnownKey]] = {}

    def lines_for(self, name: str, files: Iterable[str]) -> list[KnownKey]:
        """The lines of `files` that speak of `name`. A file that cannot be read says nothing."""
        with self._lock:
            return [line for file in files for line in self._read(file) if line.is_for(name)]

    def about(self, destination: Destination) -> list[KnownKey]:
        """The lines that speak of a server, in its own files and in those that are only read."""
        files = (*destination.known_hosts, *destination.known_hosts_global)
        known = self.lines_for(destination.key_name, files)
        if not known and destination.key_name == f"[{destination.hostname}]:{destination.port}":
            # As ssh does: a key known for the host without a port is good for any port of it.
            known = self.lines_for(destination.hostname, files)
        return known

    def record(self, name: str, key: HostKey, file: str, *, hashed: bool = False) -> None:
        """Append a key to a file, which is made, with its directory, if need be. Raises OSError.

        Two processes that record at once write whole lines, one after the other; that the key is there twice
        then does no harm.
        """
        names = _hashed(name, base64.b64encode(os.urandom(20)).decode()) if hashed else name
        path = Path(file).expanduser()
        text = f"{names} {key.type} {base64.b64encode(key.blob).decode()}\n"
        with self._lock:
            known = self._read(file)
            if any(line.key == key and line.is_for(name) for line in known):
                return
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            known.append(KnownKey(names, key, False, file, _append(path, text)))

    def forget(self, name: str, lines: Iterable[KnownKey]) -> None:
        """Take `name` out of lines that speak of it; other names of theirs stay.

        Raises:
            MntError: a line has `name` only by a pattern, which may stand for other hosts too.
            OSError: a file cannot be replaced.
        """
        doomed = {(line.file, line.line): line for line in lines}
        with self._lock:
            for file in {file for file, _ in doomed}:
                path = Path(file).expanduser().resolve()
                with _locked(path) as text:
                    kept = [
                        line if (file, number) not in doomed else _without(name, line, doomed[file, number])
                        for number, line in enumerate(text.splitlines(keepends=True), start=1)
                    ]
                    _replace(path, "".join(kept))
                self._files.pop(file, None)

    def _read(self, file: str) -> list[KnownKey]:
        if file not in self._files:
            try:
                text = Path(file).expanduser().read_text(encoding="utf-8", errors="replace")
            except OSError:
                text = ""
            self._files[file] = parse(text, file)
        return self._files[file]


def parse(text: str, file: str) -> list[KnownKey]:
    """The lines of a known_hosts file that hold a plain or a revoked key. Others are skipped, as ssh does."""
    found = []
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.split()
        revoked = bool(words) and words[0] == "@revoked"
        if revoked:
            del words[0]
        if len(words) < 3 or words[0].startswith(("#", "@")):
            continue
        try:
            blob = base64.b64decode(words[2], validate=True)
        except binascii.Error:
            continue
        found.append(KnownKey(words[0], HostKey(words[1], blob), revoked, file, number))
    return found


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[str]:
    """The text of a file, which is made if need be, while its lock is held."""
    while True:
        with open(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if not os.path.samestat(os.fstat(file.fileno()), path.stat()):
                continue  # another process has replaced it meanwhile
            yield file.read().decode("utf-8", "surrogateescape")
            return


def _append(path: Path, text: str) -> int:
    """Append one line under the file's lock; its number."""
    with _locked(path) as before:
        if before and not before.endswith("\n"):
            text = "\n" + text
        with open(path, "ab") as file:
            file.write(text.encode())
        return before.count("\n") + text.count("\n")


def _replace(path: Path, text: str) -> None:
    """Replace a file at once, keeping its mode; what it was stays beside it as `.old`, as ssh-keygen does."""
    shutil.copy2(path, path.with_name(f"{path.name}.old"))
    replace_file(path, text, path.stat().st_mode & 0o777)


def _without(name: str, line: str, known: KnownKey) -> str:
    """A line less one of its names; empty if that is its only one. Raises MntError."""
    if known.names.startswith(_HASH_MARK):
        return ""
    others = [other for other in known.names.split(",") if other.lower() != name.lower()]
    if any(_fits(name.lower(), other.lower().lstrip("!")) for other in others):
        raise MntError(
            f"{known.place} speaks of {name} by a pattern: {known.names}", fix="edit that line by hand"
        )
    return line.replace(known.names, ",".join(others), 1) if others else ""


def _hashed(name: str, salt: str) -> str:
    """A name as HashKnownHosts writes it: HMAC-SHA1 under a salt, both in base64."""
    try:
        key = base64.b64decode(salt, validate=True)
    except binascii.Error:
        return ""
    digest = hmac.new(key, name.lower().encode(), hashlib.sha1).digest()
    return f"{_HASH_MARK}{salt}|{base64.b64encode(digest).decode()}"


def _fits(name: str, pattern: str) -> bool:
    # `[` is nothing special in a pattern of OpenSSH; only `*` and `?` are.
    return fnmatch.fnmatchcase(name, pattern.replace("[", "[[]"))
