"""Files of this machine that decide about logins: refused if another user could have written them."""

from __future__ import annotations

import os

from mnt.errors import UsageError
from mnt.remote.common.ownfile import check_file
from mnt.remote.common.refusal import Refused


def check_own(path: str) -> None:
    """Raises UsageError if another user made the file, or can change or replace it. It may not exist.

    Args:
        path: may begin with `~`.
    """
    try:
        check_file(os.path.abspath(os.path.expanduser(path)))
    except Refused as refusal:
        raise UsageError(f"{path} may be another user's: {refusal.message}", fix=refusal.fix) from None
