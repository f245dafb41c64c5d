"""A command for many hosts: from the words on the command line to the words that a host runs."""

from __future__ import annotations

import os
from collections.abc import Sequence

from mnt.errors import UsageError
from mnt.remote.common.files import read_bytes, strerror
from mnt.tasks.wrapper import SCRIPT_PLACE, Command

_SHELL = "/bin/sh"
# Linux: MAX_ARG_STRLEN, the longest word that execve accepts, including its NUL;
# include/uapi/linux/binfmts.h.
_WORD_LIMIT = 131072  # bytes
_MOST_BYTES = 16 * 1024 * 1024  # of a script: it is sent to each host


def from_words(words: Sequence[str], *, sudo: bool = False) -> Command:
    """A command line: one word is a line for /bin/sh; several words are a program and its arguments.

    Raises UsageError for words that cannot be passed to a program.
    """
    if len(words) == 1:
        words = (_SHELL, "-c", words[0])
    elif words[0].startswith("-"):
        # `exec` of some shells would interpret it as an option.
        raise UsageError(f"not the name of a program: {words[0]!r}", fix="put the options of mnt before CMD")
    return Command(_encode(words), sudo=sudo)


def from_script(file: str, arguments: Sequence[str], *, sudo: bool = False) -> Command:
    """A script on this machine, run with `arguments` by the interpreter in its `#!` line, else by /bin/sh.

    Raises UsageError if the file cannot be read, is too large, is empty, or is not a script.
    """
    try:
        script = read_bytes(file, _MOST_BYTES, any_kind=True)
    except OSError as error:
        fix = f"name a script of at most {_MOST_BYTES >> 20} MiB"
        raise UsageError(f"{file}: {strerror(error)}", fix=fix) from None
    if not script:
        raise UsageError(f"{file}: the script is empty")
    if b"\0" in script[:256]:
        raise UsageError(f"{file}: a binary program, not a script", fix="send it to the hosts with mnt push")
    words = (*interpreter(script), SCRIPT_PLACE, *_encode(arguments))
    return Command(words, script, sudo)


def interpreter(script: bytes) -> tuple[bytes, ...]:
    """The interpreter of a script. As in Linux (execve(2)), all text after it in its line is one argument."""
    first = script.split(b"\n", 1)[0]
    words = first.removeprefix(b"#!").split(None, 1) if first.startswith(b"#!") else []
    return tuple(word.strip() for word in words) or (_SHELL.encode(),)


def _encode(words: Sequence[str]) -> tuple[bytes, ...]:
    encoded = tuple(os.fsencode(word) for word in words)
    for word in encoded:
        if b"\0" in word:
            raise UsageError(f"a NUL cannot be part of a command: {word[:40]!r}")
        if len(word) >= _WORD_LIMIT:
            fix = "send it in a file: --script FILE"
            raise UsageError(f"a word of {len(word)} bytes is too long for a command", fix=fix)
    return encoded
