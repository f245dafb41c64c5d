"""The node-local directory of a job, made by another user: nothing in it is believed or touched."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from mnt.remote.common.refusal import Refused
from mnt.remote.job import entry, files, list
from mnt.remote.job.files import JobPaths, read_state, remove_files
from mnt.remote.job.procs import boot_id, identify, read_process
from mnt.remote.job.start import spawn_node
from mnt.remote.job.stop import stop_node

JOB, HOST = "20261128-000000-abcdef", "node1"
OTHER = 64999  # no such user here
LEVELS = ("user", "job", "host")


@pytest.fixture
def victim() -> Iterator[subprocess.Popen[bytes]]:
    """A process of this user that has nothing to do with any job."""
    with subprocess.Popen(["sleep", "300"], start_new_session=True) as process:
        yield process
        process.kill()


@pytest.fixture
def paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, victim: subprocess.Popen[bytes]) -> JobPaths:
    """A job whose local files name the victim."""
    monkeypatch.setattr(files, "_TMP", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    made = JobPaths(str(tmp_path / "jobs"), JOB, HOST)
    os.makedirs(made.directory)
    made.make_local()
    process = read_process(victim.pid)
    assert process is not None
    supervisor = {**identify(process), "boot_id": boot_id()}
    record = {"supervisor": supervisor, "processes": [identify(process)]}
    for name, document in {made.processes: record, made.unsaved_state: {"supervisor": supervisor}}.items():
        Path(name).write_text(json.dumps(document))
    Path(made.program).write_text("")
    about = {"job": JOB, "host": HOST, "node_rank": 0, "nodes": [], "created": 1.0}
    for name in (made.spec, made.about):
        Path(name).write_text(json.dumps(about))
    return made


def level(paths: JobPaths, name: str) -> Path:
    host = Path(paths.local)
    return {"user": host.parent.parent, "job": host.parent, "host": host}[name]


def take_over(path: Path, how: str) -> None:
    """As if another user had made that directory, or could write to it."""
    if how == "open":
        path.chmod(0o777)
        return
    if how == "link":
        path.rename(path.with_name("elsewhere"))
        path.symlink_to("elsewhere")
    if os.getuid() == 0:
        os.chown(path, OTHER, OTHER, follow_symlinks=False)
    elif how == "owner":
        pytest.skip("only root can give a file to another user")


def content(paths: JobPaths) -> dict[str, bytes]:
    top = level(paths, "user")
    return {str(path): path.read_bytes() for path in top.rglob("*") if path.is_file()}


@pytest.mark.parametrize("how", ["open", "link", "owner"])
@pytest.mark.parametrize("name", LEVELS)
def test_a_directory_of_another_user(
    paths: JobPaths,
    victim: subprocess.Popen[bytes],
    name: str,
    how: str,
) -> None:
    taken = level(paths, name)
    take_over(taken, how)
    before = content(paths)
    names = {"jobs_dir": os.path.dirname(paths.job_directory), "job": JOB, "host": HOST}
    for refused in (
        lambda: stop_node({**names, "grace": 0.0}),
        lambda: spawn_node({**names, "peer": None}),
        lambda: read_state(paths),
        lambda: remove_files(paths),
        lambda: entry.describe(paths),
    ):
        with pytest.raises(Refused) as caught:
            refused()
        assert str(taken) in caught.value.message
        assert caught.value.fix
    answer = list.answer_of(names["jobs_dir"], HOST)
    assert str(taken) in answer["problems"][0]["message"]
    # If only the job's own directory there is bad, nothing can be said of it; else its stored state is shown.
    assert [each["state"] for each in answer["jobs"]] == (["lost"] if name == "user" else [])
    with pytest.raises(PermissionError):
        paths.write(paths.stop_request, {})
    assert victim.poll() is None
    assert content(paths) == before
    assert os.path.exists(paths.spec)


def test_the_owner_is_named(paths: JobPaths) -> None:
    take_over(level(paths, "user"), "owner")
    with pytest.raises(Refused, match=rf"mnt-{os.getuid()} belongs to uid {OTHER}, not to "):
        paths.has_local()


def test_ones_own_directory_is_used(paths: JobPaths, victim: subprocess.Popen[bytes]) -> None:
    names = {"jobs_dir": os.path.dirname(paths.job_directory), "job": JOB, "host": HOST}
    assert stop_node({**names, "grace": 0.0})["status"] == "stopped"
    assert victim.wait(10) != 0
    assert not os.path.exists(paths.local)


@pytest.mark.parametrize("how", ["open", "link", "owner", "file", "pipe"])
def test_a_directory_for_caches_that_another_user_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """What torch compiled and finds there is run."""
    monkeypatch.setattr(files, "_TMP", str(tmp_path))
    files.make_temporary_directory()
    taken = Path(files.temporary_directory())
    assert (taken.parent, taken.stat().st_mode & 0o777) == (tmp_path, 0o700)
    if how in ("file", "pipe"):
        taken.rmdir()
        taken.touch() if how == "file" else os.mkfifo(taken)
    else:
        take_over(taken, how)
    with pytest.raises(Refused, match=f"{taken} (is open to|is not a directory|belongs to)") as caught:
        files.make_temporary_directory()
    assert caught.value.fix


@pytest.mark.parametrize("level", ["job", "host"])
def test_no_file_is_written_behind_a_link_of_another_node(
    paths: JobPaths, tmp_path: Path, level: str
) -> None:
    """jobs_dir is on a disk that the nodes share; the link leads to files that only this node has."""
    taken = Path(paths.job_directory if level == "job" else paths.directory)
    elsewhere = tmp_path / "elsewhere"
    taken.rename(elsewhere)
    taken.symlink_to(elsewhere)
    mine = elsewhere / ("node1/state.json" if level == "job" else "state.json")
    mine.write_text("mine")
    with pytest.raises(OSError, match=r"Not a directory|symbolic links"):
        paths.write(paths.state, {})
    assert mine.read_text() == "mine"
    assert paths.read(paths.state) is None


@pytest.mark.parametrize("moment", ["before", "after it was judged"])
@pytest.mark.parametrize("level", ["job", "host"])
def test_nothing_is_removed_behind_a_link_of_another_node(
    paths: JobPaths, tmp_path: Path, level: str, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a disk that the nodes share, to the local files of another job: the record of what it runs."""
    running = JobPaths(str(tmp_path / "jobs"), "20261128-000001-abcdef", HOST)
    running.make_local()
    Path(running.processes).write_text("{}")

    def exchange() -> None:
        taken, target = paths.job_directory, os.path.dirname(running.local)
        if level == "host":
            taken, target = paths.directory, running.local
        os.rename(taken, tmp_path / "aside")
        os.symlink(target, taken)

    if moment == "before":
        exchange()
    else:
        monkeypatch.setattr(paths, "has_directory", lambda: exchange() is None)
    paths.remove_directory()
    assert Path(running.processes).read_text() == "{}"


def test_the_files_of_other_nodes_stay(paths: JobPaths) -> None:
    other = Path(paths.job_directory, "node2")
    other.mkdir()
    paths.remove_directory()
    assert os.listdir(paths.job_directory) == ["node2"]
    other.rmdir()
    os.makedirs(paths.directory)
    paths.remove_directory()
    assert not os.path.exists(paths.job_directory)
