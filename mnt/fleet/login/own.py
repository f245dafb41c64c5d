"""Files of this machine that decide about logins: refused if another user could have written them."""

from __future__ import annotations

import os

from mnt.errors import UsageError
from mnt.paths import expanded
from mnt.remote.common.files import strerror
from mnt.remote.common.ownfile import check_file
from mnt.remote.common.refusal import Refused


def check_own(path: str) -> None:
    """Raises UsageError if another user made the file, or can change or replace it. It may not exist.

    Also for a path that no file can have.

    Args:
        path: may begin with `~`.
    """
    try:
        check_file(os.path.abspath(expanded(path)))
    except OSError as error:
        raise UsageError(f"{path}: {strerror(error)}", fix="correct this path") from None
    except Refused as refusal:
        raise UsageError(f"{path} may be another user's: {refusal.message}", fix=refusal.fix) from None
