"""Run one of the programs of mnt.remote on a host."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from fabric import Connection

from mnt.errors import HostError
from mnt.fleet.channel import RemoteCommand, host_name, timeouts_of
from mnt.remote import bootstrap
from mnt.remote.bootstrap import BadFrame, Frame, FrameReader
from mnt.tasks.bundle import program_modules

OnFrame = Callable[[dict[str, Any]], None]


class NoPython(HostError):
    """The host has no Python >= 3.8.

    `tried` names the interpreters that were tried and what became of them; `facts` is what plain `sh` can tell of
    the host: `hostname`, `os`, `kernel`, as far as they are known.
    """

    def __init__(self, host: str, tried: Sequence[str], facts: dict[str, str]) -> None:
        super().__init__(
            host,
            "command",
            "no Python 3.8 or newer; tried " + ", ".join(tried),
            fix="install python3 there, or name the interpreter in the inventory: python: /path/to/python",
        )
        self.tried = tuple(tried)
        self.facts = facts


class _Stuck(Exception):
    """The login shell is through, but no interpreter has started; `group` is their process group."""

    def __init__(self, group: int) -> None:
        super().__init__(group)
        self.group = group


def run_program(
    connection: Connection,
    name: str,
    args: dict[str, Any],
    *,
    stdin: Iterable[bytes] | None = None,
    timeout: float | None = 60.0,
    on_frame: OnFrame | None = None,
) -> dict[str, Any]:
    """Run `mnt/remote/<name>.py` on the host and return its answer.

    Args:
        connection: a HostConnection, or any Fabric connection (then `python3` is the configured interpreter).
        args: JSON-serialisable; `main` gets them with `_boot` added.
        stdin: bytes for the program's `stdin`; iterated in another thread, once the program has started.
        timeout: seconds for all of it; None: as long as it takes.
        on_frame: takes each frame that the program emits, in this thread.

    Closing the connection, from any thread, ends the call, and the program with it.

    Raises:
        NoPython: see there.
        HostError: phase `command`: the program raised (its traceback is a note of the error), or took too long;
            `answer`: what came is no answer; `channel`: the connection was lost; or one from logging in.
    """
    host = host_name(connection)
    deadline = None if timeout is None else time.monotonic() + timeout
    target = getattr(connection, "target", None)
    python: tuple[str, ...] = ("python3",) if target is None else target.python
    run = _Run(connection, name, args, stdin, deadline, on_frame)
    try:
        try:
            return run.attempt(python)
        except _Stuck as stuck:
            patience = timeouts_of(connection).interpreter
            why = f"did not start within {patience:g} s: {' '.join(python)}"
            return run.attempt((), why=why, stale=stuck.group)
    except _Stuck as stuck:
        _end(connection, stuck.group)
        raise HostError(host, "command", "no Python starts; each takes too long") from None
    except TimeoutError:
        raise HostError(host, "command", f"{name}: no answer within {timeout:g} s") from None
    except BadFrame as error:
        raise HostError(host, "answer", f"{name}: {error}") from None


def _end(connection: Connection, group: int) -> None:
    """Kill the processes of an attempt that hangs."""
    with RemoteCommand(connection, bootstrap.COMMAND) as command:
        command.write([bootstrap.opening(bootstrap.new_mark(), (), "", [], {}, stale=group)])
        command.read(timeouts_of(connection).channel)


class _Run:
    """One call of `run_program`: up to two attempts, with and without the configured interpreter."""

    def __init__(
        self,
        connection: Connection,
        name: str,
        args: dict[str, Any],
        stdin: Iterable[bytes] | None,
        deadline: float | None,
        on_frame: OnFrame | None,
    ) -> None:
        self._connection = connection
        self._host = host_name(connection)
        self._name = name
        self._args = args
        self._stdin = stdin
        self._deadline = deadline
        self._on_frame = on_frame

    def attempt(self, python: Sequence[str], *, why: str = "", stale: int | None = None) -> dict[str, Any]:
        mark = bootstrap.new_mark()
        opening = bootstrap.opening(
            mark, python, self._name, program_modules(self._name), self._args, why=why, stale=stale
        )
        with RemoteCommand(self._connection, bootstrap.COMMAND) as command:
            command.write([opening])
            return self._serve(command, FrameReader(mark))

    def _serve(self, command: RemoteCommand, reader: FrameReader) -> dict[str, Any]:
        tried: list[str] = []
        facts: dict[str, str] = {}
        started = False
        for frame in self._frames(command, reader):
            if frame.kind == "answer":
                return self._answer(frame.value)
            if frame.kind == "error":
                raise self._raised(frame.value)
            if frame.kind == "frame":
                if self._on_frame is not None:
                    self._on_frame(frame.value)
            elif frame.kind == "hello":
                started = True
                command.write(_pieces(self._stdin or ()))
            elif frame.kind == "tried":
                if started:
                    raise self._died(frame.value.partition(" ")[0], command)
                tried.append(_told(frame.value))
            elif frame.kind == "fact":
                key, _, value = frame.value.partition(" ")
                facts[key] = value
            elif frame.kind == "none":
                raise NoPython(self._host, tried, facts)
        raise self._ended(command, reader)

    def _frames(self, command: RemoteCommand, reader: FrameReader) -> Iterator[Frame]:
        """Frames until the command ends. Raises _Stuck, and TimeoutError past the deadline."""
        patience = timeouts_of(self._connection).interpreter
        group = 0
        impatient: float | None = None  # when to give up on the interpreter that is being tried
        while True:
            now = time.monotonic()
            limits = [limit - now for limit in (self._deadline, impatient) if limit is not None]
            try:
                data = command.read(max(0.0, min(limits)) if limits else None)
            except TimeoutError:
                if impatient is not None and time.monotonic() >= impatient:
                    raise _Stuck(group) from None
                raise
            if not data:
                return
            for frame in reader.feed(data):
                if frame.kind == "sh":
                    group = int(frame.value)
                if frame.kind in ("sh", "tried"):
                    impatient = time.monotonic() + patience
                else:
                    impatient = None
                yield frame

    def _answer(self, value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise BadFrame("the answer is no JSON object")
        return value

    def _raised(self, value: dict[str, str]) -> HostError:
        error = HostError(self._host, "command", f"{self._name}: {value['error']}")
        error.add_note(value["traceback"]) if hasattr(error, "add_note") else None
        return error

    def _died(self, code: str, command: RemoteCommand) -> HostError:
        last = command.stderr.strip().splitlines()
        why = f": {last[-1]}" if last else ""
        return HostError(self._host, "command", f"{self._name}: the program died, exit code {code}{why}")

    def _ended(self, command: RemoteCommand, reader: FrameReader) -> HostError:
        said = (command.stderr.strip() or reader.noise.strip()).splitlines()
        code = "" if command.exit_code is None else f", exit code {command.exit_code}"
        why = f": {said[-1]}" if said else ""
        return HostError(self._host, "answer", f"{self._name}: ended without an answer{code}{why}")


def _told(text: str) -> str:
    code, _, words = text.partition(" ")
    what = {"97": "too old", "126": "cannot be run", "127": "not found"}.get(code, f"exit code {code}")
    return f"{words} ({what})"


def _pieces(chunks: Iterable[bytes]) -> Iterable[bytes]:
    """The program's stream, framed. A list where nothing has to be waited for."""
    if not chunks:
        return [bootstrap.END_OF_STREAM]
    return _framed(chunks)


def _framed(chunks: Iterable[bytes]) -> Iterator[bytes]:
    for chunk in chunks:
        for start in range(0, len(chunk), bootstrap.PIECE):
            yield bootstrap.piece(chunk[start : start + bootstrap.PIECE])
    yield bootstrap.END_OF_STREAM
