"""Hosts with some of their GPUs: `node1:0,1,node2:2-3`, and DeepSpeed's `node1:0,1@node2`. Pure.

In a hostlist, the numbers and ranges after `HOST:` are GPUs of that host, up to the next name. DeepSpeed
(0.19, `runner.py`, `parse_resource_filter`) has `@` between the hosts, and keeps the order of its hostfile.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from mnt.errors import UsageError
from mnt.inventory import hostlist
from mnt.inventory.hostlist import Groups
from mnt.inventory.model import Host, Inventory

_NUMBERS = re.compile(r"([0-9]{1,4})(?:-([0-9]{1,4}))?")
_SYNTAX = "GPUs look like node1:0,1 or node[1-2]:0-3,node3"

Chosen = dict[str, "tuple[int, ...] | None"]  # by host: the numbers of its slots; None: all


def select(
    inventory: Inventory,
    *,
    nodes: str | None,
    exclude: str | None,
    include: str | None = None,
    groups: Groups | None = None,
) -> tuple[Host, ...]:
    """The selected hosts, in rank order, each with the slots that were chosen.

    Args:
        nodes: a hostlist, with GPUs or without; None: every host.
        exclude: hosts, or GPUs of hosts, as a hostlist or in DeepSpeed's form.
        include: instead of `nodes`, in DeepSpeed's form; the hosts stay in the order of the file.
        groups: hosts by group; None: those of the inventory.

    Raises UsageError: a list is not valid, a host is named twice, it has no such GPU, or nothing is left.
    """
    by_name = {host.name: host for host in inventory.hosts}
    known = inventory.groups if groups is None else groups
    wanted: Chosen = dict.fromkeys(by_name)
    if include is not None:
        named = _named(_of_deepspeed(include), by_name, known)
        wanted = {name: named[name] for name in by_name if name in named}
    elif nodes is not None:
        wanted = _named(nodes, by_name, known)
    without = {} if exclude is None else _named(_of_deepspeed(exclude), by_name, known)
    hosts = [
        _with_slots(by_name[name], slots, without.get(name))
        for name, slots in wanted.items()
        if without.get(name, ()) is not None
    ]
    if not hosts:
        raise UsageError(
            f"no host is left: {exclude} excludes all of {hostlist.fold([*wanted])}",
            fix="exclude fewer hosts",
        )
    return tuple(hosts)


def has_slots(text: str | None) -> bool:
    """Whether a hostlist names GPUs, or has DeepSpeed's form."""
    return text is not None and (":" in text or text != _of_deepspeed(text))


def written(chosen: Mapping[str, Sequence[int] | None], between: str = ",") -> str:
    """`node1:0,1,node2`; with `@` as `between`, in DeepSpeed's form."""
    return between.join(
        name if numbers is None else f"{name}:{','.join(map(str, numbers))}"
        for name, numbers in chosen.items()
    )


def _of_deepspeed(text: str) -> str:
    """DeepSpeed's form as a hostlist: an `@` that begins no name of a group is a comma."""
    return re.sub(r"(?<=[^,\s\[])@", ",", text)


def _named(text: str, known: Mapping[str, Host], groups: Groups) -> Chosen:
    """The hosts in a list, in its order. Raises UsageError."""
    found: Chosen = {}
    twice: str | None = None
    for names, numbers in _parts(text):
        for name in hostlist.expand(names, known=known, groups=groups):
            if name in found and (numbers is not None or found[name] is not None):
                twice = name
            found.setdefault(name, numbers)
            if numbers is not None:
                _check_slots(known[name], numbers)
    if twice is not None:
        raise UsageError(f"{twice} is named twice in {text!r}, with GPUs", fix=f"{twice}:0,1 names several")
    return found


def _parts(text: str) -> list[tuple[str, tuple[int, ...] | None]]:
    """Hostlists, each with the numbers of the slots that follow it; None: none follow. Raises UsageError."""
    parts: list[tuple[str, list[str] | None]] = []
    for piece in hostlist.split(text):
        names, colon, numbers = piece.strip().partition(":")
        if colon:
            parts.append((names, [numbers]))
        elif parts and parts[-1][1] is not None and _NUMBERS.fullmatch(names):
            parts[-1][1].append(names)
        elif parts and parts[-1][1] is None:
            parts[-1] = (f"{parts[-1][0]},{piece}", None)
        else:
            parts.append((piece, None))
    return [(names, None if each is None else _numbers(names, each, text)) for names, each in parts]


def _numbers(names: str, pieces: Sequence[str], text: str) -> tuple[int, ...]:
    found: list[int] = []
    for piece in pieces:
        match = _NUMBERS.fullmatch(piece.strip())
        if match is None or (match[2] and int(match[2]) < int(match[1])):
            problem = f"{piece!r} names no GPU" if piece.strip() else f"no GPU is named after {names}:"
            raise UsageError(f"hostlist {text!r}: {problem}", fix=_SYNTAX)
        found += range(int(match[1]), int(match[2] or match[1]) + 1)
    if len(set(found)) < len(found):
        raise UsageError(f"hostlist {text!r}: {names} has a GPU twice", fix="name each GPU once")
    return tuple(found)


def _check_slots(host: Host, numbers: Sequence[int]) -> None:
    beyond = [number for number in numbers if number not in host.all_slots]
    if beyond:
        count = len(host.all_slots)
        what = f"GPU {beyond[0]}" if host.gpus else f"slot {beyond[0]}"
        have = f"{count} {'GPU' if host.gpus else 'slot'}{'s' if count > 1 else ''}"
        last = f", from 0 to {count - 1}" if count > 1 else ", 0"
        raise UsageError(
            f"{host.name} has no {what}: by the inventory it has {have}{last}",
            fix=f"name others, or set {'`gpus`' if host.gpus else '`gpus` or `slots`'} of {host.name}",
        )


def _with_slots(host: Host, chosen: tuple[int, ...] | None, without: tuple[int, ...] | None) -> Host:
    """The host with these slots, less others. Raises UsageError if none is left."""
    if without:
        chosen = tuple(n for n in (host.all_slots if chosen is None else chosen) if n not in without)
        if not chosen:
            raise UsageError(f"{host.name}: no GPU is left", fix=f"exclude the host itself: -x {host.name}")
    return host if chosen is None else replace(host, chosen=chosen)
