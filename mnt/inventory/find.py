"""Find the inventory to use."""

from __future__ import annotations

import os
import shlex
import stat
from itertools import islice
from pathlib import Path

from mnt import lab
from mnt.errors import UsageError
from mnt.inventory.spelling import did_you_mean
from mnt.remote.common.owners import check_owners, own_unnamed_status, status, unnamed_status
from mnt.remote.common.refusal import Refused

DIRECTORY = "inventories"
VARIABLE = "MNT_INVENTORY"
DEFAULT = "default"
_MOST_NAMES = 10_000  # of files that are looked at in inventories/


class NoInventory(UsageError):
    """No inventory is named, and none can be chosen."""


class SeveralLabs(NoInventory):
    """No inventory is named, and several labs run."""


def locate(name: str | None) -> str:
    """The file of an inventory.

    Args:
        name: a path (with a `/`, or ending in .yaml or .yml); NAME, for inventories/NAME.yaml in the current
            directory or the nearest one above it (`directory`); `lab` or `lab:NAME`, for that of a running
            lab. None: $MNT_INVENTORY, else inventories/default.yaml, else that of the running lab.

    Raises:
        UsageError: there is no such inventory, several labs could be meant, or another user can write to a
            file that is not named by its path.
    """
    name = name or os.environ.get(VARIABLE)
    if not name:
        return _without_name()
    if name == "lab":
        return _only_lab()
    if name.startswith("lab:"):
        return _lab(name.removeprefix("lab:"))
    if is_path(name):
        return name
    file = _file(name)
    if file is None:
        raise UsageError(f"no inventory named {name!r}{did_you_mean(name, named())}", fix=_what_there_is())
    return own(file)


def is_path(name: str | None) -> bool:
    """Whether the user has named a file by its path; see `locate`."""
    name = name or os.environ.get(VARIABLE) or ""
    return not name.startswith("lab:") and ("/" in name or name.endswith((".yaml", ".yml")))


def named() -> dict[str, str]:
    """The files of inventories/, by name, of the first 10,000 that it has; none if it may be another user's.

    Raises UsageError as `directory`.
    """
    place = directory()
    try:
        check_owners(os.path.abspath(place))
        with os.scandir(place) as entries:
            names = [entry.name for entry in islice(entries, _MOST_NAMES)]
    except (OSError, Refused):
        return {}
    return {Path(name).stem: os.path.join(place, name) for name in sorted(names) if name.endswith(".yaml")}


def _file(name: str) -> str | None:
    """The file of that name in inventories/; None: there is none. Raises UsageError as `directory`."""
    file = os.path.join(directory(), f"{name}.yaml")
    try:
        return file if status(os.path.abspath(file), follow=False) is not None else None
    except Refused:
        return file  # `own` says why not
    except (OSError, ValueError):  # no file can have that name
        return None


def directory() -> str:
    """The inventories/ of the current directory, or of the nearest one above that has it; there, nobody
    else's count, as in /tmp. The path begins with `../` for each level; where there is none, it is the usual.

    Raises UsageError if another user has mounted a file system in the current directory, which might never
    answer.
    """
    try:
        if status(os.path.abspath(DIRECTORY)) is not None:
            return DIRECTORY
        above = len(Path.cwd().parts) - 1
    except OSError:  # the current directory was removed, or the user may not look there
        return DIRECTORY
    except Refused as refusal:
        raise UsageError(f"{DIRECTORY}/ is not looked at: {refusal.message}", fix=refusal.fix) from None
    places = (os.path.join(*[os.pardir] * level, DIRECTORY) for level in range(1, above + 1))
    return next((place for place in places if _is_mine(place)), DIRECTORY)


def project_above(file: str) -> str | None:
    """The directory above the current one whose inventories/ has this file; None: it lies elsewhere."""
    place = Path(file).resolve().parent
    above = place.parent
    return str(above) if place.name == DIRECTORY and above in Path.cwd().parents else None


def _is_mine(place: str) -> bool:
    """Whether it is a directory, and no other user's."""
    found = own_unnamed_status(place)
    return found is not None and stat.S_ISDIR(found.st_mode)


def labs() -> dict[str, str]:
    """The inventories of the running labs, by the lab's name. Raises MntError if others could change them."""
    lab.check_root()
    return {path.parent.name: str(path) for path in sorted(lab.LAB_ROOT.glob("*/inventory.yaml"))}


def _without_name() -> str:
    file = _file(DEFAULT)
    if file is not None:
        return own(file)
    if labs():
        return _only_lab(several=SeveralLabs)
    raise NoInventory(
        f"no inventory: no -i, no ${VARIABLE}, no {DIRECTORY}/{DEFAULT}.yaml and no running lab",
        fix=_what_there_is(),
    )


def own(file: str) -> str:
    """The file, which nobody named by its path.

    Raises UsageError if another user made or can replace it: an inventory can name an ssh_config and commands
    that run as this user, and the current directory may be one like /tmp.
    """
    path = os.path.abspath(file)
    try:
        status(path)  # first: what another user has mounted might never answer
        if os.path.exists(path) and not os.path.isfile(path):
            raise UsageError(f"{file} is not a regular file", fix=f"name its path: -i {shlex.quote(file)}")
        exists = check_owners(path)
    except Refused as refusal:
        raise _of_another(file, refusal) from None
    if not exists:  # any more
        raise UsageError(f"{file} does not exist", fix=_what_there_is())
    return file


def is_there(file: str) -> bool:
    """Whether there is something at the path, which nobody named, as a link that leads nowhere.

    Raises UsageError as `directory`.
    """
    try:
        return unnamed_status(file, follow=False) is not None
    except Refused as refusal:
        raise _of_another(file, refusal) from None


def _of_another(file: str, refusal: Refused) -> UsageError:
    return UsageError(
        f"{file} may be another user's: {refusal.message}",
        fix=f"{refusal.fix}; or, if you trust it, name its path: -i {shlex.quote(file)}",
    )


def _only_lab(several: type[UsageError] = UsageError) -> str:
    running = labs()
    if DEFAULT in running:
        return own(running[DEFAULT])
    if len(running) == 1:
        return own(next(iter(running.values())))
    if not running:
        raise UsageError("no lab is running", fix="mnt lab up")
    raise several("several labs are running", fix=_one_of([f"lab:{name}" for name in running]))


def _lab(name: str) -> str:
    running = labs()
    if name not in running:
        raise UsageError(
            f"no lab named {name!r} is running{did_you_mean(name, running)}", fix=_what_there_is()
        )
    return own(running[name])


def _what_there_is() -> str:
    there = [*named(), *(f"lab:{name}" for name in labs())]
    return _one_of(there) if there else f"write {DIRECTORY}/{DEFAULT}.yaml, or try `mnt lab up`"


def _one_of(names: list[str]) -> str:
    return f"-i with one of: {', '.join(names)}"
