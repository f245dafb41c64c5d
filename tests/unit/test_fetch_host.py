"""The host's side of a fetch: its `main` is run on real files in a temporary directory."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import io
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pythons import interpreter

from mnt.remote.fetch import fetch, send
from mnt.tasks.bounds import bound_of, problem_of
from mnt.tasks.bundle import program_modules

JOB, HOST = "20260101-120000-abc123", "node1"
_NOBODY = 65534
as_root = pytest.mark.skipif(os.getuid() != 0, reason="it needs to become another user")


class Site:
    """A workdir with a release and shared/, a job that ran in it, and fetches from there."""

    def __init__(self, top: Path) -> None:
        self.top = top
        self.workdir, self.jobs_dir = top / "workdir", top / "jobs"
        self.release = self.workdir / "releases" / "20260101-000000-aaaaaaaa"
        self.shared = self.workdir / "shared"
        self.logs = self.jobs_dir / JOB / HOST
        self.release.mkdir(parents=True)
        self.shared.mkdir()
        (self.workdir / "current").symlink_to(f"releases/{self.release.name}")

    def job(self, started: float | None, ended: float | None = None, **about: Any) -> None:
        """Write the files of a job that ran in the release."""
        self.logs.mkdir(parents=True, exist_ok=True)
        nodes = [{"host": HOST, "node_rank": 0, "nproc": 1}]
        described = {
            **{"job": JOB, "host": HOST, "node_rank": 0, "nodes": nodes, "created": 1.0},
            **{"release": self.release.name, "cwd": str(self.release), **about},
        }
        (self.logs / "about.json").write_text(json.dumps(described))
        state = {"state": "finished" if ended else "running", "started": started, "ended": ended}
        (self.logs / "state.json").write_text(json.dumps(state))

    def of_job(self) -> dict[str, Any]:
        names = {"job": JOB, "jobs_dir": str(self.jobs_dir), "host": HOST}
        return {**names, "workdir": str(self.workdir), "without": None}

    def of_paths(self, *paths: str | tuple[str, str]) -> dict[str, Any]:
        pairs = [(path, "") if isinstance(path, str) else path for path in paths]
        named = [{"path": path, "pattern": pattern} for path, pattern in pairs]
        return {"workdir": str(self.workdir), "group": None, "paths": named}

    def survey(self, wanted: dict[str, Any]) -> list[dict[str, Any]]:
        answer, frames = said({"action": "survey", **wanted})
        assert frames == []
        found: list[dict[str, Any]] = answer["parts"]
        return found

    def listed(self, wanted: dict[str, Any]) -> tuple[list[list[Any]], list[str]]:
        answer, frames = said({"action": "list", **wanted})
        assert all(frame["entries"] for frame in frames)
        return [row for frame in frames for row in frame["entries"]], answer["tops"]

    def names(self, wanted: dict[str, Any]) -> list[set[str]]:
        """Of each part, the files; of all kinds. The survey must say the same."""
        rows, tops = self.listed(wanted)
        for number, part in enumerate(self.survey(wanted)):
            kinds = [row[2] for row in rows if row[0] == number]
            assert part["files"] == sum(kind in ("file", "link") for kind in kinds)
            assert part["links"] == kinds.count("link")
            assert part["others"] == len(kinds) - part["files"]
            assert part["bytes"] == sum(row[3] for row in rows if row[0] == number)
        return [{row[1] for row in rows if row[0] == number} for number in range(len(tops))]

    def problems(self, wanted: dict[str, Any]) -> list[str | None]:
        return [part["problem"] for part in self.survey(wanted)]


def said(args: dict[str, Any], stdin: bytes = b"") -> tuple[dict[str, Any], list[dict[str, Any]]]:
    frames: list[dict[str, Any]] = []

    def emit(frame: dict[str, Any]) -> None:
        text = json.dumps(frame).encode()
        assert len(text) <= bound_of("fetch.fetch").size
        assert problem_of(text, bound_of("fetch.fetch")) is None
        frames.append(frame)

    answer = fetch.main(args, emit, io.BytesIO(stdin))
    return json.loads(json.dumps(answer)), frames


def sent(
    top: Path, *rows: tuple[str, int, int, int, str], during: Callable[[], object] = lambda: None
) -> list[dict[str, Any]]:
    """The frames of `send` for rows of path, size, time, offset, digest; `during` is called in the first."""
    frames: list[dict[str, Any]] = []

    def emit(frame: dict[str, Any]) -> None:
        if not frames:
            during()
        frames.append(frame)

    lines = b"".join(json.dumps([0, *row]).encode() + b"\n" for row in rows)
    fetch.main({"action": "send", "tops": [str(top)]}, emit, io.BytesIO(lines))
    return frames


def whole(path: Path, offset: int = 0, digest: str = "") -> tuple[str, int, int, int, str]:
    found = path.stat()
    return (path.name, found.st_size, found.st_mtime_ns, offset, digest)


def data_of(frames: list[dict[str, Any]]) -> bytes:
    return b"".join(base64.b64decode(frame["data"]) for frame in frames)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def aged(path: Path, seconds: float = 10**6) -> None:
    os.utime(path, (time.time() - seconds,) * 2)


# --- of a job ----------------------------------------------------------------------------------------------


@pytest.fixture
def clock(tmp_path: Path) -> Callable[[], float]:
    """The clock of the file system, when something there was certainly written later than all before."""

    def now() -> float:
        time.sleep(0.3)  # longer than Span allows for a tick
        with tempfile.TemporaryFile(dir=tmp_path) as file:
            file.write(b"x")
            file.flush()
            return os.fstat(file.fileno()).st_mtime

    return now


def test_what_a_job_has_written(site: Site, clock: Callable[[], float]) -> None:
    for old in (site.release / "train.py", site.release / "data", site.shared / "old"):
        old.write_text("pushed")
    (site.release / "outputs").symlink_to("../../shared/outputs")
    (site.shared / "outputs").mkdir()
    site.job(clock())
    (site.release / "outputs/model.pt").write_text("weights")
    (site.release / "local").mkdir()
    (site.release / "local/log").write_text("x")
    with (site.release / "data").open("a") as file:
        file.write("more")
    cache = site.release / "pkg" / "__pycache__"
    cache.mkdir(parents=True)
    for name in ("a.cpython-313.pyc", "a.cpython-313.pyc.139", "notes"):
        (cache / name).touch()
    copied = site.shared / "copied"
    copied.write_text("x")
    aged(copied)  # cp -p: an old st_mtime, and a new st_ctime
    (site.release / "results").symlink_to("../../shared/results")  # made by the job: as mnt's own
    (site.release / "latest").symlink_to("local")
    release, shared, logs = site.names(site.of_job())
    assert release == {"data", "local/log", "pkg/__pycache__/notes", "latest"}
    assert shared == {"outputs/model.pt", "copied"}
    assert logs == {"about.json", "state.json"}
    assert site.listed(site.of_job())[1] == [str(site.release), str(site.shared), str(site.logs)]


def test_what_was_fetched_is_not_fetched_again(site: Site) -> None:
    """A job of this machine, which is fetched to a directory inside of its own."""
    site.job(1.0)
    for name in ("fetched/x/y", "fetched2/y", "y"):
        (site.release / name).parent.mkdir(parents=True, exist_ok=True)
        (site.release / name).touch()
    wanted = {**site.of_job(), "workdir": None, "without": str(site.release / "fetched")}
    assert site.names(wanted)[0] == {"fetched2/y", "y"}


def test_what_was_written_after_a_job(site: Site, clock: Callable[[], float]) -> None:
    site.job(clock())
    (site.shared / "own").touch()
    (site.shared / "later").touch()
    start = clock()
    site.job(start - 1000, start - 500)
    (site.shared / "moved").touch()
    aged(site.shared / "own", 700)  # both times of the others are after the end
    aged(site.shared / "moved", 700)
    _, shared, _ = site.survey(site.of_job())
    assert (shared["files"], shared["later"]) == (2, 1)
    assert site.names(site.of_job())[1] == {"own", "moved"}
    site.job(start - 1000, start - 5)  # within the tolerance
    assert site.survey(site.of_job())[1]["later"] == 0


def test_nothing_is_left_in_the_directories(site: Site) -> None:
    """The clock of a file system is read from a file without a name."""
    site.job(1.0)
    site.survey(site.of_job())
    assert os.listdir(site.shared) == os.listdir(site.release) == []


@pytest.mark.parametrize(
    ("about", "problems"),
    [
        ({"cwd": None}, ["older mnt"] * 2),
        ({"cwd": "relative"}, ["older mnt"] * 2),
        ({"cwd": 7}, ["older mnt"] * 2),
        ({"cwd": "/nonexistent/x/y"}, ["ran in /nonexistent/x/y, which is no release in the workdir"] * 2),
        ({"release": None}, [None, None]),
    ],
)
def test_jobs_that_ran_elsewhere(site: Site, about: dict[str, Any], problems: list[str | None]) -> None:
    site.job(1.0, **about)
    for problem, says in zip(site.problems(site.of_job()), [*problems, None], strict=True):
        assert problem is None if says is None else says in (problem or "")
    assert site.names(site.of_job())[2] == {"about.json", "state.json"}


def test_a_job_whose_release_was_removed(site: Site) -> None:
    gone = site.release.with_name("20250101-000000-bbbbbbbb")
    site.job(1.0, cwd=str(gone))
    assert site.problems(site.of_job()) == [f"it has no {gone}", None, None]


def test_a_job_that_another_node_moves_to_other_files_of_this_one(site: Site) -> None:
    """jobs_dir is on a disk that the nodes share."""
    private = site.top / "home" / site.release.name
    private.mkdir(parents=True)
    (private / "token").touch()
    inside = site.release / site.release.name
    inside.mkdir()
    (inside / "token").touch()
    beside = site.workdir / "releases" / "private"
    beside.mkdir()
    dots = site.release / ".." / ".." / ".." / "home" / site.release.name
    for cwd in (private, private.parent, inside, beside, site.workdir, dots, f"{site.release}/.."):
        site.job(1.0, cwd=str(cwd))
        release, shared, logs = site.names(site.of_job())
        assert (release, shared, logs) == (set(), set(), {"about.json", "state.json"})
        assert all("no release in the workdir" in (each or "") for each in site.problems(site.of_job())[:2])


def test_a_workdir_and_a_jobs_dir_behind_a_link(site: Site) -> None:
    """As in a home that has been moved: the job notes either path."""
    (site.top / "link").symlink_to(site.top)
    named = {"workdir": str(site.top / "link/workdir"), "jobs_dir": str(site.top / "link/jobs")}
    for top in (site.top, site.top / "link"):
        site.job(1.0, cwd=str(top / "workdir/releases" / site.release.name))
        (site.release / "x").touch()
        release, _, logs = site.names({**site.of_job(), **named})
        assert (release, logs) == ({"x"}, {"about.json", "state.json"})
        assert site.listed({**site.of_job(), **named})[1][2] == str(site.logs)


def test_a_job_that_has_never_run(site: Site) -> None:
    site.job(None)
    assert site.problems(site.of_job()) == ["the job has never run here"] * 2 + [None]


@pytest.mark.parametrize("wanted", [{"job": "20260101-120000-ffffff"}, {"job": "../x"}, {"host": "../x"}])
def test_no_such_job(site: Site, wanted: dict[str, Any]) -> None:
    site.job(1.0)
    answer, _ = said({"action": "survey", **site.of_job(), **wanted})
    assert answer["refused"]["message"]


def test_a_lost_and_found_of_root_is_not_the_jobs(
    site: Site, clock: Callable[[], float], monkeypatch: pytest.MonkeyPatch
) -> None:
    (site.shared / "lost+found").mkdir(mode=0)
    site.job(clock())
    (site.shared / "new").mkdir(mode=0)
    with unreadable(monkeypatch, site.shared / "lost+found", site.shared / "new"):
        rows, _ = site.listed(site.of_job())
    assert [row[1:3] for row in rows if row[0] == 1] == [["new", "unreadable"]]


# --- at paths ----------------------------------------------------------------------------------------------


def test_paths(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    home = site.top / "home"
    for directory in (home, site.release / "runs/1", site.release / "runs/2", site.release / "runs/.3"):
        directory.mkdir(parents=True)
        (directory / "x.log").write_text("x")
    (site.shared / "outputs").mkdir()
    (site.shared / "outputs/model").touch()
    (site.release / "outputs").symlink_to("../../shared/outputs")
    (site.release / "a[1]*").touch()
    monkeypatch.setenv("HOME", str(home))
    wanted = site.of_paths(
        "runs",
        "outputs/model",
        "outputs",
        str(home),
        "~",
        "~/x.log",
        ("runs", "*"),
        ("runs", "?/*.log"),
        ("runs", "[!1]/x*"),
        (".", "a[1]*"),
        (".", "outputs/*"),
    )
    assert site.problems(wanted) == [None] * 11
    assert site.names(wanted) == [
        {"1/x.log", "2/x.log", ".3/x.log"},
        {""},
        {"model"},
        {"x.log"},
        {"x.log"},
        {""},
        {"1/x.log", "2/x.log"},
        {"1/x.log", "2/x.log"},
        {"2/x.log"},
        {"a[1]*"},
        {"outputs/model"},
    ]
    tops = site.listed(wanted)[1]
    assert tops[1] == str(site.shared / "outputs/model")  # through links
    assert tops[5] == str(home / "x.log")


def test_paths_that_are_not_there(site: Site) -> None:
    (site.release / "file").touch()
    (site.release / "loop").symlink_to("loop")
    (site.release / "dangling").symlink_to("nothing")
    wanted = site.of_paths(
        "nothing", "file/x", "file/", "dangling", ("runs", "*"), (".", "*.pt"), "loop", "x" * 300, "file"
    )
    assert [part["absent"] for part in site.survey(wanted)] == [True] * 6 + [False] * 3
    problems = site.problems(wanted)
    assert all((problem or "").startswith("it has no ") for problem in problems[:6])
    assert "Too many levels of symbolic links" in (problems[6] or "")
    assert "too long" in (problems[7] or "")
    assert (problems[5] or "").endswith("/current/./*.pt") or "*.pt" in (problems[5] or "")


def test_a_problem_is_not_too_long_for_an_answer(site: Site) -> None:
    """A path has 4095 bytes at most, and each may take four characters."""
    long = "/".join(["\udcff" * 200] * 10)
    problems = site.problems(site.of_paths(long, ("x", long), "/".join(["d" * 250] * 20)))
    assert all(problem and len(problem) < 1024 for problem in problems)


def test_without_a_release(site: Site) -> None:
    (site.workdir / "current").unlink()
    assert site.problems(site.of_paths("x", str(site.shared))) == [
        "there is no current release, in which a relative path is looked for",
        None,
    ]
    absent = {**site.of_paths("x"), "workdir": str(site.top / "never")}
    assert "no current release" in (site.problems(absent)[0] or "")


NAMES = ["a\nb", "caf\udce9", "\x1b[2J", " ", "-rf", "é", "x" * 255, "\\", '"', "[{,:", "\udcff" * 255, "*"]


def test_odd_names(site: Site) -> None:
    for name in NAMES:
        (site.shared / name).mkdir()
        (site.shared / name / name).write_text(name, errors="surrogateescape")
        (site.shared / name / "link").symlink_to(name)
    rows, (top,) = site.listed(site.of_paths(str(site.shared)))
    assert {row[1] for row in rows if row[2] == "file"} == {f"{name}/{name}" for name in NAMES}
    assert {row[6] for row in rows if row[2] == "link"} == set(NAMES)
    lines = b"".join(
        json.dumps([0, row[1], row[3], row[4], 0, ""]).encode() + b"\n" for row in rows if row[2] == "file"
    )
    _, frames = said({"action": "send", "tops": [top]}, lines)
    assert {data_of([frame]).decode(errors="surrogateescape") for frame in frames} == set(NAMES)


def test_other_kinds(site: Site) -> None:
    os.mkfifo(site.shared / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.path.relpath(site.shared / "socket"))
    (site.shared / "link").symlink_to("pipe")
    (site.shared / "file").write_text("x")
    rows, _ = site.listed(site.of_paths(str(site.shared), "/dev/null"))
    assert {(row[0], row[1], row[2], row[6]) for row in rows} == {
        (0, "pipe", "pipe", None),
        (0, "socket", "socket", None),
        (0, "link", "link", "pipe"),
        (0, "file", "file", None),
        (1, "", "device", None),
    }
    site.names(site.of_paths(str(site.shared), "/dev/null"))
    for name in ("pipe", "socket", "link"):  # it was exchanged since
        (frame,) = sent(site.shared, (name, 1, 0, 0, ""))
        assert frame["problem"]


def test_hosts_that_see_the_same_files_say_so(site: Site) -> None:
    for number in range(20):
        (site.shared / f"x{number}").write_text("x")
    wanted = site.of_paths(str(site.shared))
    before = site.survey(wanted)[0]["digest"]
    assert site.survey(wanted)[0]["digest"] == before
    copy = site.top / "copy"
    subprocess.run(["cp", "-a", str(site.shared), str(copy)], check=True)
    assert site.survey(site.of_paths(str(copy)))[0]["digest"] != before
    os.utime(site.shared / "x3")
    assert site.survey(wanted)[0]["digest"] != before


def test_a_time_beyond_64_bits(site: Site) -> None:
    """tmpfs, XFS and btrfs have them."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as made:
        (Path(made) / "x").write_text("x")
        for seconds in (2**40, -(2**40)):
            os.utime(Path(made) / "x", (0, seconds))
            ((*_, mtime, _, _),), _ = site.listed(site.of_paths(made))
            assert -(2**63) <= mtime < 2**63
            (frame,) = sent(Path(made), ("x", 1, mtime, 0, ""))
            assert frame["changed"] is False


