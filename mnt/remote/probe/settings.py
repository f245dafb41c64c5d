"""Configuration files of systemd-logind and of NCCL. Runs on a host: Python 3.8, standard library."""

from __future__ import annotations

import os
import re
from contextlib import suppress

from mnt.remote.common.files import entries, read

DIRECTORIES = ("etc/systemd", "run/systemd", "usr/local/lib/systemd", "usr/lib/systemd", "lib/systemd")
SETTINGS = ("KillUserProcesses", "KillOnlyUsers", "KillExcludeUsers", "RemoveIPC")
MAX_BYTES = 16384  # of a file of NCCL, which has a few lines; a longer file is not one


def logind(user: str | None, root: str = "/") -> dict[str, object]:
    """What systemd-logind does when a user logs out, as `mnt.facts.system.Logind`.

    Read as in logind.conf(5) of systemd 256: the main file of the first directory that has one, then the
    drop-ins of all directories, in order of name; of two with the same name, the one of the first directory.
    """
    directories = [os.path.join(root, directory) for directory in DIRECTORIES]
    main = next(filter(None, (read(os.path.join(place, "logind.conf")) for place in directories)), "")
    drop_ins: dict[str, str] = {}
    for place in directories:
        for name in entries(os.path.join(place, "logind.conf.d")):
            if name.endswith(".conf"):
                drop_ins.setdefault(name, os.path.join(place, "logind.conf.d", name))
    settings: dict[str, str] = {}
    for text in (main, *(read(drop_ins[name]) for name in sorted(drop_ins))):
        settings.update(parse(text))
    return {
        "booted": os.path.isdir(os.path.join(root, "run/systemd/system")),  # as sd_booted(3) does
        "settings": settings,
        # The original file lists, after a `#`, the defaults that the distribution has compiled in.
        "defaults": dict(re.findall(rf"^#({'|'.join(SETTINGS)})=(.*)$", main, re.MULTILINE)),
        "lingers": bool(user) and os.path.exists(os.path.join(root, "var/lib/systemd/linger", user or "")),
    }


def parse(text: str) -> dict[str, str]:
    """Our settings from the section [Login], as written there."""
    found = {}
    section = ""
    for line in text.splitlines():
        line = line.strip()
        key, equals, value = line.partition("=")
        if line.startswith("["):
            section = line
        elif equals and section == "[Login]" and key.strip() in SETTINGS:
            found[key.strip()] = value.strip()
    return found


def conf_files(home: str | None, system: str = "/etc/nccl.conf") -> list[dict[str, object]]:
    """[{"path", "text"}, ..] of the existing files, in NCCL's order: the first that sets a variable counts.

    `$NCCL_CONF_FILE` is ignored: jobs do not get that variable from the session.
    """
    paths = [os.path.join(home, ".nccl.conf"), system] if home else [system]
    found: list[dict[str, object]] = []
    for path in paths:
        with suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
            found.append({"path": path, "text": file.read(MAX_BYTES)})
    return found  # without those that nobody can read, not even NCCL
