"""Files that ssh or sshd believes: refuse one that another user could have written. Python 3.8.

Closing such a file is not enough: what another user has put there would become valid. So the fix has the user
look at it, and at a copy that nobody else holds open.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import stat

from mnt.remote.common.owners import check_owner, check_owners, status
from mnt.remote.common.refusal import Refused


def check_file(path: str) -> None:
    """Raises Refused if another user made what is at `path`, which is absolute, or can change or replace it.

    If it does not exist, nobody else may be able to make it. It may be, or be a link to, the null device.
    """
    _check_mounts(path)
    _check_way(path)
    real = os.path.realpath(path)
    try:
        if real == os.devnull:  # to which all users can write
            check_owner(path)
            return
        exists = check_owners(path)
    except Refused as refusal:
        where, copy = shlex.quote(path), shlex.quote(f"{path}.new")
        fix = f"rm {where}"
        if os.access(path, os.R_OK):
            fix = f"install -m 600 {where} {copy}; check what is in {copy}; then: mv {copy} {where}"
        raise Refused(refusal.message, fix) from None
    if not exists:
        check_owners(os.path.dirname(real))


def check_directory(path: str) -> None:
    """The same for a directory."""
    _check_mounts(path)
    _check_way(path)
    try:
        check_owners(path)
    except Refused as refusal:
        where, old = shlex.quote(path), shlex.quote(f"{path}.old")
        fix = f"{refusal.fix}; then check what is in {where}"
        try:
            check_owner(path)
        except Refused:
            fix = f"mv {where} {old}; then check what is in {old}"
        raise Refused(refusal.message, fix) from None


def _check_mounts(path: str) -> None:
    """Raises Refused for what another user has mounted on the way: it might never answer."""
    with contextlib.suppress(OSError):
        status(path)


def _check_way(path: str) -> None:
    """Raises Refused if another user can replace any file in the directory of `path`.

    In a directory like /tmp that depends on the file.
    """
    above = os.path.dirname(path)
    with contextlib.suppress(OSError):
        if os.stat(above).st_mode & stat.S_ISVTX:
            return
    try:
        check_owners(above)
    except Refused as refusal:
        then = f"; then check what is in {shlex.quote(path)}" if os.path.lexists(path) else ""
        raise Refused(refusal.message, f"{refusal.fix}{then}") from None
