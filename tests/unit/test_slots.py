"""The program that starts ranks without torchrun, really run; and the reader of what it leaves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pythons import interpreter
from waiting import PATIENCE, wait_for

from mnt.remote.job.remains.readers import READERS
from mnt.remote.job.remains.slots import Ended, find_failure, parse_ended
from mnt.remote.slots import slots

REMAINS = READERS["slots"]


class Run:
    """The program, as it arrives at a host, in a directory that is the code tree."""

    def __init__(self, directory: Path) -> None:
        self.tree, self.ranks, self.own = (directory / name for name in ("tree", "ranks", "python"))
        for each in (self.tree, self.own):
            each.mkdir()
        (self.own / "mnt_slots.py").write_text(Path(slots.__file__).read_text())
        self.started: list[subprocess.Popen[bytes]] = []

    def begin(
        self,
        *words: str,
        python: str = sys.executable,
        nproc: int = 2,
        grace: float = 10,
        mode: str = "command",
    ) -> subprocess.Popen[bytes]:
        argv = [python, "-m", "mnt_slots", mode, f"--ranks={self.ranks}", f"--nproc={nproc}"]
        argv += ["--first-rank=4", "--world-size=8", "--nodes=3", "--node-rank=1", f"--grace={grace}"]
        process = subprocess.Popen(
            [*argv, "--", *words],
            cwd=self.tree,
            env={**os.environ, "PYTHONPATH": f"{self.own}{os.pathsep}{self.tree}"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self.started.append(process)
        return process

    def run(self, *words: str, **options: Any) -> tuple[int, list[bytes]]:
        """(exit code, lines of output)."""
        process = self.begin(*words, **options)
        output, _ = process.communicate(timeout=PATIENCE)
        return process.returncode, output.splitlines()

    def log(self, local_rank: int, stream: str = "stdout") -> bytes:
        path = REMAINS.rank_log(str(self.ranks), local_rank, stream)
        assert path is not None
        return Path(path).read_bytes()

    def failure(self, output: str = "", code: int = 1, before: float | None = None) -> Any:
        return REMAINS.failure(output, str(self.ranks), 4, 4, code, before)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Run]:
    run = Run(tmp_path)
    yield run
    for process in run.started:
        if process.poll() is None:
            process.kill()
        process.wait()


def sh(text: str) -> tuple[str, str, str]:
    return "sh", "-c", text


# --- the program -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("python", ["python3.8", "python3.13"])
def test_each_rank_has_its_place_its_log_and_its_prefix(node: Run, python: str) -> None:
    (node.tree / "json.py").write_text("raise SystemExit('a module of the tree')")
    code, lines = node.run(
        *sh(
            "echo $RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $NODE_RANK $GROUP_RANK;"
            "echo $PYTHONPATH; echo x >&2"
        ),
        python=interpreter(python),
    )
    assert code == 0
    tree = str(node.tree).encode()
    expected = [[b"4 0 8 2 1 1", tree, b"x"], [b"5 1 8 2 1 1", tree, b"x"]]
    prefixed = [b"[rank%d] %s" % (rank, text) for rank, texts in enumerate(expected, 4) for text in texts]
    assert sorted(lines) == sorted(prefixed)
    assert [node.log(rank).splitlines() for rank in (0, 1)] == [texts[:2] for texts in expected]
    assert node.log(1, "stderr") == b"x\n"
    assert REMAINS.started(str(node.ranks), 2) == 2


def test_arguments_arrive_byte_for_byte(node: Run) -> None:
    odd = ["--", "a b", "", "$x", "it's", "--ranks=x", "\udcff", "line\nbreak"]
    show = "import os, sys; os.write(1, b'|'.join(map(os.fsencode, sys.argv[1:])))"
    assert node.run(sys.executable, "-c", show, *odd, nproc=1)[0] == 0
    assert node.log(0) == b"|".join(map(os.fsencode, odd))


def test_the_log_has_the_bytes_and_the_output_has_lines(node: Run) -> None:
    code, lines = node.run("printf", r"a\r\nb\rc\n\377\n\nlast", nproc=1)
    assert (code, lines) == (0, [b"[rank4] " + each for each in (b"a", b"b", b"c", b"\xff", b"", b"last")])
    assert node.log(0) == b"a\r\nb\rc\n\xff\n\nlast"


@pytest.mark.parametrize(
    ("death", "code", "signum", "message"),
    [
        ("echo why >&2; exit 37", 37, None, "rank 5 exited with code 37: why"),
        ("echo why >&2; kill -KILL $$", 137, "SIGKILL", "rank 5 was killed by SIGKILL"),
        ("echo why >&2; kill -SEGV $$", 139, "SIGSEGV", "rank 5 was killed by SIGSEGV"),
    ],
)
def test_when_one_fails_all_end_and_it_is_named(
    node: Run, death: str, code: int, signum: str | None, message: str
) -> None:
    script = f"trap 'echo told; exit 0' TERM; [ $RANK = 5 ] && {{ sleep 0.3; {death}; }}; sleep 60 & wait"
    got, lines = node.run(*sh(script), nproc=3)
    assert got == code
    assert sorted(line for line in lines if line.endswith(b"told")) == [b"[rank4] told", b"[rank6] told"]
    assert lines.index(b"[rank5] why") < lines.index(f"[mnt] {message.partition(': ')[0]}".encode())
    found = node.failure(code=got)
    assert (found["rank"], found["local_rank"], found["exit_code"], found["signal"]) == (5, 1, code, signum)
    assert found["message"] == message
    assert not found["victim"]
    assert abs(found["time"] - time.time()) < PATIENCE


def test_a_python_exception_is_the_message(node: Run) -> None:
    node.run(sys.executable, "-c", "def f(): raise ValueError('bad batch')\nf()", nproc=1)
    found = node.failure()
    assert (found["message"], found["exit_code"]) == ("ValueError: bad batch", 1)
    assert "in f" in found["traceback"]


def test_a_rank_that_ignores_term_is_killed_after_the_grace(node: Run) -> None:
    before = time.monotonic()
    code, _ = node.run(*sh("trap '' TERM; [ $RANK = 4 ] && exit 3; while :; do sleep 0.1; done"), grace=0.5)
    assert code == 3
    assert time.monotonic() - before < PATIENCE / 2


@pytest.mark.parametrize(
    ("words", "text", "code"),
    [
        (["./absent"], "cannot run ./absent: No such file or directory", 127),
        (["./data"], "cannot run ./data: Permission denied", 126),
        (["./bang"], "cannot run ./bang: the interpreter that its first line (#!) names is missing", 127),
    ],
)
def test_a_program_that_cannot_run_was_never_started(
    node: Run, words: list[str], text: str, code: int
) -> None:
    (node.tree / "data").write_text("x")
    (node.tree / "bang").write_text("#!/absent/sh\n")
    (node.tree / "bang").chmod(0o755)
    assert node.run(*words) == (code, [f"[mnt] {text}".encode()])
    assert REMAINS.started(str(node.ranks), 2) == 0
    assert node.failure(f"[mnt] {text}\n", code)["message"] == text


def test_an_end_from_outside_is_nobodys_failure(node: Run) -> None:
    """All get TERM, as from a supervisor; the ranks may take their time, and their words are still shown."""
    process = node.begin(*sh("trap 'sleep 0.5; echo saved; exit 9' TERM; echo up; sleep 60 & wait"), nproc=1)
    wait_for(lambda: (node.ranks / "0" / "stdout.log").exists() and node.log(0) == b"up\n")
    (rank,) = children(process.pid)
    os.killpg(rank, signal.SIGTERM)
    process.terminate()
    output, _ = process.communicate(timeout=PATIENCE)
    assert (process.returncode, output.splitlines()) == (143, [b"[rank4] up", b"[rank4] saved"])
    assert not (node.ranks / slots.ENDED).exists()


def test_a_term_for_us_alone_is_passed_on(node: Run) -> None:
    process = node.begin(*sh("echo up; exec sleep 60"), nproc=1, grace=0.2)
    wait_for(lambda: (node.ranks / "0" / "stdout.log").exists() and node.log(0) == b"up\n")
    process.terminate()
    assert process.wait(PATIENCE) == 143


def test_without_room_for_logs_the_job_goes_on(node: Run) -> None:
    node.ranks.write_text("in the way")
    assert node.run("echo", "x", nproc=1) == (0, [b"[rank4] x"])
    assert node.run(*sh("exit 5"), nproc=1)[0] == 5


def children(pid: int) -> list[int]:
    return [int(text) for text in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


# --- its decisions -----------------------------------------------------------------------------------------


def test_further_names_of_the_variables() -> None:
    options = Namespace(first_rank=4, nproc=2, world_size=8, nodes=3, node_rank=1, names="pet,ompi")
    found = slots.variables(options, 1, {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "1"})
    assert {
        name: value for name, value in found.items() if "_" in name and name.split("_")[0] in ("PET", "OMPI")
    } == {
        "PET_NNODES": "3",
        "PET_NPROC_PER_NODE": "2",
        "PET_NODE_RANK": "1",
        "PET_MASTER_ADDR": "10.0.0.1",
        "PET_MASTER_PORT": "1",
        "OMPI_COMM_WORLD_RANK": "5",
        "OMPI_COMM_WORLD_SIZE": "8",
        "OMPI_COMM_WORLD_LOCAL_RANK": "1",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
        "OMPI_COMM_WORLD_NODE_RANK": "1",
    }


@pytest.mark.parametrize(
    ("pieces", "lines", "rest"),
    [
        ([b"a\nb"], [b"a"], [b"b"]),
        ([b"a\r", b"\nb\n"], [b"a", b"b"], []),
        ([b"a\r", b"b"], [b"a"], [b"b"]),
        ([b"\n\n"], [b"", b""], []),
        ([b"x" * 70000], [b"x" * 70000], []),
    ],
)
def test_lines(pieces: list[bytes], lines: list[bytes], rest: list[bytes]) -> None:
    cutter = slots.Lines()
    assert [line for piece in pieces for line in cutter.feed(piece)] == lines
    assert cutter.rest() == rest


@pytest.mark.parametrize(
    ("ended", "before", "rank", "code"),
    [
        ([Ended(1, -15, 10.0, ""), Ended(0, 3, 11.0, "")], None, 4, 3),  # a victim was first
        ([Ended(1, 2, 10.0, ""), Ended(0, 3, 11.0, "")], None, 5, 2),
        ([Ended(1, 2, 10.0, ""), Ended(0, 3, 9.0, "")], 10.0, 4, 3),
        ([Ended(None, -9, 10.0, "")], None, None, 137),
        ([], None, None, 77),
    ],
)
def test_which_rank_failed(ended: list[Ended], before: float | None, rank: int | None, code: int) -> None:
    found = find_failure("", ended, 4, 77, before)
    assert (found["rank"], found["exit_code"]) == (rank, code)


def test_a_rank_that_is_not_known_has_a_message() -> None:
    assert (
        find_failure("", [Ended(None, -9, 1.0, "")], 4, 1)["message"]
        == "a rank of this node was killed by SIGKILL"
    )


GOOD: Any = {"local_rank": 1, "code": 3, "time": 5.0}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[1, null]",
        "[" * 100000,
        *(
            json.dumps([{**GOOD, **wrong}])
            for wrong in (
                {"local_rank": -1},
                {"local_rank": True},
                {"local_rank": 1 << 40},
                {"code": 256},
                {"code": "3"},
                {"code": 10**400},
                {"time": -1},
                {"time": None},
                {"time": 1e300},
            )
        ),
    ],
)
def test_what_is_no_list_of_ranks_is_none(text: str) -> None:
    assert parse_ended(text) == []


def test_a_list_of_ranks() -> None:
    assert parse_ended(json.dumps([GOOD, {**GOOD, "local_rank": None}])) == [(1, 3, 5.0), (None, 3, 5.0)]


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(json.dumps([GOOD]))
    (tmp_path / "ranks").mkdir()
    (tmp_path / "ranks" / slots.ENDED).symlink_to(tmp_path / "secret")
    assert REMAINS.failure("last line\n", str(tmp_path / "ranks"), 0, 1, 1)["message"] == "last line"


# --- DeepSpeed's launcher ----------------------------------------------------------------------------------

# Stands in for DeepSpeed 0.19's, whose names of files and words it has; tests/lab has the real one.
LAUNCHER = """
import os, subprocess, sys, time
ranks = sys.argv[1]
os.makedirs(ranks, exist_ok=True)
started = []
for local in range(2):
    log = open(f"{ranks}/20261129_rank{4 + local}.log", "w")
    cmd = ["sh", "-c", sys.argv[2]]
    process = subprocess.Popen(cmd, env={**os.environ, "RANK": str(4 + local)}, stdout=log, stderr=log)
    print(f"[INFO] [launch.py:245:main] process {process.pid} spawned with command: {cmd}", flush=True)
    started.append(process)
