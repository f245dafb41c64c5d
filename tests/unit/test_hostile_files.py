"""Job files that somebody else has written: whatever is in them, the host's programs go on, and soon."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mnt.remote.common.files import open_regular, parse_json, read, read_bytes, read_json, whole_number
from mnt.remote.common.refusal import Refused
from mnt.remote.job import files
from mnt.remote.job.entry import list_entries
from mnt.remote.job.failures import MESSAGE_CHARACTERS, TRACEBACK_BYTES, make_failure, tail
from mnt.remote.job.files import JobPaths
from mnt.remote.job.list import answer_of
from mnt.remote.job.logs import read_logs
from mnt.remote.job.procs import boot_id
from mnt.remote.job.remains.torchrun import find_failure, read_ranks
from mnt.remote.job.stop import stop_node
from mnt.remote.push.entries import parse_manifest

pytestmark = pytest.mark.one_python

JOB, HOST = "20261128-000000-abcdef", "node1"
ABOUT = {"job": JOB, "host": HOST, "node_rank": 0, "nodes": [], "created": 1.0}


@pytest.fixture(autouse=True)
def soon() -> Iterator[None]:
    """Each of these tests ends within ten seconds: a read that blocks is interrupted, and fails."""

    def late(*_: object) -> None:
        raise AssertionError("it blocks")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(10)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def sparse(path: Path) -> None:
    with open(path, "wb") as file:
        file.truncate(1 << 30)


def text(content: str) -> Callable[[Path], object]:
    return lambda path: path.write_text(content)


HOSTILE: dict[str, Callable[[Path], object]] = {
    "lists in lists": text("[" * 1_000_000),
    "mappings in mappings": text('{"a":' * 200_000 + "1" + "}" * 200_000),
    "a number of 5,000 digits": text(
        '{"created": ' + "9" * 5000 + ', "supervisor": {"pid": ' + "9" * 5000 + "}}"
    ),
    "a million digits": text('{"created": ' + "9" * 1_000_000 + "}"),
    "NaN": text('{"created": NaN, "grace": Infinity, "killed": -Infinity}'),
    "a number beyond any": text('{"created": 1e999, "grace": 1e999}'),
    "not UTF-8": lambda path: path.write_bytes(b'{"job": "\xff\xfe"}'),
    "a lone surrogate": text('{"job": "\\ud800", "host": "\\udfff", "state": "\\ud800"}'),
    "a NUL": lambda path: path.write_bytes(b"\0" * 100),
    "a list": text("[1, 2]"),
    "wrong types": text(
        '{"supervisor": 5, "processes": {"a": 1}, "grace": "x", "killed": "x", "port": [], "master": 5,'
        ' "state": []}'
    ),
    "processes of no process": text(
        json.dumps(
            {
                "supervisor": {"boot_id": boot_id(), "pid": "self", "start_time": None},
                "processes": [5, {}, {"pid": "x", "start_time": 1}, {"pid": 0, "start_time": 0}, {"pid": -1}],
            }
        )
    ),
    "one GiB": sparse,
    "a pipe": os.mkfifo,
    "a directory": Path.mkdir,
    "a device without an end": lambda path: path.symlink_to("/dev/zero"),
    "a link to itself": lambda path: path.symlink_to(path),
}
hostile = pytest.mark.parametrize("lay", HOSTILE.values(), ids=HOSTILE)


def peak() -> int:
    """KiB"""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@hostile
def test_a_file_is_read_as_json_or_not_at_all(tmp_path: Path, lay: Callable[[Path], object]) -> None:
    before = peak()
    lay(tmp_path / "file")
    found = read_json(str(tmp_path / "file"))
    assert found is None or json.dumps(found, allow_nan=False)
    read(str(tmp_path / "file"), 4096)
    with contextlib.suppress(OSError), open_regular(tmp_path / "file") as file:
        tail(file)
    assert peak() - before < 100 * 1024


@pytest.fixture
def paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JobPaths:
    monkeypatch.setattr(files, "_TMP", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    made = JobPaths(str(tmp_path / "jobs"), JOB, HOST)
    os.makedirs(made.directory)
    made.make_local()
    Path(made.about).write_text(json.dumps(ABOUT))
    return made


NAMES = ("about", "spec", "state", "processes", "stop_request", "unsaved_state", "output")


@hostile
@pytest.mark.parametrize("name", NAMES)
def test_status_logs_and_stop_survive_each_file(
    tmp_path: Path, paths: JobPaths, name: str, lay: Callable[[Path], object]
) -> None:
    place = Path(getattr(paths, name))
    place.unlink(missing_ok=True)
    lay(place)
    jobs = str(tmp_path / "jobs")
    json.dumps(list(list_entries(jobs, HOST, [])), allow_nan=False)
    arguments: dict[str, Any] = {"jobs_dir": jobs, "job": JOB, "host": HOST}
    answers: list[dict[str, Any]] = []
    try:
        if not (name == "output" and place.lstat().st_size == 1 << 30):  # it is sent as it is
            answers.append(
                read_logs({**arguments, "rank": None, "offsets": {}, "follow": False}, answers.append)
            )
    except Refused:
        assert name in ("about", "output")
    with contextlib.suppress(Refused):  # it needs a spec with ranks
        answers.append(read_logs({**arguments, "rank": 0, "offsets": {}, "follow": False}, answers.append))
    answers.append(stop_node({**arguments, "grace": 0.0}))
    json.dumps(answers, allow_nan=False)


def test_lost_jobs_that_another_node_has_invented_hide_no_other_job(tmp_path: Path, paths: JobPaths) -> None:
    long = "\U0001f600" * TRACEBACK_BYTES
    failure = {**make_failure("", 1), "message": long, "traceback": long}
    state = {"state": "running", "failure": failure, "reason": {"message": long, "failure": failure}}
    for number in range(40):
        other = JobPaths(str(tmp_path / "jobs"), f"j{number}", HOST)
        os.makedirs(other.directory)
        Path(other.about).write_text(json.dumps({**ABOUT, "job": other.job, "created": 1e9}))
        Path(other.state).write_text(json.dumps(state))
    answer = answer_of(str(tmp_path / "jobs"), HOST, 1 << 20)
    assert JOB in [entry["job"] for entry in answer["jobs"]]
    assert len(answer["jobs"]) + answer["left_out"] == 41
    said = answer["problems"][0]["message"]
    assert said == f"{answer['left_out']} jobs that seem to be lost here are left out: there are too many"


def test_many_jobs_with_long_texts_are_listed_in_little_memory(tmp_path: Path, paths: JobPaths) -> None:
    """One wide character makes each of a text take four bytes; a disk that nodes share has hard links."""
    wide = "\U0001f600" + "x" * 65535
    failure = {**make_failure("", 1), "message": wide, "traceback": wide}
    state = {"state": "failed", "failure": failure, "reason": {"message": wide, "failure": failure}}
    Path(paths.state).write_text(json.dumps(state, ensure_ascii=False))
    count = 40
    for number in range(1, count):
        other = JobPaths(str(tmp_path / "jobs"), f"j{number}", HOST)
        os.makedirs(other.directory)
        Path(other.about).write_text(json.dumps({**ABOUT, "job": other.job}))
        os.link(paths.state, other.state)
    tracemalloc.start()
    try:
        answer = answer_of(str(tmp_path / "jobs"), HOST, 1 << 20)
        assert tracemalloc.get_traced_memory()[1] < 10 << 20
    finally:
        tracemalloc.stop()
    assert len(answer["jobs"]) + answer["left_out"] == count
    assert len(json.dumps(answer["jobs"])) <= 1 << 20
    kept = answer["jobs"][0]["failure"]
    assert (kept["message"], kept["traceback"]) == (wide[:MESSAGE_CHARACTERS], wide[-TRACEBACK_BYTES:])


@hostile
def test_what_ranks_leave(tmp_path: Path, lay: Callable[[Path], object]) -> None:
    attempt = tmp_path / "run" / "attempt_0"
    for strange in ("attempt_²", "attempt_" + "9" * 200):
        (tmp_path / "run" / strange).mkdir(parents=True)
    (attempt / "²").mkdir(parents=True)
    for rank in ("0", "1"):
        (attempt / rank).mkdir()
    lay(attempt / "0" / "error.json")
    lay(attempt / "0" / "stderr.log")
    stamp = '{"message": {"message": "m", "extraInfo": {"timestamp": "%s"}}}'
    (attempt / "1" / "error.json").write_text(stamp % "nan")
    found = find_failure("", read_ranks(str(tmp_path), 2), 0, 1)
    json.dumps(found, allow_nan=False)


@pytest.mark.parametrize("digits", [5, 9, 5000])
def test_a_summary_with_long_numbers(digits: int) -> None:
    long = "9" * digits
    summary = (
        f"ChildFailedError:\n[0]:\n  time      : x\n  rank      : {long} (local_rank: {long})\n"
        f"  exitcode  : -{long} (pid: 1)\n"
    )
    json.dumps(find_failure(summary, {}, 0, 1), allow_nan=False)


@pytest.mark.parametrize(
    "piece", ["gloo", "DistNetworkError", "TCPStore", "[rank0]:", "Watchdog caught ", "Traceback (most", " "]
)
def test_output_of_one_long_line(piece: str) -> None:
    words = piece * (256 * 1024 // len(piece))
    assert make_failure("m", -signal.SIGABRT, stderr=words)["victim"] in (False, True)
    find_failure(words, {}, 0, 1)


@pytest.mark.parametrize(
    ("words", "victim"),
    [
        ("Gloo: x Connection closed by peer [10.0.0.1]", True),
        ("gloo\nConnection closed by peer", False),
        ("Connection closed by peer gloo", False),
        ("[c10d] TCPStore recv: Connection reset by peer", True),
        ("DistNetworkError: the server socket has failed to listen: EADDRINUSE", False),
        ("DistNetworkError: EADDRINUSE and a DistNetworkError: closed", True),
    ],
)
def test_whose_failure_it_was(words: str, victim: bool) -> None:
    assert make_failure(words, 1)["victim"] is victim


@pytest.mark.parametrize(
    "document", [b"[" * 1_000_000, b'{"format": 1, "entries": [[' + b"9" * 5000 + b"]]}", b"\xff", b"5"]
)
def test_a_manifest_that_is_none(document: bytes) -> None:
    with pytest.raises(Refused):
        parse_manifest(document)


def test_the_limit_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    assert read_bytes(tmp_path / "file", 5) == b"12345"
    with pytest.raises(OSError, match="larger than 4 bytes"):
        read_bytes(tmp_path / "file", 4)
    assert read(str(tmp_path / "file"), 3) == "123"


@pytest.mark.parametrize(
    ("number", "value"),
    [("0", 0), ("17", 17), ("007", 7), ("9" * 18, 10**18 - 1), ("9" * 19, None), ("9" * 5000, None),
     ("", None), ("-1", None), ("²", None), ("٣", None), ("1_0", None), (" 1", None)],
)  # fmt: skip
def test_whole_numbers(number: str, value: int | None) -> None:
    assert whole_number(number) == value


@pytest.mark.parametrize(
    "number", ["9" * 41, "-" + "9" * 41, "1e999", "-1e999", "NaN", "Infinity", "-Infinity"]
)
def test_numbers_that_json_of_ours_has_not(number: str) -> None:
    with pytest.raises(ValueError, match=r"digits|too large|not JSON"):
        parse_json(f"[{number}]")
