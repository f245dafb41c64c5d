"""The host's side of a push: its `main` is run on a workdir in a temporary directory."""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import os
import shutil
import stat
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pythons import interpreter
from waiting import PATIENCE, at_most, wait_for

from mnt.push import manifest as manifests
from mnt.push.manifest import Manifest
from mnt.push.plan import lacking
from mnt.push.stream import spooled
from mnt.push.tree import Entry, walk
from mnt.remote.common import life
from mnt.remote.job import files as job_files
from mnt.remote.push import lock as lock_module
from mnt.remote.push import receive, reuse
from mnt.remote.push.uses import uses
from mnt.tasks.bundle import program_modules

ID, ID2 = "20260101-000000-aaaaaaaa", "20260101-000001-bbbbbbbb"
Said = tuple[dict[str, Any], list[dict[str, Any]]]


Answering = Callable[[list[dict[str, Any]]], bytes]


class Spoken(io.RawIOBase):
    """Pieces of an input, each made when the one before it has been read."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._rest = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._rest:
            try:
                self._rest = next(self._pieces)
            except StopIteration:
                return 0
        piece, self._rest = self._rest[: len(buffer)], self._rest[len(buffer) :]
        buffer[: len(piece)] = piece
        return len(piece)


class Host:
    """A workdir, and pushes to it."""

    def __init__(self, workdir: Path) -> None:
        self.workdir = workdir
        self.releases = workdir / "releases"

    def say(
        self,
        *commands: bytes | Answering,
        keep: tuple[str, ...] = (),
        after: Callable[[str], object] = lambda step: None,
        workdir: str | None = None,
    ) -> Said:
        """Run one push; `after` is called behind each step. Returns the answer, and the frames by order.

        A command may depend on the frames so far.
        """
        frames: list[dict[str, Any]] = []

        def emit(frame: dict[str, Any]) -> None:
            frames.append(frame)
            after(frame["step"])

        args = {
            "action": "push",
            "workdir": workdir or str(self.workdir),
            "keep": keep,
            "beacon": "n",
            "who": "me",
        }
        spoken = (command if isinstance(command, bytes) else command(frames) for command in commands)
        return receive.main(args, emit, io.BufferedReader(Spoken(spoken))), frames

    def push(self, source: Path, id: str = ID, **options: Any) -> dict[str, Any]:
        """A whole push of a tree; the answer."""
        steps = (survey(), *adding(source, id), do("switch", id=id), do("commit"))
        return self.say(*steps, **options)[0]

    def files(self) -> set[str]:
        """All that is below the workdir, and the workdir itself."""
        if not self.workdir.exists():
            return set()
        return {"."} | {str(path.relative_to(self.workdir)) for path in self.workdir.rglob("*")}


def do(step: str, **arguments: Any) -> bytes:
    return json.dumps({"do": step, **arguments}).encode() + b"\n"


def survey(sha: str = "none") -> bytes:
    return do("survey", sha=sha)


def build(source: Path) -> Manifest:
    return manifests.build(walk(source))


def tar_of(source: Path, lacks: list[int]) -> bytes:
    with spooled(source, build(source), lacks) as spool:
        return b"".join(spool.chunks(lacks))


def offer(document: bytes, id: str = ID) -> bytes:
    return do("offer", id=id, manifest=len(document)) + document


def stage_bytes(document: bytes, tar: bytes, id: str = ID) -> bytes:
    return offer(document, id) + do("stage", stream=len(tar)) + tar


def stage(source: Path, id: str = ID) -> bytes:
    """To a host that has nothing yet; the tree has no content twice."""
    manifest = build(source)
    files = [index for index, entry in enumerate(manifest.entries) if entry.size]
    return stage_bytes(manifest.document, tar_of(source, files), id)


def adding(source: Path, id: str = ID) -> tuple[bytes, Answering]:
    """To any host: it gets what it lacks."""
    manifest = build(source)

    def rest(frames: list[dict[str, Any]]) -> bytes:
        tar = tar_of(source, lacking(manifest.entries, frames[-1]["lacks"]))
        return do("stage", stream=len(tar)) + tar

    return offer(manifest.document, id), rest


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path / "work" / "dir")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    root = tmp_path / "source"
    (root / "sub" / "empty").mkdir(parents=True)
    (root / "a.py").write_text("print(1)\n")
    (root / "sub" / "run.sh").write_text("exit\n")
    (root / "sub" / "run.sh").chmod(0o755)
    (root / "link").symlink_to("sub/run.sh")
    (root / "dangling").symlink_to("../../nowhere")
    return root


# --- what arrives -------------------------------------------------------------------------------------------


def test_a_push_makes_a_release_and_lets_current_lead_to_it(host: Host, source: Path) -> None:
    assert host.push(source) == {"current": ID}
    assert os.readlink(host.workdir / "current") == f"releases/{ID}"
    assert build(host.workdir / "current").document == build(source).document
    assert sorted(os.listdir(host.releases)) == [".lock", ID, f"{ID}.manifest.json"]


NAMES = st.binary(min_size=1, max_size=12).filter(
    lambda name: b"/" not in name and b"\0" not in name and name not in (b".", b"..", b".git")
    and not name.endswith(b"ignore")
)  # fmt: skip
LEAVES = st.one_of(
    st.tuples(st.just("file"), st.binary(max_size=2000), st.sampled_from([0o644, 0o755, 0o400, 0o666])),
    st.tuples(st.just("link"), st.binary(min_size=1, max_size=20).filter(lambda t: b"\0" not in t)),
)
TREES = st.recursive(
    LEAVES,
    lambda children: st.tuples(
        st.just("dir"), st.dictionaries(NAMES, children, max_size=4), st.sampled_from([0o755, 0o555, 0o700])
    ),
    max_leaves=12,
)


def plant(place: bytes, tree: tuple[Any, ...]) -> None:
    if tree[0] == "link":
        os.symlink(tree[1], place)
        return
    if tree[0] == "file":
        with open(place, "wb") as file:
            file.write(tree[1])
    else:
        os.mkdir(place)
        for name, child in tree[1].items():
            plant(os.path.join(place, name), child)
    os.chmod(place, tree[2])


@settings(max_examples=60, deadline=None)
@given(trees=st.dictionaries(NAMES, TREES, max_size=4))
def test_any_tree_arrives_as_it_is(trees: dict[bytes, tuple[Any, ...]]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        source, host = Path(directory) / "source", Host(Path(directory) / "work")
        source.mkdir()
        (source / "one file").touch()
        for name, tree in trees.items():
            plant(os.path.join(os.fsencode(source), name), tree)
        assert host.push(source) == {"current": ID}
        assert build(host.workdir / "current").document == build(source).document


def test_the_umask_has_no_say(host: Host, source: Path) -> None:
    before = os.umask(0o077)
    try:
        host.push(source)
    finally:
        os.umask(before)
    assert build(host.workdir / "current").document == build(source).document


def test_a_tilde_is_the_hosts_home(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    host = Host(tmp_path / "my project")
    host.push(source, workdir="~/my project")
    assert (host.workdir / "current" / "a.py").read_text() == "print(1)\n"


def test_a_relative_workdir_is_refused(host: Host) -> None:
    assert "not an absolute path" in host.say(workdir="project")[0]["refused"]["message"]


@pytest.mark.parametrize("version", ["3.8", "3.9", "3.12", "3.13"])
def test_runs_on_other_pythons(host: Host, source: Path, version: str, tmp_path: Path) -> None:
    python = interpreter(f"python{version}")
    runner = (
        "import sys, types\n"
        "for name, text in MODULES:\n"
        "    module = sys.modules[name] = types.ModuleType(name)\n"
        "    exec(compile(text, name, 'exec'), module.__dict__)\n"
        "print(module.main(ARGS, lambda frame: None, sys.stdin.buffer))\n"
    )
    args = {"action": "push", "workdir": str(host.workdir), "keep": ["outputs"], "beacon": "n", "who": "me"}
    program = f"MODULES = {program_modules('push.receive')!r}\nARGS = {args!r}\n{runner}"
    commands = survey() + stage(source) + do("switch", id=ID) + do("commit") + do("prune", keep=1, protect=[])
    script = tmp_path / "program.py"  # too long for an argument
    script.write_text(program)
    load = f"exec(open({str(script)!r}).read())"
    ran = subprocess.run([python, "-c", load], input=commands, capture_output=True, check=True)
    assert ran.stdout.decode().strip() == str({"current": ID})
    os.unlink(host.workdir / "current" / "outputs")
    assert build(host.workdir / "current").document == build(source).document


# --- what is refused ----------------------------------------------------------------------------------------


def entry(path: str, kind: str = "file", mode: int = 0o644, size: int = 0, value: str = "") -> Entry:
    return Entry(path, kind, mode, size, value)


TOP = entry("", "dir", 0o755)


@pytest.mark.parametrize(
    "entries",
    [
        [entry("a")],
        [TOP, entry("/etc/passwd")],
        [TOP, entry("../x")],
        [TOP, entry("..", "dir", 0o755)],
        [TOP, entry("sub", "dir", 0o755), entry("sub/..", "dir", 0o755), entry("sub/../x")],
        [TOP, entry("sub/x")],
        [TOP, entry("./x")],
        [TOP, entry("a//b")],
        [TOP, entry("a\0b")],
        [TOP, entry("link", "link", 0o777, 0, "/tmp"), entry("link/x")],
        [TOP, entry("a"), entry("a")],
        [TOP, entry("a"), entry("a/b")],
        [TOP, entry("dev", "device")],
        [TOP, entry("a", mode=0o4755)],
        [TOP, entry("a", size=-1)],
    ],
)
def test_a_manifest_that_leads_out_of_the_release(host: Host, entries: list[Entry]) -> None:
    answer, frames = host.say(survey(), stage_bytes(Manifest(tuple(entries)).document, b""))
    assert answer["refused"]
    assert frames[-1]["step"] == "survey"
    assert host.files() == set()


@pytest.mark.parametrize(
    "document", [b"", b"{}", b"[1]", b'{"format": 2, "entries": []}', b'{"format": 1, "entries": [[1]]}']
)
def test_a_manifest_that_is_none(host: Host, document: bytes) -> None:
    assert "manifest" in host.say(survey(), stage_bytes(document, b""))[0]["refused"]["message"]


def tar_member(name: str, type: bytes = tarfile.REGTYPE, data: bytes = b"x", linkname: str = "") -> bytes:
    info = tarfile.TarInfo(name)
    info.type, info.size, info.linkname = type, len(data), linkname
    padding = b"\0" * (-len(data) % 512)
    return info.tobuf(tarfile.GNU_FORMAT) + data + padding


ONE_FILE = Manifest(
    (TOP, entry("a", size=1, value="2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881"))
)


@pytest.mark.parametrize(
    "members",
    [
        tar_member("../a"),
        tar_member("/a"),
        tar_member("b"),
        tar_member("a", tarfile.SYMTYPE, linkname="/etc/passwd"),
        tar_member("a", tarfile.LNKTYPE, linkname="/etc/passwd"),
        tar_member("a", tarfile.CHRTYPE),
        tar_member("a", tarfile.BLKTYPE),
        tar_member("a", tarfile.FIFOTYPE),
        tar_member("a", tarfile.DIRTYPE),
        tar_member("a", tarfile.GNUTYPE_SPARSE),
        tar_member("a", data=b"longer"),
        tar_member("a") + tar_member("b"),
        tar_member("a") + tar_member("a"),
        b"",
        b"garbage" * 512,
    ],
)
def test_a_stream_that_does_not_bring_the_manifest(host: Host, members: bytes) -> None:
    answer, _ = host.say(survey(), stage_bytes(ONE_FILE.document, members + b"\0" * 1024))
    assert "stream" in answer["refused"]["message"]
    assert not answer["called_off"]
    assert host.files() == set()


def test_other_bytes_than_the_manifest_names(host: Host, source: Path) -> None:
    document = build(source).document
    (source / "a.py").write_text("print(2)\n")
    tar = tar_of(source, [index for index, each in enumerate(build(source).entries) if each.size])
    answer, _ = host.say(survey(), stage_bytes(document, tar))
    assert answer["refused"]["message"] == "a.py arrived with bytes that differ from the manifest"
    assert host.files() == set()


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_a_stream_that_ends_early_leaves_nothing(host: Host, source: Path, share: float) -> None:
    commands = survey() + stage(source)
    answer, _ = host.say(commands[: int(len(commands) * share)])
    assert answer["called_off"] is True
    assert answer["current"] is None
    assert host.files() == set()


def test_no_space_is_found_out_before_anything_is_written(host: Host) -> None:
    manifest = Manifest((TOP, entry("big", size=1 << 60, value="0" * 64)))
    answer, _ = host.say(survey(), stage_bytes(manifest.document, b""))
    assert "no space" in answer["refused"]["message"]
    assert "MiB" in answer["refused"]["message"]
    assert host.files() == set()


def test_a_workdir_that_is_a_file(host: Host) -> None:
    host.workdir.parent.mkdir()
    host.workdir.write_text("x")
    answer, _ = host.say()
    assert "is not a directory" in answer["refused"]["message"]


# --- nothing changes before the commit ----------------------------------------------------------------------


def test_called_off_after_each_step(host: Host, source: Path) -> None:
    steps = [survey(), stage(source), do("switch", id=ID)]  # the second one is two steps
    for count in range(len(steps) + 1):
        answer, frames = host.say(*steps[:count], keep=("outputs",))
        steps_done = ["open", "survey", "offer", "stage", "switch"]
        assert [frame["step"] for frame in frames] == steps_done[: [1, 2, 4, 5][count]]
        assert answer["called_off"]
        assert host.files() == set()


def test_called_off_leaves_the_old_release_current(host: Host, source: Path) -> None:
    host.push(source)
    before = host.files()
    (source / "a.py").write_text("print(2)\n")
    answer, frames = host.say(survey(), *adding(source, ID2), do("switch", id=ID2))
    assert frames[-1]["step"] == "switch"
    assert answer["current"] == ID
    assert host.files() == before


def test_a_switch_that_fails(host: Host, source: Path) -> None:
    def put_in_the_way(step: str) -> None:
        if step == "stage":
            (host.workdir / "current").mkdir()

    answer, _ = host.say(survey(), stage(source), do("switch", id=ID), do("commit"), after=put_in_the_way)
    assert "current is not a link" in answer["refused"]["message"]
    assert answer["refused"]["fix"]
    assert host.files() == {".", "current"}


def test_a_current_that_is_no_link_is_found_out_before_anything_is_sent(host: Host) -> None:
    (host.workdir / "current").mkdir(parents=True)
    answer, frames = host.say(survey())
    assert "current is not a link" in answer["refused"]["message"]
    assert len(frames) == 1


def test_a_link_of_the_users_own_comes_back(host: Host, source: Path) -> None:
    host.workdir.mkdir(parents=True)
    (host.workdir / "current").symlink_to("/somewhere/else")
    host.say(survey(), stage(source), do("switch", id=ID))
    assert os.readlink(host.workdir / "current") == "/somewhere/else"


# --- one push at a time -------------------------------------------------------------------------------------


def test_another_push_is_named(host: Host, source: Path) -> None:
    host.push(source)
    with open(host.releases / ".lock", "r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.write("ann@laptop, pid 7")
        lock.flush()
        answer, _ = host.say(survey())
    assert "another push" in answer["refused"]["message"]
    assert "ann@laptop, pid 7" in answer["refused"]["message"]


def test_the_lock_is_held_to_the_end(host: Host, source: Path) -> None:
    refused = []

    def try_second(step: str) -> None:
        args = {"action": "push", "workdir": str(host.workdir), "keep": (), "beacon": "other", "who": "other"}
        if step != "open":
            refused.append(receive.main(args, lambda frame: None, io.BytesIO(survey()))["refused"]["message"])

    assert host.push(source, after=try_second) == {"current": ID}
    assert len(refused) == 5
    assert all("another push" in message for message in refused)


def test_leftovers_of_a_push_that_was_killed_are_swept(host: Host, source: Path) -> None:
    host.push(source)
    for name in (".incoming-x", ".removing-y"):
        (host.releases / name / "sub").mkdir(parents=True)
        (host.releases / name / "sub").chmod(0o555)
    old, fresh = host.releases / ".beacon-old", host.releases / ".beacon-fresh"
    old.touch()
    fresh.touch()
    os.utime(old, (time.time() - 7200,) * 2)
    host.say(survey())
    assert sorted(name for name in os.listdir(host.releases) if name.startswith(".")) == [
        ".beacon-fresh",
        ".lock",
    ]


def test_a_head_that_falls_silent(host: Host, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection is there, and nothing comes any more: after the switch, the host goes back by itself."""
    monkeypatch.setattr(life, "SILENCE", 0.5)
    host.push(source)
    before = host.files()
    (source / "a.py").write_text("print(2)\n")
    reading, writing = os.pipe()
    answers: list[dict[str, Any]] = []
    manifest = build(source)
    changed = [index for index, each in enumerate(manifest.entries) if each.path == "a.py"]
    staging = stage_bytes(manifest.document, tar_of(source, changed), ID2)

    def speak() -> None:
        os.write(writing, b"\n" + survey() + staging + b"\n\n" + do("switch", id=ID2))

    speaker = threading.Thread(target=speak)
    speaker.start()
    args = {"action": "push", "workdir": str(host.workdir), "keep": (), "beacon": "n", "who": "me"}
    with open(reading, "rb") as stdin, at_most():
        answer = receive.main(args, answers.append, stdin)
    speaker.join()
    os.close(writing)
    assert answers[-1]["step"] == "switch"
    assert "nothing was heard of mnt" in answer["refused"]["message"]
    assert answer["current"] == ID
    assert host.files() == before


