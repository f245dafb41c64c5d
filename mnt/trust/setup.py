"""Set up logins by key: from the head to all hosts, and between the hosts."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from mnt.errors import HostError, UsageError
from mnt.fleet import Fleet, HostConnection, Results
from mnt.fleet.login.destination import Destination
from mnt.fleet.login.hostkeys import KnownHosts
from mnt.fleet.login.terminal import has_terminal
from mnt.inventory.model import Host
from mnt.tasks.logins import Account, Authorized, Peer, PeerLogin, authorize, mesh
from mnt.trust.identity import Identity
from mnt.trust.nodekeys import own_keys, refused

# (user, by host why it has let no key in) -> password
AskPassword = Callable[[str, Mapping[str, str]], str | None]

_TRIES = 3  # for a password
_NOT_FORWARDED = "no-agent-forwarding,no-port-forwarding,no-X11-forwarding"
# A word that needs no quotes in an ssh_config, and is no pattern.
_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:@%+\\-]*")


@dataclass
class Setup:
    """The result of the setup."""

    changes: dict[str, list[str]] = field(default_factory=dict)  # by host
    errors: dict[str, HostError] = field(default_factory=dict)  # by host
    mesh: dict[tuple[str, str], PeerLogin] = field(default_factory=dict)  # (from, to) -> result of the login
    passwords: list[str] = field(default_factory=list)  # a dry run: hosts that would get the key by password

    @property
    def ok(self) -> bool:
        return not self.errors and all(login["ok"] for login in self.mesh.values())

    def _status(self, name: str) -> str:
        return "failed" if name in self.errors else "password" if name in self.passwords else "ready"

    def document(self) -> dict[str, Any]:
        """The JSON form of `mnt ssh-setup --json`."""
        names = [*self.changes, *(name for name in self.errors if name not in self.changes)]
        return {
            "ok": self.ok,
            "hosts": {
                name: {
                    "status": self._status(name),
                    "changes": self.changes.get(name, []),
                    "error": self.errors[name].reason if name in self.errors else None,
                }
                for name in names
            },
            "mesh": [{"from": one, "to": other, **login} for (one, other), login in self.mesh.items()],
        }


def set_up(
    cluster: str,
    hosts: Sequence[Host],
    key: Callable[[], Identity],
    *,
    chosen: bool,
    ask: AskPassword,
    nodes: bool = True,
    dry_run: bool = False,
) -> Setup:
    """Install the head's key on hosts, and each node's own key on all other nodes; then test the logins.

    Args:
        key: the head's key; it is called only if a host gets it.
        chosen: the user has named that key, so all hosts get it. Otherwise it is only for hosts that accept
            no key yet.
        ask: returns a user's password for hosts that accept no key yet; None: no password is available.
        nodes: whether to set up logins between the hosts.
        dry_run: change nothing, and ask for no password.

    Raises UsageError for a name that is not valid in an ssh_config.
    """
    done = Setup()
    # No host key is recorded here: a host must be known before it gets keys or a password.
    hosts = [replace(host, ssh=replace(host.ssh, host_keys="strict")) for host in hosts]
    directory = _directory(cluster)
    task = partial(authorize, cluster=directory, node_key=nodes, dry_run=dry_run)
    with Fleet(hosts) as fleet:
        destinations = {host.name: fleet.connection(host.name).destination for host in hosts}
        if nodes:
            _check_plain(destinations)
        results = fleet.run(partial(task, authorized=[_head(key())] if chosen else []))
    _note(done, results)
    accounts = results.values_by_host()
    keyed = set(accounts) if chosen else set()  # the hosts that have got the head's key
    if locked := [host for host in hosts if _is_locked(done.errors.get(host.name))]:
        if dry_run:
            _plan_passwords(done, [host.name for host in locked], key())
        else:
            found = _by_password(done, locked, partial(task, authorized=[_head(key())]), destinations, ask)
            accounts |= found
            keyed |= set(found)
    if nodes:
        own = own_keys(destinations.values())
        if keyed:
            own.add(base64.b64decode(key().public.split()[1]))
        done.errors |= refused({name: account["public"] for name, account in accounts.items()}, own)
    reached = [
        # From now on its only key for logins.
        replace(host, ssh=replace(host.ssh, identity=key().path)) if host.name in keyed else host
        for host in hosts
        if host.name in accounts and host.name not in done.errors
    ]
    if nodes and reached:
        node_keys: list[Authorized] = [
            {"key": public, "comment": f"mnt:{directory}:{host.name}", "options": _NOT_FORWARDED}
            for host in reached
            if (public := accounts[host.name]["public"]) is not None
        ]
        peers = [_peer(host.name, destinations[host.name]) for host in reached]
        heads = {host.name: [_head(key())] if host.name in keyed else [] for host in reached}
        added = {name: [*head, *node_keys] for name, head in heads.items()}
        reached = _join(done, directory, added, reached, peers=peers, dry_run=dry_run)
    if not (nodes and dry_run):
        _test(done, reached, nodes=nodes)
    return done


def _head(identity: Identity) -> Authorized:
    return {"key": identity.public, "comment": identity.comment, "options": ""}


def _is_locked(error: HostError | None) -> bool:
    """Whether the host itself has refused our keys: a password may open it. Gateways get no keys."""
    return error is not None and error.phase == "authentication" and not error.reason.startswith("gateway ")


def _plan_passwords(done: Setup, names: Sequence[str], identity: Identity) -> None:
    """What a dry run shows for hosts that accept no key: nothing else is known of them."""
    for name in names:
        del done.errors[name]
        done.changes[name] = [
            f"~/.ssh/authorized_keys: {identity.path} added, after the password is asked for"
        ]
        done.passwords.append(name)


def _note(done: Setup, results: Results[Account]) -> None:
    for name, account in results.values_by_host().items():
        done.errors.pop(name, None)
        known = done.changes.setdefault(name, [])
        known += [change for change in account["changes"] if change not in known]
    done.errors.update(results.errors())


def _by_password(
    done: Setup,
    hosts: Sequence[Host],
    task: Callable[[HostConnection], Account],
    destinations: Mapping[str, Destination],
    ask: AskPassword,
) -> dict[str, Account]:
    """Run the task with a password on hosts that have refused our keys, and return their accounts.

    One password is asked for all hosts of a user, and again for the hosts that do not accept it.
    """
    accounts: dict[str, Account] = {}
    for _ in range(_TRIES):
        errors = done.errors
        locked = [host for host in hosts if _is_locked(errors.get(host.name))]
        for user in dict.fromkeys(destinations[host.name].user for host in locked):
            group = [host for host in locked if destinations[host.name].user == user]
            password = ask(user, {host.name: errors[host.name].reason for host in group})
            if password is None:
                _ask_elsewhere(done, [host.name for host in group])
                return accounts
            with Fleet(group, connect=partial(HostConnection, password=password)) as fleet:
                results = fleet.run(task)
            _note(done, results)
            accounts |= results.values_by_host()
    return accounts


def _ask_elsewhere(done: Setup, names: Sequence[str]) -> None:
    """Say of these hosts that a password was needed, and none was given."""
    why, fix = "no password was given", "mnt ssh-setup, and type the password"
    if not has_terminal():
        why = "a password is needed, and there is no terminal to ask for it at"
        fix = "run mnt ssh-setup on a terminal"
    for name in names:
        error = done.errors[name]
        done.errors[name] = HostError(name, error.phase, f"{error.reason}; {why}", fix=fix)


def _join(
    done: Setup,
    directory: str,
    authorized: Mapping[str, list[Authorized]],
    hosts: Sequence[Host],
    *,
    peers: Sequence[Peer],
    dry_run: bool,
) -> list[Host]:
    """Set up the logins between the nodes. Returns the hosts where that is done."""
    with Fleet(hosts) as fleet:
        task = partial(authorize, peers=peers, dry_run=dry_run)
        results = fleet.run_each(task, {name: (directory, keys) for name, keys in authorized.items()})
    _note(done, results)
    return [host for host in hosts if results[host.name].ok]


def _test(done: Setup, hosts: Sequence[Host], *, nodes: bool) -> None:
    """Log in to each host anew: what an edit has removed counts. Then from and to the first node."""
    if not hosts:
        return
    with Fleet(hosts) as fleet:
        opened = fleet.run(lambda connection: connection.open())
        done.errors.update(opened.errors())
        ready = [host for host in hosts if opened[host.name].ok]
        if not nodes or len(ready) < 2:
            return
        first, *others = ready
        ways = {first.name: (others,), **{other.name: ([first],) for other in others}}
        meshes = fleet.run_each(mesh, ways)
    done.errors.update(meshes.errors())
    for one, logins in meshes.values_by_host().items():
        done.mesh |= {(one, other): login for other, login in logins.items()}


def _peer(name: str, destination: Destination) -> Peer:
    known = KnownHosts().about(destination)
    revoked = {line.key for line in known if line.revoked}
    keys = dict.fromkeys(line.key for line in known if line.key not in revoked)
    return {
        "names": [name],
        "address": destination.hostname,
        "user": destination.user,
        "port": destination.port,
        "keys": [f"{key.type} {base64.b64encode(key.blob).decode()}" for key in keys],
    }


def _directory(cluster: str) -> str:
    """The cluster's directory on the nodes: its name if that is valid as a file name, else a hash of it."""
    if re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}", cluster):
        return cluster
    return hashlib.sha256(cluster.encode()).hexdigest()[:16]


def _check_plain(destinations: Mapping[str, Destination]) -> None:
    for name, destination in destinations.items():
        for word in (name, destination.hostname, destination.user):
            if not _PLAIN.fullmatch(word):
                raise UsageError(
                    f"{name}: not valid in an ssh_config: {word!r}",
                    fix="rename it, or set up no logins between the hosts: --no-mesh",
                )
