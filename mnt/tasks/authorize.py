"""Set who may log in to an account on one host, with `mnt/remote/ssh/authorize.py` there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from mnt.fleet import HostConnection
from mnt.tasks.program import run_program
from mnt.tasks.shape import granted, shaped


class Authorized(TypedDict):
    key: str  # "ssh-ed25519 AAAA..", without a comment
    comment: str  # one that begins with `mnt:` replaces the key that had it before
    options: str  # of sshd(8), AUTHORIZED_KEYS FILE FORMAT; may be empty


class Peer(TypedDict):
    """A node that the other nodes log in to."""

    names: list[str]
    address: str
    user: str
    port: int
    keys: list[str]  # its host keys, "ssh-ed25519 AAAA.."


class Account(TypedDict):
    changes: list[str]  # that were made; with dry_run, that would be made
    public: str | None  # the node's own public key


def authorize(
    connection: HostConnection,
    cluster: str,
    authorized: Sequence[Authorized],
    *,
    node_key: bool = True,
    peers: Sequence[Peer] = (),
    dry_run: bool = False,
) -> Account:
    """Let the owners of keys log in to the host, and prepare it to log in to `peers`.

    Args:
        cluster: the name of a directory: letters, digits, `.`, `-` and `_`.
        node_key: make a key pair for the node if it has none.

    Raises HostError.
    """
    args = {
        "cluster": cluster,
        "authorized": list(authorized),
        "node_key": node_key,
        "peers": list(peers),
        "dry_run": dry_run,
    }
    answer = run_program(connection, "ssh.authorize", args)
    return shaped(connection.target.name, granted(connection.target.name, answer), Account)
