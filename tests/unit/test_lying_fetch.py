"""One host of a fetch lies: an error of that host, or a file that is left out; nothing else is touched."""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import os
import resource
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import fetch_hosts
import pytest
from fetch_hosts import FILES, LIAR, MTIME, NAMES, Frames, fetched, honest, pieces, problem, row, surveyed
from lying_hosts import Script
from waiting import at_most

from mnt.cli.fetch import _remarks
from mnt.errors import OutputError
from mnt.fetch.fetch import Fetched
from mnt.fetch.space import Reservation, Space, _takers

FIRST, Y, EMPTY = FILES.values()
Answer = Iterator[tuple[str, Any]]


@pytest.fixture
def to(tmp_path: Path) -> Iterator[Path]:
    """Where to fetch; beside it nothing is changed."""
    (tmp_path / "victim").write_text("mine")
    yield tmp_path / "to"
    assert sorted(os.listdir(tmp_path)) in (["to", "victim"], ["victim"])
    assert (tmp_path / "victim").read_text() == "mine"
    for directory, directories, files in os.walk(tmp_path):
        for name in (*directories, *files):
            path = os.path.join(directory, name)
            assert os.path.realpath(path).startswith(f"{tmp_path}/to/") or directory == str(tmp_path)


def tree(directory: Path) -> dict[str, bytes | str]:
    """Files with their bytes, links with their target."""
    return {
        str(path.relative_to(directory)): os.readlink(path) if path.is_symlink() else path.read_bytes()
        for path in directory.rglob("*")
        if path.is_symlink() or path.is_file()
    }


WHOLE = {"a/x": FIRST, "a/d/y": Y, "b": EMPTY, "a/d/link": "../x"}


def lying(action: str, frames: Callable[[list[tuple[str, Any]]], Any]) -> Script:
    """Honest, but for the frames of one action, which are made of the honest ones."""

    def lie(host: str, name: str, args: dict[str, Any], stdin: IO[bytes]) -> Frames:
        said = honest(host, name, args, stdin)
        yield from frames(list(said)) if args["action"] == action else said

    return lie


def listing(*rows: list[Any], data: bytes = b"evil") -> Script:
    """Lists these entries, and sends the same for each file of which it is asked."""

    def lie(host: str, name: str, args: dict[str, Any], stdin: IO[bytes]) -> Frames:
        if args["action"] == "list":
            for start in range(0, len(rows), 20):  # a frame has 256 KiB
                yield "frame", {"entries": list(rows[start : start + 20])}
            yield "answer", {"tops": ["/a", "/b"]}
        elif args["action"] == "send":
            for number, _ in enumerate(iter(stdin.readline, b"")):
                for frame in pieces(number, data):
                    yield "frame", frame
            yield "answer", {"sent": 0}
        else:
            yield from honest(host, name, args, stdin)

    return lie


def others_are_whole(results: dict[str, Fetched], to: Path) -> None:
    for host in set(NAMES) - {LIAR}:
        assert (results[host].status, results[host].failed, results[host].left_out) == ("fetched", {}, {})
        assert tree(to / host) == WHOLE


def error_of(results: dict[str, Fetched], to: Path) -> str:
    others_are_whole(results, to)
    liar = results[LIAR]
    assert (liar.status, liar.ok, liar.reached) == ("failed", False, True)
    assert liar.error is not None
    assert liar.fix or "boom" in liar.error  # a traceback has none
    assert len(liar.error) < 1000
    return liar.error


def test_honest_hosts(to: Path) -> None:
    results, fleet = fetched(to)
    others_are_whole(results, to)
    assert fleet.failed == {}
    assert tree(to / LIAR) == WHOLE
    assert {(each.files, each.already) for each in results.values()} == {(4, 0)}
    again, _ = fetched(to)
    assert {(each.files, each.already, each.bytes) for each in again.values()} == {(0, 4, 0)}


