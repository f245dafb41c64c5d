"""The logs of a node's ranks: local while the job runs, shortened if they are long, and then kept in part."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from job_host import JobHost
from waiting import UNTIL_TOLD, wait_for

from mnt.errors import HostError
from mnt.remote.job import files, logs, ranks, stop
from mnt.remote.job.files import JobPaths
from mnt.remote.job.procs import Process, read_process
from mnt.remote.job.ranks import RankLogs, keep_rank_logs
from mnt.remote.job.remains import torchrun
from mnt.remote.job.remains.torchrun import last_attempt, read_ranks
from mnt.tasks.job import Stopped
from mnt.tasks.shape import shaped

JOB, HOST = "20261128-000000-abcdef", "node1"
KEEP = 1 << 16
SECRET = "hf_only_this_node_has_it"


@pytest.fixture
def paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JobPaths:
    monkeypatch.setattr(files, "_TMP", str(tmp_path / "tmp"))
    monkeypatch.setattr(ranks, "KEEP", KEEP)
    monkeypatch.setattr(ranks, "_STEP", 4096)
    monkeypatch.setattr(ranks, "_LINE", 4096)
    (tmp_path / "tmp").mkdir()
    made = JobPaths(str(tmp_path / "jobs"), JOB, HOST)
    os.makedirs(made.directory, 0o700)
    made.make_local()
    node = {"host": HOST, "node_rank": 0, "nproc": 2}
    about = {"job": JOB, "host": HOST, "node_rank": 0, "nodes": [node], "created": 1.0, "remains": "torchrun"}
    Path(made.about).write_text(json.dumps(about))
    return made


def rank_log(top: str, rank: int = 0, name: str = "stdout.log") -> Path:
    path = Path(top) / "none_x" / "attempt_0" / str(rank) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def lines(size: int) -> bytes:
    """Numbered lines of 16 bytes."""
    return b"".join(b"line %010d\n" % number for number in range(size // 16))


def me() -> list[Process]:
    process = read_process(os.getpid())
    assert process is not None
    return [process]


def space(path: Path) -> int:
    return path.stat().st_blocks * 512


# --- while the job runs ------------------------------------------------------------------------------------


def test_a_long_log_gives_back_what_the_engine_has_read(paths: JobPaths) -> None:
    path, text = rank_log(paths.local_ranks), lines(8 * KEEP)
    path.write_bytes(text)
    bounded = RankLogs(paths)
    with path.open("rb", buffering=0) as engine:
        bounded.bound(0, me)
        assert space(path) >= len(text)  # nothing is read yet
        assert engine.read(KEEP) == text[:KEEP]
        bounded.bound(2, me)
        assert len(text) - KEEP <= space(path) <= len(text)
        assert engine.read(8 * KEEP) == text[KEEP:]
        bounded.bound(4, me)
        assert path.stat().st_size == len(text)
        assert KEEP <= space(path) <= KEEP + 8192
        with path.open("ab") as rank:
            rank.write(b"more\n")
        assert engine.read(100) == b"more\n"


def test_a_log_that_nobody_reads_is_shortened_after_a_while(paths: JobPaths) -> None:
    path, text = rank_log(paths.local_ranks), lines(8 * KEEP)
    path.write_bytes(text)
    bounded = RankLogs(paths)
    bounded.bound(0, me)
    bounded.bound(9, me)
    assert space(path) >= len(text)  # the engine may open it yet
    bounded.bound(11, me)
    assert space(path) <= KEEP + 8192


def test_a_log_that_its_rank_holds_open_counts_as_unread(paths: JobPaths) -> None:
    path = rank_log(paths.local_ranks)
    bounded = RankLogs(paths)
    with path.open("wb") as rank:
        rank.write(lines(8 * KEEP))
        rank.flush()
        bounded.bound(0, me)
        bounded.bound(11, me)
        assert space(path) <= KEEP + 8192


def test_processes_that_cannot_be_asked_may_read_everything(
    paths: JobPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = rank_log(paths.local_ranks)
    path.write_bytes(lines(8 * KEEP))
    known = os.listdir

    def listed(directory: Any = ".") -> list[str]:
        if str(directory) == f"/proc/{os.getpid()}/fd":
            raise PermissionError
        return known(directory)

    monkeypatch.setattr(os, "listdir", listed)
    bounded = RankLogs(paths)
    bounded.bound(0, me)
    bounded.bound(60, me)
    assert space(path) >= 8 * KEEP


def test_short_logs_stay_as_they_are(paths: JobPaths) -> None:
    path = rank_log(paths.local_ranks)
    path.write_bytes(lines(2 * KEEP))
    bounded = RankLogs(paths)
    for now in (0, 11, 22):
        bounded.bound(now, me)
    assert path.read_bytes() == lines(2 * KEEP)


# --- at the end --------------------------------------------------------------------------------------------


def test_what_is_kept(paths: JobPaths) -> None:
    long, short = lines(4 * KEEP), b"\xff short, without a newline"
    rank_log(paths.local_ranks, 0).write_bytes(long)
    rank_log(paths.local_ranks, 1).write_bytes(short)
    rank_log(paths.local_ranks, 1, "error.json").write_text("{}")
    keep_rank_logs(paths, 60)
    paths.remove_local()
    note, _, kept = rank_log(paths.ranks, 0).read_bytes().partition(b"\n")
    assert long.endswith(kept)
    assert KEEP - 16 <= len(kept) <= KEEP
    assert kept.startswith(b"line ")
    said = f"[mnt: the first {len(long) - len(kept)} bytes are not kept; output.log has them]"
    assert note.decode() == said
    assert rank_log(paths.ranks, 1).read_bytes() == short
    assert rank_log(paths.ranks, 1, "error.json").read_text() == "{}"
    for path in Path(paths.ranks).rglob("*"):
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600)


@pytest.mark.parametrize("level", ["ranks", "ranks/none_x", "ranks/none_x/attempt_0/0"])
def test_nothing_is_kept_behind_a_link_of_another_node(paths: JobPaths, tmp_path: Path, level: str) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    rank_log(paths.local_ranks).write_text("of rank 0")
    rank_log(paths.local_ranks, 1).write_text("of rank 1")
    place = Path(paths.directory) / level
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(mine)
    with pytest.raises(OSError, match=r"Not a directory|symbolic links"):
        list(RankLogs(paths).keep())
    assert os.listdir(mine) == []
    if level.endswith("0"):
        assert rank_log(paths.ranks, 1).read_text() == "of rank 1"


def test_no_file_of_the_jobs_directory_is_written_over(paths: JobPaths, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.write_text("precious")
    rank_log(paths.local_ranks).write_text("of rank 0")
    rank_log(paths.ranks).symlink_to(mine)
    keep_rank_logs(paths, 60)
    assert mine.read_text() == "precious"


def test_a_job_directory_behind_a_link_keeps_nothing(paths: JobPaths, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir(mode=0o700)
    rank_log(paths.local_ranks).write_text("of rank 0")
    os.rename(paths.directory, f"{paths.directory}.was")
    os.symlink(mine, paths.directory)
    keep_rank_logs(paths, 60)
    assert os.listdir(mine) == []


def test_stop_keeps_them_for_a_supervisor_that_was_killed(paths: JobPaths) -> None:
    rank_log(paths.local_ranks).write_text("of rank 0")
    names = {"jobs_dir": os.path.dirname(paths.job_directory), "job": JOB, "host": HOST}
    stop.stop_node({**names, "grace": 0.0})
    assert rank_log(paths.ranks).read_text() == "of rank 0"
    assert not os.path.exists(paths.local)


# --- reading them ------------------------------------------------------------------------------------------


def read_rank(
    paths: JobPaths, rank: int = 0, tail: int | None = None, **offsets: int
) -> tuple[str, int, list[Any]]:
    """What is shown of a rank's stdout, its last offset, and what was skipped before it."""
    frames: list[dict[str, Any]] = []
    names = {"jobs_dir": os.path.dirname(paths.job_directory), "job": JOB, "host": HOST}
    logs.read_logs({**names, "rank": rank, "follow": False, "offsets": offsets, "tail": tail}, frames.append)
    found = [frame for frame in frames if frame.get("stream") == "stdout"]
    skipped = [(frame["skipped"], frame["why"]) for frame in found if "skipped" in frame]
    offset = found[-1]["offset"] if found else offsets.get("stdout", 0)
    return "".join(frame.get("data", "") for frame in found), offset, skipped


