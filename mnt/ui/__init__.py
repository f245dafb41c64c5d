"""The console: the only place in `mnt` that prints.

Results go to stdout, all other messages to stderr. Each message is one line without terminal escapes,
whatever text of hosts it contains. It is not processed as markup and not wrapped.
"""

from mnt.ui.console import (
    StatusLine,
    discard,
    document,
    error,
    failure,
    fix_text,
    info,
    lines,
    long_document,
    long_listing,
    note,
    plain,
    readable,
    success,
    unwritable,
    warn,
)
from mnt.ui.files import write_file
from mnt.ui.hostlines import HostLines, block
from mnt.ui.progress import transfer_bar
from mnt.ui.table import Cell, fits, table

__all__ = [
    "Cell",
    "HostLines",
    "StatusLine",
    "block",
    "discard",
    "document",
    "error",
    "failure",
    "fits",
    "fix_text",
    "info",
    "lines",
    "long_document",
    "long_listing",
    "note",
    "plain",
    "readable",
    "success",
    "table",
    "transfer_bar",
    "unwritable",
    "warn",
    "write_file",
]