# --- names and links ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        *(
            "../../victim",
            "..",
            "d/../../../victim",
            "/etc/passwd",
            "//x",
            "",
            ".",
            "./x",
            "d//x",
            "d/",
            "\0",
        ),
        *("x\0y", ".mnt-part-0", "d/.mnt-part-/x", "../node1/a/x", "../../../../../../../../../tmp/mnt-evil"),
    ],
)
def test_a_name_that_leads_elsewhere(to: Path, path: str) -> None:
    results, _ = fetched(to, listing(row(0, path, 4), row(0, "good", 4)))
    others_are_whole(results, to)
    here = "a" if path == "" else None  # a part may be one file
    if here is None:
        assert list(results[LIAR].left_out) == [f"a/{path}"]
        assert tree(to / LIAR) == {"a/good": b"evil"}
    assert not os.path.lexists("/tmp/mnt-evil")


def test_a_name_that_is_too_long(to: Path) -> None:
    results, _ = fetched(to, listing(row(0, "x" * 300, 4), row(0, "good", 4)))
    others_are_whole(results, to)
    assert results[LIAR].failed == {"a/" + "x" * 300: "File name too long"}
    assert (to / LIAR / "a/good").read_bytes() == b"evil"
    assert "list.entries[0]" in error_of(fetched(to, listing(row(0, "x" * 9000, 4)))[0], to)


@pytest.mark.parametrize(
    "entries",
    [
        [row(0, "l", 0, "link", "/etc"), row(0, "l/passwd", 4)],
        [row(0, "l", 0, "link", "../.."), row(0, "l/victim", 4)],
        [row(0, "l", 0, "link", "d"), row(0, "l/x", 4)],
        [row(0, "l/x", 4), row(0, "l", 0, "link", "/")],
        [row(0, "m", 0, "link", ".."), row(0, "l", 0, "link", "m/../../victim")],
        [row(0, "m", 0, "link", ".."), row(0, "l", 0, "link", "m/.."), row(0, "l/victim", 4)],
        [row(0, "d/m", 0, "link", ".."), row(0, "d/l", 0, "link", "m/.."), row(0, "d/l/x", 4)],
        [row(0, "l", 0, "link", "../../../victim"), row(0, "l", 4)],
        [row(0, "l", 0, "link", "x\0y")],
        [row(0, "l", 0, "link", "")],
        [row(0, "l", 0, "link", None)],
        [row(1, "", 0, "link", "a"), row(1, "x", 4)],
        [row(0, "", 0, "link", "../node1"), row(0, "x", 4), row(0, "a/x", 4)],
        [row(0, "x", 4), row(0, "x/y", 4), row(0, "x/y/z", 4)],
        [row(0, "x/y", 4), row(0, "x", 4)],
        [row(0, "d/x", 4), row(0, "d", 0, "link", "x")],
    ],
)
def test_tricks_with_links(to: Path, entries: list[list[Any]]) -> None:
    """The fixture looks whether anything leads out of the directory, or was changed beside it."""
    for _ in range(2):
        results, _ = fetched(to, listing(*entries), force=True)
        others_are_whole(results, to)


def test_a_file_that_is_a_link_to_it_next_time(to: Path) -> None:
    fetched(to, listing(row(0, "d/x", 4)))
    results, _ = fetched(to, listing(row(0, "d", 0, "link", "../../node1/a"), row(0, "d/x", 4)), force=True)
    others_are_whole(results, to)
    assert (to / LIAR / "a/d").is_dir()
    assert not (to / LIAR / "a/d").is_symlink()


def test_a_name_twice(to: Path) -> None:
    results, _ = fetched(to, listing(*[row(0, "x", 4)] * 300, row(0, "x", 3), row(0, "x", 0, "link", "y")))
    others_are_whole(results, to)
    assert results[LIAR].files == 1
    assert tree(to / LIAR) == {"a/x": b"evil"}


def test_names_that_forge_lines(to: Path) -> None:
    results, _ = fetched(to, listing(row(0, "a\nnode1: x\x1b[2J", 4), row(0, "caf\udce9", 4)))
    others_are_whole(results, to)
    assert results[LIAR].files == 2
    assert "list" in error_of(fetched(to, listing(row(0, "\ud800", 4)))[0], to)


def test_many_links_that_lead_out(to: Path) -> None:
    """One reason for all: each reason is a line that a person sees."""
    rows = [row(0, f"l{number}", 0, "link", f"/{number}") for number in range(3000)]
    results, _ = fetched(to, listing(*rows))
    others_are_whole(results, to)
    assert len(results[LIAR].left_out) == 3000
    assert len(set(results[LIAR].left_out.values())) == 1


