"""Host keys: what known_hosts files say, what follows from it, and recording keys that are new.

The format is that of sshd(8), SSH_KNOWN_HOSTS FILE FORMAT, OpenSSH 9: several keys a host, patterns, hashed
names, `[host]:port`, @revoked. @cert-authority lines are skipped: mnt asks for plain keys.
"""

from __future__ import annotations

import base64
import binascii
import fcntl
import fnmatch
import hashlib
import hmac
import os
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

_HASH_MARK = "|1|"


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
        if any(_fits(name, pattern[1:]) for pattern in patterns if pattern.startswith("!")):
            return False
        return any(_fits(name, pattern) for pattern in patterns if not pattern.startswith("!"))


class HostKeyRefused(Exception):
    """A host's key is not the one that it has to be. `fix` says how to mend it."""

    def __init__(self, message: str, fix: str) -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix


def judge(known: Sequence[KnownKey], key: HostKey, *, strict: bool, fix: str) -> bool:
    """Whether a key that a host has shown is new, and to be recorded.

    Args:
        known: the lines that speak of the host.
        strict: refuse a host of which no key is known.
        fix: how to forget the host's old key.

    Raises HostKeyRefused where the key is revoked, is not the one that is known, or is unknown and `strict`.
    """
    for line in known:
        if line.revoked and line.key == key:
            raise HostKeyRefused(f"{key.type} {key.fingerprint} is revoked by {line.place}", fix)
    good = [line for line in known if not line.revoked]
    if any(line.key == key for line in good):
        return False
    if not good:
        if strict:
            message = f"no key of this host is known; it shows {key.type} {key.fingerprint}"
            raise HostKeyRefused(message, "check that fingerprint on the host itself, then record its key")
        return True
    old = next((line for line in good if line.key.type == key.type), good[0])
    raise HostKeyRefused(
        f"changed: {old.place} has {old.key.type} {old.key.fingerprint}, "
        f"the host shows {key.type} {key.fingerprint}",
        fix,
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

    def record(self, name: str, key: HostKey, file: str, *, hashed: bool = False) -> None:
        """Append a key to a file, which is made, with its directory, if need be. Raises OSError.

        Two processes that record at once write whole lines, one after the other; that the key is there twice
        then does no harm.
        """
        names = _hashed(name, base64.b64encode(os.urandom(20)).decode()) if hashed else name
        path = Path(file).expanduser()
        text = f"{names} {key.type} {base64.b64encode(key.blob).decode()}\n"
        with self._lock:
            lines = self._read(file)
            if any(line.is_for(name) and line.key == key for line in lines):
                return
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            number = _append(path, text)
            lines.append(KnownKey(names, key, False, file, number))

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


def _append(path: Path, text: str) -> int:
    """Append one line under the file's lock; its number."""
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        with open(descriptor, "rb", closefd=False) as reader:
            before = reader.read()
        if before and not before.endswith(b"\n"):
            text = "\n" + text
        os.write(descriptor, text.encode())
        return before.count(b"\n") + text.count("\n")
    finally:
        os.close(descriptor)


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