# --- what cannot be read ------------------------------------------------------------------------------------


@contextlib.contextmanager
def unreadable(monkeypatch: pytest.MonkeyPatch, *directories: Path) -> Iterator[None]:
    """Directories that this user may not list, also if this is root, who may list all."""
    for directory in directories:
        if directory.stat().st_mode & 0o777:
            directory.chmod(0)
    if os.getuid() == 0:
        real, closed = os.listdir, {os.fsencode(directory) for directory in directories}

        def listdir(path: bytes) -> list[bytes]:
            if os.path.normpath(path) in closed:
                raise PermissionError(13, "Permission denied")
            return real(path)

        monkeypatch.setattr(os, "listdir", listdir)
    try:
        yield
    finally:
        monkeypatch.undo()
        for directory in directories:
            directory.chmod(0o755)


def test_directories_that_cannot_be_read(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = site.shared / "a/b"
    inner.mkdir(parents=True)
    (site.shared / "x").touch()
    with unreadable(monkeypatch, inner):
        wanted = site.of_paths(str(site.shared), str(inner), (str(site.shared), "a/*"), (str(inner), "*"))
        rows, _ = site.listed(wanted)
        unread = [(row[0], row[1]) for row in rows if row[2] == "unreadable"]
        assert unread == [(0, "a/b"), (1, ""), (2, "a/b")]
        first, second, *_ = site.survey(wanted)
        assert (first["files"], first["others"], second["files"], second["others"]) == (1, 1, 0, 1)


@as_root
def test_another_users_files() -> None:
    """Really, as nobody: a private file and a private directory."""
    with tempfile.TemporaryDirectory() as made:
        top = Path(made)
        top.chmod(0o755)
        (top / "private").mkdir(mode=0o700)
        (top / "private/x").touch()
        (top / "secret").write_text("secret")
        (top / "secret").chmod(0o600)
        (top / "open").write_text("open")
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.setgroups([])
                os.setgid(_NOBODY)
                os.setuid(_NOBODY)
                paths = [{"path": str(top), "pattern": ""}, {"path": str(top / "private/x"), "pattern": ""}]
                wanted = {"workdir": str(top), "group": None, "paths": paths}
                survey = said({"action": "survey", **wanted})
                listed = said({"action": "list", **wanted})
                frames = sent(top, *(whole(top / name) for name in ("secret", "open")))
                os.write(writing, json.dumps([survey, listed, frames]).encode())
            finally:
                os._exit(0)
        os.close(writing)
        with open(reading, "rb") as pipe:
            survey, listed, frames = json.loads(pipe.read() or "null")
        os.waitpid(pid, 0)
    first, second = survey[0]["parts"]
    assert (first["files"], first["others"], first["problem"]) == (2, 1, None)
    assert "Permission denied" in second["problem"]
    rows = {row[1]: row[2] for frame in listed[1] for row in frame["entries"]}
    assert rows == {"private": "unreadable", "secret": "file", "open": "file"}
    assert frames[0] == {"file": 0, "problem": "Permission denied", "gone": False}
    assert data_of(frames[1:]) == b"open"


def test_directories_deeper_than_a_path(site: Site) -> None:
    """What only a program that goes step by step can reach is told, and the rest is listed."""
    here = os.open(site.shared, os.O_RDONLY)
    for _ in range(18):
        os.mkdir("d" * 250, dir_fd=here)
        inside = os.open("d" * 250, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inside
    os.close(here)
    (site.shared / "x").touch()
    try:
        rows, _ = site.listed(site.of_paths(str(site.shared)))
        assert {row[2] for row in rows} == {"file", "unreadable"}
        assert max(len(row[1]) for row in rows) <= 2 * 4096
        assert site.survey(site.of_paths(str(site.shared)))[0]["others"] == 1
    finally:
        subprocess.run(["rm", "-rf", str(site.shared)], check=True)


@pytest.mark.parametrize("limit", ["FETCH_FILES", "FETCH_LIST"])
def test_too_many_files(site: Site, monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    for number in range(300):
        (site.shared / f"{number}").touch()
    wanted = site.of_paths(str(site.shared))
    rows, _ = site.listed(wanted)
    assert len(rows) == 300
    monkeypatch.setattr(fetch, limit, 299)
    answer, _ = said({"action": "list", **wanted})
    assert "more than" in answer["refused"]["message"]
    assert "mnt run" in answer["refused"]["fix"]
    if limit == "FETCH_FILES":
        monkeypatch.setattr(fetch, limit, 300)
        assert len(site.listed(wanted)[0]) == 300


# --- sending -----------------------------------------------------------------------------------------------

BIG = bytes(range(256)) * 4096  # 1 MiB


@pytest.fixture
def big(tmp_path: Path) -> Path:
    path = tmp_path / "big"
    path.write_bytes(BIG)
    return path


def test_a_file_arrives_in_pieces(big: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    frames = sent(tmp_path, whole(big), whole(tmp_path / "empty"), whole(big))
    ends = [number for number, frame in enumerate(frames) if frame["end"]]
    assert [frame["file"] for frame in frames] == [0] * 6 + [1] + [2] * 6
    assert ends == [5, 6, 12]
    assert data_of(frames[:6]) == data_of(frames[7:]) == BIG
    assert frames[6] == {"file": 1, "at": 0, "data": "", "end": True, "changed": False}
    assert [frame["at"] for frame in frames[:6]] == [number * 192 * 1024 for number in range(6)]


@pytest.mark.parametrize("offset", [1, 192 * 1024, len(BIG) - 1, len(BIG)])
def test_the_rest_of_a_file(big: Path, tmp_path: Path, offset: int) -> None:
    right = hashlib.sha256(BIG[:offset]).hexdigest()
    frames = sent(tmp_path, whole(big, offset, right))
    assert (frames[0]["at"], data_of(frames)) == (offset, BIG[offset:])
    wrong = hashlib.sha256(BIG[: offset - 1]).hexdigest()
    for digest in (wrong, "", "x"):
        frames = sent(tmp_path, whole(big, offset, digest))
        assert (frames[0]["at"], data_of(frames)) == (0, BIG)


def test_it_is_shorter_than_what_has_arrived(big: Path, tmp_path: Path) -> None:
    row = whole(big, 1000, hashlib.sha256(BIG[:1000]).hexdigest())
    os.truncate(big, 500)
    frames = sent(tmp_path, row)
    assert [frame.get("problem") for frame in frames] == ["it became shorter while it was read"]


def test_a_file_that_becomes_shorter(big: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("other")
    frames = sent(tmp_path, whole(big), whole(other), during=lambda: os.truncate(big, 300 * 1024))
    assert frames[-2] == {"file": 0, "problem": "it became shorter while it was read", "gone": False}
    assert data_of(frames[-1:]) == b"other"


def test_a_file_that_grows(big: Path, tmp_path: Path) -> None:
    def grow() -> None:
        with big.open("ab") as file:
            file.write(b"more")

    frames = sent(tmp_path, whole(big), during=grow)
    assert data_of(frames) == BIG
    assert frames[-1]["changed"] is True


def test_a_file_that_is_written_anew(big: Path, tmp_path: Path) -> None:
    def rewrite() -> None:
        big.write_bytes(b"\0" * len(BIG))
        os.utime(big, ns=(1, 1))

    assert sent(tmp_path, whole(big), during=rewrite)[-1]["changed"] is True


def test_a_file_that_is_replaced_keeps_its_bytes(big: Path, tmp_path: Path) -> None:
    """The file that was opened, as a checkpoint that is renamed into its place."""

    def replace() -> None:
        (tmp_path / "new").write_bytes(b"\0" * len(BIG))
        os.replace(tmp_path / "new", big)

    assert data_of(sent(tmp_path, whole(big), during=replace)) == BIG


def test_a_file_that_vanishes(big: Path, tmp_path: Path) -> None:
    (frame,) = sent(tmp_path, ("gone", 1, 1, 0, ""))
    assert frame == {"file": 0, "problem": "it was removed there meanwhile", "gone": True}
    assert data_of(sent(tmp_path, whole(big), during=big.unlink)) == BIG


def test_a_file_without_a_size() -> None:
    """Those of /proc have 0 bytes, and something in them."""
    (frame,) = sent(Path("/proc"), ("cpuinfo", 0, 0, 0, ""))
    assert "mnt run" in frame["problem"]
    (frame,) = sent(Path("/dev"), ("null", 0, 0, 0, ""))
    assert frame["problem"] == "not a regular file"


def test_a_sparse_file(tmp_path: Path) -> None:
    path = tmp_path / "sparse"
    with path.open("wb") as file:
        file.truncate(3 << 20)
    assert data_of(sent(tmp_path, whole(path))) == b"\0" * (3 << 20)


def test_a_request_through_a_link(tmp_path: Path) -> None:
    """What was a file when it was listed, and is a link now, is not followed."""
    (tmp_path / "real").write_text("x")
    (tmp_path / "link").symlink_to("real")
    (frame,) = sent(tmp_path, ("link", 1, 1, 0, ""))
    assert "was replaced meanwhile" in frame["problem"]
    assert not frame["gone"]


# Stands in for boot.py, without its SSH side.
_DRIVER = """
import io, json, sys, types
request = json.load(sys.stdin)
for name, source in request["modules"]:
    module = types.ModuleType(name)
    sys.modules[name] = module
    exec(compile(source, name, "exec"), module.__dict__)
frames = []
answers = [module.main(args, frames.append, io.BytesIO(text.encode())) for args, text in request["calls"]]
print(json.dumps([frames, answers]))
"""


@pytest.mark.parametrize("name", ["python3.8", "this"])
def test_as_it_arrives_at_a_host(site: Site, name: str) -> None:
    python = sys.executable if name == "this" else interpreter(name)
    (site.shared / "caf\udce9").write_text("x")
    site.job(1.0)
    line = json.dumps([1, "caf\udce9", 1, 1, 0, ""]) + "\n"
    calls = [
        ({"action": "survey", **site.of_job()}, ""),
        ({"action": "list", **site.of_job()}, ""),
        ({"action": "survey", **site.of_paths("x", (".", "*"))}, ""),
        ({"action": "send", "tops": [str(site.release), str(site.shared)]}, line),
    ]
    request = {"modules": list(program_modules("fetch.fetch")), "calls": calls}
    command = [python, "-S", "-c", _DRIVER]
    done = subprocess.run(command, input=json.dumps(request), capture_output=True, text=True, check=True)
    frames, answers = json.loads(done.stdout)
    assert [part["files"] for part in answers[0]["parts"]] == [0, 1, 2]
    assert data_of(frames[-1:]) == b"x"


@pytest.mark.parametrize("where", ["decoy", "deep/decoy"])
def test_a_directory_that_became_a_link_after_it_was_listed(tmp_path: Path, where: str) -> None:
    """Whoever may write to the output directory exchanges it for a link to the victim's keys."""
    top, private = tmp_path / "outputs", tmp_path / "private"
    (top / where).mkdir(parents=True)
    private.mkdir()
    (private / "id").write_text("SECRET")
    (top / where / "id").write_text("decoys")
    found = os.stat(top / where / "id")
    (top / where).rename(tmp_path / "away")
    (top / where).symlink_to(private)
    line = json.dumps([0, f"{where}/id", 6, found.st_mtime_ns, 0, ""]).encode() + b"\n"
    frames: list[dict[str, Any]] = []
    send.send([str(top.resolve())], frames.append, io.BytesIO(line))
    replaced = "it, or a directory on the way to it, was replaced meanwhile"
    assert frames == [{"file": 0, "problem": replaced, "gone": False}]
