"""A line with the current activity; shown on a terminal only, and erased at the end."""

from __future__ import annotations

import sys
from typing import TextIO

from mnt.ui.console import clean

_ERASE = "\r\x1b[K"


class StatusLine:
    """Shows changing texts in one line of stderr while the `with` block runs.

    Args:
        stream: a text stream, `sys.stderr` if None. If it is not a terminal, nothing is written.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._live = self._stream.isatty()

    def __enter__(self) -> StatusLine:
        return self

    def __exit__(self, *_: object) -> None:
        self.show("")

    def show(self, text: str) -> None:
        """Replace the shown text; `text` must not be wider than the terminal."""
        if self._live:
            self._stream.write(_ERASE + clean(text))
            self._stream.flush()
