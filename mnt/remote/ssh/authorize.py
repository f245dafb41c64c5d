"""Who may log in to this account, and how this host logs in to the other nodes of its cluster.

Runs on a host: standard library only, Python 3.8 and newer. What is the cluster's own lies in
`~/.ssh/mnt/<cluster>/` (0700): the node's key, the known_hosts and the ssh_config of the nodes. Outside of
it, lines are added to `~/.ssh/authorized_keys`, and one `Include` to `~/.ssh/config`. What is right is left
alone.

Where nodes share one home, they do the same to the same files: each is replaced at once, by the same text.

Arguments:
    cluster: str         the directory's name
    authorized: [{"key": "ssh-ed25519 AAAA..", "comment": str, "options": str}]
                         who may log in; a comment that begins with `mnt:` stands for one key at a time
    node_key: bool       have a key of the node's own, made here if there is none
    peers: [{"names": [str], "address": str, "user": str, "port": int, "keys": ["ssh-ed25519 AAAA.."]}]
                         the nodes, all of them; empty: nothing is said of any
    dry_run: bool        change nothing

Answer: {"changes": [str], "public": "ssh-ed25519 AAAA.." | None}, what was, or would be, changed; or
{"refused": {"message": str, "fix": str}}, and nothing has changed.
"""

from __future__ import annotations

import contextlib
import os
import stat
import subprocess
from collections.abc import Callable
from typing import Any, BinaryIO

from mnt.remote.common.files import replace_file
from mnt.remote.common.refusal import Refused

_INCLUDE = "Include mnt/*/config"  # relative to ~/.ssh, ssh_config(5)
_MANAGED = "mnt:"


def main(args: dict[str, Any], emit: Callable[[dict[str, Any]], None], stdin: BinaryIO) -> dict[str, Any]:
    """Bring the account's files up to what is asked for."""
    try:
        return _authorize(args)
    except Refused as refusal:
        return {"refused": refusal.document()}


def _authorize(args: dict[str, Any]) -> dict[str, Any]:
    home = os.path.expanduser("~")
    _check_home(home)
    ssh = os.path.join(home, ".ssh")
    own = os.path.join(ssh, "mnt", args["cluster"])
    account = Account(args["dry_run"])
    account.directory(ssh)
    account.edit(os.path.join(ssh, "authorized_keys"), lambda text: authorized(text, args["authorized"]))
    public = None
    if args["node_key"] or args["peers"]:
        account.directory(os.path.dirname(own))
        account.directory(own)
    if args["node_key"]:
        public = account.node_key(os.path.join(own, "id_ed25519"))
    if args["peers"]:
        account.edit(os.path.join(own, "known_hosts"), lambda text: known_hosts(args["peers"]))
        account.edit(os.path.join(own, "config"), lambda text: config(args["cluster"], args["peers"]))
        account.edit(os.path.join(ssh, "config"), included)
    return {"changes": account.changes, "public": public}


def _check_home(home: str) -> None:
    """sshd heeds no authorized_keys where others may write (StrictModes of sshd_config(5))."""
    mode = os.stat(home).st_mode
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise Refused(
            f"{home} can be written by others (mode {mode & 0o7777:o}): sshd takes no keys from there",
            f"on the host: chmod go-w {home}",
        )


class Account:
    """Changes files of the account, and keeps a record; with `dry_run` only the record."""

    def __init__(self, dry_run: bool) -> None:
        self._dry_run = dry_run
        self.changes: list[str] = []

    def directory(self, path: str) -> None:
        """A directory that nobody else can enter."""
        if not os.path.isdir(path):
            self._changed(path, "made")
            if not self._dry_run:
                os.makedirs(path, 0o700, exist_ok=True)
        self._close(path, 0o700)

    def edit(self, path: str, change: Callable[[str], str]) -> None:
        """Replace a file's text by `change(text)`, at once; it is the user's alone to read."""
        path = os.path.realpath(path)  # a link stays one
        before = _read(path)
        after = change(before or "")
        if after != before:
            self._changed(path, "made" if before is None else "changed")
            if not self._dry_run:
                replace_file(path, after)
        self._close(path, 0o600)

    def node_key(self, path: str) -> str | None:
        """The public half of the key in `path`, which is made if need be. Raises Refused."""
        if not os.path.exists(path):
            self._changed(path, "made")
            if self._dry_run:
                return None
            _make_key(path)
        self._close(path, 0o600)
        return _keygen("-y", "-P", "", "-f", path).rstrip("\n")

    def _close(self, path: str, mode: int) -> None:
        """Take away from others what is not theirs to see."""
        if os.path.exists(path) and stat.S_IMODE(os.stat(path).st_mode) != mode:
            self._changed(path, f"mode {mode:o}")
            if not self._dry_run:
                os.chmod(path, mode)

    def _changed(self, path: str, how: str) -> None:
        home = os.path.realpath(os.path.expanduser("~"))
        shown = "~" + path[len(home) :] if path.startswith(home + os.sep) else path
        self.changes.append(f"{shown}: {how}")


def authorized(text: str, entries: list[dict[str, str]]) -> str:
    """An authorized_keys with `entries` in it (sshd(8), AUTHORIZED_KEYS FILE FORMAT)."""
    lines = text.split("\n")
    if not lines[-1]:
        del lines[-1]
    for entry in entries:
        blob = entry["key"].split()[1]
        if any(blob in line.split() for line in lines if not line.lstrip().startswith("#")):
            continue
        if entry["comment"].startswith(_MANAGED):
            lines = [line for line in lines if line.rpartition(" ")[2] != entry["comment"]]
        lines.append(" ".join(word for word in (entry["options"], entry["key"], entry["comment"]) if word))
    return "".join(line + "\n" for line in lines)


def known_hosts(peers: list[dict[str, Any]]) -> str:
    """The nodes' host keys, by all names by which ssh may look for them."""
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
            f"    HostName {peer['address']}",
            f"    User {peer['user']}",
            f"    Port {peer['port']:d}",
            f"    IdentityFile ~/.ssh/mnt/{cluster}/id_ed25519",
            "    IdentitiesOnly yes",
            f"    UserKnownHostsFile ~/.ssh/mnt/{cluster}/known_hosts",
            "    StrictHostKeyChecking yes",
        ]
    return "".join(line + "\n" for line in lines)


def included(text: str) -> str:
    """The user's ssh_config, with the clusters' own before it: the first value that ssh finds counts."""
    if any(line.split() == _INCLUDE.split() for line in text.splitlines()):
        return text
    return f"{_INCLUDE}\n{text}"


def _make_key(path: str) -> None:
    """A key without a passphrase. Of several nodes that do so in one home, one wins."""
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
        said = (done.stderr.strip().splitlines() or ["it failed"])[-1]
        raise Refused(f"ssh-keygen: {said}", "see ~/.ssh/mnt on the host")
    return done.stdout


def _read(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except FileNotFoundError:
        return None
