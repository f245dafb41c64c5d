"""Tables: aligned, never wrapped, coloured on a terminal only."""

from __future__ import annotations

import contextlib
import io
import sys

import pytest

from mnt.ui import Cell, fits, table


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_columns_are_aligned_and_nothing_is_cut() -> None:
    out = io.StringIO()
    long = "x" * 300
    with contextlib.redirect_stdout(out):
        table(["HOST", "WHAT"], [["node1", long], ["日本", Cell("ok", "green")]])
    assert out.getvalue() == f"HOST   WHAT\nnode1  {long}\n日本   ok\n"


def test_no_rows_is_a_header() -> None:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        table(["HOST", "WHAT"], [])
    assert out.getvalue() == "HOST  WHAT\n"


def test_text_from_hosts_stays_in_its_row() -> None:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        table(["A", "B"], [["\x1b[31mred\x1b[0m\ttab", "two\nlines"], ["[bold]", "\udcff"]])
    assert out.getvalue() == "A        B\nred tab  two lines\n[bold]   ?\n"


def test_colour_is_for_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    out = Terminal()
    with contextlib.redirect_stdout(out):
        table(["A", "B"], [[Cell("no", "red"), "x"], ["fine", "y"]])
    assert "\x1b[31mno\x1b[0m    x\n" in out.getvalue()
    monkeypatch.setenv("NO_COLOR", "1")
    plain = Terminal()
    with contextlib.redirect_stdout(plain):
        table(["A"], [[Cell("no", "red")]])
    assert plain.getvalue() == "A\nno\n"


def test_a_row_that_lacks_a_cell_is_a_bug() -> None:
    with pytest.raises(ValueError, match="zip"):
        table(["A", "B"], [["only one"]])


@pytest.mark.parametrize(("columns", "fitting"), [("11", True), ("10", False)])
def test_whether_a_table_fits_the_terminal(
    columns: str, fitting: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setattr(sys, "stdout", Terminal())
    assert fits(["HOST", "WHAT"], [["node1", Cell("ok", "green")]]) is fitting
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    assert fits(["HOST", "WHAT"], [["node1", Cell("ok", "green")]])
