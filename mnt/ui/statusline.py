"""A line that says what is going on, on a terminal only, and is gone afterwards."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TextIO

from mnt.ui.console import clean

_ERASE = "\r\x1b[K"


class StatusLine:
    """Shows one text after the other in the same line of stderr, as long as the `with` block runs.

    Args:
        stream: a text stream, `sys.stderr` if None. Nothing is written where it is no terminal.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._live = self._stream.isatty()

    def __enter__(self) -> StatusLine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.show("")

    def show(self, text: str) -> None:
        """Put `text` in place of what is shown; it is not to be wider than the terminal."""
        if self._live:
            self._stream.write(_ERASE + clean(text))
            self._stream.flush()
