"""The key with which the head logs in: find it, or generate it."""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from mnt import keys
from mnt.errors import UsageError
from mnt.fleet.login.destination import DEFAULT_IDENTITIES
from mnt.inventory.model import Host
from mnt.remote.common.files import make_directories, read_bytes, strerror

_MOST_BYTES = 64 * 1024  # of a public key


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
    """The key in a file; None if there is no such file. Raises UsageError if its public key is missing.

    The file may itself be a public key, which stands for one of an agent.
    """
    if not _file(path).exists():
        return None
    public = path if path.endswith(".pub") else f"{path}.pub"
    fix = None if public == path else f"ssh-keygen -y -f {path} > {public}"
    try:
        text = read_bytes(_file(public), _MOST_BYTES)
        words = text.decode("utf-8", "replace").split("\n")[0].split(None, 2)
    except OSError as error:
        raise UsageError(f"{public}: {strerror(error)}", fix=fix) from None
    if len(words) < 2:
        raise UsageError(f"{public}: not a public key", fix=fix)
    comment = words[2].strip() if len(words) == 3 else ""
    return Identity(path, f"{words[0]} {words[1]}", comment)


def make(path: str) -> Identity:
    """Generate an ed25519 key pair without a passphrase. Raises UsageError if it cannot be written."""
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
    return Path(path).expanduser()


def _write(path: Path, text: str, mode: int) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w") as file:
        file.write(text)
