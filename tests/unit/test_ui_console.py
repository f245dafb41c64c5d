"""The console's one door: what hosts and jobs say reaches the terminal as plain lines, one a message."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mnt import ui
from mnt.errors import MntError
from mnt.ui.console import one_line

HOSTILE = [
    "\x1b]52;c;ZWNobyBwd25lZA==\x07clipboard",  # OSC 52: writes the clipboard
    "\x1b[2J\x1b[1;1Hscreen",
    "\x9b31mC1",
    "\x1bPdevice\x1b\\",
    "first\nnode2 | forged",
    "a\rb\x08\x7f",
    "lone \udc80 and \ud800",
    "\x1b",
    "\x1b]0;title without an end",
    "\u202eright to left",
]
PRINTERS: list[Callable[[str], None]] = [
    ui.plain,
    ui.info,
    ui.note,
    ui.success,
    ui.failure,
    ui.warn,
    lambda text: ui.error(MntError(text)),
    lambda text: ui.table(["A", "B"], [[text, ui.Cell(text, "red")]]),
]


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("show", PRINTERS)
def test_a_message_is_one_plain_line(
    capsys: pytest.CaptureFixture[str], show: Callable[[str], None], text: str
) -> None:
    show("x")
    usual = capsys.readouterr()
    show(text)
    printed = capsys.readouterr()
    assert not {"\x1b", "\x07", "\x9b", "\r", "\x08", "\x7f", "\u202e"} & set(printed.out + printed.err)
    for stream, expected in ((printed.out, usual.out), (printed.err, usual.err)):
        assert stream.count("\n") == expected.count("\n")
        stream.encode()


@pytest.mark.parametrize(
    "show", [lambda fix: ui.error(MntError("x", fix=fix)), lambda fix: ui.failure("x", fix)]
)
@pytest.mark.parametrize("name", ["t\x1b[2J", "t\n", "t\u202e", "t\x9b1m", "t\udcff"])
def test_a_fix_whose_path_is_shown_as_another_is_not_to_be_pasted(
    capsys: pytest.CaptureFixture[str], show: Callable[[str], None], name: str
) -> None:
    """The tree `t` beside it may be its author's, too."""
    show(f"rm {shlex.quote(f'/{name}/x')}")
    show(f"rm {shlex.quote('/t é/x')}")
    marked, ordinary = [line for line in capsys.readouterr().err.splitlines() if "fix" in line]
    assert marked.startswith("  fix: (not to be pasted: it has characters that cannot be shown) rm '/t")
    assert ordinary == "  fix: rm '/t é/x'"


def test_several_lines_stay_lines(capsys: pytest.CaptureFixture[str]) -> None:
    ui.lines("a\nb\x1b[1m\n\nc")
    assert capsys.readouterr().out == "a\nb\n\nc\n"


@pytest.mark.parametrize("text", ["Åßenström", "日本", "tab\tkept", "ordinary: 5 %"])
def test_ordinary_text_stays_as_it_is(text: str) -> None:
    assert one_line(text) == text


def test_nothing_else_prints() -> None:
    """Only mnt.ui writes to the standard streams; but programs on hosts, and what `fab` calls by hand."""
    root = Path(__file__).parents[2] / "mnt"
    writes = re.compile(r"^\s*(print\(|sys\.std(out|err)\.write)", re.MULTILINE)
    found = {path.relative_to(root) for path in root.rglob("*.py") if writes.search(path.read_text())}
    others = {path for path in found if path.parts[0] not in ("remote", "ui")}
    assert others == {Path("tasks/by_hand.py")}


def test_a_stream_that_is_not_utf_8(tmp_path: Path) -> None:
    """What the terminal cannot show is replaced, and no reason for a traceback."""
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "from mnt import ui; ui.plain('h\\u00f6st \\u65e5 \\ud800'); ui.table(['A'], [['\\u65e5']])",
        ],
        env={
            "PYTHONIOENCODING": "ascii",
            "PYTHONPATH": str(Path(__file__).parents[2]),
            "PATH": "/usr/bin:/bin",
        },
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(b"\n") == 3
