"""Set who may log in to this account, and how this host logs in to the other nodes of its cluster.

Runs on a host: standard library only, Python 3.8 and newer. The files of a cluster are in
`~/.ssh/mnt/<cluster>/` (0700): the node's key, and the known_hosts and ssh_config of the nodes. Outside of
that directory, lines are added to `~/.ssh/authorized_keys`, and one `Include` to `~/.ssh/config`. What is
correct already is not changed. sshd and ssh ignore what other users could have written there; as this program
closes the files, and so makes their lines valid, it refuses such a file.

Nodes that share one home do the same to the same files: each file is replaced in one step, by the same text.

Arguments: those of `mnt.tasks.logins.authorize`; empty `peers`: nothing is written about any node.

Answer: `mnt.tasks.logins.Account`; or {"refused": {"message": str, "fix": str}}, and nothing has changed.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import stat
import subprocess
from collections.abc import Callable
from typing import Any, BinaryIO

from mnt.remote.common.files import make_directories, replace_file
from mnt.remote.common.owners import is_closed
from mnt.remote.common.ownfile import check_directory, check_file
from mnt.remote.common.refusal import Refused
from mnt.remote.ssh.publickey import canonical

_INCLUDE = "Include mnt/*/config"  # relative to ~/.ssh, ssh_config(5)
_MANAGED = "mnt:"
_KEY = "id_ed25519"  # of the node


def main(args: dict[str, Any], emit: Callable[[dict[str, Any]], None], stdin: BinaryIO) -> dict[str, Any]:
    """Change the account's files as requested."""
    try:
        return _authorize(args)
    except Refused as refusal:
        return {"refused": refusal.document()}


def _authorize(args: dict[str, Any]) -> dict[str, Any]:
    home = os.path.expanduser("~")
    _check_home(home)
    for entry in args["authorized"]:
        _one_key(entry)
    ssh = os.path.join(home, ".ssh")
    own = os.path.join(ssh, "mnt", args["cluster"])
    nodes = bool(args["node_key"] or args["peers"])
    _check_own(ssh, own if nodes else None)
    account = Account(args["dry_run"])
    account.directory(ssh)
    if args["authorized"]:
        account.edit(os.path.join(ssh, "authorized_keys"), lambda text: authorized(text, args["authorized"]))
    public = None
    if nodes:
        account.directory(os.path.dirname(own))
        account.directory(own)
    if args["node_key"]:
        public = account.node_key(os.path.join(own, _KEY))
    if args["peers"]:
        account.edit(os.path.join(own, "known_hosts"), lambda text: known_hosts(args["peers"]))
        account.edit(os.path.join(own, "config"), lambda text: config(args["cluster"], args["peers"]))
        account.edit(os.path.join(ssh, "config"), included)
    return {"changes": account.changes, "public": public}


def _check_home(home: str) -> None:
    """sshd ignores authorized_keys in a home that others may write to (StrictModes of sshd_config(5))."""
    mode = os.stat(home).st_mode
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise Refused(
            f"{home} can be written by others (mode {mode & 0o7777:o}): sshd accepts no keys from there",
            f"on the host: chmod go-w {home}",
        )


def _check_own(ssh: str, own: str | None) -> None:
    """Raises Refused if another user could have written to ~/.ssh, or to a file there that becomes valid.

    Args:
        own: the directory of the cluster; None: it is not used.
    """
    directories, files = [ssh], [os.path.join(ssh, "authorized_keys")]
    if own is not None:
        directories += [os.path.dirname(own), own]
        files += [os.path.join(ssh, "config"), os.path.join(own, "config"), os.path.join(own, "known_hosts")]
    try:
        for directory in directories:
            check_directory(directory)
        for file in files:
            check_file(file)
        if own is not None:
            _check_key(os.path.join(own, _KEY), [os.path.dirname(ssh), *directories])
    except Refused as refusal:
        raise Refused(refusal.message, f"on the host: {refusal.fix}") from None


def _check_key(key: str, above: list[str]) -> None:
    """Raises Refused if others could replace or read the node's key, which is about to become valid.

    Args:
        above: the directories above it, as far as this account may close them.
    """
    problem = None
    try:
        check_file(key)
        mode = os.stat(key).st_mode
        if mode & 0o077 and not any(map(is_closed, above)):
            problem = f"others can read {key} (mode {mode & 0o7777:04o}), the key of this node"
    except FileNotFoundError:
        return
    except Refused as refusal:
        problem = refusal.message
    if problem is not None:
        raise Refused(problem, f"rm {shlex.quote(key)}; the next mnt ssh-setup makes another one")


