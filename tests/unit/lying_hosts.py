"""Hosts that answer what a test wants, where an SSH connection would be: no real host gives such answers."""

from __future__ import annotations

import io
import json
import queue
from collections.abc import Callable, Iterator, Mapping
from typing import IO, Any

from mnt.errors import HostError
from mnt.fleet import Fleet, HostConnection
from mnt.fleet.login.shared import Shared
from mnt.fleet.wire.command import RunningCommand, Writer
from mnt.inventory.model import Host
from mnt.remote.boot.boot import Stream

# What a host sends: pairs (kind, value) of frames. It gets the host's name, the program's, its arguments, and
# its standard input.
Script = Callable[[str, str, dict[str, Any], IO[bytes]], Iterator[tuple[str, Any]]]
_LINE = 65536  # bytes of the largest line of a frame


class LyingConnection(HostConnection):
    """A connection over which something else speaks in place of a program.

    Args:
        command: makes the running command, from the name of the host.
    """

    def __init__(
        self, target: Host, shared: Shared | None = None, *, command: Callable[[str], RunningCommand]
    ) -> None:
        super().__init__(target, shared)
        self._command = command

    def open(self) -> None:
        """Nothing to do."""

    def start(self, command: str, *, on_stderr: Callable[[bytes], object] | None = None) -> RunningCommand:
        return self._command(self.target.name)


class _Heard(io.RawIOBase):
    """The bytes that a queue yields; an empty piece is the end."""

    def __init__(self, pieces: queue.SimpleQueue[bytes]) -> None:
        self._pieces = pieces
        self._rest = b""
        self._ended = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._rest and not self._ended:
            self._rest = self._pieces.get()
            self._ended = not self._rest
        piece, self._rest = self._rest[: len(buffer)], self._rest[len(buffer) :]
        buffer[: len(piece)] = piece
        return len(piece)


class Unsuspicious(RunningCommand):
    """A command that has succeeded, and has printed no error."""

    @property
    def exit_code(self) -> int | None:
        return 0

    @property
    def stderr(self) -> str:
        return ""


class _Speaking(Unsuspicious):
    """A command whose frames come from a script.

    Args:
        garble: changes the bytes of a frame.
    """

    def __init__(self, host: str, script: Script, garble: Callable[[bytes], bytes]) -> None:
        self.host = host
        self._script, self._garble = script, garble
        self._heard: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._feed = io.BufferedReader(_Heard(self._heard))
        self._said = self._speak()
        self._writer = Writer(self._heard.put, lambda: self._heard.put(b""), lambda: self._heard.put(b""))

    def read(self, timeout: float | None = None) -> bytes:
        """The script waits here for its input; the tests give it some, or end it."""
        said = next(self._said, b"")
        self._writer.check()
        return said

    def close(self) -> None:
        self._heard.put(b"")
        self._writer.close(0.0)

    def _speak(self) -> Iterator[bytes]:
        _, mark, *_, count = (self._feed.readline()[:-1] for _ in range(8))
        for _ in range(int(count or 0)):
            self._feed.readline()
        self._feed.read(int(self._feed.readline() or 0))  # the program
        request = json.loads(self._feed.read(int(self._feed.readline() or 0)) or "{}")
        if not request:  # the head has closed the command
            return
        stdin = io.BufferedReader(Stream(self._feed))
        frames = self._script(self.host, request["name"], request["args"], stdin)
        yield _frame(mark, "hello", {"pid": 1, "version": "3.11"})
        for kind, value in frames:
            yield self._garble(_frame(mark, kind, value))


def _frame(mark: bytes, kind: str, value: Any) -> bytes:
    data = json.dumps(value).encode()
    parts = [data[start : start + _LINE] for start in range(0, len(data), _LINE)]
    return b"".join(
        b"%b %b %d %d\n%b" % (mark, kind.encode(), len(part), number < len(parts) - 1, part)
        for number, part in enumerate(parts)
    )


def speaking(script: Script, garble: Callable[[bytes], bytes] = bytes) -> Callable[[str], RunningCommand]:
    """What LyingConnection takes: the script in place of any program."""
    return lambda name: _Speaking(name, script, garble)


class WatchedFleet(Fleet):
    """A fleet of such hosts. An error of a host that is a bug of mnt fails the test.

    Args:
        scripts: by host.
        garble: of the liar's frames.
    """

    def __init__(
        self,
        hosts: tuple[Host, ...],
        scripts: Mapping[str, Script],
        garble: Mapping[str, Callable[[bytes], bytes]] | None = None,
    ) -> None:
        def connect(host: Host, shared: Shared) -> HostConnection:
            change = (garble or {}).get(host.name, bytes)
            return LyingConnection(host, shared, command=speaking(scripts[host.name], change))

        super().__init__(hosts, connect=connect)
        self.failed: dict[str, HostError] = {}

    def run_each(self, task: Any, arguments: Any, *, on_result: Any = None, fanout: Any = None) -> Any:
        results = super().run_each(task, arguments, on_result=on_result, fanout=fanout)
        for host, error in results.errors().items():
            self.failed.setdefault(host, error)
            if error.__cause__ is not None and not isinstance(error.__cause__, HostError):
                raise error.__cause__
        return results
