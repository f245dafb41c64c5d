"""The host's side of a push: its `main` is run on a workdir in a temporary directory."""

from __future__ import annotations

import fcntl
import io
import json
import os
import stat
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pythons import interpreter
from waiting import PATIENCE

from mnt.push import manifest as manifests
from mnt.push.manifest import Manifest
from mnt.push.stream import spooled
from mnt.push.tree import Entry, walk
from mnt.remote.push import receive
from mnt.tasks.bundle import program_modules

ID, ID2 = "20260101-000000-aaaaaaaa", "20260101-000001-bbbbbbbb"
Said = tuple[dict[str, Any], list[dict[str, Any]]]


class Host:
    """A workdir, and pushes to it."""

    def __init__(self, workdir: Path) -> None:
        self.workdir = workdir
        self.releases = workdir / "releases"

    def say(
        self,
        *commands: bytes,
        keep: tuple[str, ...] = (),
        after: Callable[[str], object] = lambda step: None,
        workdir: str | None = None,
    ) -> Said:
        """Run one push; `after` is called behind each step. Returns the answer, and the frames by order."""
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
        return receive.main(args, emit, io.BytesIO(b"".join(commands))), frames

    def push(self, source: Path, id: str = ID, **options: Any) -> dict[str, Any]:
        """A whole push of a tree; the answer."""
        return self.say(survey(), stage(source, id), do("switch", id=id), do("commit"), **options)[0]

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


def tar_of(source: Path) -> bytes:
    with spooled(source, build(source)) as spool:
        return b"".join(spool.chunks())


def stage_bytes(document: bytes, tar: bytes, id: str = ID) -> bytes:
    return do("stage", id=id, manifest=len(document), stream=len(tar)) + document + tar


def stage(source: Path, id: str = ID) -> bytes:
    return stage_bytes(build(source).document, tar_of(source), id)


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
def test_runs_on_other_pythons(host: Host, source: Path, version: str) -> None:
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
    ran = subprocess.run([python, "-c", program], input=commands, capture_output=True, check=True)
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


def tar_member(name: str, type: bytes = tarfile.REGTYPE, data: bytes = b"", linkname: str = "") -> bytes:
    info = tarfile.TarInfo(name)
    info.type, info.size, info.linkname = type, len(data), linkname
    padding = b"\0" * (-len(data) % 512)
    return info.tobuf(tarfile.GNU_FORMAT) + data + padding


ONE_FILE = Manifest(
    (TOP, entry("a", size=0, value="e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"))
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
    answer, _ = host.say(survey(), stage_bytes(document, tar_of(source)))
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
    steps = [survey(), stage(source), do("switch", id=ID)]
    for count in range(len(steps) + 1):
        answer, frames = host.say(*steps[:count], keep=("outputs",))
        assert [frame["step"] for frame in frames] == ["open", "survey", "stage", "switch"][: count + 1]
        assert answer["called_off"]
        assert host.files() == set()


def test_called_off_leaves_the_old_release_current(host: Host, source: Path) -> None:
    host.push(source)
    before = host.files()
    (source / "a.py").write_text("print(2)\n")
    answer, frames = host.say(survey(), stage(source, ID2), do("switch", id=ID2))
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
    assert len(refused) == 4
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
    answer, _ = host.say(survey(), do("copy", id=ID2, source=ID), do("switch", id=ID2), do("commit"))
    assert answer == {"current": ID2}
    assert build(host.releases / ID2).document == build(source).document
    answer, _ = host.say(survey(), do("adopt", id=ID), do("switch", id=ID), do("commit"))
    assert answer == {"current": ID}


def test_a_damaged_release_cannot_be_copied(host: Host, source: Path) -> None:
    host.push(source)
    before = host.files()
    (host.releases / ID / "a.py").write_text("print(3)\n")
    answer, _ = host.say(survey(), do("copy", id=ID2, source=ID))
    assert "a.py" in answer["refused"]["message"]
    assert host.files() == before


def test_finding_a_release(host: Host, source: Path) -> None:
    def find() -> dict[str, Any]:
        args = {"action": "find", "workdir": str(host.workdir)}
        return receive.main(args, lambda frame: None, io.BytesIO())

    assert find() == {"current": None, "path": None, "manifest_sha": None}
    host.push(source)
    path, sha = str(host.releases / ID), build(source).sha
    assert find() == {"current": ID, "path": path, "manifest_sha": sha}


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
