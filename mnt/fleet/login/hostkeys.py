"""Host keys: read known_hosts files, judge the key of a host, and record new keys.

The format is that of sshd(8), SSH_KNOWN_HOSTS FILE FORMAT, OpenSSH 9: several keys per host, patterns, hashed
names, `[host]:port`, @revoked. @cert-authority lines are skipped: mnt asks hosts for plain keys.
"""

from __future__ import annotations

import base64
import errno
import hashlib
import hmac
import os
import re
import stat
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mnt.errors import MntError, UsageError
from mnt.fleet.login.destination import Destination
from mnt.fleet.login.failures import LoginFailure
from mnt.fleet.login.sshconfig import MOST_OF_WILDCARDS, MOST_WILDCARDS, lower, matches
from mnt.paths import expanded
from mnt.remote.common.files import make_directories, open_regular, read_bytes, replace_file, strerror

# Of all files together. The three keys of a host have about 900 bytes.
_MOST_BYTES = 16 * 1024 * 1024
_MOST_LINES = 200_000
# Of a file: names without wildcards are looked up, all others are tried, a hashed one in 2 us.
_MOST_NAMES = 500_000
_MOST_HASHED = 50_000
# Of a line. More is no line that anybody needs, and no known key.
_MOST_NAMES_OF_LINE = 1000
_LONGEST_NAMES = 64 * 1024  # characters
_LONGEST_PATTERNS = 4096  # characters, if there are wildcards
_HASH_MARK = "|1|"
_WILDCARDS = frozenset("*?!")
_TYPE = re.compile("[A-Za-z0-9@._-]{1,100}")  # of a key
_NO_NAME = re.compile(r"[\s,*?!]|^[#@|]")  # would be other names, a pattern or a mark


@dataclass(frozen=True, slots=True)
class HostKey:
    """A public key: its type, `ssh-ed25519`, and its wire form (RFC 4253, 6.6)."""

    type: str
    blob: bytes

    @property
    def fingerprint(self) -> str:
        """As ssh-keygen shows it: SHA256:..."""
        digest = base64.b64encode(hashlib.sha256(self.blob).digest()).decode().rstrip("=")
        return f"SHA256:{digest}"


@dataclass(frozen=True, slots=True)
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
        """Whether the line is for `name`: a host name, an address, or [name]:port."""
        if self.names.startswith(_HASH_MARK):
            salt = self.names[len(_HASH_MARK) :].partition("|")[0]
            return hmac.compare_digest(_bytes(self.names), _bytes(_hashed(name, salt)))
        return matches(self.names.split(","), [name])


class _Lines:
    """The lines of a file, by name: each host looks for its own."""

    def __init__(self, lines: Iterable[KnownKey]) -> None:
        self._named: dict[str, list[KnownKey]] = {}
        self._hashed: list[tuple[bytes, bytes, KnownKey]] = []  # salt, digest
        self._patterns: list[KnownKey] = []
        self.names = 0  # without wildcards, not hashed
        self.wildcards = self.wild = 0  # names with wildcards, and the characters in them
        for line in lines:
            self.add(line)

    @property
    def hashed(self) -> int:
        return len(self._hashed)

    def add(self, line: KnownKey) -> None:
        if line.names.startswith(_HASH_MARK):
            if (parts := _salt_and_digest(line.names)) is not None:
                self._hashed.append((*parts, line))
            return
        names = lower(line.names).split(",")
        if _WILDCARDS.isdisjoint(line.names):
            self.names += len(names)
            for name in set(names):
                self._named.setdefault(name, []).append(line)
        else:
            self.wildcards += len(names)
            self.wild += len(line.names)
            self._patterns.append(line)

    def of(self, name: str) -> list[KnownKey]:
        """The lines for a name, in the order of the file."""
        text = lower(name)
        found = [*self._named.get(text, ()), *(line for line in self._patterns if line.is_for(name))]
        data = _bytes(text)
        found += [line for salt, digest, line in self._hashed if hmac.digest(salt, data, "sha1") == digest]
        return sorted(found, key=lambda line: line.line)


_ASK = "ask the administrator of the host"


def judge(known: Sequence[KnownKey], key: HostKey, *, strict: bool) -> bool:
    """Whether a key that a host has presented is new, and must be recorded.

    Args:
        known: the lines for the host.
        strict: refuse a host without a known key.

    Raises LoginFailure if the key is revoked, is not the known one, or is unknown and `strict` is set.
    """
    for line in known:
        if line.revoked and line.key == key:
            message = f"{key.type} {key.fingerprint} is revoked by {line.place}"
            raise LoginFailure("host key", message, fix=f"{_ASK} to replace its host key")
    good = [line for line in known if not line.revoked]
    if any(line.key == key for line in good):
        return False
    if not good:
        if strict:
            message = f"no key of this host is known; it shows {key.type} {key.fingerprint}"
            fix = f"{_ASK} whether this is its fingerprint; then: mnt trust"
            raise LoginFailure("host key", message, fix=fix)
        return True
    old = next((line for line in good if line.key.type == key.type), good[0])
    message = (
        f"changed: {old.place} has {old.key.type} {old.key.fingerprint}, "
        f"the host shows {key.type} {key.fingerprint}"
    )
    fix = f"{_ASK} whether it was reinstalled, as it may be another machine; if so: mnt trust --replace"
    raise LoginFailure("host key", message, fix=fix)


