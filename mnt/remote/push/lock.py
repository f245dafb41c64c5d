"""The lock of a workdir: one push at a time, and no launch meanwhile. Runs on a host: Python 3.8.

The file has two lines, who pushes and which process holds the lock, and is touched at each sign of life of
that push's head: see mnt/remote/common/life.py. The kernel frees the lock when its holder ends.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import time
from typing import Any, Callable, NamedTuple

from mnt.remote.common.life import HEARTBEAT, SILENCE
from mnt.remote.common.refusal import Refused
from mnt.remote.push.entries import shown
from mnt.remote.push.workdir import Workdir

_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)  # NFS mounted with `nolock`, FUSE
_BRIEF = 0.5  # seconds; a launch holds the lock for less, to look whether it is free
_QUIET = 2.5 * HEARTBEAT  # seconds after which a holder may be cut off
_FREED = SILENCE + 10.0  # seconds until the lock of a push that was cut off is free, on a busy host
_LOOK_EVERY = 0.1  # seconds


class Lock:
    """The lock of a workdir that a push holds."""

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor

    @property
    def works(self) -> bool:
        """False: this file system has no locks."""
        return self._descriptor is not None

    def touch(self) -> None:
        """Note a sign of life."""
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                os.utime(self._descriptor)


class Holder(NamedTuple):
    """Who holds the lock."""

    who: str  # the user who pushes, for people
    host: str  # where its process runs; empty: unknown
    pid: str
    touched: float  # st_mtime


def take(
    workdir: Workdir,
    who: str,
    undo: Callable[..., Any],
    at_end: Callable[..., Any],
    now: Callable[[], float],
) -> Lock:
    """Lock the workdir for one push, until `at_end`.

    If the push that holds the lock has been silent, its lock is waited for: it is about to be freed.

    Args:
        who: the user who pushes, shown to others that find the lock taken.
        undo: gets the removal of the file, if it is new.
        now: the time as the file system has it, in seconds.

    Raises Refused, naming who holds the lock, if another push is running.
    """
    path = workdir.lock
    start = time.monotonic()
    while True:
        is_new = not os.path.exists(path)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            if workdir.group is not None and os.fstat(descriptor).st_uid == os.getuid():
                os.fchmod(descriptor, 0o660)
            locked = _lock(descriptor, fcntl.LOCK_EX)
            if locked and _is_at(descriptor, path):
                break
            if locked is None:
                os.close(descriptor)
                return Lock(None)
            if not locked:
                _judge(workdir, _holder(descriptor), time.monotonic() - start, now)
                time.sleep(_LOOK_EVERY)
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
    at_end(os.close, descriptor)
    if is_new:
        undo(_unlink, path)
    os.ftruncate(descriptor, 0)
    os.write(descriptor, f"{who}\n{os.uname().nodename} {os.getpid()}\n".encode("utf-8", "replace"))
    return Lock(descriptor)


def holder_of(workdir: Workdir) -> Holder | None:
    """Who holds the lock of a workdir now; None: nobody."""
    try:
        descriptor = os.open(workdir.lock, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        return None if _lock(descriptor, fcntl.LOCK_SH) in (True, None) else _holder(descriptor)
    finally:
        os.close(descriptor)


def _lock(descriptor: int, how: int) -> bool | None:
    """Whether the file is locked now; None: there are no locks here."""
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _NO_LOCKS:
            return None
        if error.errno not in (errno.EAGAIN, errno.EACCES):
            raise
        return False
    return True


def _is_at(descriptor: int, path: bytes) -> bool:
    """Whether the file is still the one with that name: a push that was called off removes it."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def _holder(descriptor: int) -> Holder:
    text = os.pread(descriptor, 1000, 0).decode("utf-8", "replace")
    who, _, process = text.partition("\n")
    found = re.match(r"(\S+) ([0-9]+)\n\Z", process)
    host, pid = found.groups() if found else ("", "")
    return Holder(who or "its owner is unknown", host, pid, os.fstat(descriptor).st_mtime)


def _judge(workdir: Workdir, holder: Holder, waited: float, now: Callable[[], float]) -> None:
    """Raises Refused if it makes no sense to wait for the lock any longer."""
    silent = now() - holder.touched > _QUIET
    if waited < (_FREED if silent else _BRIEF):
        return
    if not silent:
        raise Refused(
            f"another push to {shown(workdir.workdir)} is running: {holder.who}",
            "wait for its end, then push again",
        )
    end = f", or end it on {holder.host}: kill -KILL {holder.pid}" if holder.pid else ""
    where, age = shown(workdir.workdir), now() - holder.touched
    raise Refused(
        f"another push to {where} holds its lock, and was last heard of {age:.0f} s ago: {holder.who}",
        f"push again in a minute{end}",
    )


def _unlink(path: bytes) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)
