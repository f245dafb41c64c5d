"""Aligned text tables, with colours on a terminal only. Cells are never wrapped or cut."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from typing import NamedTuple

import click
from rich.cells import cell_len

from mnt.ui.console import colours, one_line, put

_GAP = "  "


class Cell(NamedTuple):
    """A table cell with a colour (one of click's names: `green`, `red`, ..), used on a terminal only."""

    text: str
    style: str


Rows = Sequence[Sequence[str | Cell]]


def table(headers: Sequence[str], rows: Rows) -> None:
    """Write `rows` under `headers` to stdout, each column as wide as its widest cell.

    Args:
        headers: one title per column.
        rows: each row has as many cells as there are headers.
    """
    coloured = colours(sys.stdout)
    titles, *cells = lines = _lines(headers, rows)
    widths = _widths(lines)
    shown = [_line(titles, widths, bold=coloured), *(_line(row, widths, painted=coloured) for row in cells)]
    put(sys.stdout, "\n".join(shown) + "\n")


def fits(headers: Sequence[str], rows: Rows) -> bool:
    """Whether the table fits the terminal at stdout; without a terminal every table fits."""
    widths = _widths(_lines(headers, rows))
    width = sum(widths) + len(_GAP) * (len(widths) - 1)
    return not sys.stdout.isatty() or width <= shutil.get_terminal_size().columns


def _lines(headers: Sequence[str], rows: Rows) -> list[list[Cell]]:
    return [[_cell(value) for value in line] for line in (headers, *rows)]


def _widths(lines: Sequence[Sequence[Cell]]) -> list[int]:
    return [max(cell_len(cell.text) for cell in column) for column in zip(*lines, strict=True)]


def _cell(value: str | Cell) -> Cell:
    """The cell as one line, without escapes and characters that cannot be encoded."""
    text, style = (value, "") if isinstance(value, str) else value
    return Cell(one_line(text).expandtabs(1), style)


def _line(row: Sequence[Cell], widths: Sequence[int], *, painted: bool = False, bold: bool = False) -> str:
    """One line of text. Padding has no colour, and there is none at the end of the line."""
    pieces = []
    for i, (cell, width) in enumerate(zip(row, widths, strict=True)):
        text = cell.text
        if painted and cell.style:
            text = click.style(text, fg=cell.style)
        elif bold:
            text = click.style(text, bold=True)
        last = i == len(row) - 1
        pieces.append(text if last else text + " " * (width - cell_len(cell.text)))
    return _GAP.join(pieces).rstrip(" ")
