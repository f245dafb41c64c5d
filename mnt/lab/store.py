"""The state of labs: a directory per lab under LAB_ROOT, with locks and a record.

The record is written before anything else, so every lab that was started can be taken down. There are two
locks: the lock of the registry while a name and a network are reserved or released, and the lock of a lab
while it is started or taken down. They are files in LAB_ROOT that only their owner can open: whoever can open
a file, even to read, can hold its lock. The kernel releases both when their holder ends.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from mnt import typed
from mnt.errors import MntError
from mnt.lab import LAB_ROOT, check_root
from mnt.lab.processes import Process
from mnt.lab.spec import LabSpec
from mnt.remote.common.files import make_directories, parse_json, read_bytes, replace_file, whole_number
from mnt.remote.job.procs import boot_id

_RECORD = "lab.json"
_MOST_BYTES = 4 * 1024 * 1024  # of a record; one of 256 hosts has 50 KiB
_REGISTRY_LOCK = ".lock"  # no lab's name begins with a dot


@dataclass(frozen=True)
class Record:
    """The state of a lab, complete or not."""

    spec: LabSpec
    boot: str  # the machine's boot id: after a reboot nothing of the record exists any more
    anchor: Process | None = None
    inits: Mapping[str, Process] = field(default_factory=dict)  # host -> its PID 1
    complete: bool = False

    @property
    def running(self) -> bool:
        """Whether `up` has completed and the lab still runs."""
        return self.complete and self.this_boot and self.anchor is not None and self.anchor.alive

    @property
    def this_boot(self) -> bool:
        return self.boot == boot_id()


def directory(name: str) -> Path:
    """The directory of the lab with that name, whether it exists or not."""
    return LAB_ROOT / name


def names() -> list[str]:
    """The names of all labs that were started and not taken down. Raises MntError: see `check_root`."""
    check_root()
    try:
        return sorted(name for name in os.listdir(LAB_ROOT) if not name.startswith("."))
    except FileNotFoundError:  # it is removed with the last lab
        return []


def records() -> list[Record]:
    """The records of these labs; a lab may have no record yet."""
    return [record for name in names() if (record := read(name)) is not None]


def read(name: str) -> Record | None:
    """The lab's record. None: there is no such lab, or its start was killed before the record was written."""
    try:
        text = read_bytes(directory(name) / _RECORD, _MOST_BYTES)
    except FileNotFoundError:
        return None
    record: Record = typed.convert(parse_json(text), Record)
    return record


def create(record: Record) -> None:
    """Reserve the record's name. The caller must hold the registry, and the name must be free."""
    directory(record.spec.name).mkdir(mode=0o755)
    write(record)


def write(record: Record) -> None:
    """Replace the lab's record atomically."""
    text = json.dumps(asdict(record), indent=2) + "\n"
    replace_file(directory(record.spec.name) / _RECORD, text)


def delete(name: str) -> None:
    """Delete the lab's directory. The caller must hold its lock, and nothing of the lab may be left."""
    with registry():
        shutil.rmtree(directory(name))
        with suppress(FileNotFoundError):
            _lock_file(name).unlink()


@contextmanager
def registry() -> Iterator[None]:
    """Hold the lock to create and remove labs' directories. An empty LAB_ROOT is removed at the end."""
    with ExitStack() as held:
        there = False
        while not there:
            make_directories(LAB_ROOT, 0o755)
            there = held.enter_context(_locked(LAB_ROOT / _REGISTRY_LOCK, LAB_ROOT, wait=60.0))
        try:
            yield
        finally:
            with suppress(OSError):
                if not names():
                    for lock in LAB_ROOT.iterdir():
                        lock.unlink()
                LAB_ROOT.rmdir()


def locked(name: str, *, wait: float) -> AbstractContextManager[bool]:
    """Hold the lock of a lab; False: there is no such lab.

    Raises MntError if another process still holds it after `wait` seconds.
    """
    return _locked(_lock_file(name), directory(name), wait=wait)


def _lock_file(name: str) -> Path:
    return LAB_ROOT / f".{name}.lock"


@contextmanager
def _locked(path: Path, owner: Path, *, wait: float) -> Iterator[bool]:
    """Hold the lock of a directory, `owner`; False: the directory does not exist."""
    with ExitStack() as resources:
        there = False
        if owner.is_dir():
            with suppress(FileNotFoundError):
                handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
                resources.callback(os.close, handle)
                _await_lock(owner, handle, time.monotonic() + wait)
                # Another process may have removed both.
                there = os.path.samestat(os.fstat(handle), path.stat()) and owner.is_dir()
        if there:
            os.ftruncate(handle, 0)
            os.pwrite(handle, str(os.getpid()).encode(), 0)
        yield there


def _await_lock(path: Path, handle: int, deadline: float) -> None:
    while True:
        try:
            return fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                pid = whole_number(os.pread(handle, 20, 0).decode("ascii", "replace"))
                holder = "" if pid is None else f", pid {pid},"
                raise MntError(
                    f"{path}: another mnt{holder} is starting this lab or taking it down",
                    fix="run the command again when that mnt has ended",
                ) from None
            time.sleep(0.05)
