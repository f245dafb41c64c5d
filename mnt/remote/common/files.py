"""Small files to read, also those of /proc, and files to replace. Runs on a host: Python 3.8.

Others may have written the files: each function ends soon, with bounded memory, whatever is at the path.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import stat
from collections.abc import Callable
from typing import IO, Any, BinaryIO

_MOST_TEXT = 64 * 1024 * 1024  # bytes; /proc/net/tcp of a busy host has some
_PIECE = 1 << 16  # bytes
_MOST_JSON = 4 * 1024 * 1024  # bytes; the spec of a job of 1,000 nodes has about 200 KiB
_DIGITS = 40  # of a whole number in JSON; int() takes quadratic time, or refuses 4,301


def read(path: str, size: int = _MOST_TEXT) -> str:
    """The text of a regular file, at most `size` bytes of it; empty if it cannot be read."""
    try:
        with open_regular(path) as file:
            return _read(file, size).decode(errors="replace")
    except OSError:
        return ""


def unix_lines(text: str) -> list[str]:
    """The lines of a text in which only a newline ends a line, as in /proc and in /etc/passwd.

    Any user may choose a name there (a mount point, a process). A newline in it is escaped or refused, but no
    other character at which `str.splitlines` and a file that is opened as text end a line.
    """
    return [line for line in text.split("\n") if line]


def read_bytes(
    path: str | bytes | os.PathLike[str],
    most: int,
    *,
    any_kind: bool = False,
    follow: bool = True,
    dir_fd: int | None = None,
) -> bytes:
    """All bytes of a file.

    Args:
        any_kind: also of a pipe or a device, for a file that the user has named: a pipe may block.
        follow, dir_fd: as for `open_regular`, without `any_kind`.

    Raises OSError, also if it is no regular file or has more than `most` bytes.
    """
    with open(path, "rb") if any_kind else open_regular(path, follow=follow, dir_fd=dir_fd) as file:
        return _read_all(file, most, os.fsdecode(path))


def _read_all(file: BinaryIO, most: int, path: str) -> bytes:
    data = _read(file, most + 1)
    if len(data) > most:
        raise OSError(errno.EFBIG, f"larger than {most:,} bytes", path)
    return data


def _read(file: BinaryIO, most: int) -> bytes:
    """At most that many bytes; in pieces, because the kernel reads /proc/sys into no large buffer."""
    pieces: list[bytes] = []
    while most > 0 and (piece := file.read(min(most, _PIECE))):
        pieces.append(piece)
        most -= len(piece)
    return b"".join(pieces)


def open_regular(
    path: str | bytes | os.PathLike[str], *, follow: bool = True, dir_fd: int | None = None
) -> BinaryIO:
    """Open a file to read. Raises OSError, also for a pipe, which could block, a device or a directory.

    Args:
        follow: if it is a link, open its target.
        dir_fd: the directory to which a relative `path` is relative.
    """
    nofollow = 0 if follow else os.O_NOFOLLOW
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY | nofollow
    descriptor = os.open(path, flags, dir_fd=dir_fd)
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), os.fsdecode(path))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "not a regular file", os.fsdecode(path))
        return open(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_json(path: str, opened: Callable[[str], BinaryIO] = open_regular) -> dict[str, Any] | None:
    """The JSON object in a file; None if it does not exist, cannot be read, or holds something else.

    Args:
        opened: opens the file; raises OSError.
    """
    try:
        with opened(path) as file:
            document = parse_json(_read_all(file, _MOST_JSON, path))
    except (OSError, ValueError):
        return None
    return document if isinstance(document, dict) else None


def parse_json(text: str | bytes) -> Any:
    """Decode JSON of any origin.

    Raises ValueError, also for deep nesting, NaN, Infinity, and numbers that are too long or too large.
    """
    try:
        return _DECODER.decode(text if isinstance(text, str) else text.decode("utf-8"))
    except RecursionError:
        raise ValueError("nested too deeply") from None


def whole_number(text: str, digits: int = 18) -> int | None:
    """The number that a text of at most that many ASCII digits stands for; None: it is none."""
    return int(text) if len(text) <= digits and text.isascii() and text.isdigit() else None


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


def _integer(text: str) -> int:
    if len(text) > _DIGITS:
        raise ValueError("an integer of too many digits")
    return int(text)


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("a number that is too large")
    return number


_DECODER = json.JSONDecoder(parse_constant=_refuse, parse_int=_integer, parse_float=_finite)


def write_all(file: IO[bytes], data: bytes) -> None:
    """Write all of the data to an unbuffered file. Raises OSError."""
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]


def replace_file(
    path: str | os.PathLike[str], text: str, mode: int | None = 0o600, *, dir_fd: int | None = None
) -> None:
    """Replace a file in one step, even if hosts share it: a reader finds the old one or the new one.

    Args:
        text: written as UTF-8, surrogate escapes as the bytes that they stand for.
        mode: of the file; None: what the umask leaves of 0644.
        dir_fd: the directory to which a relative `path` is relative.

    Raises OSError; then nothing is left of the new one.
    """
    directory, name = os.path.split(path)
    new = os.path.join(directory, f".{name}.{os.uname().nodename}.{os.getpid()}")
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        descriptor = os.open(new, flags, 0o644 if mode is None else mode, dir_fd=dir_fd)
        with open(descriptor, "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(text)
            if mode is not None:
                os.fchmod(descriptor, mode)
        os.replace(new, path, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(new, dir_fd=dir_fd)
        raise


def make_directories(path: str | os.PathLike[str], mode: int = 0o700) -> None:
    """Make a directory and those above it that do not exist, each with no more than this mode.

    Path.mkdir and os.makedirs give those above what the umask leaves of 0777. The modes of directories that
    exist stay. Raises OSError, also if something else is there.
    """
    if os.path.isdir(path):
        return
    above = os.path.dirname(os.path.normpath(path))
    if above:
        make_directories(above, mode)
    try:
        os.mkdir(path, mode)
    except FileExistsError:
        if not os.path.isdir(path):
            raise


def encode(text: str) -> bytes:
    """The bytes of a text from the head, independent of this host's locale."""
    return text.encode("utf-8", "surrogateescape")


def decode(data: bytes) -> str:
    """The text that `encode` turns into these bytes."""
    return data.decode("utf-8", "surrogateescape")


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
