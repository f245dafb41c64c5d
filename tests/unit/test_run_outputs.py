"""Where output goes: kept, in files, and live on terminals and pipes."""

from __future__ import annotations

import io
import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from mnt.errors import OutputError, UsageError
from mnt.run.outputs import KEPT_MIB, Capture, create, prepare
from mnt.run.summary import HostRun, RunSummary
from mnt.ui import HostLines, document, long_document, long_listing
from mnt.ui.hostlines import block

# -- kept


def test_equal_output_has_equal_digests_however_it_came() -> None:
    one, other, swapped = Capture(), Capture(), Capture()
    one.stdout(b"ab")
    one.stderr(b"e")
    for piece in (b"a", b"b"):
        other.stdout(piece)
    other.stderr(b"e")
    swapped.stderr(b"ab")
    swapped.stdout(b"e")
    assert one.digest == other.digest != swapped.digest


def test_much_output_comes_back_whole() -> None:
    capture = Capture()
    for number in range(256):
        capture.stdout(bytes([number]) * 10_000)
    assert capture.out.read() == b"".join(bytes([number]) * 10_000 for number in range(256))
    assert capture.out.size == 2_560_000


# -- files


def test_old_files_of_these_hosts_go(tmp_path: Path) -> None:
    for name in ("node1.err", "node2.out", "other.out", "node10.out"):
        (tmp_path / name).write_text("old")
    with ExitStack() as opened:
        prepare(str(tmp_path), ["node1", "node2"], opened)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["node10.out", "other.out"]


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("mine")
    (tmp_path / "node1.out").symlink_to("victim")
    with pytest.raises(OutputError, match=r"node1\.out"), ExitStack() as opened:
        create(prepare(str(tmp_path), [], opened), "node1", opened)
    assert (tmp_path / "victim").read_text() == "mine"


def test_a_directory_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with ExitStack() as opened, pytest.raises(UsageError, match="--outdir"):
        prepare(str(tmp_path / "file"), ["node1"], opened)


# -- live


class Stream(io.TextIOWrapper):
    """Standard output as a pipe or as a terminal."""

    def __init__(self, *, terminal: bool = False) -> None:
        self.bytes = io.BytesIO()
        self._terminal = terminal
        super().__init__(self.bytes, encoding="utf-8")

    def isatty(self) -> bool:
        return self._terminal

    @property
    def written(self) -> bytes:
        return self.bytes.getvalue()


def test_whole_lines_with_their_hosts() -> None:
    stream = Stream()
    lines = HostLines(["a", "bcd"], stream)
    lines.feed("a", b"one\ntw")
    lines.feed("bcd", "x\udcff\n")
    assert stream.written == b"a   | one\nbcd | x\xff\n"
    lines.feed("a", b"o\n\nend")
    lines.close()
    assert stream.written == b"a   | one\nbcd | x\xff\na   | two\na   | \na   | end\n"


def test_one_host_without_a_prefix_is_untouched() -> None:
    stream = Stream()
    lines = HostLines(["a"], stream, prefix=False)
    lines.feed("a", b"\x1b[31m no newline")
    assert stream.written == b"\x1b[31m no newline"


def test_several_hosts_without_a_prefix_keep_lines_whole() -> None:
    stream = Stream()
    lines = HostLines(["a", "b"], stream, prefix=False)
    for host in ("a", "b", "a", "b"):
        lines.feed(host, f"{host}".encode())
    lines.close()
    assert stream.written == b"aa\nbb\n"


def test_a_line_without_an_end_is_shown_in_pieces() -> None:
    stream = Stream()
    lines = HostLines(["a", "b"], stream)
    for _ in range(20):
        lines.feed("a", b"x" * 100_000)
    assert len(stream.written) > 1_500_000
    lines.close()
    assert stream.written.count(b"x") == 2_000_000


@pytest.mark.parametrize("no_colour", [False, True])
@pytest.mark.parametrize(
    "pieces",
    [
        [b"\x1b[2Jr\xc3\xa9d\x1b]0;title\x07\xc2\x9b31m \xff\x9b1m\x00\n"],
        [b"\x1b[", b"2Jr\xc3", b"\xa9d\x1b]0;ti", b"tle\x07\xc2", b"\x9b31m \xff\x9b1", b"m\x00\n"],
    ],
)
def test_a_terminal_gets_no_escapes(
    pieces: list[bytes], no_colour: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    if no_colour:
        monkeypatch.setenv("NO_COLOR", "1")
    stream = Stream(terminal=True)
    lines = HostLines(["a"], stream, prefix=False)
    for piece in pieces:
        lines.feed("a", piece)
    assert stream.written.decode() == "r\u00e9d31m \ufffd\ufffd1m\n"


def test_a_live_line_lasts_until_anything_else_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "12")
    stream = Stream(terminal=True)
    lines = HostLines(["a", "b"], stream)
    lines.live("a", "10%\x1b[31m")
    lines.live("b", "20% and too long")
    lines.feed("a", b"line\n")
    lines.live("a", "30%")
    lines.close()
    erase = b"\r\x1b[K"
    said = (b"a | 10%", b"b | 20% and", b"", b"a | 30%", b"")
    first, second, third, fourth, last = (erase + each for each in said)
    assert stream.written == first + second + third + b"a | line\n" + fourth + last


def test_a_live_line_is_not_for_files() -> None:
    stream = Stream()
    HostLines(["a"], stream).live("a", "10%")
    assert stream.written == b""


def test_a_block_ends_with_a_newline() -> None:
    stream = Stream()
    block([b"one\n\xfftw", b"o"], stream)
    assert stream.written == b"one\n\xfftwo\n"


def test_of_output_without_end_the_beginning_is_kept() -> None:
    whole, cut = Capture(), Capture()
    limit = KEPT_MIB << 20
    for capture, rest in ((whole, 0), (cut, 5)):
        for _ in range(KEPT_MIB):
            capture.stdout(b"x" * (1 << 20))
        capture.stdout(b"y" * rest)
        capture.stderr(b"e")
    assert (whole.cut, cut.cut) == (False, True)
    assert cut.out.read() == whole.out.read() == b"x" * limit
    assert cut.out.size == limit + 5
    assert whole.digest != cut.digest  # nothing that differs is folded
    document = HostRun("h", exit_code=0, output=cut).document()
    assert document["stdout_size"] == limit + 5
    assert "stdout_size" not in HostRun("h", exit_code=0, output=whole).document()
    assert RunSummary({"a": HostRun("a", output=whole), "b": HostRun("b", output=cut)}).cut == ["b"]


@pytest.mark.parametrize("items", [[], ["a"], [{"a": [], "b": ["\n", "\udcff", "\U0001f600"]}, {}]])
def test_a_long_listing_is_the_same_document(items: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    value = {"x": {"y": 1}, "file": "ä\udcff"}
    long_listing(value, "items", iter(items))
    printed = capsys.readouterr().out
    document({**value, "items": items})
    assert json.loads(printed) == json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("hosts", [[], ["a"], ["a", 'b"\n']])
def test_a_long_document_is_the_same_document(hosts: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    runs = {host: HostRun(host, exit_code=0, seconds=1.5, output=Capture()) for host in hosts}
    for run in runs.values():
        assert run.output is not None
        run.output.stdout(b'line\n"}\xff\n')
    summary = RunSummary(runs)
    long_document(summary.overview(), "hosts", summary.documents())
    printed = capsys.readouterr().out
    assert json.loads(printed) == summary.document()
    if hosts:
        assert printed == json.dumps(summary.document(), indent=2) + "\n"