while started:
    for process in list(started):
        code = process.poll()
        if code:
            for other in started:
                other.terminate()
            print(f"[ERROR] {cmd} exits with return code = {code}", flush=True)
            sys.exit(code)
        if code == 0:
            started.remove(process)
    time.sleep(WAIT)
"""


@pytest.mark.parametrize(
    ("death", "code", "wait"), [("exit 7", 7, 0.3), ("kill -KILL $$", 137, 0.3), ("kill -KILL $$", 137, 0.0)]
)
def test_the_rank_that_deepspeed_does_not_name(node: Run, death: str, code: int, wait: float) -> None:
    package = node.tree / "deepspeed" / "launcher"
    package.mkdir(parents=True)
    (package / "launch.py").write_text(LAUNCHER.replace("WAIT", str(wait)))
    script = f"echo hello; [ $RANK = 5 ] && {{ sleep 0.5; echo why; {death}; }}; sleep 60"
    got, lines = node.run(str(node.ranks), script, mode="deepspeed")
    reader = READERS["deepspeed"]
    found = reader.failure("", str(node.ranks), 4, 2, got)
    assert (got, found["exit_code"]) == (code, code)
    assert {b"[rank4] hello", b"[rank5] hello", b"[rank5] why"} <= {*lines}
    assert reader.started(str(node.ranks), 2) == 2
    log = reader.rank_log(str(node.ranks), 1, "stdout")
    assert log is not None
    assert Path(log).read_text() == "hello\nwhy\n"
    assert reader.rank_log(str(node.ranks), 1, "stderr") is None
    if wait:  # else the launcher may collect the rank before we can look at it
        assert found["rank"] == 5
        assert (
            f"[mnt] rank 5 {'was killed by SIGKILL' if code == 137 else 'exited with code 7'}".encode()
            in lines
        )
