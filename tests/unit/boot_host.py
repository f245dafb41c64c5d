"""A program started as on a host, but without SSH: a shell gets bootstrap.COMMAND, the rest on stdin."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from waiting import PATIENCE

from mnt.tasks import bootstrap
from mnt.tasks.bootstrap import Frame, FrameReader


class Conversation:
    """A started COMMAND. `frames` reads to the end, `until` to the first frame of a kind."""

    def __init__(
        self,
        program: str,
        args: Mapping[str, Any] | None = None,
        *,
        shell: Sequence[str] = ("sh",),
        python: Sequence[str] = (sys.executable,),
        stream: bytes | None = b"",
        before: bytes = b"",
        env: Mapping[str, str] | None = None,
        stale: int | None = None,
        why: str = "",
        owner: str | None = None,
        group: str | None = None,
        mark: str | None = None,
    ) -> None:
        mark = mark or bootstrap.new_mark()
        self.reader = FrameReader(mark)
        self.process = subprocess.Popen(
            [*shell, "-c", bootstrap.COMMAND],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **(env or {})},
            start_new_session=True,
        )
        opening = bootstrap.opening(mark, python, why=why, stale=stale, owner=owner, group=group)
        code = bootstrap.pack([("mnt.remote.trial", program)])
        self.send(opening + code + bootstrap.request(mark, "trial", dict(args or {})))
        if stream is not None:
            with contextlib.suppress(BrokenPipeError):  # it has answered without reading so far
                self.send((bootstrap.piece(stream) if stream else b"") + bootstrap.END_OF_STREAM)
        self._waiting: list[Frame] = []

    def __enter__(self) -> Conversation:
        return self

    def __exit__(self, *exc: object) -> None:
        self.hang_up()
        self.process.wait(PATIENCE)
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()

    def send(self, data: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def hang_up(self) -> None:
        """What the loss of the connection does to standard input."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()

    def next(self) -> Frame | None:
        """The next frame; None at the end of the output."""
        assert self.process.stdout is not None
        while not self._waiting:
            data = os.read(self.process.stdout.fileno(), 65536)
            if not data:
                return None
            self._waiting += self.reader.feed(data)
        return self._waiting.pop(0)

    def until(self, kind: str) -> Frame:
        while (frame := self.next()) is not None:
            if frame.kind == kind:
                return frame
        assert self.process.stderr is not None
        raise AssertionError(f"no frame {kind!r}; stderr: {self.process.stderr.read().decode()}")

    def frames(self) -> list[Frame]:
        """All that are still to come; the process may have to be hung up on before."""
        found = []
        while (frame := self.next()) is not None:
            found.append(frame)
        return found


def answer(program: str, args: Mapping[str, Any] | None = None, **options: Any) -> Any:
    """What the program answers."""
    with Conversation(program, args, **options) as conversation:
        return conversation.until("answer").value


def script(path: Path, text: str) -> str:
    """An executable file of that text."""
    path.write_text(text)
    path.chmod(0o755)
    return str(path)
