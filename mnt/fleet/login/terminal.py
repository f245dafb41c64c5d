"""Questions to the user, at the terminal of the process: its standard input may be a file."""

from __future__ import annotations

import getpass
import os

from mnt.errors import UsageError


def has_terminal() -> bool:
    """Whether the process has a terminal, whatever its standard input is."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True


def ask(question: str) -> str:
    """The line typed at the terminal, without spaces around it; empty if there is no terminal."""
    if not has_terminal():
        return ""
    with open("/dev/tty", "w") as screen:
        screen.write(question)
    with open("/dev/tty", errors="replace") as keyboard:
        return keyboard.readline().strip()


def agreed(question: str, *, otherwise: str) -> bool:
    """Whether somebody at the terminal says yes; the end of the input, and an empty line, are a no.

    Args:
        otherwise: what is not done then, for people.

    Raises UsageError if there is no terminal.
    """
    if not has_terminal():
        raise UsageError(f"{otherwise}: there is no terminal to ask at", fix="add --yes")
    return ask(f"{question} [y/N]: ").lower() in ("y", "yes")


def ask_secret(question: str) -> str | None:
    """The line typed at the terminal, without an echo; None if there is no terminal, or the line is empty.

    To be called in the main thread: then Ctrl-C raises KeyboardInterrupt, and restores the terminal.
    """
    if not has_terminal():
        return None
    try:
        return getpass.getpass(question) or None
    except EOFError:
        return None