def test_logs_says_what_is_not_there_and_goes_on_in_the_copy(paths: JobPaths) -> None:
    path, text = rank_log(paths.local_ranks), lines(8 * KEEP)
    path.write_bytes(text)
    assert read_rank(paths) == (text.decode(), len(text), [])
    bounded = RankLogs(paths)
    bounded.bound(0, me)
    bounded.bound(11, me)
    shown, offset, skipped = read_rank(paths)
    assert text.decode().endswith(shown)
    assert shown.startswith("line ")
    assert (offset, skipped) == (len(text), [(len(text) - len(shown), "not kept")])
    assert read_rank(paths, tail=2)[0] == text[-32:].decode()
    assert read_rank(paths, tail=10**6)[0].endswith(shown)

    with path.open("ab") as rank:
        rank.write(b"the end\n")
    keep_rank_logs(paths, 60)
    assert read_rank(paths, stdout=offset)[0] == "the end\n"
    paths.remove_local()
    assert read_rank(paths, stdout=offset) == ("the end\n", offset + 8, [])
    assert read_rank(paths, tail=1)[0] == "the end\n"
    shown, offset, skipped = read_rank(paths)
    assert (text.decode() + "the end\n").endswith(shown)
    assert skipped == [(len(text) + 8 - len(shown), "not kept")]
    assert read_rank(paths, tail=10**6)[0] == shown


