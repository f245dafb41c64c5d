"""The key with which the head logs in: find it, or generate it."""

from __future__ import annotations

import base64
import getpass
import os
import shlex
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from mnt import keys
from mnt.errors import UsageError
from mnt.fleet.login.destination import DEFAULT_IDENTITIES
from mnt.fleet.login.hostkeys import HostKey
from mnt.fleet.login.identities import public_from_private
from mnt.fleet.login.own import check_own
from mnt.inventory.model import Host
from mnt.paths import expanded
from mnt.remote.common.files import make_directories, read_bytes, strerror

_MOST_BYTES = 64 * 1024  # of a public key
_NODES = "mnt:"  # begins the comment of a node's key, which takes the place of the node's former one


@dataclass(frozen=True)
class Identity:
    path: str  # of the private key
    public: str  # "ssh-ed25519 AAAA.."
    comment: str


def named(hosts: Iterable[Host]) -> str | None:
    """The key file that the inventory names for the hosts. Raises UsageError if they have different ones."""
    found = {host.ssh.identity for host in hosts}
    if len(found) > 1:
        raise UsageError(
            "these hosts have different keys in the inventory",
            fix="select hosts with the same key: -n; or name one key: --key FILE",
        )
    (only,) = found
    return only


def usual() -> str:
    """The first existing default of ssh, else the file to create."""
    return next((path for path in DEFAULT_IDENTITIES if os.path.exists(_file(path))), DEFAULT_IDENTITIES[0])


def load(path: str) -> Identity | None:
    """The key in a file; None if there is no such file.

    Its public key is that of the private key, not what is written in the file beside it, which another user
    may have exchanged. That file is used if the private key does not show it: it needs a passphrase, and is
    not in OpenSSH's format. The file may itself be a public key, which stands for one of an agent.

    Raises UsageError if another user could have written the file from which the public key comes, if the file
    beside the private key has another one, or if there is no public key.
    """
    if not _file(path).exists():
        return None
    check_own(path)
    if path.endswith(".pub"):
        return Identity(path, *_written(path, None))
    beside = f"{path}.pub"
    fix = f"ssh-keygen -y -f {_quoted(path)} > {_quoted(beside)}"
    blob = public_from_private(path)
    if blob is None:
        check_own(beside)
        return Identity(path, *_written(beside, fix))
    key, comment = HostKey(_type(blob), blob), ""
    public = f"{key.type} {base64.b64encode(key.blob).decode()}"
    if _file(beside).exists():
        found, comment = _written(beside, fix)
        if found != public:
            raise UsageError(
                f"{beside} has {_fingerprint(found)}, but the public key of {path} is {key.fingerprint}",
                fix=f"find out who wrote {_quoted(beside)}; then: {fix}",
            )
    return Identity(path, public, "" if comment.startswith(_NODES) else comment)


def _written(public: str, fix: str | None) -> tuple[str, str]:
    """The key in the file of a public key, and its comment. Raises UsageError."""
    try:
        text = read_bytes(_file(public), _MOST_BYTES)
    except OSError as error:
        raise UsageError(f"{public}: {strerror(error)}", fix=fix) from None
    words = text.decode("utf-8", "replace").split("\n")[0].split(None, 2)
    if len(words) < 2:
        raise UsageError(f"{public}: not a public key", fix=fix)
    return f"{words[0]} {words[1]}", words[2].strip() if len(words) == 3 else ""


def _type(blob: bytes) -> str:
    """The type of a key in its wire form (RFC 4253, 6.6)."""
    return blob[4 : 4 + int.from_bytes(blob[:4], "big")].decode("ascii", "replace")


def _fingerprint(public: str) -> str:
    kind, _, encoded = public.partition(" ")
    try:
        return HostKey(kind, base64.b64decode(encoded, validate=True)).fingerprint
    except ValueError:
        return "no key"


def make(path: str) -> Identity:
    """Generate an ed25519 key pair without a passphrase.

    Raises UsageError if it cannot be written, or if another user could replace it.
    """
    check_own(path)
    pair = keys.generate()
    comment = f"{getpass.getuser()}@{socket.gethostname()}"
    try:
        make_directories(_file(path).parent)
        _write(_file(path), pair.private, 0o600)
        _write(Path(f"{_file(path)}.pub"), f"{pair.public} {comment}\n", 0o644)
    except OSError as error:
        raise UsageError(f"{path}: {strerror(error)}", fix="name another file: --key FILE") from None
    return Identity(path, pair.public, comment)


def _file(path: str) -> Path:
    """Raises UsageError for a path that no file can have."""
    try:
        return Path(expanded(path))
    except OSError as error:
        raise UsageError(f"{path}: {strerror(error)}", fix="name another file: --key FILE") from None


def _quoted(path: str) -> str:
    """A path for a shell."""
    return shlex.quote(str(_file(path)))


def _write(path: Path, text: str, mode: int) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w") as file:
        file.write(text)
