"""What the user typed, as the words that a host runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from mnt.errors import UsageError
from mnt.run.command import from_script, from_words, interpreter
from mnt.tasks.wrapper import Command


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["ls | wc -l"], [b"/bin/sh", b"-c", b"ls | wc -l"]),
        (["-x"], [b"/bin/sh", b"-c", b"-x"]),
        ([""], [b"/bin/sh", b"-c", b""]),
        (["ls", "a b", "-l", "$(id)", ";", "x\ny"], [b"ls", b"a b", b"-l", b"$(id)", b";", b"x\ny"]),
        (["echo", "\udcff\u00e9"], [b"echo", b"\xff\xc3\xa9"]),
    ],
)
def test_one_word_is_shell_several_are_themselves(words: list[str], expected: list[bytes]) -> None:
    assert from_words(words) == Command(tuple(expected))


def test_sudo_is_no_word_of_it() -> None:
    assert from_words(["id", "-u"], sudo=True) == Command((b"id", b"-u"), sudo=True)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-a", "name"], "not the name of a program: '-a'"),
        (["echo", "a\0b"], "a NUL cannot be part of a command: b'a\\x00b'"),
        (["echo", "x" * 131072], "a word of 131072 bytes is too long for a command"),
    ],
)
def test_what_no_program_can_be_given(words: list[str], message: str) -> None:
    with pytest.raises(UsageError) as raised:
        from_words(words)
    assert raised.value.message == message


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (b"echo hi\n", (b"/bin/sh",)),
        (b"#!/bin/bash\necho hi\n", (b"/bin/bash",)),
        (b"#! /usr/bin/env python3\n", (b"/usr/bin/env", b"python3")),
        (b"#!/usr/bin/env -S python3 -u\nx", (b"/usr/bin/env", b"-S python3 -u")),
        (b"#!/bin/sh -e\r\n", (b"/bin/sh", b"-e")),
        (b"#!\n", (b"/bin/sh",)),
        (b"# !/bin/bash\n", (b"/bin/sh",)),
    ],
)
def test_the_interpreter_of_a_script(script: bytes, words: tuple[bytes, ...]) -> None:
    assert interpreter(script) == words


def test_a_script_and_its_arguments(tmp_path: Path) -> None:
    file = tmp_path / "script"
    file.write_bytes(b"#!/usr/bin/python3\nprint()\n")
    words = (b"/usr/bin/python3", b"/dev/fd/5", b"-x", b"a b")
    assert from_script(str(file), ["-x", "a b"]) == Command(words, file.read_bytes())


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "No such file or directory"),
        (b"", "the script is empty"),
        (b"\x7fELF\x02\0\0", "a binary program, not a script"),
    ],
)
def test_what_is_no_script(tmp_path: Path, content: bytes | None, problem: str) -> None:
    file = tmp_path / "script"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(UsageError) as raised:
        from_script(str(file), [])
    assert raised.value.message == f"{file}: {problem}"
