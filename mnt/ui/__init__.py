"""The console: the only place in `mnt` that prints.

Results go to stdout, all other messages to stderr. Text from hosts is shown unchanged, except that terminal
escapes are removed. It is not processed as markup and not wrapped.
"""

from mnt.ui.console import StatusLine, document, error, failure, info, note, plain, success, warn
from mnt.ui.hostlines import HostLines, block
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