def test_signs_of_life_keep_a_push_alive(host: Host, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(life, "SILENCE", 1.0)
    reading, writing = os.pipe()

    def speak() -> None:
        for _ in range(10):
            os.write(writing, b"\n")
            time.sleep(0.2)  # the time is the thing: in all it is longer than the allowed silence
        os.write(writing, survey() + do("commit"))
        os.close(writing)

    threading.Thread(target=speak).start()
    args = {"action": "push", "workdir": str(host.workdir), "keep": (), "beacon": "n", "who": "me"}
    with open(reading, "rb") as stdin:
        assert receive.main(args, lambda frame: None, stdin) == {"current": None}


def find(host: Host) -> dict[str, Any]:
    return receive.main({"action": "find", "workdir": str(host.workdir)}, lambda frame: None, io.BytesIO())


def test_where_a_shell_may_be(host: Host, source: Path) -> None:
    """In no directory to which another user can write, whoever owns it."""

    def place() -> dict[str, Any]:
        args = {"action": "enter", "workdir": str(host.workdir)}
        return receive.main(args, lambda frame: None, io.BytesIO())

    assert place() == {"path": None}
    host.workdir.mkdir(parents=True)
    assert place() == {"path": str(host.workdir)}
    host.push(source)
    assert place() == {"path": str(host.releases / ID)}
    (host.workdir / "current").unlink()
    (host.workdir / "current").symlink_to("/tmp")
    assert place() == {"path": str(host.workdir)}
    for taken in (host.workdir, host.workdir.parent):
        taken.chmod(0o777)
        assert f"all users can write to {taken} " in place()["refused"]["message"]
        taken.chmod(0o755)


def test_no_launch_during_a_push(host: Host, source: Path) -> None:
    host.push(source)
    found = {}
    host.push(source, ID2, after=lambda step: found.update({step: find(host).get("refused")}))
    assert found.pop("open") is None  # nothing is locked yet
    for refused in found.values():
        assert "is running: me" in refused["message"]
        assert "launch again after its end" in refused["fix"]
    assert find(host)["current"] == ID2


def killed(host: Host, source: Path) -> None:
    """Leave what a receiver leaves that was killed after its switch."""
    note = host.releases / ".switching"
    kept: list[str] = []
    host.say(
        survey(),
        *adding(source, ID2),
        do("switch", id=ID2),
        do("commit"),
        after=lambda step: kept.append(note.read_text()) if step == "switch" else None,
    )
    note.write_text(kept[0])


def test_a_receiver_that_was_killed_between_switch_and_commit(host: Host, source: Path) -> None:
    host.push(source)
    killed(host, source)
    refused = find(host)["refused"]
    assert "never committed: me" in refused["message"]
    assert refused["fix"] == "mnt push"
    assert host.say(survey())[1][-1]["current"] == ID  # a push takes it back
    assert find(host)["current"] == ID


def test_what_somebody_has_switched_since_is_left(host: Host, source: Path) -> None:
    """By hand, even to the same release; and after a kill."""
    host.push(source)

    def by_hand(step: str) -> None:
        if step == "switch":
            (host.workdir / "new").symlink_to(f"releases/{ID2}")
            (host.workdir / "new").rename(host.workdir / "current")

    answer, _ = host.say(survey(), *adding(source, ID2), do("switch", id=ID2), after=by_hand)
    assert answer["current"] == ID2
    assert (host.releases / ID2 / "a.py").exists()


def test_a_release_in_use_outlives_its_push(host: Host, source: Path) -> None:
    """Somebody has started a job in it between switch and commit."""
    host.push(source)
    jobs: list[subprocess.Popen[bytes]] = []

    def start(step: str) -> None:
        if step == "switch":
            argv = [sys.executable, "-c", "input()"]
            jobs.append(subprocess.Popen(argv, stdin=subprocess.PIPE, cwd=host.releases / ID2))

    answer, _ = host.say(survey(), *adding(source, ID2), do("switch", id=ID2), after=start)
    try:
        assert answer["current"] == ID
        assert build(host.releases / ID2).document == build(source).document
    finally:
        jobs[0].communicate(b"\n")


def test_the_lock_of_a_push_that_fell_silent_is_waited_for(host: Host, source: Path) -> None:
    host.push(source)
    with open(host.releases / ".lock", "r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        os.utime(lock.fileno(), (time.time() - 60,) * 2)
        free = threading.Timer(1.5, lambda: fcntl.flock(lock, fcntl.LOCK_UN))
        free.start()
        answer, frames = host.say(survey(), do("commit"))
        free.join()
    assert [frame["step"] for frame in frames] == ["open", "survey", "commit"]
    assert answer == {"current": ID}


def test_a_lock_that_is_not_freed_names_its_holder(
    host: Host, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock_module, "_FREED", 0.5)
    host.push(source)
    with open(host.releases / ".lock", "r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.write("ann@laptop, pid 7\nnode9 1234\n")
        lock.flush()
        os.utime(lock.fileno(), (time.time() - 60,) * 2)
        refused = host.say(survey())[0]["refused"]
    assert "last heard of 6" in refused["message"]
    assert "ann@laptop, pid 7" in refused["message"]
    assert "wait" not in refused["fix"]
    assert "on node9: kill -KILL 1234" in refused["fix"]


# --- what is there already ----------------------------------------------------------------------------------


def held(host: Host, source: Path) -> dict[str, bool]:
    answer: dict[str, bool] = host.say(survey(build(source).sha))[1][-1]["holds"]
    return answer


def test_the_same_tree_is_recognised(host: Host, source: Path) -> None:
    host.push(source)
    assert held(host, source) == {ID: True}


@pytest.mark.parametrize(
    ("change", "intact"),
    [
        (lambda top: (top / "a.py").write_text("print(2)\n"), False),
        (lambda top: (top / "a.py").chmod(0o755), False),
        (lambda top: (top / "sub" / "empty").rmdir(), False),
        (lambda top: (top / "link").unlink(), False),
        (lambda top: [(top / "link").unlink(), (top / "link").symlink_to("a.py")], False),
        (lambda top: [(top / "a.py").unlink(), (top / "a.py").symlink_to("b")], False),
        (lambda top: (top / "__pycache__").mkdir(), True),
        (lambda top: (top / "outputs" / "log").write_text("x"), True),
    ],
)
def test_a_release_that_was_changed_counts_as_damaged(
    host: Host, source: Path, change: Callable[[Path], object], intact: bool
) -> None:
    host.push(source, keep=("outputs",))
    change(host.releases / ID)
    assert held(host, source) == {ID: intact}


def test_a_release_without_its_manifest_is_none(host: Host, source: Path) -> None:
    host.push(source)
    (host.releases / f"{ID}.manifest.json").unlink()
    assert held(host, source) == {}


def test_adopting_and_copying_send_nothing(host: Host, source: Path) -> None:
    host.push(source)
    answer, frames = host.say(survey(), *adding(source, ID2), do("switch", id=ID2), do("commit"))
    assert answer == {"current": ID2}
    assert int(frames[2]["lacks"], 16) == 0
    assert build(host.releases / ID2).document == build(source).document
    answer, _ = host.say(survey(), do("adopt", id=ID), do("switch", id=ID), do("commit"))
    assert answer == {"current": ID}


def trees(host: Host) -> list[Path]:
    """The releases, the oldest first."""
    return sorted(path for path in host.releases.glob("2*") if path.is_dir())


def lacked(host: Host, source: Path) -> list[str]:
    """The paths that a host lacks of a tree, which is then a release there."""
    manifest, number = build(source), len(list(host.releases.glob("*.json")))
    id = f"202602{number:02}-000000-cccccccc"
    _, frames = host.say(survey(), *adding(source, id), do("switch", id=id), do("commit"))
    assert build(host.releases / id).document == manifest.document
    return [manifest.entries[index].path for index in lacking(manifest.entries, frames[2]["lacks"])]


def test_only_what_is_lacking_is_sent(host: Host, source: Path) -> None:
    (source / "empty").touch()
    (source / "sub" / "copy of a.py").write_text("print(1)\n")
    assert lacked(host, source) == ["a.py", "sub/run.sh"]  # each content once, and no empty file
    (source / "a.py").write_text("print(2)\n")
    (source / "sub" / "run.sh").chmod(0o700)
    (source / "moved").write_text("print(1)\n")
    assert lacked(host, source) == ["a.py"]
    assert lacked(host, source) == []


def test_a_copy_is_a_file_of_its_own(host: Host, source: Path) -> None:
    """A job may write into it in place."""
    lacked(host, source)
    (source / "b.py").write_text("print(2)\n")
    assert lacked(host, source) == ["b.py"]
    first, second = trees(host)
    with open(second / "a.py", "r+") as file:
        file.write("X")
    assert (first / "a.py").read_text() == "print(1)\n"


@pytest.mark.parametrize(
    "change",
    [
        lambda top: (top / "a.py").write_text("print(9)\n"),  # as long as before
        lambda top: (top / "a.py").unlink(),
        lambda top: replace_by_link(top / "a.py", "sub/run.sh"),
        lambda top: [(top / "a.py").unlink(), os.mkfifo(top / "a.py")],
        lambda top: [(top / "a.py").unlink(), (top / "a.py").mkdir()],
    ],
)
def test_what_was_changed_is_sent_again(host: Host, source: Path, change: Callable[[Path], object]) -> None:
    lacked(host, source)
    (source / "new").write_text("x")
    change(trees(host)[0])
    with at_most():
        assert lacked(host, source) == ["a.py", "new"]


def test_another_place_has_it_still(host: Host, source: Path) -> None:
    (source / "copy").write_text("print(1)\n")
    lacked(host, source)
    (trees(host)[0] / "a.py").write_text("print(9)\n")
    (source / "new").write_text("x")
    assert lacked(host, source) == ["new"]


@pytest.mark.parametrize("system", ["btrfs", "xfs"])
def test_blocks_are_shared_if_the_file_system_can(tmp_path: Path, system: str) -> None:
    image, mount = tmp_path / "image", tmp_path / "mount"
    mkfs = shutil.which(f"mkfs.{system}")
    if mkfs is None or os.getuid() != 0:
        pytest.skip(f"needs root and mkfs.{system}")
    image.touch()
    os.truncate(image, 512 << 20)
    mount.mkdir()
    subprocess.run([mkfs, "-q", image], check=True)
    if subprocess.run(["mount", "-o", "loop", image, mount], capture_output=True).returncode:
        pytest.skip(f"{system} cannot be mounted here")
    try:
        one, other = mount / "one", mount / "other"
        one.write_bytes(data := os.urandom(1 << 20))
        with open(one, "rb") as source, reuse.open_new(os.fsencode(other)) as copy:
            assert reuse._clone(source, copy)
        assert other.read_bytes() == data
    finally:
        subprocess.run(["umount", mount], check=True)


def test_finding_a_release(host: Host, source: Path) -> None:
    def find() -> dict[str, Any]:
        args = {"action": "find", "workdir": str(host.workdir)}
        return receive.main(args, lambda frame: None, io.BytesIO())

    assert find() == {"current": None, "path": None, "manifest_sha": None, "pushed": None}
    host.push(source)
    path, sha = str(host.releases / ID), build(source).sha
    assert find() == {"current": ID, "path": path, "manifest_sha": sha, "pushed": None}


# --- shared directories -------------------------------------------------------------------------------------


def test_kept_directories_outlive_releases(host: Host, source: Path) -> None:
    keep = ("outputs", "runs/logs")
    host.push(source, keep=keep)
    (host.workdir / "current" / "outputs" / "x").write_text("1")
    (host.workdir / "current" / "runs" / "logs" / "y").write_text("2")
    host.push(source, ID2, keep=keep)
    assert (host.workdir / "current" / "outputs" / "x").read_text() == "1"
    assert (host.workdir / "shared" / "runs" / "logs" / "y").read_text() == "2"
    assert os.readlink(host.releases / ID2 / "outputs") == "../../shared/outputs"
    assert os.readlink(host.releases / ID2 / "runs" / "logs") == "../../../shared/runs/logs"


@pytest.mark.parametrize("content", [[], [".gitkeep"]])
def test_an_empty_directory_gives_way(host: Host, source: Path, content: list[str]) -> None:
    (source / "outputs").mkdir()
    for name in content:
        (source / "outputs" / name).touch()
    source.chmod(0o555)
    host.push(source, keep=("outputs",))
    assert os.readlink(host.releases / ID / "outputs") == "../../shared/outputs"
    assert stat.S_IMODE((host.releases / ID).stat().st_mode) == 0o555
    assert host.say(survey(build(source).sha), keep=("outputs",))[1][-1]["holds"] == {ID: True}


def test_files_of_the_tree_are_not_hidden_by_a_link(host: Host, source: Path) -> None:
    (source / "outputs").mkdir()
    (source / "outputs" / "x").touch()
    answer, _ = host.say(survey(), stage(source), keep=("outputs",))
    assert "outputs: the tree contains it" in answer["refused"]["message"]
    assert host.files() == set()


@pytest.mark.parametrize("name", ["..", "a/../../b", "/etc", ".", ""])
def test_kept_names_stay_within_shared(host: Host, name: str) -> None:
    assert "keep" in host.say(keep=(name,))[0]["refused"]["message"]


# --- pruning ------------------------------------------------------------------------------------------------


def ids(count: int) -> list[str]:
    return [f"20260101-00000{number}-aaaaaaaa" for number in range(count)]


def test_the_newest_stay(host: Host, source: Path) -> None:
    for release in ids(7):
        host.push(source, release)
    _, frames = host.say(
        survey(), do("adopt", id=ids(7)[6]), do("commit"), do("prune", keep=3, protect=[ids(7)[1]])
    )
    assert sorted(frames[-1]["pruned"]) == [ids(7)[0], ids(7)[2], ids(7)[3]]
    assert sorted(name for name in os.listdir(host.releases) if not name.startswith(".")) == sorted(
        name for kept in (1, 4, 5, 6) for name in (ids(7)[kept], ids(7)[kept] + ".manifest.json")
    )


def test_the_current_release_stays_whatever_its_age(host: Host, source: Path) -> None:
    for release in [*ids(4)[1:], ids(4)[0]]:
        host.push(source, release)
    _, frames = host.say(survey(), do("commit"), do("prune", keep=1, protect=[]))
    assert sorted(frames[-1]["pruned"]) == ids(4)[1:3]


def test_a_release_in_use_stays(host: Host, source: Path) -> None:
    for release in ids(4):
        host.push(source, release)
    job = subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, cwd=host.releases / ids(4)[0] / "sub"
    )
    try:
        _, frames = host.say(survey(), do("commit"), do("prune", keep=1, protect=[]))
        assert frames[0]["in_use"] == [ids(4)[0]]
        assert sorted(frames[-1]["pruned"]) == ids(4)[1:3]
    finally:
        job.communicate(b"\n")


def pruned(host: Host, **how: Any) -> tuple[list[str], dict[str, str]]:
    """The removed releases, and why others stay."""
    previous = host.say(survey())[1][-1]["previous"]
    _, frames = host.say(survey(), do("commit"), do("prune", **{"keep": 1, "previous": previous, **how}))
    answer = frames[-1]
    return sorted(answer["pruned"]), {left["release"]: left["why"] for left in answer["left"]}


WRITTEN: dict[str, Callable[[Path], object]] = {
    "results": lambda top: plant_file(top / "runs" / "x" / "events.out", "1" * 70),
    "a file that was changed": lambda top: (top / "a.py").write_text("print(2)\n"),
    "a file that was appended to": lambda top: (top / "a.py").write_text("print(1)\n# more\n"),
    "a file in a directory of the tree": lambda top: plant_file(top / "sub" / "empty" / "x", ""),
    "a link": lambda top: (top / "latest").symlink_to("sub"),
    "a link that was changed": lambda top: replace_by_link(top / "link", "a.py"),
    "a file in place of a directory": lambda top: replace_by_file(top / "sub" / "empty"),
    "byte code that Python does not make": lambda top: plant_file(top / "legacy.pyc", "x"),
    "data beside byte code": lambda top: plant_file(top / "__pycache__" / "data.bin", "x"),
    "a directory that cannot be read": lambda top: (top / "locked").mkdir(mode=0),
    "a name that is no text": lambda top: plant_file(top / os.fsdecode(b"caf\xe9"), "x"),
}


def plant_file(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def replace_by_link(path: Path, target: str) -> None:
    path.unlink()
    path.symlink_to(target)


def replace_by_file(path: Path) -> None:
    path.rmdir()
    path.write_text("x")


@pytest.mark.parametrize("what", WRITTEN)
def test_what_a_job_has_written_is_not_removed_unasked(host: Host, source: Path, what: str) -> None:
    if what == "a directory that cannot be read" and os.getuid() == 0:
        pytest.skip("root reads everything")
    for release in ids(3):
        host.push(source, release)
    WRITTEN[what](host.releases / ids(3)[0])
    assert pruned(host) == ([], {ids(3)[0]: "foreign", ids(3)[1]: "previous"})
    assert pruned(host, ids=[ids(3)[0]]) == ([], {ids(3)[0]: "foreign"})
    assert pruned(host, ids=[ids(3)[0]], with_results=True, dry_run=True) == ([ids(3)[0]], {})
    assert (host.releases / ids(3)[0]).exists()
    assert pruned(host, ids=[ids(3)[0]], with_results=True) == ([ids(3)[0]], {})
    assert not (host.releases / ids(3)[0]).exists()


@pytest.mark.parametrize(
    "change",
    [
        lambda top: plant_file(top / "sub" / "__pycache__" / "x.cpython-311.pyc", "code"),
        lambda top: plant_file(top / "__pycache__" / "x.cpython-311.pyc.140234567", "code"),  # it was killed
        lambda top: (top / "new" / "empty").mkdir(parents=True),
        lambda top: (top / "a.py").unlink(),
        lambda top: (top / "a.py").chmod(0o600),
        lambda top: os.utime(top / "a.py"),
    ],
)
def test_what_is_no_loss(host: Host, source: Path, change: Callable[[Path], object]) -> None:
    for release in ids(3):
        host.push(source, release, keep=("outputs", "runs/logs"))
    change(host.releases / ids(3)[0])
    (host.releases / ids(3)[0] / "outputs" / "model").write_text("it lies in shared/")
    assert pruned(host) == ([ids(3)[0]], {ids(3)[1]: "previous"})  # `keep` is another one now
    assert (host.workdir / "shared" / "outputs" / "model").exists()


def test_a_change_that_times_do_not_show(host: Host, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the clock had been set back before the job wrote: listing trusts times, removing does not."""
    for release in ids(3):
        host.push(source, release)
    (host.releases / ids(3)[0] / "a.py").write_text("print(2)\n")
    late = host.releases / f"{ids(3)[0]}.manifest.json"
    late.write_text(late.read_text())  # its time of change is later now
    wait_for(
        lambda: late.stat().st_ctime > (host.releases / ids(3)[0] / "a.py").stat().st_ctime or late.touch()
    )
    assert listed(host)[ids(3)[0]]["foreign"]["files"] == 0
    assert pruned(host)[1] == {ids(3)[0]: "foreign", ids(3)[1]: "previous"}


def listed(host: Host) -> dict[str, dict[str, Any]]:
    frames: list[dict[str, Any]] = []
    answer = receive.main({"action": "list", "workdir": str(host.workdir)}, frames.append, io.BytesIO())
    assert answer.keys() == {"current", "previous"}
    return {frame["release"]: frame for frame in frames}


@contextlib.contextmanager
def waiting_program(*words: str, env: dict[str, str] | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """A program with these arguments. It has begun: for a moment before, /proc shows no arguments."""
    command = [sys.executable, "-c", "print(flush=True); input()", *words]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.communicate(b"\n")


def test_the_list_of_releases(host: Host, source: Path) -> None:
    for release in ids(3):
        host.push(source, release)
    plant_file(host.releases / ids(3)[0] / "runs" / "log", "123456")
    words = (f"--x={host.releases / ids(3)[1]}/a.py",)
    with waiting_program(*words, env={**os.environ, "MNT_JOB": "j1", "MNT_HOST": "h"}) as job:
        found = listed(host)
    assert list(found) == ids(3)[::-1]
    assert found[ids(3)[0]]["foreign"] == {"files": 1, "bytes": 6, "names": ["runs/log"]}
    size = build(source).size
    links = 2
    assert (found[ids(3)[0]]["files"], found[ids(3)[0]]["bytes"]) == (3 + links, size + 6)
    assert [(use["pid"], use["job"]) for use in found[ids(3)[1]]["uses"]] == [(job.pid, "j1")]
    assert found[ids(3)[2]]["uses"] == []


def test_the_words_of_another_program_name_no_release_that_is_not_there(host: Host, source: Path) -> None:
    """Anybody can start a program with a million ids in its arguments."""
    host.push(source, ID)
    names = [f"{host.releases}/20260101-000000-{number:08x}" for number in range(800)]
    with waiting_program(f"{host.releases}/{ID}", *names) as process:
        found = uses(os.fsencode(host.releases))
    assert [(use.release, use.pid) for use in found] == [(ID, process.pid)]


def test_a_job_that_is_about_to_start_uses_its_release(
    host: Host, source: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its files are there, and no process yet."""
    for release in ids(3):
        host.push(source, release)
    local = tmp_path / "tmp"
    monkeypatch.setattr(job_files, "user_directory", lambda: str(local))
    (local / "j1" / "node1").mkdir(parents=True, mode=0o700)
    for level in (local, local / "j1"):
        level.chmod(0o700)
    (local / "j1" / "node1" / "spec.json").write_text(json.dumps({"cwd": str(host.releases / ids(3)[0])}))
    assert pruned(host) == ([], {ids(3)[0]: "used", ids(3)[1]: "previous"})
    assert pruned(host, ids=[ids(3)[0]], with_results=True) == ([], {ids(3)[0]: "used"})
    assert [use["job"] for use in listed(host)[ids(3)[0]]["uses"]] == ["j1"]


def test_named_releases_that_stay(host: Host, source: Path) -> None:
    for release in ids(4):
        host.push(source, release)
    how = {"ids": [ID2, *ids(4)], "with_results": True, "protect": [ids(4)[0]]}
    assert pruned(host, **how) == (
        [ids(4)[1]],
        {ID2: "absent", ids(4)[0]: "used", ids(4)[2]: "previous", ids(4)[3]: "current"},
    )


def test_the_previous_release(host: Host, source: Path) -> None:
    def previous() -> str | None:
        return str(host.say(survey())[1][-1]["previous"])

    for release in ids(3):
        host.push(source, release)
    assert previous() == ids(3)[1]
    host.say(survey(), do("adopt", id=ids(3)[0]), do("switch", id=ids(3)[0]), do("commit"))
    assert previous() == ids(3)[2]  # it was current before, though it is newer
    (host.releases / ".previous").unlink()  # as an older mnt leaves it
    assert previous() == "None"
    host.say(survey(), do("adopt", id=ids(3)[1]), do("switch", id=ids(3)[1]))  # called off
    assert previous() == "None"


# --- shared workdirs ----------------------------------------------------------------------------------------


def test_hosts_see_each_others_beacons(host: Host) -> None:
    seen = []

    def other(step: str) -> None:
        if step == "open":
            args = {"action": "push", "workdir": str(host.workdir), "keep": (), "beacon": "m", "who": "other"}
            look = do("look", beacons={"a": "n", "b": "m", "c": "elsewhere"}, likely=[])
            receive.main(args, lambda frame: seen.append(frame.get("sees")), io.BytesIO(look))

    host.say(after=other)
    assert seen == [None, ["a", "b"]]
    assert host.files() == set()


def test_a_likely_nonce_gets_time_to_appear(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receive, "_PATIENCE", PATIENCE)
    late = threading.Timer(0.5, lambda: (host.releases / ".beacon-late").touch())
    look = do("look", beacons={"b": "late"}, likely=["b"])
    _, frames = host.say(look, after=lambda step: late.start() if step == "open" else None)
    late.join()
    assert frames[-1]["sees"] == ["b"]


def test_waiting_for_what_another_host_receives(host: Host, source: Path) -> None:
    host.push(source)
    _, frames = host.say(do("wait", id=ID, sha=build(source).sha), do("commit"))
    assert [frame["step"] for frame in frames] == ["open", "wait", "commit"]


# --- releases that others could enter -----------------------------------------------------------------------


def test_a_release_that_others_could_enter_is_not_used_again(host: Host, source: Path) -> None:
    """Whoever opened a file then can write to it for ever."""
    (source / "a.py").chmod(0o666)
    host.push(source)
    sha = build(source).sha
    assert host.say(survey(sha))[1][1]["holds"] == {ID: True}
    host.releases.chmod(0o755)
    with (host.releases / ID / "a.py").open("r+") as held:
        host.say()  # a push that is called off has closed it
        assert stat.S_IMODE(host.releases.stat().st_mode) == 0o700
        find = {"action": "find", "workdir": str(host.workdir)}
        refused = receive.main(find, lambda frame: None, io.BytesIO())["refused"]
        assert "all users can write to" in refused["message"]
        assert refused["fix"] == "push again"
        assert host.say(survey(sha))[1][1]["holds"] == {ID: False}
        host.push(source, ID2)
        held.write("print('eve')\n")
    assert (host.workdir / "current" / "a.py").read_text() == "print(1)\n"
    assert host.say(survey(sha))[1][1]["holds"] == {ID: False, ID2: True}
    assert receive.main(find, lambda frame: None, io.BytesIO())["current"] == ID2


def test_a_release_that_nobody_could_write_to_is_still_launched(host: Host, source: Path) -> None:
    host.push(source)
    host.releases.chmod(0o755)
    host.say()
    find = {"action": "find", "workdir": str(host.workdir)}
    assert receive.main(find, lambda frame: None, io.BytesIO())["current"] == ID
