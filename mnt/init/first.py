"""The file of `mnt init`: what it says before, which hosts it is about, and how it is written."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mnt import ui
from mnt.errors import InventoryError, MntError, UsageError
from mnt.init import write
from mnt.inventory import document, find, hostlist, loader
from mnt.inventory.model import Host, Inventory, Ssh
from mnt.paths import expanded
from mnt.remote.common.files import read_bytes, strerror
from mnt.remote.common.owners import make_own_directory
from mnt.remote.common.refusal import Refused

# Of a file that is completed; one of 1,000 hosts has some 100,000 and 5,000.
_MOST_CHARACTERS, _MOST_VALUES = 256 * 1024, 10_000

_ELSEWHERE = "write another file: mnt init -o FILE"
_OPTIONS = {"identity": "--identity", "config": "--ssh-config"}


def read(file: str, *, by_path: bool) -> str | None:
    """The text of the file; None: there is none.

    Args:
        by_path: whether the user has named it; else it must be nobody else's (`find.own`).

    Raises UsageError if it cannot be read or completed, or another user could have written it.
    """
    if not (os.path.lexists(file) if by_path else find.is_there(file)):
        return None
    try:
        text = read_bytes(file if by_path else find.own(file), document.MOST_BYTES).decode()
    except (OSError, UnicodeDecodeError) as error:
        problem = strerror(error) if isinstance(error, OSError) else "it is no UTF-8 text"
        raise UsageError(f"{file}: cannot be read: {problem}", fix=_ELSEWHERE) from None
    if text:
        _check(file, text)
    return text


def _check(file: str, text: str) -> None:
    """Raises UsageError for what is no YAML or cannot be completed: before hosts are asked.

    ruamel.yaml needs up to a hundred times as long as what reads an inventory.
    """
    values = len(document.read(file).lines)
    for count, most, what in ((len(text), _MOST_CHARACTERS, "characters"), (values, _MOST_VALUES, "values")):
        if count > most:
            raise UsageError(
                f"{file}: mnt init completes files of at most {most:,} {what}", fix=write.BY_HAND
            )
    write.check(file, text)


def login(user: str | None, identity: str | None, config: str | None) -> dict[str, str]:
    """The `ssh` section for these options. Raises UsageError if a file does not exist."""
    files = {"identity": identity, "config": config}
    found = {} if user is None else {"user": user}
    for key, path in files.items():
        if path is None:
            continue
        fix = f"name a file of this machine, or leave {_OPTIONS[key]} out: mnt then does as ssh does"
        try:
            place = expanded(path)
        except OSError as error:
            raise UsageError(f"{path}: {strerror(error)}", fix=fix) from None
        if not os.path.isfile(place):
            raise UsageError(f"{path}: there is no such file", fix=fix)
        found[key] = path if path.startswith("~") else os.path.abspath(place)
    return found


def planned(
    known: Inventory | None, file: str, names: Sequence[str], settings: Mapping[str, Any]
) -> Inventory:
    """The inventory with the hosts to ask.

    Args:
        known: what the file says; None: there is none.
        names: the hosts, besides those of the file.
        settings: of `login`; they hold for all hosts.
    """
    there = {host.name: host for host in known.hosts} if known else {}
    usual = replace(known.hosts[0].ssh, named_at=None) if known else Ssh()
    new = {name: Host(name, name, usual) for name in names if name not in there}
    hosts = (there | new).values()
    asked = tuple(replace(host, ssh=replace(host.ssh, **settings)) for host in hosts)
    if known is None:
        return Inventory(Path(file).stem, file, asked)
    return replace(known, hosts=asked)


def names(text: str) -> list[str]:
    """The hosts of a hostlist. Raises UsageError for `@group`: there may be no inventory that has groups."""
    if "@" in text:
        raise UsageError(
            f"hostlist {text!r}: mnt init takes hosts, and no groups or users",
            fix="use names as ssh knows them, like node[1-4]; the user is -u NAME",
        )
    return hostlist.expand(text)


def save(file: str, text: str) -> None:
    """Write the file, completely or not at all. No other user can write to it, or to a directory made for it.

    Raises MntError if it cannot be written, or is no valid inventory.
    """
    with tempfile.TemporaryDirectory(prefix="mnt-init-") as directory:
        trial = Path(directory) / "inventory.yaml"
        trial.write_text(text, encoding="utf-8")
        try:
            loader.load(trial)
        except InventoryError as error:
            problem = error.message.replace(str(trial), file)
            raise MntError(f"not written: it would be no valid inventory: {problem}", fix=error.fix) from None
    directory = os.path.dirname(file)
    try:
        if directory:
            make_own_directory(os.path.join(os.getcwd(), directory), 0o755)
    except Refused as refusal:
        raise UsageError(f"{directory}: {refusal.message}", fix=refusal.fix) from None
    except OSError as error:
        raise UsageError(f"{directory}: cannot be made: {strerror(error)}", fix=_ELSEWHERE) from None
    ui.write_file(file, text, fix=_ELSEWHERE)