class KnownHosts:
    """Known_hosts files, each parsed once and shared by all hosts of a fleet. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._files: dict[str, _Lines | UsageError] = {}
        self._sizes: dict[str, tuple[int, int]] = {}  # bytes and lines of each file

    def lines_for(self, name: str, files: Iterable[str]) -> list[KnownKey]:
        """The lines of `files` for `name`. A file that cannot be read counts as empty.

        Raises UsageError for a file that is too large, as it may have the key that is not read, and for a
        path that no file can have.
        """
        with self._lock:
            return [line for file in files for line in self._read(file).of(name)]

    def about(self, destination: Destination) -> list[KnownKey]:
        """The lines for a server, in its own files and in those that are only read. Raises UsageError."""
        files = (*destination.known_hosts, *destination.known_hosts_global)
        known = self.lines_for(destination.key_name, files)
        if not known and destination.key_name == f"[{destination.hostname}]:{destination.port}":
            # As ssh does: a key that is known for the host without a port is valid for all its ports.
            known = self.lines_for(destination.hostname, files)
        return known

    def record(self, name: str, key: HostKey, file: str, *, hashed: bool = False) -> None:
        """Append a key to a file; the file and its directory are created if necessary. Raises OSError.

        Two processes that record at the same time write whole lines, one after the other. The key may then be
        there twice, which does no harm. No lock is taken: whoever can read the file could hold it.
        """
        if not hashed and _NO_NAME.search(name):
            raise OSError(errno.EINVAL, f"{name!r} cannot be a name in known_hosts", file)
        names = _hashed(name, base64.b64encode(os.urandom(20)).decode()) if hashed else name
        path = Path(expanded(file))
        text = f"{names} {key.type} {base64.b64encode(key.blob).decode()}\n"
        with self._lock:
            known = self._read(file)
            if any(line.key == key for line in known.of(name)):
                return
            make_directories(path.parent)
            known.add(KnownKey(names, key, False, file, _append(path, _bytes(text))))

    def forget(self, name: str, lines: Iterable[KnownKey]) -> None:
        """Remove `name` from lines for it; other names in these lines stay, and all other bytes of the file.

        Raises:
            MntError: a line matches `name` only by a pattern, which may be for other hosts too.
            OSError: a file cannot be replaced.
        """
        doomed: dict[str, dict[tuple[str, HostKey, bool], KnownKey]] = {}
        for line in lines:
            doomed.setdefault(line.file, {})[line.names, line.key, line.revoked] = line
        with self._lock:
            for file, known in doomed.items():
                _rewrite(Path(expanded(file)).resolve(), name, known)
                self._files.pop(file, None)
                self._sizes.pop(file, None)

    def refuse(self, file: str, error: OSError) -> None:
        """Never open a file, whose path could not be expanded: the hosts that need it fail."""
        with self._lock:
            self._files[file] = _no_path(file, error)

    def _read(self, file: str) -> _Lines:
        if file not in self._files:
            try:
                self._files[file] = self._load(file)
            except UsageError as error:
                self._files[file] = error  # for the next host it is not read again
        found = self._files[file]
        if isinstance(found, UsageError):
            raise found
        return found

    def _load(self, file: str) -> _Lines:
        try:
            path = expanded(file)
        except OSError as error:
            raise _no_path(file, error) from None
        try:
            data = read_bytes(path, _MOST_BYTES)
        except OSError as error:
            if error.errno == errno.EFBIG:
                raise _too_large(file) from None
            data = b""
        size = len(data), data.count(b"\n")
        all_bytes, all_lines = map(sum, zip(size, *self._sizes.values(), strict=True))
        if all_bytes > _MOST_BYTES or all_lines > _MOST_LINES:
            raise _too_large(file)
        self._sizes[file] = size
        return _indexed(parse(_text(data), file), file)


def _indexed(lines: Iterable[KnownKey], file: str) -> _Lines:
    """Raises UsageError if it would take long to look for a host."""
    found = _Lines(lines)
    for much, most, what in (
        (found.names, _MOST_NAMES, "names"),
        (found.hashed, _MOST_HASHED, "hashed names"),
        (found.wildcards, MOST_WILDCARDS, "names in lines with wildcards"),
        (found.wild, MOST_OF_WILDCARDS, "characters of names in lines with wildcards"),
    ):
        if much > most:
            raise UsageError(f"{file}: more than {most:,} {what}", fix=_FEWER)
    return found


def parse(text: str, file: str) -> list[KnownKey]:
    """The lines of a known_hosts file with a plain or a revoked key. Other lines are skipped, as ssh does.

    A line with more names than anybody needs is skipped too; if it revokes a key, it does so for all hosts.

    Args:
        text: bytes that are not UTF-8 as surrogate escapes. As for ssh, only a newline ends a line.
    """
    found = []
    for number, line in enumerate(text.split("\n"), start=1):
        words = line.split(maxsplit=4)  # the rest is a comment
        revoked = bool(words) and words[0] == "@revoked"
        if revoked:
            del words[0]
        if len(words) < 3 or words[0].startswith(("#", "@")) or not _TYPE.fullmatch(words[1]):
            continue
        if _is_too_long(words[0]):
            if not revoked:
                continue
            words[0] = "*"  # to be on the safe side
        try:
            blob = base64.b64decode(words[2], validate=True)
        except ValueError:  # also for a character that is not ASCII
            continue
        found.append(KnownKey(words[0], HostKey(words[1], blob), revoked, file, number))
    return found


def _is_too_long(names: str) -> bool:
    most = _LONGEST_NAMES if _WILDCARDS.isdisjoint(names) else _LONGEST_PATTERNS
    return len(names) > most or names.count(",") >= _MOST_NAMES_OF_LINE


_FEWER = "remove the lines of hosts that are gone, or name another file: ssh: {known_hosts: ..}"


def _too_large(file: str) -> UsageError:
    return UsageError(
        f"{file}: more than {_MOST_BYTES:,} bytes, or {_MOST_LINES:,} lines",
        fix=_FEWER,
    )


def _no_path(file: str, error: OSError) -> UsageError:
    return UsageError(f"{file}: {strerror(error)}", fix="correct the known_hosts file of this host")


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _bytes(text: str) -> bytes:
    """The bytes of a name; never fails."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")


