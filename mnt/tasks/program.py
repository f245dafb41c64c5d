"""Run one of the programs of mnt.remote on a host."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Any, TypedDict

from mnt.errors import HostError
from mnt.fleet import HostConnection, Timeouts
from mnt.fleet.shell import runs_nothing
from mnt.fleet.wire.command import ReadTimeout, RunningCommand, remaining
from mnt.remote.common.files import whole_number
from mnt.remote.common.forms import EXPOSED
from mnt.remote.common.life import HEARTBEAT
from mnt.tasks import bootstrap, bundle
from mnt.tasks.bootstrap import BadFrame, Frame, FrameReader
from mnt.tasks.bounds import Bound, bound_of
from mnt.tasks.shape import shaped, wrong_answer

OnFrame = Callable[[dict[str, Any]], None]

_LINE_SHOWN, _ERROR_SHOWN = 500, 2000  # characters of a line or an error of the host in a message
_MOST_REMARKS = 100  # frames of boot.sh, which sends about 15


class ProgramError(HostError):
    """A program raised on the host. `traceback` is its traceback there."""

    def __init__(self, host: str, message: str, traceback: str) -> None:
        super().__init__(host, "command", message)
        self.traceback = traceback


class NoPython(HostError):
    """The host has no Python >= 3.8.

    `tried` lists the interpreters that were tried, each with its result; `facts` is what plain `sh` knows
    about the host: `hostname`, `os`, `kernel`, as far as available.
    """

    def __init__(self, host: str, tried: Sequence[str], facts: dict[str, str]) -> None:
        super().__init__(
            host,
            "command",
            "no Python 3.8 or newer; tried " + ", ".join(tried),
            fix="install python3 there, or name an interpreter in the inventory: python: /path/to/python",
        )
        self.tried = tuple(tried)
        self.facts = facts


def run_program(
    connection: HostConnection,
    name: str,
    args: dict[str, Any],
    *,
    stdin: Iterable[bytes] | None = None,
    timeout: float | None = 60.0,
    on_frame: OnFrame | None = None,
    on_noise: Callable[[str], None] | None = None,
    bound: Bound | None = None,
) -> dict[str, Any]:
    """Run a program of `mnt/remote/` on the host and return its answer.

    Args:
        args: JSON-serialisable; `main` gets them with `_boot` added.
        stdin: bytes for the program's `stdin`; iterated in another thread, once the program has started.
        timeout: seconds for everything; None: no limit.
        on_frame: called in this thread with each frame that the program emits.
        on_noise: called with the end of the output before the program: what start-up files print.
        bound: of each frame; None: that of the program, in mnt/tasks/bounds.py.

    Closing the connection, from any thread, ends the call and the program.

    Raises:
        NoPython: no interpreter.
        ProgramError: the program raised.
        HostError: phase `command`: the program died, or took too long; `answer`: the answer is not valid;
            `channel`: the connection was lost; or a phase of the login.
    """
    target, patience = connection.target, connection.timeouts.interpreter
    host, python = target.name, () if target.trains_elsewhere else target.python
    deadline = None if timeout is None else time.monotonic() + timeout
    most = bound or bound_of(name)

    def attempt(words: Sequence[str], why: str = "", stale: int | None = None) -> dict[str, Any]:
        mark = bootstrap.new_mark()
        opening = bootstrap.opening(
            mark, words, why=why, stale=stale, owner=target.python_owner, group=target.workdir_group
        )
        request = bootstrap.request(mark, name, args, most.size)
        if stdin is None:
            request += bootstrap.END_OF_STREAM
        with connection.start(bootstrap.COMMAND) as command:
            run = _Run(command, mark, name, deadline, connection.timeouts, most)
            command.write([opening + bundle.packed(name) + request])
            return run.answer(stdin, on_frame, on_noise)

    try:
        try:
            return attempt(python)
        except _TimedOut as late:
            if not late.starting:
                raise
            why = f"did not start within {patience:g} s: {' '.join(python)}"
            return attempt((), why, late.group)
    except _TimedOut as late:
        if late.group is not None:
            _kill(connection, late.group)
        problem = f"{name}: no answer within {timeout:g} s"
        if late.starting:
            problem = "no Python starts there: each takes too long"
        raise HostError(host, "command", problem) from None
    except _NoShell as silent:
        raise runs_nothing(connection, silent.exit_code, silent.output) from None
    except BadFrame as error:
        raise wrong_answer(host, f"{name}: {error}") from None


@contextlib.contextmanager
def held(
    connection: HostConnection, name: str, args: dict[str, Any], *, patience: float = 60.0
) -> Iterator[dict[str, Any]]:
    """Run a program of `mnt/remote/` while the block runs; yields the first frame that it emits.

    The program ends with its standard input: at the end of the block, or if the connection is lost. Until
    then it gets a line every `HEARTBEAT` seconds. Further frames are ignored.

    Args:
        patience: seconds that it may take to emit the frame, and again to end. If it does not end, the
            connection is closed.

    Raises HostError if the program fails before that frame, or does not emit it in time.
    """
    done = threading.Event()
    first: Future[dict[str, Any]] = Future()

    def tell(frame: dict[str, Any]) -> None:
        if not first.done():
            first.set_result(frame)

    def run() -> None:
        host = connection.target.name
        error: BaseException = wrong_answer(host, f"{name}: it ended before it was ready")
        try:
            run_program(connection, name, args, stdin=_until(done), timeout=None, on_frame=tell)
        except BaseException as raised:  # noqa: BLE001 - it is raised below, if nothing was heard before
            error = raised
        if not first.done():
            first.set_exception(error)

    holder = threading.Thread(target=run, daemon=True)
    holder.start()
    try:
        if not wait((first,), patience).done:
            problem = f"{name}: no answer within {patience:g} s"
            raise HostError(connection.target.name, "command", problem)
        yield first.result()
    finally:
        done.set()
        holder.join(patience)
        if holder.is_alive():
            connection.close()


def _until(done: threading.Event) -> Iterator[bytes]:
    """A stream that ends when `done` is set, with a sign of life every now and then."""
    while not done.wait(HEARTBEAT):
        yield b"\n"


class _Error(TypedDict):
    error: str
    traceback: str


@dataclass(eq=False)
class _TimedOut(Exception):
    """The deadline has passed, or (`starting`) the time that an interpreter has to start.

    `group` is the process group of the interpreters; None once a program has started, which ends by itself.
    """

    group: int | None
    starting: bool


@dataclass(eq=False)
class _NoShell(Exception):
    """The login shell did not run COMMAND: it has ended, or `Timeouts.start` has passed."""

    exit_code: int | None  # None: it has not ended
    output: str


class _Run:
    """The conversation about one program.

    Args:
        mark: of its frames.
        deadline: on time.monotonic()'s clock.
        timeouts: for the start of the shell, and of each interpreter.
        bound: of each frame.
    """

    def __init__(
        self,
        command: RunningCommand,
        mark: str,
        name: str,
        deadline: float | None,
        timeouts: Timeouts,
        bound: Bound,
    ) -> None:
        self._command = command
        self._host = command.host
        self._name = name
        self._reader = FrameReader(mark, bound)
        self._deadline = deadline
        self._patience = timeouts.interpreter
        self._heard = False  # whether any frame has come
        self._group: int | None = None  # process group of sh, until a program has started
        # When to give up what is being started: the shell, then an interpreter.
        self._impatient: float | None = time.monotonic() + timeouts.start

    def answer(
        self,
        stdin: Iterable[bytes] | None,
        on_frame: OnFrame | None,
        on_noise: Callable[[str], None] | None,
    ) -> dict[str, Any]:
        tried: list[str] = []
        facts: dict[str, str] = {}
        started = False
        for frame in self._frames():
            if frame.kind in ("answer", "frame", "error") and not isinstance(frame.value, dict):
                raise BadFrame(f"the {frame.kind} is no JSON object")
            if frame.kind == "answer":
                answer: dict[str, Any] = frame.value
                return answer
            if frame.kind == "error":
                raised = shaped(self._host, frame.value, _Error)
                raise ProgramError(
                    self._host, f"{self._name}: {raised['error'][:_ERROR_SHOWN]}", raised["traceback"]
                )
            if frame.kind == "frame":
                if on_frame is not None:
                    on_frame(frame.value)
            elif frame.kind == "hello":
                if started:
                    raise BadFrame("a second start")
                started = True
                if on_noise is not None:
                    on_noise(self._reader.skipped)
                if stdin is not None:
                    self._command.write(_pieces(stdin))
            elif frame.kind == "tried":
                if started:
                    raise self._died(frame.value.partition(" ")[0])
                tried.append(frame.value)
            elif frame.kind == "fact":
                key, _, value = frame.value.partition(" ")
                facts[key] = value
            elif frame.kind == "none":
                raise NoPython(self._host, _attempts(tried), facts)
            if len(tried) + len(facts) > _MOST_REMARKS:
                raise BadFrame("too many remarks of a shell")
        raise self._ended()

    def _frames(self) -> Iterator[Frame]:
        """Frames until the command ends. Raises _TimedOut."""
        while True:
            due = [limit for limit in (self._deadline, self._impatient) if limit is not None]
            try:
                data = self._command.read(remaining(min(due)) if due else None)
            except ReadTimeout:
                starting = min(due) == self._impatient
                if starting and not self._heard:
                    raise self._ended() from None
                raise _TimedOut(self._group, starting=starting) from None
            if not data:
                return
            for frame in self._reader.feed(data):
                self._note(frame)
                yield frame

    def _note(self, frame: Frame) -> None:
        """Keep track of what is being started: interpreters after `sh`, nothing after `hello`."""
        self._heard = True
        if frame.kind == "sh":
            self._group = whole_number(frame.value)
        if frame.kind in ("sh", "tried"):
            self._impatient = time.monotonic() + self._patience
        else:
            self._impatient = self._group = None

    def _died(self, code: str) -> HostError:
        """The error if the program ended without an answer, so that sh tries the next interpreter."""
        last_line = _last_line(self._command.stderr)
        return HostError(self._host, "command", f"{self._name}: it died, exit code {code}{last_line}")

    def _ended(self) -> Exception:
        code = self._command.exit_code
        output = self._command.stderr.strip() or self._reader.noise
        if not self._heard:
            return _NoShell(code, output)
        ended = "ended without an answer" + ("" if code is None else f", exit code {code}")
        return wrong_answer(self._host, f"{self._name}: {ended}{_last_line(output)}")


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return f": {lines[-1][:_LINE_SHOWN]}" if lines else ""


def _attempts(tried: Sequence[str]) -> list[str]:
    """For people: boot.sh's `CODE WORDS` of the configured interpreter and of those that exist."""
    meanings = {"96": EXPOSED, "97": "too old", "126": "cannot be run", "127": "not found"}
    attempts = []
    for index, attempt in enumerate(tried):
        code, _, words = attempt.partition(" ")
        if index == 0 or code != "127":
            attempts.append(f"{words} ({meanings.get(code, f'exit code {code}')})")
    return [*attempts, "the usual names and places"]


def _pieces(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The program's stream, as boot.py reads it."""
    for chunk in chunks:
        for start in range(0, len(chunk), bootstrap.PIECE):
            yield bootstrap.piece(chunk[start : start + bootstrap.PIECE])
    yield bootstrap.END_OF_STREAM


def _kill(connection: HostConnection, group: int) -> None:
    """Kill the processes of an attempt that hangs, if possible; boot.sh does so before anything else."""
    opening = bootstrap.opening(bootstrap.new_mark(), (), stale=group)
    with (
        contextlib.suppress(HostError, ReadTimeout),
        connection.start(bootstrap.COMMAND) as command,
    ):
        command.write([opening])
        command.read(connection.timeouts.channel)
