"""Commands that ask a person: run on a terminal of their own, and answered."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from waiting import PATIENCE


class Said(NamedTuple):
    text: str
    code: int


def on_a_terminal(
    command: Sequence[str],
    answers: Sequence[tuple[str, str]],
    env: Mapping[str, str] | None = None,
    *,
    patience: float = PATIENCE,
) -> Said:
    """Run a command on a pty, its controlling terminal, and answer its questions in their order.

    Args:
        answers: pairs of what is asked (a part of it) and what is typed then. `^C` is the key.
        patience: seconds that it may say nothing.
    """
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvpe(command[0], list(command), {**os.environ, **(env or {})})
    text, seen = "", 0
    waiting = list(answers)
    try:
        while piece := _read(terminal, patience):
            text += piece
            if waiting and (at := text.find(waiting[0][0], seen)) >= 0:
                question, answer = waiting.pop(0)
                seen = at + len(question)
                os.write(terminal, b"\x03" if answer == "^C" else answer.encode() + b"\n")
    except TimeoutError:
        os.kill(pid, signal.SIGKILL)
        raise AssertionError(f"nothing more came; said:\n{text}") from None
    finally:
        os.close(terminal)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert not waiting, f"never asked: {waiting[0][0]!r}; said:\n{text}"
    return Said(text.replace("\r\n", "\n"), code)


def _read(terminal: int, patience: float) -> str:
    if not select.select([terminal], [], [], patience)[0]:
        raise TimeoutError
    try:
        return os.read(terminal, 65536).decode(errors="replace")
    except OSError:  # EIO: nobody has the other side open any more
        return ""


def without_a_terminal(
    command: Sequence[str], env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command in a session of its own, so that there is nobody to ask."""
    return subprocess.run(
        command,
        env={**os.environ, **(env or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        start_new_session=True,
    )
