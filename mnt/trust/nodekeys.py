"""The nodes' own keys, as the nodes say them: which of them other hosts may get."""

from __future__ import annotations

import base64
import os
from collections.abc import Collection, Iterable, Mapping
from contextlib import closing
from dataclasses import replace

from mnt.errors import HostError
from mnt.fleet.login.destination import Destination
from mnt.fleet.login.hostkeys import HostKey
from mnt.fleet.login.identities import Identities, Unusable, public_from_private
from mnt.tasks.shape import wrong_answer

_OF_NODES = "~/.ssh/mnt/"  # if this machine is a node itself, its login may use its node key


def own_keys(destinations: Iterable[Destination]) -> set[bytes]:
    """The public keys (wire form) of this user's login: of the named and the default files, and of agents."""
    found: set[bytes] = set()
    with closing(Identities()) as identities:
        for destination in destinations:
            named = replace(destination, only_identities=False)
            for each in (named, replace(named, identities=())):
                for key in identities.candidates(each):
                    path = os.path.expanduser(key.label)
                    if path.startswith(os.path.expanduser(_OF_NODES)):
                        continue
                    if not isinstance(key, Unusable):
                        found.add(key.key.asbytes())
                    elif key.locked and (public := public_from_private(path)) is not None:
                        found.add(public)
    return found


def refused(publics: Mapping[str, str | None], own: Collection[bytes]) -> dict[str, HostError]:
    """The hosts whose node key is one of the `own` keys, which a host knows from the logins.

    Such a key would get the node's comment and restrictions on all hosts, and be removed there as soon as the
    node says another one. Two nodes may have the same key: those that share a home.

    Args:
        publics: by host, "ssh-ed25519 AAAA..", or None.
    """
    errors = {}
    for host, public in publics.items():
        kind, _, encoded = (public or "").partition(" ")
        if (blob := base64.b64decode(encoded)) in own:
            shown = HostKey(kind, blob).fingerprint
            errors[host] = wrong_answer(
                host, f"it names your own key {shown} as the key of the node: no other host gets it"
            )
    return errors