# --- the survey and the list --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ([], "0 parts instead of 2"),
        ([surveyed("0" * 64)], "1 parts instead of 2"),
        ([surveyed("0" * 64)] * 3, "3 parts instead of 2"),
        ([surveyed("0" * 64)] * 50, "many values|50 parts instead"),
        ([surveyed("x"), surveyed("0" * 64)], "digest"),
        ([surveyed("0" * 64 + "\n"), surveyed("0" * 64)], "digest"),
        ([surveyed("0" * 64, files=-1), surveyed("0" * 64)], "files"),
        ([surveyed("0" * 64, size=2**63), surveyed("0" * 64)], "bytes"),
        ([surveyed("0" * 64, problem="x" * 1025), surveyed("0" * 64)], "problem"),
        ([{}, {}], "required field"),
        (None, "parts"),
    ],
)
def test_a_survey_that_cannot_be(to: Path, parts: Any, says: str) -> None:
    results, _ = fetched(to, lying("survey", lambda said: [("answer", {"parts": parts})]))
    error = error_of(results, to)
    assert any(each in error for each in says.split("|"))


def test_a_dry_run_fetches_nothing_and_says_so(to: Path) -> None:
    empty = [surveyed("0" * 64, files=0, size=0)] * 2
    results, _ = fetched(to, lying("survey", lambda said: [("answer", {"parts": empty})]), dry_run=True)
    assert {host: (each.status, each.files) for host, each in results.items()} == {
        "node1": ("there", 2),
        LIAR: ("nothing", 0),
        "node3": ("there", 2),
    }
    assert not to.exists()


def test_a_survey_that_says_much(to: Path) -> None:
    """What is announced is not what decides."""
    huge = surveyed("0" * 64, files=2**62, size=2**63 - 1, later=2**60)
    results, _ = fetched(to, lying("survey", lambda said: [("answer", {"parts": [huge, huge]})]))
    others_are_whole(results, to)
    assert results[LIAR].files == 4


def test_a_problem_is_a_hosts_own_text(to: Path) -> None:
    part = surveyed("0" * 64, problem="boom\nnode1: forged")
    results, _ = fetched(to, lying("survey", lambda said: [("answer", {"parts": [part, part]})]))
    others_are_whole(results, to)
    assert results[LIAR].status == "failed"


def test_what_is_absent_is_no_problem_and_every_problem_is_named(to: Path) -> None:
    def says(*parts: dict[str, Any]) -> Fetched:
        results, _ = fetched(to, lying("survey", lambda said: [("answer", {"parts": list(parts)})]))
        others_are_whole(results, to)
        return results[LIAR]

    quota, tired = (surveyed("0" * 64, problem=text) for text in ("it has no quota left", "it is tired"))
    absent = surveyed("0" * 64, problem="no such file", absent=True)
    assert (says(absent, absent).ok, says(absent, absent).absent) == (True, ["a", "b"])
    assert (says(quota, absent).error, says(quota, absent).absent) == ("it has no quota left", ["b"])
    assert says(quota, tired).error == "it has no quota left; it is tired"
    assert says(tired, tired).error == "it is tired"


@pytest.mark.parametrize(
    "entry",
    [
        [2, "x", "file", 4, 0, 0o644, None],
        [2**62, "x", "file", 4, 0, 0o644, None],
        [-1, "x", "file", 4, 0, 0o644, None],
        [0, "x", "file", -1, 0, 0o644, None],
        [0, "x", "file", 2**63, 0, 0o644, None],
        [0, "x", "file", 1.5, 0, 0o644, None],
        [0, "x", "file", 4, 2**63, 0o644, None],
        [0, "x", "file", 4, 0, 0o10000, None],
        [0, "x", "file", 4, 0, -1, None],
        [0, "x", "directory", 4, 0, 0o644, None],
        [0, "x", "file", 4, 0, 0o644, 7],
        [0, "x", "file", 4, 0, 0o644],
        [0, 7, "file", 4, 0, 0o644, None],
        [],
        {},
        None,
    ],
)
def test_an_entry_that_cannot_be(to: Path, entry: Any) -> None:
    assert "list" in error_of(fetched(to, listing(entry))[0], to)
    assert tree(to / LIAR) == {}


