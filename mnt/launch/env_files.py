"""The file with variables that an engine's own launcher reads on the head: DeepSpeed's `.deepspeed_env`."""

from __future__ import annotations

import os
import re
import shlex
import stat
from collections.abc import Mapping
from dataclasses import replace

from mnt.errors import UsageError
from mnt.launch.plan import LaunchOptions
from mnt.launch.secret import Secret, read_env_file
from mnt.remote.common.owners import status
from mnt.remote.common.refusal import Refused

_SHELLS = re.compile(r"[\"'`$\\]")


def with_engine_file(options: LaunchOptions, caller: Mapping[str, str], *, here: bool) -> LaunchOptions:
    """The options with the variables of the engine's file in the home, then in the working directory.

    The later one counts (DeepSpeed 0.19, `runner.py`), and `options` override both. Their values are not
    shown. If there is no such file in the working directory, hosts must refuse a code tree that has one.

    Args:
        here: the code tree is the working directory.

    Nobody has named these files by their paths, and the directory may be one like /tmp: so only this user or
    root may be able to change them. The one in the working directory may come with somebody else's project,
    whose code gets the variables: so it may be no link, and takes only what an option gives too.

    Raises UsageError, which names the file: another user could change it, it is a link or takes a value, it
    cannot be read, or a value needs a shell.
    """
    name = options.engine.env_file(caller) if options.engine.env_file else ""
    if not name:
        return options
    places = (os.path.expanduser("~"), os.getcwd())
    at_home = os.path.realpath(places[0]) == os.path.realpath(places[1])
    home, cwd = (os.path.join(place, name) for place in places)
    found: dict[str, Secret] = {}
    notes = []
    for file in filter(is_file, dict.fromkeys((home, cwd))):
        foreign = file == cwd and not at_home and not os.path.isabs(name)
        if foreign and os.path.realpath(file) != os.path.normpath(file):
            raise UsageError(
                f"{file} is a link, and whoever made it may not be meant to have what it leads to",
                fix="replace it by a file; or, if you know where it leads: "
                f"DS_ENV_FILE= mnt launch --env-file {shlex.quote(file)} ..",
            )
        lent = {*options.secrets, *options.env} if foreign else None
        variables = read_env_file(file, caller, own=True, lent=lent)
        for variable, value in variables.items():
            _refuse_shell(file, variable, value)
        found |= variables
        notes.append(f"{file} sets {', '.join(variables) or 'nothing'}")
    return replace(
        options,
        secrets={**found, **options.secrets},
        notes=(*options.notes, *notes),
        unread=None if here or os.path.isabs(name) or is_file(cwd) else name,
    )


def is_file(path: str) -> bool:
    """Whether a file is there, also by a link. For a name that nobody chose, in a directory like /tmp.

    Raises UsageError for what another user has mounted there, which might never answer.
    """
    try:
        found = status(os.path.join(os.getcwd(), path))
    except OSError:
        return False
    except Refused as refusal:
        raise UsageError(refusal.message, fix=refusal.fix) from None
    return found is not None and stat.S_ISREG(found.st_mode)


def _refuse_shell(file: str, variable: str, value: Secret) -> None:
    """DeepSpeed lets a shell read the values; here each is used as written. Raises UsageError."""
    if _SHELLS.search(value.reveal()):
        raise UsageError(
            f"{file}: the value of {variable} has a quote, $, ` or \\, which only a shell would interpret",
            fix="write the value itself there, without quotes; or move the line to a file for --env-file",
        )