def test_the_logs_of_an_older_mnt_are_read(paths: JobPaths) -> None:
    """Its torchrun has them in jobs_dir, also while the job runs."""
    os.rmdir(paths.local_ranks)
    rank_log(paths.ranks).write_text("of rank 0")
    assert read_rank(paths)[0] == "of rank 0"
    assert paths.rank_logs() == paths.ranks


def test_a_rank_that_writes_our_note_only_lies_about_itself(paths: JobPaths) -> None:
    rank_log(paths.ranks).write_text(ranks._CUT.format("9" * 18) + "mine\n")
    paths.remove_local()
    assert read_rank(paths)[0] == "mine\n"


def test_only_the_ranks_of_this_node_are_read(tmp_path: Path) -> None:
    for rank in range(50):
        rank_log(str(tmp_path), rank, "stderr.log").write_text("x")
    assert sorted(read_ranks(str(tmp_path), 2)) == [0, 1]


def test_no_link_leads_to_an_attempt(tmp_path: Path) -> None:
    (tmp_path / "elsewhere" / "attempt_7").mkdir(parents=True)
    (tmp_path / "ranks").mkdir()
    (tmp_path / "ranks" / "run").symlink_to(tmp_path / "elsewhere")
    assert last_attempt(str(tmp_path / "ranks")) is None


def test_very_many_names_are_not_all_looked_at(tmp_path: Path) -> None:
    for number in range(300):
        (tmp_path / "run" / f"attempt_{number}").mkdir(parents=True)
    with pytest.MonkeyPatch.context() as patch:
        seen: list[Any] = []
        patch.setattr(torchrun, "whole_number", lambda text: seen.append(text))
        assert last_attempt(str(tmp_path)) is None
    assert len(seen) <= 100


# --- really run --------------------------------------------------------------------------------------------


WRITES_LOGS = """
import os
top = os.path.join(os.environ["RANKS"], "run", "attempt_0", "0")
os.makedirs(top)
for stream in ("stdout", "stderr"):
    with open(os.path.join(top, stream + ".log"), "w") as file:
        file.write(stream + " of 0")
"""


def in_place_of(directory: Path, host: JobHost) -> Path:
    """Another node makes a link of a job's directory on the shared disk, to one that only this node has."""
    mine = host.directory / "mine"
    mine.mkdir(mode=0o700)
    (mine / "output.log").write_text("the results of a year\n")
    for path in (mine, mine / "output.log"):
        os.chown(path, host.uid, -1)
    directory.rename(directory.with_name(f"{directory.name}.was"))
    directory.symlink_to(mine)
    return mine


@pytest.mark.parametrize("level", ["job", "host"])
def test_no_log_is_written_behind_a_link_of_another_node(host: JobHost, level: str) -> None:
    host.script("print('evil', flush=True)")
    spec = host.spec()
    host.jobs.append(spec["job"])
    host.call("stage", spec=spec)
    directory = Path(host.jobs_dir) / spec["job"]
    mine = in_place_of(directory / host.name if level == "host" else directory, host)
    answer = host.call("spawn", job=spec["job"], peer=None)
    assert "refused" in answer
    assert sorted(os.listdir(mine)) == ["output.log"]
    assert (mine / "output.log").read_text() == "the results of a year\n"


def test_a_running_jobs_logs_are_local_and_a_stop_counts_itself(host: JobHost) -> None:
    """Neither what another node puts into jobs_dir, nor the number in its state.json, is shown."""
    host.script(WRITES_LOGS + UNTIL_TOLD)
    spec = host.spec()
    local = host.local(spec["job"]) / "ranks"
    spec["env"]["RANKS"] = str(local)
    host.start(spec)
    wait_for((local / "run/attempt_0/0/stderr.log").exists)
    kept = Path(host.jobs_dir) / spec["job"] / host.name / "ranks"
    assert not kept.exists()
    call = host.call("logs", job=spec["job"], follow=False, offsets={}, rank=0)
    assert "stdout of 0" in "".join(frame.get("data", "") for frame in call["frames"])
    state = Path(host.jobs_dir) / spec["job"] / host.name / "state.json"
    state.write_text(json.dumps({**json.loads(state.read_text()), "killed": 10**39}))
    assert host.stop(spec["job"])["killed"] == 1
    assert (kept / "run/attempt_0/0/stdout.log").read_text() == "stdout of 0"
    assert not local.parent.exists()


def test_a_number_that_is_none_is_not_printed() -> None:
    answer = {"status": "stopped", "killed": 10**39, "left": [], "port_free": True}
    with pytest.raises(HostError, match="killed"):
        shaped("node1", answer, Stopped)