def _rewrite(path: Path, name: str, doomed: Mapping[tuple[str, HostKey, bool], KnownKey]) -> None:
    """Remove `name` from these lines of a file, wherever they are; all other bytes stay."""
    with open_regular(path) as old:
        text, kept = _text(old.read()), []
        for line in _lines(text):
            found = [doomed.get((each.names, each.key, each.revoked)) for each in parse(line, "")]
            kept.append(_without(name, line, found[0]) if found and found[0] else line)
        # As ssh-keygen does: the old file stays beside it as `.old`, and the mode is kept. A link of that
        # name is replaced, not followed.
        mode = os.fstat(old.fileno()).st_mode & 0o777
        replace_file(path.with_name(f"{path.name}.old"), text, mode)
        replace_file(path, "".join(kept), mode)
        appended = old.read()  # by other processes, while the file was being replaced
    if appended:
        _append(path, appended)


def _lines(text: str) -> list[str]:
    """The lines with their newlines; other line separators of Unicode are no end of a line."""
    *ended, rest = text.split("\n")
    return [f"{line}\n" for line in ended] + ([rest] if rest else [])


def _append(path: Path, lines: bytes) -> int:
    """Append whole lines, by one write so that others' lines stay whole; the number of the first one."""
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK
    while True:
        with open(os.open(path, flags, 0o600), "r+b", buffering=0) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise OSError(errno.EINVAL, "not a regular file", str(path))
            before = file.readall()
            lead = b"\n" if before and not before.endswith(b"\n") else b""
            if os.write(file.fileno(), lead + lines) != len(lead + lines):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
            try:
                if os.path.samestat(os.fstat(file.fileno()), os.stat(path)):
                    return before.count(b"\n") + len(lead) + 1
            except FileNotFoundError:
                pass
        # Another process has replaced the file, perhaps without these lines: append them again.


def _without(name: str, line: str, known: KnownKey) -> str:
    """A line without one of its names; empty if that is its only name. Raises MntError."""
    if known.names.startswith(_HASH_MARK):
        return ""
    others = [other for other in known.names.split(",") if lower(other) != lower(name)]
    if matches([other.lstrip("!") for other in others], [name]):
        raise MntError(
            f"{known.place} matches {name} by a pattern: {known.names}", fix="edit that line by hand"
        )
    return line.replace(known.names, ",".join(others), 1) if others else ""


def _hashed(name: str, salt: str) -> str:
    """A name as HashKnownHosts writes it: HMAC-SHA1 under a salt, both in base64."""
    try:
        key = base64.b64decode(salt, validate=True)
    except ValueError:  # also for a character that is not ASCII
        return ""
    digest = hmac.digest(key, _bytes(lower(name)), "sha1")
    return f"{_HASH_MARK}{salt}|{base64.b64encode(digest).decode()}"


def _salt_and_digest(names: str) -> tuple[bytes, bytes] | None:
    """The parts of a hashed name; None: it is none."""
    salt, _, digest = names[len(_HASH_MARK) :].partition("|")
    try:
        return base64.b64decode(salt, validate=True), base64.b64decode(digest, validate=True)
    except ValueError:
        return None
