"""A command for many hosts: what the user typed, as the words that a host runs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from mnt.errors import UsageError, strerror
from mnt.tasks.wrapper import SCRIPT_PLACE, Command

_SHELL = "/bin/sh"
# Linux: MAX_ARG_STRLEN, the longest word that execve takes, its NUL included; include/uapi/linux/binfmts.h.
_WORD_LIMIT = 131072  # bytes


def from_words(words: Sequence[str], *, sudo: bool = False) -> Command:
    """A command line: one word is a line for /bin/sh; several are a program and its arguments, as they are.

    Raises UsageError for what no program can be given.
    """
    if len(words) == 1:
        words = (_SHELL, "-c", words[0])
    elif words[0].startswith("-"):
        # `exec` of some shells would read it as an option.
        raise UsageError(f"not the name of a program: {words[0]!r}", fix="options of mnt stand before CMD")
    return Command(_encode(words), sudo=sudo)


def from_script(file: str, arguments: Sequence[str], *, sudo: bool = False) -> Command:
    """A script on this machine, to be run with `arguments`: by what its `#!` line names, else by /bin/sh.

    Raises UsageError where it cannot be read, is empty, or is no script.
    """
    try:
        script = Path(file).read_bytes()
    except OSError as error:
        raise UsageError(f"{file}: {strerror(error)}") from None
    if not script:
        raise UsageError(f"{file}: the script is empty")
    if b"\0" in script[:256]:
        raise UsageError(f"{file}: a program, not a script", fix="bring it to the hosts with mnt push")
    words = (*interpreter(script), SCRIPT_PLACE, *_encode(arguments))
    return Command(words, script, sudo)


def interpreter(script: bytes) -> tuple[bytes, ...]:
    """What runs a script: as Linux reads a `#!` line (execve(2)), all behind the program is one argument."""
    first = script.split(b"\n", 1)[0]
    words = first.removeprefix(b"#!").split(None, 1) if first.startswith(b"#!") else []
    return tuple(word.strip() for word in words) or (_SHELL.encode(),)


def _encode(words: Sequence[str]) -> tuple[bytes, ...]:
    encoded = tuple(os.fsencode(word) for word in words)
    for word in encoded:
        if b"\0" in word:
            raise UsageError(f"a NUL cannot be part of a command: {word[:40]!r}")
        if len(word) >= _WORD_LIMIT:
            fix = "send it as a file: --script FILE"
            raise UsageError(f"a word of {len(word)} bytes is too long for a command", fix=fix)
    return encoded
