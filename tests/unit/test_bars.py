"""Progress bars as torchrun passes them on: one line each, live on a terminal, and nothing else is lost."""

from __future__ import annotations

import io

import pytest
from rich.cells import cell_len

from mnt.launch.bars import Bars
from mnt.ui import HostLines

TRAIN = "[rank0] Train:  {0}%|##   | {0}/99 [00:01<00:09,  {1}]"


def shown(*pieces: str) -> tuple[list[str], list[str]]:
    """The lines of one node's output that are shown, and the live lines."""
    said: list[str] = []
    live: list[str] = []
    bars = Bars(lambda host, text: said.append(text), lambda host, text: live.append(text))
    for piece in pieces:
        bars.feed("node1", piece)
    bars.close()
    return "".join(said).splitlines(), live


@pytest.mark.parametrize("size", [1, 5, 10_000])
@pytest.mark.parametrize(
    ("text", "lines"),
    [
        # Slower than torchrun looks: each state is without an end until the next one comes.
        ("[rank0] \n[rank0] 1%[rank0] \n[rank0] 2%[rank0] \n[rank0] 3%[rank0] \n", ["[rank0] 3%"]),
        # Faster: some states come as lines.
        (
            "".join(TRAIN.format(i, "1.0it/s") + ("[rank0] \n" if i % 3 else "\n") for i in range(9)),
            [TRAIN.format(8, "1.0it/s")],
        ),
        # A line of the other stream in between, and the end of the bar's own line after it.
        (
            "[rank0] 1%[rank0] begin\n[rank0] \n[rank0] 2%[rank0] \n",
            ["[rank0] 1%", "[rank0] begin", "[rank0] 2%"],
        ),
        # Another engine leaves the carriage returns.
        ("[rank0] \r1%\r2%\r3%\n1%\r2%\nx\r\n", ["[rank0] 3%", "2%", "x"]),
        # Its rate is below one a second.
        (TRAIN.format(1, "1.5it/s") + "\n" + TRAIN.format(2, "1.5s/it") + "\n", [TRAIN.format(2, "1.5s/it")]),
        # Two bars, and the lines around them.
        (
            "[rank0] go\n[rank0] load 1%[rank0] \n[rank0] load 2%[rank0] \n"
            "[rank0] save 1%[rank0] \n[rank0] end\n",
            ["[rank0] go", "[rank0] load 2%", "[rank0] save 1%", "[rank0] end"],
        ),
        # Two ranks at once.
        (
            "[rank0] 1%[rank0] \n[rank1] 5%[rank1] \n[rank0] 2%[rank0] \n[rank1] 6%[rank1] \n",
            ["[rank0] 2%", "[rank1] 6%"],
        ),
    ],
)
def test_the_last_state_of_a_bar_is_one_line(text: str, lines: list[str], size: int) -> None:
    pieces = [text[start : start + size] for start in range(0, len(text), size)]
    assert [line.rstrip("\r") for line in shown(*pieces)[0]] == lines


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[rank0] loss 1\n[rank0] loss 2\n",
        "[rank0] 10%\n[rank0] 20%\n",
        "[rank0] \n[rank0] \n[rank0] x\n",
        "[rank0] [rank0] my own prefix 1\n[rank0] [rank0] my own prefix 2\n",
        "no prefix\n\n10%|##| 1/2\n",
        "[rank0] of [rank1] x\n",
        "[rank0] no end",
        "[rank0] " + "x" * 100_000,
    ],
)
def test_other_lines_stay_as_they_are(text: str) -> None:
    lines, live = shown(text)
    assert ("\n".join(lines), live) == (text.removesuffix("\n"), [])


def test_a_late_rest_of_a_line_is_no_second_line_with_two_prefixes() -> None:
    assert shown("[rank0] a[rank0] b\n[rank0] c\n")[0] == ["[rank0] a", "[rank0] b", "[rank0] c"]


def test_each_state_is_live_at_once() -> None:
    first, second = TRAIN.format(1, "1.0it/s"), TRAIN.format(2, "1.0it/s")
    assert shown(first)[1] == [first]
    assert shown(f"{first}[rank0] \n", second)[1] == [first, second]


def test_what_a_node_can_make_without_end_is_not_kept() -> None:
    """Ranks that it invents, and bars that are no bars."""
    shown: list[str] = []
    bars = Bars(lambda host, text: shown.append(text), lambda host, text: None)
    long = "[rank1] 5%|" + "x" * 8000 + "| 1\n"
    for number in range(2000):
        bars.feed("node1", f"[rank{number}]   5%|#| {number}\n")
    assert len(shown) == 2000 - 256
    bars.feed("node1", long)
    assert shown[-1] == long
    bars.close()
    assert len(shown) == 2001


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("wide", ["\u30fb", "\U0001f600", "\u2764\ufe0f", "e\u0301"])
def test_a_live_line_is_one_row(monkeypatch: pytest.MonkeyPatch, wide: str) -> None:
    """In a second row it could look like a line of another host. U+FE0F makes two columns of one."""
    monkeypatch.setenv("COLUMNS", "80")
    screen = Terminal()
    monkeypatch.setenv("NO_COLOR", "1")
    lines = HostLines(["node1", "node2"], screen)
    lines.live("node1", wide * 40 + "node2 | job finished on 2 nodes 1%|# | 1")
    shown = screen.getvalue().removeprefix("\r\x1b[K")
    assert shown.startswith("node1 | " + wide * 35)
    assert cell_len(shown.replace("\ufe0f", "x").replace("\u0301", "x")) <= 79
    lines.live("node1", "x" * 200)
    assert screen.getvalue().endswith("\x1b[Knode1 | " + "x" * 71)
