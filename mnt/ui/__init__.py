"""The console: the only place in `mnt` that prints.

Results go to stdout, everything said to a person beside them to stderr. Text that comes from hosts is shown
as it is, less its terminal escapes: it never passes through a markup engine and is never wrapped again.
"""

from mnt.ui.console import document, error, failure, info, note, plain, success, warn
from mnt.ui.hostlines import HostLines, block
from mnt.ui.statusline import StatusLine
from mnt.ui.table import Cell, fits, table

__all__ = [
    "Cell",
    "HostLines",
    "StatusLine",
    "block",
    "document",
    "error",
    "failure",
    "fits",
    "info",
    "note",
    "plain",
    "success",
    "table",
    "warn",
]
