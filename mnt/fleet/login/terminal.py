"""What only a person can give, asked for at the terminal of the process: its standard input may be a file."""

from __future__ import annotations

import getpass
import os


def has_terminal() -> bool:
    """Whether somebody can be asked: whatever standard input is, the process has a terminal."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True


def ask(question: str) -> str:
    """The line that is typed at the terminal, without spaces around it; empty where nobody can be asked."""
    if not has_terminal():
        return ""
    with open("/dev/tty", "w") as screen:
        screen.write(question)
    with open("/dev/tty", errors="replace") as keyboard:
        return keyboard.readline().strip()


def ask_secret(question: str) -> str | None:
    """What is typed at the terminal, without an echo; None where there is no terminal, or nothing is said.

    For the main thread: Ctrl-C then raises KeyboardInterrupt, and the terminal is as it was before.
    """
    if not has_terminal():
        return None
    try:
        return getpass.getpass(question) or None
    except EOFError:
        return None
