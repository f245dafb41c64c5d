"""What labs know about themselves: a directory each under LAB_ROOT, locks, and the record of intentions.

The record is written before anything is made, so that every lab that was ever begun can be taken down. Two
locks: the registry's (LAB_ROOT itself) for the moment of taking or giving back a name and a network, and each
lab's own (its directory) for as long as it is being started or taken down. The kernel drops both when their
holder dies.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from mnt.errors import MntError
from mnt.lab.paths import LAB_ROOT
from mnt.lab.processes import Process
from mnt.lab.spec import HostSpec, LabSpec

_RECORD = "lab.json"


@dataclass(frozen=True)
class Record:
    """A lab as far as it got."""

    spec: LabSpec
    boot: str  # the machine's boot id: a record of an earlier boot speaks of nothing
    anchor: Process | None = None
    inits: Mapping[str, Process] = field(default_factory=dict)  # host -> its PID 1
    complete: bool = False

    @property
    def running(self) -> bool:
        """Whether `up` came to its end and the lab is still there."""
        return self.complete and self.this_boot and self.anchor is not None and self.anchor.alive

    @property
    def this_boot(self) -> bool:
        return self.boot == boot_id()


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def directory(name: str) -> Path:
    """Where the lab of that name keeps its files, whether there is one or not."""
    return LAB_ROOT / name


def names() -> list[str]:
    """All labs that were begun and not taken down, by name."""
    try:
        return sorted(os.listdir(LAB_ROOT))
    except FileNotFoundError:  # it goes with the last of them
        return []


def records() -> list[Record]:
    """The record of each such lab that has one."""
    return [record for name in names() if (record := read(name)) is not None]


def read(name: str) -> Record | None:
    """The lab's record. None: there is no such lab, or it was killed before it began."""
    try:
        text = (directory(name) / _RECORD).read_text()
    except FileNotFoundError:
        return None
    return _from_json(json.loads(text))


def create(record: Record) -> None:
    """Take the record's name. To be called with the registry held, when nobody has the name."""
    directory(record.spec.name).mkdir(mode=0o755)
    write(record)


def write(record: Record) -> None:
    """Replace the lab's record, at once or not at all."""
    path = directory(record.spec.name) / _RECORD
    new = path.with_suffix(".new")
    new.touch(mode=0o600)
    new.write_text(json.dumps(asdict(record), indent=2) + "\n")
    new.rename(path)


def delete(name: str) -> None:
    """Forget the lab. To be called with its lock held, when nothing of it is left."""
    with registry():
        shutil.rmtree(directory(name))


@contextmanager
def registry() -> Iterator[None]:
    """Hold the right to make and remove labs' directories. LAB_ROOT goes when it is empty."""
    while True:
        LAB_ROOT.mkdir(parents=True, exist_ok=True)
        handle = _lock(LAB_ROOT, wait=60.0)
        if handle is not None:
            break
    try:
        yield
    finally:
        with suppress(OSError):
            LAB_ROOT.rmdir()
        os.close(handle)


@contextmanager
def locked(name: str, *, wait: float) -> Iterator[bool]:
    """Hold the lab's own lock; False: there is no such lab (any more).

    Raises MntError if another process still holds it after `wait` seconds.
    """
    handle = _lock(directory(name), wait=wait)
    try:
        yield handle is not None
    finally:
        if handle is not None:
            os.close(handle)


def _lock(path: Path, *, wait: float) -> int | None:
    """A descriptor that holds the directory's lock. None: the directory is not, or no longer, there."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        return None
    deadline = time.monotonic() + wait
    try:
        while not _try_lock(handle):
            if time.monotonic() > deadline:
                raise MntError(
                    f"{path}: another mnt is starting this lab or taking it down",
                    fix="wait for it, or end it, and try again",
                )
            time.sleep(0.05)
        if path.exists() and os.path.samestat(os.fstat(handle), path.stat()):
            return handle
    except BaseException:
        os.close(handle)
        raise
    os.close(handle)
    return None


def _try_lock(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _from_json(value: dict[str, Any]) -> Record:
    spec = dict(value["spec"])
    spec["hosts"] = tuple(HostSpec(**host) for host in spec["hosts"])
    anchor = value["anchor"]
    return replace(
        Record(LabSpec(**spec), value["boot"]),
        anchor=Process(**anchor) if anchor else None,
        inits={name: Process(**process) for name, process in value["inits"].items()},
        complete=value["complete"],
    )
