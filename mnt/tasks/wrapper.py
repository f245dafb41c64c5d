"""The head's side of run.sh and leash.sh: the bytes that start a command, and its output without noise."""

from __future__ import annotations

import re
from dataclasses import dataclass

from mnt.remote.common.files import whole_number
from mnt.tasks import bootstrap

# The wrapper itself runs as root, to be able to end root's processes. -n: never ask.
_SUDO_COMMAND = bootstrap.COMMAND.replace("exec ", "exec sudo -n -- ", 1)

_NOISE_KEPT = 4096  # bytes: its end
_DIGITS = 9  # at most, of what follows a mark and a space: a process group, or an exit code

GO = b"\n"  # run.sh waits for it before it starts a command that has an input
DONE = b"\n"  # tells leash.sh that the command has ended by itself
SCRIPT_PLACE = b"/dev/fd/5"  # where run.sh has opened the script


@dataclass(frozen=True)
class Command:
    """Words as execve gets them. SCRIPT_PLACE among them stands for the file with the text `script`."""

    words: tuple[bytes, ...]
    script: bytes = b""
    sudo: bool = False


def login_line(command: Command) -> str:
    """The command for the login shell: one of two constants."""
    return _SUDO_COMMAND if command.sudo else bootstrap.COMMAND


def opening(command: Command, mark: str, *, with_input: bool) -> bytes:
    """What run.sh reads before GO, for which it waits if the command has an input."""
    judge = ["boot/judge.sh"] if command.script else []  # of the place for it
    lines = [
        bootstrap.shell_line(*judge, "boot/run.sh").encode(),
        mark.encode(),
        b" ".join(map(quote, command.words)),
        b"%d" % len(command.script),
        b"stream" if with_input else b"none",
    ]
    return b"".join(line + b"\n" for line in lines) + command.script


def leash_opening(mark: str, group: int) -> bytes:
    """What leash.sh reads before DONE."""
    return f"{bootstrap.shell_line('boot/leash.sh')}\n{mark}\n{group}\n".encode()


def quote(word: bytes) -> bytes:
    """A word for `eval` of a POSIX shell, on one line: newlines are `"$nl"`."""
    if re.fullmatch(rb"[A-Za-z0-9_./:=@%+,-]+", word):
        return word
    quoted = word.replace(b"'", b"'\"'\"'").replace(b"\n", b"'\"$nl\"'")
    return b"'" + quoted + b"'"


class Streams:
    """The command's output, without the noise before run.sh's mark and the exit code at the end."""

    def __init__(self, mark: str) -> None:
        self._mark = mark.encode()
        self._noise: dict[str, bytearray] = {"stdout": bytearray(), "stderr": bytearray()}
        self._echoed = False  # the input comes back
        self._held = b""  # the end of standard error, if it may be the beginning of the exit code
        self.group: int | None = None  # the command's process group
        self.exit_code: int | None = None

    @property
    def started(self) -> bool:
        """Whether the login shell, and sudo, have run the wrapper."""
        return "stdout" not in self._noise

    @property
    def noise(self) -> str:
        """The end of standard error before the mark; of standard output, if there is none.

        Not what only sends our own input back.
        """
        if self._echoed:
            return ""
        noise = self._noise.get("stderr", b"")
        if not noise.strip():
            noise = self._noise.get("stdout", b"")
        return bytes(noise[-_NOISE_KEPT:]).decode(errors="replace")

    def stdout(self, data: bytes) -> bytes:
        """The command's part of the next piece of standard output."""
        return self._after_mark("stdout", data)

    def stderr(self, data: bytes) -> bytes:
        """The same for standard error. It may hold some bytes back until the next call, or `rest`."""
        data = self._held + self._after_mark("stderr", data)
        passed: list[bytes] = []
        while True:
            before, mark, after = data.partition(self._mark + b" ")
            digits, newline, rest = after.partition(b"\n")
            code = _number(digits) if newline else None
            if code is not None and code <= 255:
                self.exit_code = code
                self._held = b""
                return b"".join((*passed, before, rest))
            if not mark or (not newline and len(digits) <= _DIGITS):
                break
            passed += [before, mark]  # not the wrapper's
            data = after
        keep = len(data) - len(before) if mark else _overlap(before, self._mark + b" ")
        self._held = data[len(data) - keep :]
        return b"".join((*passed, data[: len(data) - keep]))

    def rest(self) -> bytes:
        """The bytes of standard error that were held back, at the end of the stream."""
        held, self._held = self._held, b""
        return held

    def _after_mark(self, stream: str, data: bytes) -> bytes:
        noise = self._noise.get(stream)
        if noise is None:
            return data
        noise += data
        # On standard output a space follows: something that only sends its input back has not started it.
        begin = self._mark + b" " if stream == "stdout" else self._mark
        _, mark, rest = noise.partition(begin)
        digits, newline, rest = rest.partition(b"\n")
        self._echoed = self._echoed or (stream == "stdout" and self._mark + b"\n" in noise)
        if newline or len(digits) > len(b" ") + _DIGITS:
            del self._noise[stream]
            group = _number(digits.strip())
            self.group = self.group if group is None else group
        elif not mark:
            del noise[: -_NOISE_KEPT - len(begin)]
        return bytes(rest)


def _number(digits: bytes | bytearray) -> int | None:
    return whole_number(digits.decode("latin-1"), _DIGITS)


def _overlap(text: bytes, mark: bytes) -> int:
    """The number of bytes at the end of `text` that are the beginning of `mark`."""
    return next(size for size in range(min(len(text), len(mark)), -1, -1) if text.endswith(mark[:size]))
