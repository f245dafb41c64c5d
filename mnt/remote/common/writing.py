"""Try to write where something will be written: only that shows what a file system allows.

Runs on a host: Python 3.8, standard library.
"""

from __future__ import annotations

import errno
import os


def try_to_write(directory: str | bytes) -> str:
    """Make a file, write to it, and remove it: `ok`, or the name of the error, `EROFS`."""
    name = f".mnt-write-{os.urandom(8).hex()}"
    try:
        opened = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except PermissionError:
        return _try(os.path.join(os.fsdecode(directory), name), None)  # it may be closed to readers only
    except OSError as error:
        return error_name(error)
    try:
        return _try(name, opened)
    finally:
        os.close(opened)


def _try(path: str, above: int | None) -> str:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, 0o600, dir_fd=above)
        try:
            try:
                os.write(descriptor, b"written by mnt, to see whether it can\n")
            finally:
                os.close(descriptor)  # only now does NFS report a full file system
        finally:
            os.unlink(path, dir_fd=above)
    except OSError as error:
        return error_name(error)
    return "ok"


def error_name(error: OSError) -> str:
    return errno.errorcode.get(error.errno or 0, "EIO")