@pytest.mark.parametrize("tops", [[], ["/a"], ["/a"] * 3, None, ["/a", 7], ["/a", "x" * 9000]])
def test_tops_that_cannot_be(to: Path, tops: Any) -> None:
    error_of(fetched(to, lying("list", lambda said: [*said[:-1], ("answer", {"tops": tops})]))[0], to)


def test_a_million_entries(to: Path) -> None:
    rows = [row(0, "x", 4)] * 100
    endless = itertools.repeat(("frame", {"entries": rows}), 10_000)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with at_most():
        error = error_of(fetched(to, lying("list", lambda said: endless))[0], to)
    assert "more files than a host may list" in error
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) < 200 * 1024  # KiB


def test_very_long_entries(to: Path) -> None:
    rows = [row(0, "x" * 4096, 0, "link", "y" * 4096)] * 10
    endless = itertools.repeat(("frame", {"entries": rows}), 100_000)
    assert "more files" in error_of(fetched(to, lying("list", lambda said: endless))[0], to)


@pytest.mark.parametrize("action", ["survey", "list", "send"])
@pytest.mark.parametrize("frame", [{"entries": []}, {}, {"file": 0, "at": 0, "data": "", "end": False}])
def test_frames_without_end(to: Path, action: str, frame: dict[str, Any]) -> None:
    """No frame is free: each is an error, or has something that is counted."""
    endless = itertools.repeat(("frame", frame))
    error_of(fetched(to, lying(action, lambda said: endless))[0], to)


def test_it_wants_more_than_the_disk_has(to: Path) -> None:
    """Sizes that no disk has end nothing but that host's part; a sparse file may have one, too."""
    for sizes in ([2**63 - 1], [2**62] * 40):
        rows = [row(0, f"x{number}", size) for number, size in enumerate(sizes)]
        error = error_of(fetched(to, listing(*rows))[0], to)
        assert str(to / LIAR) in error
        assert "no space" in error


