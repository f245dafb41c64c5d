"""Small files to read, also those of /proc, and files to replace. Runs on a host: Python 3.8."""

from __future__ import annotations

import contextlib
import os


def read(path: str, size: int = -1) -> str:
    """The text of a file, at most `size` bytes of it; empty if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read(size).decode(errors="replace")
    except OSError:
        return ""


def replace_file(path: str | os.PathLike[str], text: str, mode: int | None = 0o600) -> None:
    """Replace a file in one step, even if hosts share it: a reader finds the old one or the new one.

    Args:
        text: written as UTF-8, surrogate escapes as the bytes that they stand for.
        mode: of the file; None: what the umask leaves of a new one.

    Raises OSError; then nothing is left of the new one.
    """
    directory, name = os.path.split(path)
    new = os.path.join(directory, f".{name}.{os.uname().nodename}.{os.getpid()}")
    try:
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666 if mode is None else mode)
        with open(descriptor, "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(text)
            if mode is not None:
                os.fchmod(descriptor, mode)
        os.replace(new, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(new)
        raise


def strerror(error: BaseException) -> str:
    """The message of an exception; of an OSError, the system's message without number and file name."""
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def entries(directory: str) -> list[str]:
    """The names in a directory; none if it cannot be read."""
    try:
        return os.listdir(directory)
    except OSError:
        return []


def stat_fields(pid: int) -> tuple[str, list[bytes]] | None:
    """(command, the fields after it, beginning with the state) of /proc/PID/stat. None: no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            text = file.read()
    except OSError:
        return None
    # The command is in parentheses, and may contain spaces and parentheses: proc(5).
    end = text.rindex(b")")
    return text[text.index(b"(") + 1 : end].decode("utf-8", "replace"), text[end + 2 :].split()


def command_line(pid: int) -> str:
    """The words of a process with spaces between; empty if it has ended, or is a kernel thread."""
    return read(f"/proc/{pid}/cmdline", 4096).rstrip("\0").replace("\0", " ")