class Account:
    """Changes files of the account and records the changes; with `dry_run` it only records them."""

    def __init__(self, dry_run: bool) -> None:
        self._dry_run = dry_run
        self.changes: list[str] = []

    def directory(self, path: str) -> None:
        """Make a directory that no other user can enter."""
        if not os.path.isdir(path):
            self._changed(path, "made")
            if not self._dry_run:
                make_directories(path)
        self._close(path, 0o700)

    def edit(self, path: str, change: Callable[[str], str]) -> None:
        """Replace a file's text by `change(text)` in one step; only the user may read it."""
        path = os.path.realpath(path)  # keep a link
        before = _read(path)
        after = change(before or "")
        if after != before:
            self._changed(path, "made" if before is None else "changed")
            if not self._dry_run:
                replace_file(path, after)
        self._close(path, 0o600)

    def node_key(self, path: str) -> str | None:
        """The public key of the key pair in `path`, which is made if it does not exist. Raises Refused."""
        if not os.path.exists(path):
            self._changed(path, "made")
            if self._dry_run:
                return None
            _make_key(path)
        self._close(path, 0o600)
        return _keygen("-y", "-P", "", "-f", path).rstrip("\n")

    def _close(self, path: str, mode: int) -> None:
        """Give the file this mode, which closes it to other users."""
        if os.path.exists(path) and stat.S_IMODE(os.stat(path).st_mode) != mode:
            self._changed(path, f"mode {mode:o}")
            if not self._dry_run:
                os.chmod(path, mode)

    def _changed(self, path: str, how: str) -> None:
        home = os.path.realpath(os.path.expanduser("~"))
        shown = "~" + path[len(home) :] if path.startswith(home + os.sep) else path
        self.changes.append(f"{shown}: {how}")


def authorized(text: str, entries: list[dict[str, str]]) -> str:
    """The text of authorized_keys with `entries` added (sshd(8), AUTHORIZED_KEYS FILE FORMAT).

    A line with a managed comment counts for the entry with that comment only: another entry may remove it
    when its node has a new key. It gives way to a key without such a comment, as sshd uses the first line.

    Raises Refused for an entry that is more than one key with its comment: it would escape its options.
    """
    lines = text.split("\n")
    if not lines[-1]:
        del lines[-1]
    for entry in entries:
        key = _one_key(entry)
        blob = key.split()[1]
        having = [line for line in lines if blob in line.split() and not line.lstrip().startswith("#")]
        mine = entry["comment"]
        if any(not _comment(line).startswith(_MANAGED) or _comment(line) == mine for line in having):
            continue
        if mine.startswith(_MANAGED):
            lines = [line for line in lines if _comment(line) != mine]
        else:
            lines = [line for line in lines if line not in having]
        lines.append(" ".join(word for word in (entry["options"], key, entry["comment"]) if word))
    return "".join(line + "\n" for line in lines)


def _comment(line: str) -> str:
    """The last word of a line, which is the whole comment if it is a managed one."""
    return line.rpartition(" ")[2]


def _one_key(entry: dict[str, str]) -> str:
    """The entry's key. Raises Refused for anything else."""
    try:
        key = canonical(entry["key"])
    except ValueError:
        raise Refused(f"{entry['key'][:80]!r} is not a public key", "check the key that was sent") from None
    if not all(text.isprintable() for text in (entry["options"], entry["comment"])):
        raise Refused("a key's comment or options with a control character", "remove it")
    return key


def known_hosts(peers: list[dict[str, Any]]) -> str:
    """The nodes' host keys, under all names that ssh may look up."""
    lines = []
    for peer in peers:
        names = sorted({*peer["names"], peer["address"]})
        if peer["port"] != 22:
            names = [f"[{name}]:{peer['port']:d}" for name in names]
        lines += [f"{','.join(names)} {key}\n" for key in peer["keys"]]
    return "".join(lines)


def config(cluster: str, peers: list[dict[str, Any]]) -> str:
    """The nodes, as ssh_config(5)."""
    lines = ["# Written by mnt ssh-setup, which replaces it."]
    for peer in peers:
        lines += [
            "Host " + " ".join(sorted({*peer["names"], peer["address"]})),
            f"    HostName {peer['address'].replace('%', '%%')}",
            f"    User {peer['user']}",
            f"    Port {peer['port']:d}",
            f"    IdentityFile ~/.ssh/mnt/{cluster}/id_ed25519",
            "    IdentitiesOnly yes",
            f"    UserKnownHostsFile ~/.ssh/mnt/{cluster}/known_hosts",
            "    StrictHostKeyChecking yes",
        ]
    return "".join(line + "\n" for line in lines)


def included(text: str) -> str:
    """The user's ssh_config, with the clusters' files included first: ssh uses the first value it finds."""
    if any(line.split() == _INCLUDE.split() for line in text.splitlines()):
        return text
    return f"{_INCLUDE}\n{text}"


def _make_key(path: str) -> None:
    """Make a key without a passphrase. If several nodes do so in one home, one of them succeeds."""
    new = f"{path}.{os.uname().nodename}.{os.getpid()}"
    try:
        _keygen("-q", "-t", "ed25519", "-N", "", "-C", "", "-f", new)
        with contextlib.suppress(FileExistsError):
            os.link(new, path)
    finally:
        for name in (new, new + ".pub"):
            if os.path.exists(name):
                os.unlink(name)


def _keygen(*words: str) -> str:
    try:
        done = subprocess.run(
            ["ssh-keygen", *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
    except FileNotFoundError:
        raise Refused("this host has no ssh-keygen", "apt-get install openssh-client") from None
    if done.returncode:
        message = (done.stderr.strip().splitlines() or ["it failed"])[-1]
        raise Refused(f"ssh-keygen: {message}", "check ~/.ssh/mnt on the host")
    return done.stdout


def _read(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except FileNotFoundError:
        return None