def test_the_hosts_whose_files_leave_no_room_for_others_are_named(
    to: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that lists most of the disk keeps it while it sends nothing."""
    to.mkdir()
    found = os.statvfs(to)
    free = found.f_bavail * found.f_frsize
    has_room, others_done = threading.Event(), threading.Semaphore(0)
    reserved = Space.reserved

    @contextlib.contextmanager
    def watched(space: Space, host: str, size: int, entries: int) -> Iterator[Reservation]:
        with reserved(space, host, size, entries) as room:
            yield room
        others_done.release()

    def greedy(host: str, name: str, args: dict[str, Any], stdin: IO[bytes]) -> Frames:
        if args["action"] == "send":
            has_room.set()
            assert all(others_done.acquire(timeout=30) for _ in range(2))
        yield from listing(row(0, "x", free // 10 * 8))(host, name, args, stdin)

    def other(size: int) -> Script:
        def wants(host: str, name: str, args: dict[str, Any], stdin: IO[bytes]) -> Frames:
            assert args["action"] != "list" or has_room.wait(30)
            yield from listing(row(0, "x", size))(host, name, args, stdin)

        return wants

    monkeypatch.setattr(Space, "reserved", watched)
    scripts = {"node1": other(free // 2), LIAR: greedy, "node3": other(free // 10 * 9)}
    results, _ = fetched(to, scripts=scripts)
    assert "are free, because of the files of node2" in (results["node1"].error or "")
    assert "-x node2;" in (results["node1"].fix or "")
    assert "no space" in (results["node3"].error or "")  # it needs more than node2, and does not blame it
    assert "node2" not in f"{results['node3'].error} {results['node3'].fix}"


@pytest.mark.parametrize(
    ("sizes", "needed", "missing", "takers"),
    [
        ({}, 5, 1, []),
        ({"a": 10, "b": 90, "c": 20}, 5, 60, ["b"]),
        ({"a": 10, "b": 90, "c": 20}, 5, 95, ["b", "c"]),
        ({"a": 10, "b": 90, "c": 20}, 15, 115, []),  # not without those that are smaller
        ({"a": 10, "b": 90, "c": 20}, 5, 121, []),
        ({"a": 10, "b": 0}, 0, 11, []),
    ],
)
def test_who_takes_the_room(sizes: dict[str, int], needed: int, missing: int, takers: list[str]) -> None:
    assert _takers([Reservation(host, size) for host, size in sizes.items()], needed, missing) == takers


def test_what_a_host_has_written_counts_when_it_is_done(tmp_path: Path) -> None:
    descriptor = os.open(tmp_path, os.O_RDONLY)
    try:
        space = Space(descriptor)
        with space.reserved("node1", 1 << 20, 0) as room:
            room.left -= 1 << 19
        assert (room.size, room.left) == (1 << 19, 0)
        with space.reserved("node2", 1 << 62, 0) as room:
            assert room.problem
            assert (room.size, room.takers) == (0, [])
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("mtime", [2**63 - 1, -(2**63), 0])
@pytest.mark.parametrize("mode", [0o7777, 0])
def test_times_and_modes(to: Path, mtime: int, mode: int) -> None:
    results, _ = fetched(to, listing([0, "x", "file", 4, mtime, mode, None]))
    others_are_whole(results, to)
    assert (to / LIAR / "a/x").stat().st_mode & 0o7022 == 0
    assert results[LIAR].files == 1


# --- the files ---------------------------------------------------------------------------------------------


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


HUNDRED = encoded(b"x" * 100)


def piece(file: Any = 0, at: Any = 0, data: Any = HUNDRED, end: Any = False, **more: Any) -> Any:
    return ("frame", {"file": file, "at": at, "data": data, "end": end, **more})


REST = piece(at=100, data=encoded(b"x" * 100))


@pytest.mark.parametrize(
    "frames",
    [
        [],
        [piece(file=1)],
        [piece(file=-1)],
        [piece(file=True)],
        [piece(file="0")],
        [piece(file=2**62)],
        [problem(3, "x")],
        [problem(0, 7)],
        [problem(0, "x" * 1025)],
        [("frame", {"file": 0, "problem": "x"})],
        [piece(at=1)],
        [piece(at=-1)],
        [piece(at=2**63)],
        [piece(), piece()],
        [piece(), piece(at=99)],
        [piece(), piece(at=101)],
        [piece(), piece(at=0)],
        [piece(), piece(file=1)],
        [piece(), REST],
        [piece(end=True)],
        [piece(data=encoded(b""), end=False)],
        [piece(data="*")],
        [piece(data="eA")],
        [piece(data="é")],
        [piece(data="\udce9")],
        [piece(data=7)],
        [piece(end=1)],
        [piece(end=None)],
        [("frame", {"file": 0})],
        [("frame", {})],
        [("frame", []), ("answer", {})],
        [("error", {"error": "boom", "traceback": "Traceback ..\nboom"})],
        [("hello", {"pid": 1, "version": "3.11"})],
        [("answer", {"refused": {"message": "no", "fix": "sudo rm -rf /"}})],
    ],
)
def test_frames_that_cannot_be(to: Path, frames: list[tuple[str, Any]]) -> None:
    """At the beginning of what it sends, and at its end."""
    for said in ([*frames, ("answer", {"sent": 3})], frames):
        results, _ = fetched(to, lying("send", lambda _, said=said: said))  # type: ignore[misc]
        error_of(results, to)
        assert set(tree(to / LIAR)) <= {"a/d/link", f"a/{PART_OF_X}"}


PART_OF_X = ".mnt-part-2d711642b726b04401627ca9fbac32f5"


def test_more_data_than_it_has_listed(to: Path) -> None:
    def longer(said: list[tuple[str, Any]]) -> Frames:
        yield from said[:1]
        yield piece(at=192 * 1024, data=encoded(b"y" * 190_000))
        yield "answer", {}

    assert "does not fit" in error_of(fetched(to, lying("send", longer))[0], to)
    assert sum(len(data) for data in tree(to / LIAR).values()) <= 300_000


def test_the_end_comes_too_late_or_too_soon(to: Path) -> None:
    def changed(end: bool) -> Callable[[list[tuple[str, Any]]], Frames]:
        def frames(said: list[tuple[str, Any]]) -> Frames:
            for kind, value in said:
                yield kind, {**value, "end": end} if "end" in value else value

        return frames

    for end in (True, False):
        assert "does not fit" in error_of(fetched(to, lying("send", changed(end)))[0], to)


@pytest.mark.parametrize(
    "lie",
    [
        lambda said: [*said[:2], said[-1]],
        lambda said: said[-1:],
        lambda said: said[:-1],
        lambda said: [*said[:-1], *pieces_of(3), said[-1]],
        lambda said: [*said[:-1], *pieces_of(0), said[-1]],
        lambda said: said[2:],
        lambda said: [said[2], said[0], said[1], *said[3:]],
        lambda said: [said[0], *said[2:]],
    ],
)
def test_files_that_are_missing_or_too_many(
    to: Path, lie: Callable[[list[tuple[str, Any]]], list[tuple[str, Any]]]
) -> None:
    error_of(fetched(to, lying("send", lie))[0], to)


def pieces_of(number: int) -> list[tuple[str, Any]]:
    return [("frame", frame) for frame in pieces(number, b"more")]


def test_problems_of_files(to: Path) -> None:
    def problems(said: list[tuple[str, Any]]) -> Frames:
        yield said[0]
        yield problem(0, "boom\nnode1: forged")
        yield problem(1, "")
        yield from said[3:]

    results, _ = fetched(to, lying("send", problems))
    others_are_whole(results, to)
    assert results[LIAR].status == "incomplete"
    assert results[LIAR].failed == {"a/x": "boom\nnode1: forged", "a/d/y": ""}


def test_a_file_that_has_vanished_is_no_failure(to: Path) -> None:
    """What a job removes is not there, and so it is not missing here."""

    def gone(said: list[tuple[str, Any]]) -> Frames:
        yield problem(0, "removed", gone=True)
        yield from said[2:]

    results, _ = fetched(to, lying("send", gone))
    others_are_whole(results, to)
    assert (results[LIAR].ok, results[LIAR].left_out) == (True, {"a/x": "removed"})


def test_a_rest_that_does_not_fit(to: Path) -> None:
    """After an interrupt the host says that it goes on, and where."""
    part = to / LIAR / "a" / PART_OF_X
    for at in (999, 1001, 300_000, 2**62):
        part.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(FIRST[:1000])
        error_of(fetched(to, lying("send", lambda said, at=at: [piece(at=at)]))[0], to)  # type: ignore[misc]
    part.write_bytes(FIRST[:1000])
    results, _ = fetched(to)
    assert tree(to / LIAR) == WHOLE
    assert results[LIAR].bytes == len(FIRST) - 1000 + len(Y)


def test_a_host_that_has_nothing_shares_nothing(to: Path) -> None:
    def empty(said: list[tuple[str, Any]]) -> Frames:
        yield "answer", {"parts": [surveyed(f"{number:064x}", files=0) for number in (16, 17)]}

    results, _ = fetched(to, scripts={"node1": lying("survey", empty)})  # the digests of node1 as it was
    assert [results[host].shared_with for host in NAMES] == [[], [], []]
    assert [results[host].status for host in NAMES] == ["nothing", "fetched", "fetched"]


def test_a_host_that_says_that_it_shares_another_ones_files(to: Path) -> None:
    """It harms itself."""
    theirs = [surveyed(f"{number:064x}") for number in (16, 17)]
    results, _ = fetched(to, lying("survey", lambda said: [("answer", {"parts": theirs})]))
    others_are_whole(results, to)
    assert (results[LIAR].status, results[LIAR].shared_with) == ("shared", ["node1"])


def test_a_host_that_writes_where_a_disk_is_full_is_not_blamed(to: Path) -> None:
    """What the head cannot write is its own error."""
    to.mkdir()
    (to / "node3").write_text("in the way")
    with pytest.raises(OutputError, match="node3: something else is in its way"):
        fetched(to)


def test_the_same_file_is_not_asked_for_again(to: Path) -> None:
    fetched(to)
    os.utime(to / LIAR / "a/d/y", ns=(MTIME + 1, MTIME + 1))
    (to / LIAR / "a/x").write_bytes(b"mine")
    results, _ = fetched(to)
    assert set(results[LIAR].failed) == {"a/x", "a/d/y"}
    assert (to / LIAR / "a/x").read_bytes() == b"mine"
    results, _ = fetched(to, force=True)
    assert tree(to / LIAR) == WHOLE


def test_what_a_host_says_about_very_many_files_is_counted_and_not_kept(to: Path) -> None:
    """100,000 problems of 4 KiB each were 400 MiB, and several times that as JSON."""
    listed = [[0, f"{number}", "file", 1, MTIME, 0o644, None] for number in range(20_000)]
    frames = [("frame", {"entries": listed[first : first + 100]}) for first in range(0, len(listed), 100)]
    why = "\U0001f4a9" * 1000
    problems = [problem(number, why) for number in range(len(listed))]

    def lie(host: str, name: str, args: dict[str, Any], stdin: IO[bytes]) -> Frames:
        if args["action"] == "survey":
            yield from honest(host, name, args, stdin)
        elif args["action"] == "list":
            yield from frames
            yield "answer", {"tops": ["/a", "/b"]}
        else:
            yield from problems
            yield "answer", {"sent": 0}

    results, _ = fetched(to, lie)
    others_are_whole(results, to)
    liar = results[LIAR]
    assert (liar.status, liar.failed.count) == ("incomplete", len(listed))
    assert len(json.dumps(liar.document(), ensure_ascii=False)) < 400_000


def test_what_was_left_out_is_counted_whole() -> None:
    result = Fetched()
    for number in range(7):
        result.left_out.add(f"a/{number}", f"reason {number}")
    for number in range(100_000):  # of which not all names are kept
        result.left_out.add(f"b/{number}", "reason 0")
    *reasons, more = _remarks(result)
    kept = len(result.left_out)
    assert 7 < kept < 50_000
    assert reasons[0] == f"a/0, b/0, b/1, b/2, b/3 and {kept - 7 + 1 - 5} more left out: reason 0"
    assert reasons[1:] == [f"a/{number} left out: reason {number}" for number in range(1, 5)]
    assert more == f"{100_007 - kept + 2} more files left out: --json lists them"


def test_a_name_with_very_many_levels(to: Path) -> None:
    """A file at the deepest place arrives; one below it, and a link there, are files that are not here."""
    deepest, deeper = "d/" * 199 + "x", "e/" * 200 + "x"  # and the directory of the part
    results, _ = fetched(
        to, listing(row(0, deepest, 4), row(0, deeper, 4), row(0, "f/" * 200 + "l", 0, "link", "x"))
    )
    others_are_whole(results, to)
    liar = results[LIAR]
    assert (liar.status, liar.failed) == (
        "incomplete",
        dict.fromkeys((f"a/{deeper}", f"a/{'f/' * 200}l"), "more than 200 directories deep"),
    )
    assert tree(to / LIAR) == {f"a/{deepest}": b"evil"}


@pytest.mark.parametrize("levels", [190, 3400])
def test_a_few_long_names_take_little_memory(to: Path, levels: int) -> None:
    """Their prefixes were kept, of which each takes 4 bytes a character: 25 names took 1.6 GiB."""
    level = "a" * (7000 // levels - 1) + "/"
    rows = [row(0, f"\U0001f4a9{number}/{level * levels}x", 4) for number in range(550)]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with at_most():
        results, _ = fetched(to, listing(*rows))
    others_are_whole(results, to)
    liar = results[LIAR]
    assert liar.failed.count == len(rows) or liar.error == "more than 100,000 directories"
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) < 200 * 1024  # KiB


def test_links_in_very_many_directories_fill_no_disk(to: Path) -> None:
    rows = [[0, f"{number:04}/{'a/' * 100}x", "link", 0, MTIME, 0o777, "y"] for number in range(1100)]

    def lie(said: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
        frames = [("frame", {"entries": rows[first : first + 100]}) for first in range(0, len(rows), 100)]
        return [*frames, said[-1]]

    results, _ = fetched(to, lying("list", lie))
    others_are_whole(results, to)
    assert results[LIAR].error == "more than 100,000 directories"
    assert tree(to / LIAR) == {}


def test_files_that_all_share_and_the_first_host_does_not_send(to: Path) -> None:
    """It says in the survey what the others say, and then lists nothing."""
    same = [surveyed("a" * 64), surveyed("b" * 64)]

    def lie(host: str, name: str, args: dict[str, Any], stdin: IO[bytes]) -> Frames:
        said = list(honest(host, name, args, stdin))
        if args["action"] == "survey":
            said = [("answer", {"parts": same})]
        elif args["action"] == "list" and host == NAMES[0]:
            said = said[-1:]
        yield from said

    results, _ = fetched(to, scripts=dict.fromkeys(NAMES, lie))
    for host in NAMES[1:]:
        assert (results[host].ok, results[host].error) == (
            False,
            f"not all files that they share have come from {NAMES[0]}",
        )
        assert results[host].fix == f"mnt fetch -n {host}, with the same arguments"


def sharing(
    parts: list[dict[str, Any]], rows: list[list[Any]], answer: Callable[[int], list[tuple[str, Any]]]
) -> dict[str, Script]:
    """All hosts say that they share these parts; the first one lists these rows, and sends that for each."""

    def share(host: str, name: str, args: dict[str, Any], stdin: IO[bytes]) -> Frames:
        if args["action"] == "survey":
            yield "answer", {"parts": parts}
        elif args["action"] == "list":
            yield "frame", {"entries": rows}
            yield "answer", {"tops": ["/a", "/b"]}
        else:
            for number, _ in enumerate(iter(stdin.readline, b"")):
                yield from answer(number)
            yield "answer", {"sent": 0}

    return dict.fromkeys(NAMES, share)


SHARED = [surveyed("a" * 64, files=2), surveyed("b" * 64, files=1)]
LINKED = [surveyed("a" * 64, files=3, links=1), SHARED[1]]
THREE = [row(0, "x", 4), row(0, "y", 4), row(1, "", 4)]


def arrives(number: int) -> list[tuple[str, Any]]:
    return [("frame", frame) for frame in pieces(number, b"evil")]


@pytest.mark.parametrize(
    ("parts", "rows", "answer"),
    [
        (SHARED, THREE, lambda number: [problem(number, "removed", gone=True)]),
        (SHARED, THREE, lambda number: [problem(number, "Input/output error")]),
        (SHARED, THREE, lambda number: arrives(number) if number else [problem(0, "removed", gone=True)]),
        (SHARED, [row(0, "../x", 4), row(0, "/y", 4), row(1, "/z", 4)], arrives),
        (SHARED, [row(0, name, 0, "link", "/etc/passwd") for name in "xy"] + THREE[2:], arrives),
        (SHARED, [row(0, name, 0, "link", "z") for name in "xy"] + THREE[2:], arrives),
        (SHARED, [THREE[0], THREE[0], THREE[2]], arrives),
        (SHARED, [THREE[0], row(0, "y", 4, "unreadable"), THREE[2]], arrives),
        (SHARED, [row(0, "x", 4), row(0, "x/y", 4), THREE[2]], arrives),
        (SHARED, [row(0, "y" * 300, 4), *THREE[1:]], arrives),
        (SHARED, [*THREE[:2], row(0, "z", 4)], arrives),
        (LINKED, THREE, arrives),
        (LINKED, [*THREE, row(0, "z", 4)], arrives),
        (LINKED, [*THREE[1:], row(0, "k", 0, "link", "x"), row(0, "l", 0, "link", "x")], arrives),
    ],
)
def test_files_that_all_share_and_of_which_fewer_come(
    to: Path,
    parts: list[dict[str, Any]],
    rows: list[list[Any]],
    answer: Callable[[int], list[tuple[str, Any]]],
) -> None:
    """The first host lists enough, but not what can be had here."""
    results, _ = fetched(to, scripts=sharing(parts, rows, answer))
    for host in NAMES[1:]:
        assert (results[host].status, results[host].ok) == ("failed", False)
        assert results[host].error == f"not all files that they share have come from {NAMES[0]}"


@pytest.mark.parametrize("target", ["x", "/etc/passwd"])
def test_files_that_all_share_and_that_come(to: Path, target: str) -> None:
    """Twice: the second time they are here. A link that leads out is left out, of whichever host."""
    scripts = sharing(LINKED, [*THREE, row(0, "l", 0, "link", target)], arrives)
    for _ in range(2):
        results, _ = fetched(to, scripts=scripts)
        assert {host: (each.status, each.ok) for host, each in results.items()} == {
            NAMES[0]: ("fetched", True),
            **dict.fromkeys(NAMES[1:], ("shared", True)),
        }


def test_a_file_that_two_parts_have_has_come_for_both(to: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_hosts, "PREFIXES", ("a", "a/d"))  # mnt fetch a a/d
    rows = [row(0, "x", 4), row(0, "d/y", 4), row(1, "y", 4)]
    results, _ = fetched(to, scripts=sharing(SHARED, rows, arrives))
    assert [each.status for each in results.values()] == ["fetched", "shared", "shared"]
