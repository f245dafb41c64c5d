"""What goes around a command on a host, in the shells that may be a host's sh, without SSH."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from waiting import PATIENCE, wait_for

from mnt.run.command import from_script, from_words
from mnt.tasks import bootstrap, wrapper
from mnt.tasks.wrapper import Command, Streams

SHELLS = ["dash", "bash", "zsh", "ksh", "busybox"]


class Answer(NamedTuple):
    code: int | None
    stdout: bytes
    stderr: bytes


class Running:
    """A command, started as sshd would: COMMAND for a login shell, the rest on stdin."""

    def __init__(self, command: Command, stdin: Iterable[bytes] | None, env: dict[str, str]) -> None:
        self.mark = bootstrap.new_mark()
        self.env = {**os.environ, **env}
        self.process = subprocess.Popen(
            ["/bin/sh", "-c", wrapper.login_line(command)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            env=self.env,
        )
        self._send(wrapper.opening(command, self.mark, with_input=stdin is not None))
        if stdin is not None:
            threading.Thread(target=self._feed, args=(stdin,), daemon=True).start()

    def _send(self, data: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def _feed(self, stdin: Iterable[bytes]) -> None:
        with contextlib.suppress(BrokenPipeError):  # the command has ended
            for data in (wrapper.GO, *stdin):
                self._send(data)
            self.hang_up()

    def hang_up(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()

    def answer(self) -> Answer:
        streams = Streams(self.mark)
        errors = bytearray()
        assert self.process.stderr is not None
        assert self.process.stdout is not None
        stderr = self.process.stderr
        reader = threading.Thread(target=lambda: errors.extend(stderr.read()))
        reader.start()
        output = self.process.stdout.read()
        reader.join()
        self.process.wait(PATIENCE)
        return Answer(*_split(streams, [output], [bytes(errors)]))


def _split(streams: Streams, output: list[bytes], errors: list[bytes]) -> tuple[int | None, bytes, bytes]:
    stdout = b"".join(map(streams.stdout, output))
    stderr = b"".join(map(streams.stderr, errors)) + streams.rest()
    return streams.exit_code, stdout, stderr


Start = Callable[..., Running]


@pytest.fixture(params=SHELLS)
def start(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Start]:
    """Starts commands on a host whose sh is one of SHELLS. Nothing of them is left afterwards."""
    path = shutil.which(request.param)
    if path is None:
        pytest.skip(f"{request.param} is not installed")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "sh").symlink_to(path)
    env = {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "TMPDIR": str(tmp_path)}
    started: list[Running] = []

    def run(command: Command, stdin: Iterable[bytes] | None = None) -> Running:
        started.append(Running(command, stdin, env))
        return started[-1]

    yield run
    for running in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(running.process.pid, signal.SIGKILL)
        running.process.wait(PATIENCE)
        for stream in (running.process.stdin, running.process.stdout, running.process.stderr):
            assert stream is not None
            with contextlib.suppress(BrokenPipeError):
                stream.close()


ODD = [
    "",
    " ",
    "a b",
    "'",
    '"',
    "\\",
    "$(exit 9)",
    "`id`",
    ";",
    "x\ny",
    "\n",
    "-n",
    "*",
    "~",
    "!",
    "\udcff\udc81",
]


def test_words_arrive_as_they_are(start: Start) -> None:
    answer = start(from_words(["printf", "[%s]", *ODD])).answer()
    expected = b"".join(b"[%b]" % os.fsencode(word) for word in ODD)
    assert answer == (0, expected, b"")


def test_a_line_is_for_the_shell_and_both_streams_are_apart(start: Start) -> None:
    answer = start(from_words(["echo out; echo err >&2; printf x | tr x y; exit 3"])).answer()
    assert answer == (3, b"out\ny", b"err\n")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["kill -9 $$"], 137, b""),
        (["kill -TERM $$"], 143, b""),
        (["exit", "3"], 127, b"not found"),  # a builtin is no program
        (["/dev/null", "x"], 126, b""),
    ],
)
def test_exit_codes(start: Start, words: list[str], code: int, said: bytes) -> None:
    answer = start(from_words(words)).answer()
    assert answer.code == code
    assert answer.stdout == b""
    assert said in answer.stderr
    assert (answer.stderr == b"") == (words[0].startswith("kill"))


def test_without_input_there_is_none(start: Start) -> None:
    assert start(from_words(["cat; echo end"])).answer() == (0, b"end\n", b"")


def test_input_arrives_as_it_is(start: Start) -> None:
    data = os.urandom(700_000)
    assert start(from_words(["cat"]), [data[:1], data[1:]]).answer() == (0, data, b"")
    assert start(from_words(["wc", "-c"]), []).answer().stdout.strip() == b"0"


def test_input_that_nobody_wants(start: Start) -> None:
    assert start(from_words(["true"]), [b"x" * 3_000_000]).answer() == (0, b"", b"")
    closed = "exec </dev/null; sleep 0.3; echo done"
    assert start(from_words([closed]), [b"x" * 3_000_000]).answer() == (0, b"done\n", b"")


def test_a_script_has_no_name_by_the_time_it_runs(start: Start, tmp_path: Path) -> None:
    file = tmp_path / "script"
    file.write_text('#!/bin/sh -e\nls "$TMPDIR"\necho "$1" "$2"\ncat\nexit 4\n')
    answer = start(from_script(str(file), ["a b", "-n"]), [b"input"]).answer()
    assert answer == (4, b"bin\nscript\na b -n\ninput", b"")


def test_a_script_that_came_in_part_is_not_run(start: Start, tmp_path: Path) -> None:
    running = start(Command((b"/bin/sh", b"/dev/fd/5"), b"echo ran\n" + b"#" * 100))
    cut = Command((b"/bin/sh", b"/dev/fd/5"), b"echo ran\n")
    assert running.answer().stdout == b"ran\n"
    whole = wrapper.opening(cut, "mark", with_input=False)
    done = subprocess.run(
        ["/bin/sh", "-c", wrapper.login_line(cut)],
        input=whole[:-4],
        capture_output=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert done.stdout.startswith(b"mark ")
    assert b"ran" not in done.stdout
    assert done.returncode == 126
    assert [file.name for file in tmp_path.iterdir()] == ["bin"]


def test_what_it_leaves_in_the_background_stays(start: Start, tmp_path: Path) -> None:
    line = f"(sleep 0.5; touch {tmp_path}/there) >/dev/null 2>&1 & echo started"
    assert start(from_words([line])).answer() == (0, b"started\n", b"")
    wait_for((tmp_path / "there").exists)


@pytest.mark.parametrize("ignore", ["", "trap '' TERM HUP INT; "])
def test_it_ends_with_the_head(start: Start, tmp_path: Path, ignore: str) -> None:
    running = start(from_words([f"{ignore}echo began >$TMPDIR/began; sleep 1000 | sleep 1000"]))
    wait_for((tmp_path / "began").exists)
    assert running.process.poll() is None
    running.hang_up()
    running.process.wait(PATIENCE)
    wait_for(lambda: gone(running.process.pid))


@pytest.mark.parametrize("stdin", [[], [b"x" * 3_000_000]], ids=["no input", "input"])
def test_a_stopped_command_cleans_up_too(start: Start, tmp_path: Path, stdin: list[bytes]) -> None:
    clean_up = "trap 'touch $TMPDIR/cleaned; exit' TERM"
    line = f"{clean_up}; echo began >$TMPDIR/began; kill -STOP $$; sleep 1000 & wait"
    running = start(from_words([line]), *([stdin] if stdin else []))
    wait_for((tmp_path / "began").exists)
    if stdin:
        subprocess.run(
            ["/bin/sh", "-c", bootstrap.COMMAND],
            input=wrapper.leash_opening("mark", running.process.pid),
            capture_output=True,
            env=running.env,
            timeout=PATIENCE,
        )
    else:
        running.hang_up()
    wait_for((tmp_path / "cleaned").exists)
    running.process.wait(PATIENCE)


@pytest.mark.parametrize("last_word", [b"", wrapper.DONE], ids=["head gone", "done"])
def test_a_leash_ends_what_has_its_input_from_the_head(
    start: Start, tmp_path: Path, last_word: bytes
) -> None:
    running = start(from_words(["echo began >$TMPDIR/began; sleep 1000"]), [b"x" * 3_000_000])
    wait_for((tmp_path / "began").exists)
    done = subprocess.run(
        ["/bin/sh", "-c", bootstrap.COMMAND],
        input=wrapper.leash_opening("mark", running.process.pid) + last_word,
        capture_output=True,
        env=running.env,
        timeout=PATIENCE,
    )
    assert done.stdout == b"mark\n"
    assert (running.process.poll() is None) == bool(last_word)


def gone(group: int) -> bool:
    """Whether nobody is in a process group any more."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    return False


