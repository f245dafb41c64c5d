"""The progress of a transfer, on a terminal."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class TransferBar:
    """A bar with bytes, rate and remaining time. Its functions may be called from several threads."""

    expect: Callable[[int], object]  # so many bytes are to come; 0: the bar disappears
    advance: Callable[[int], object]  # so many more have come; a negative number takes some back


@contextlib.contextmanager
def transfer_bar() -> Iterator[TransferBar]:
    """Show a bar on stderr while the block runs, if that is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(
        *columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()
    ) as bar:
        task = bar.add_task("", total=None, visible=False)
        yield TransferBar(
            lambda size: bar.update(task, total=size, visible=size > 0),
            lambda count: bar.advance(task, count),
        )
