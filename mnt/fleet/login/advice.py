"""The way out for a login that no key opens. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from mnt.fleet.login.destination import Destination
from mnt.fleet.login.identities import AGENT, Unusable

_PASSWORDS = {"password", "keyboard-interactive"}
_KEY = "~/.ssh/id_ed25519"


def way_in(
    destination: Destination, tried: Sequence[str], unusable: Sequence[Unusable], offered: Sequence[str]
) -> str:
    """The fix for a server that has accepted no key.

    Args:
        tried: labels of the keys that were tried.
        unusable: the key files that could not be.
        offered: the methods that the server offers; empty: unknown.
    """
    if locked := [file for file in unusable if file.locked]:
        return f"ssh-add {' '.join(file.quoted for file in locked)}"
    for file in unusable:
        if file.label in destination.identities:
            return _about(destination, file)
    if offered and "publickey" not in offered:
        return "set PubkeyAuthentication yes in its sshd_config"
    files = [label for label in tried if not label.startswith(AGENT)]
    by_password = not offered or bool(_PASSWORDS & set(offered))
    if by_password and not destination.is_gateway and (offered or not tried):
        return "mnt ssh-setup, which asks for the password once, and installs a key"
    make = "" if tried else f"ssh-keygen -t ed25519 -f {_KEY}; then: "
    if not tried and not by_password:
        return f"{make}ask an administrator of the host to add {_KEY}.pub to ~/.ssh/authorized_keys there"
    return make + _copy_id(destination, files[0] if files else None if tried else _KEY)


def with_agent(destination: Destination, fix: str) -> str:
    """The fix if an agent is named that does not answer: the right keys may be in a new one."""
    place = "SSH_AUTH_SOCK" if destination.agent in (None, "SSH_AUTH_SOCK") else "IdentityAgent in ssh_config"
    return f"correct {place}, or start an SSH agent; without one: {fix}"


def _copy_id(destination: Destination, key: str | None) -> str:
    """The command that adds a key, or those of the agent, with a password."""
    words = ["ssh-copy-id", *(("-i", key) if key else ()), "-p", str(destination.port)]
    if destination.jumps:
        words += ["-o", "ProxyJump=" + ",".join(map(_hop, destination.jumps))]
    return " ".join(map(_quoted, [*words, f"{destination.user}@{destination.hostname}"]))


def _hop(gateway: Destination) -> str:
    host = f"[{gateway.hostname}]" if ":" in gateway.hostname else gateway.hostname
    return f"{gateway.user}@{host}:{gateway.port}"


def _quoted(word: str) -> str:
    """A word for a shell, in which a `~` at the beginning stays."""
    return f"~/{shlex.quote(word[2:])}" if word.startswith("~/") else shlex.quote(word)


def _about(destination: Destination, file: Unusable) -> str:
    """The fix for a key file that the inventory or ssh_config names."""
    if file.fix is not None:
        return file.fix
    place = _place(destination, file.label)
    if file.missing and not destination.is_gateway:
        return f"correct {place}; or let mnt make this key, and install it with a password: mnt ssh-setup"
    return f"correct {place}: name the file of a private key"


def _place(destination: Destination, path: str) -> str:
    """Where a key file is named."""
    given = destination.given
    if given.identity != path:
        return f"IdentityFile in {given.config or 'ssh_config'}"
    file, line = given.named_at or (None, None)
    return f"`identity` in {line}" if file == path else "`identity` in the inventory"