# -- taking the streams apart


@given(
    noise=st.binary(max_size=30),
    output=st.binary(max_size=30),
    error=st.binary(max_size=30),
    late=st.binary(max_size=10),
    cut=st.lists(st.integers(0, 200), max_size=8),
)
def test_streams_come_apart_however_they_are_cut(
    noise: bytes, output: bytes, error: bytes, late: bytes, cut: list[int]
) -> None:
    mark = b"mnt-0123"
    stdout = noise + mark + b" 42\n" + output
    stderr = noise + mark + b"\n" + error + mark + b" 17\n" + late
    streams = Streams(mark.decode())
    answer = _split(streams, _cut(stdout, cut), _cut(stderr, cut))
    assert answer == (17, output, error + late)
    assert streams.group == 42


def _cut(data: bytes, at: list[int]) -> list[bytes]:
    ends = sorted({0, *(min(end, len(data)) for end in at), len(data)})
    return [data[start:end] for start, end in itertools.pairwise(ends)]


def test_a_command_that_never_started() -> None:
    streams = Streams("mnt-0123")
    assert _split(streams, [b"Welcome\n"], [b"This account is ", b"not available.\n"]) == (None, b"", b"")
    assert not streams.started
    assert streams.noise == "This account is not available.\n"


def test_what_looks_like_the_end_but_is_not() -> None:
    said = b"mnt-0123 is my mark\n"
    streams = Streams("mnt-0123")
    assert _split(streams, [b"mnt-0123 1\n"], [b"mnt-0123\n", said, b"more\nmnt-01"]) == (
        None,
        b"",
        said + b"more\nmnt-01",
    )


def test_a_host_that_never_ends_the_wrappers_lines() -> None:
    """What is held back of both streams stays small; what follows a mark is no number of any length."""
    for after in (b"x" * 60_000, b"9" * 60_000, b" ", b"mnt-0123 ", b"mnt-0123 12x\n"):
        streams = Streams("mnt-0123")
        for _ in range(100):
            streams.stdout(b"mnt-0123" + after)
            streams.stderr(b"mnt-0123\n" + b"mnt-0123 " + after)
            kept = (*streams._noise.values(), streams._held)
            assert sum(map(len, kept)) < 70_000
        assert streams.exit_code is None


def test_numbers_of_the_host_that_are_too_long() -> None:
    streams = Streams("mnt-0123")
    long = b"9" * 5000 + b"\n"
    answer = _split(streams, [b"mnt-0123 " + long], [b"mnt-0123\n", b"mnt-0123 " + long, b"mnt-0123 3\n"])
    assert answer == (3, b"", b"mnt-0123 " + long)
    assert streams.group is None
