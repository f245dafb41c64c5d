"""Logins to and from one host: who may log in to the account, and whether the host can log in to others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypedDict

from mnt.fleet import HostConnection
from mnt.inventory.model import Host
from mnt.remote.ssh.mesh import AT_ONCE
from mnt.remote.ssh.publickey import canonical
from mnt.tasks.bounds import bound_of
from mnt.tasks.program import run_program
from mnt.tasks.shape import complete, granted, shaped, wrong_answer


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
    host = connection.target.name
    account = shaped(host, granted(host, run_program(connection, "ssh.authorize", args)), Account)
    if account["public"] is not None:
        try:
            account["public"] = canonical(account["public"], types="ssh-ed25519")
        except ValueError:
            problem = (
                f"{account['public'][:80]!r} is not the one Ed25519 key of a node: no other host gets it"
            )
            raise wrong_answer(host, problem) from None
    return account


class PeerLogin(TypedDict):
    """Whether a host can log in to another; if not, the line in which its ssh reports why."""

    ok: bool
    error: str | None


def mesh(
    connection: HostConnection, workers: Iterable[Host], *, timeout: float = 10.0
) -> dict[str, PeerLogin]:
    """By name of the worker, whether this host can log in to it without being asked anything.

    It uses the host's own ssh, with its user's configuration, keys and known hosts, and the user and port of
    the inventory, if set there. Logins run in parallel, each within `timeout` seconds.

    Raises HostError if this host itself cannot be reached.
    """
    wanted = [
        {"name": host.name, "address": host.address, "user": host.ssh.user, "port": host.ssh.port}
        for host in workers
    ]
    rounds = 1 + len(wanted) // AT_ONCE
    name = connection.target.name
    answer = run_program(
        connection,
        "ssh.mesh",
        {"workers": wanted, "timeout": timeout},
        timeout=30.0 + rounds * 2 * timeout,
        bound=bound_of("ssh.mesh", 1024 * len(wanted)),
    )
    results = shaped(name, answer.get("results"), dict[str, PeerLogin], "results")
    return complete(name, results, [str(each["name"]) for each in wanted], "results")
