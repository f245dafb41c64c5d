"""A line with the current activity; shown on a terminal only, and erased at the end."""

from __future__ import annotations

import sys

from mnt.ui.console import clean, put

_ERASE = "\r\x1b[K"


class StatusLine:
    """Shows changing texts in one line of stderr while the `with` block runs; on a terminal only."""

    def __enter__(self) -> StatusLine:
        return self

    def __exit__(self, *_: object) -> None:
        self.show("")

    def show(self, text: str) -> None:
        """Replace the shown text; `text` must not be wider than the terminal."""
        if sys.stderr.isatty():
            put(sys.stderr, _ERASE + clean(text))
