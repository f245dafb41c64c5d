"""What `mnt push`, `mnt rollback` and `mnt releases` show."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import filesize

from mnt import ui
from mnt.errors import MntError, counted
from mnt.inventory.hostlist import sentences
from mnt.push.manifest import Manifest
from mnt.push.notices import KINDS, LARGE, Notice, to_leave_out
from mnt.push.result import STATUSES, Left, PushResult
from mnt.push.session import Progress
from mnt.push.tree import Entry, ignore_file, printable

_STEPS = {
    "connect": "connecting to the hosts",
    "survey": "checking their releases",
    "offer": "comparing the files with those of earlier releases",
    "verify": "verifying the release",
    "switch": "switching current",
    "prune": "removing old releases",
}
_LARGEST = 5  # files and lines that are named
_COLOURS = {"pushed": "green", "rolled-back": "green", "unchanged": "green", "untouched": "yellow"}


@dataclass(frozen=True)
class Code:
    """A tree to push."""

    root: Path
    manifest: Manifest
    notices: tuple[Notice, ...]


def show_tree(code: Code, hosts: list[str], refusal: MntError | None, as_json: bool) -> None:
    """What a push would send, and why it would be refused."""
    manifest = code.manifest
    entries = [entry for entry in manifest.entries if entry.path]
    files = [entry for entry in entries if entry.kind == "file"]
    largest = sorted(files, key=lambda entry: -entry.size)[:_LARGEST]
    if as_json:
        ui.document(
            {
                "ok": refusal is None,
                "release": None,
                "entries": [{"path": each.path, "kind": each.kind, "size": each.size} for each in entries],
                "files": manifest.files,
                "bytes": manifest.size,
                "largest": [{"path": entry.path, "size": entry.size} for entry in largest],
                "notices": [notice.document() for notice in code.notices],
                "private_keys": code.manifest.keys,
                "refused": refusal and refusal.document(),
                "hosts": dict.fromkeys(hosts),
            }
        )
        return
    for entry in entries:
        ui.plain(printable(entry.path) + ("/" if entry.kind == "dir" else ""))
    size = filesize.decimal(manifest.size)
    ui.info(f"{counted(manifest.files, 'file')}, {size}, to {counted(len(hosts), 'host')}; the largest:")
    for entry in largest:
        ui.info(f"  {filesize.decimal(entry.size):>10}  {printable(entry.path)}")
    show_notices(code)
    if refusal is not None:
        ui.error(refusal)
        ui.failure("a push would be refused")


def note_large(entries: Iterable[Entry]) -> None:
    """Name the large files before they are read: a sparse one may have no end in sight."""
    large = sorted((each for each in entries if each.size > LARGE), key=lambda entry: -entry.size)
    if large:
        names = [f"{printable(each.path)} ({filesize.decimal(each.size)})" for each in large]
        ui.note(f"reading {counted(len(large), 'large file')}: {_some(names)}")


def show_notices(code: Code) -> None:
    """Warn of what may not be meant to travel, with the lines that leave it out."""
    leave_out = to_leave_out(ignore_file(code.root))
    for notice in code.notices:
        size = f"{counted(notice.files, 'file')}, {filesize.decimal(notice.bytes)}"
        names = [printable(path) for path in notice.paths if path]
        ui.warn(f"{KINDS[notice.kind]} ({size}): {_some(names)}")
        if notice.ignore:
            ui.info(f"  to leave it out, {leave_out}: {_some(notice.ignore)}")


def _some(texts: Sequence[str]) -> str:
    """The first of the texts."""
    return "  ".join(texts[:_LARGEST]) + (
        f"  .. and {len(texts) - _LARGEST} more" if len(texts) > _LARGEST else ""
    )


def show_result(result: PushResult) -> None:
    rows = [
        (
            name,
            ui.Cell(host.status, _COLOURS.get(host.status, "red")),
            str(host.files_sent),
            filesize.decimal(host.bytes_sent),
            f"{host.seconds:.1f} s",
            host.current or "-",
        )
        for name, host in result.hosts.items()
    ]
    ui.table(("HOST", "STATUS", "FILES SENT", "BYTES SENT", "TOOK", "CURRENT"), rows)
    for name, host in result.hosts.items():
        if host.error is not None:
            ui.failure(f"{name}: {host.error}", host.fix)
    show_left({name: host.left for name, host in result.hosts.items()})
    if result.ok:
        ui.success(f"release {result.release} is current on {counted(len(result.hosts), 'host')}")
        return
    for status in dict.fromkeys(host.status for host in result.hosts.values()):
        ui.info(f"{status}: {STATUSES[status]}")
    ui.failure(
        "the hosts may have different current releases: see the table, and push again"
        if result.mixed
        else "no host was changed"
    )


def show_left(left: Mapping[str, Sequence[Left]]) -> None:
    """Name the releases that stay because of what jobs have written there."""
    found = sentences(
        (host, f"release {each.release} stays: jobs have written {foreign_files(each.foreign)}")
        for host, of_host in left.items()
        for each in of_host
        if each.foreign is not None
    )
    for text in found:
        ui.warn(text)
    if found:
        ui.info("  keep what you need of them; then: mnt releases prune ID --with-results")


def foreign_files(foreign: Mapping[str, Any]) -> str:
    """The files that no push has brought, for people: their number, bytes and first names."""
    count, names = foreign["files"], ", ".join(foreign["names"])
    more = ", .." if count > len(foreign["names"]) else ""
    return f"{counted(count, 'file')}, {filesize.decimal(foreign['bytes'])}: {names}{more}"


@contextlib.contextmanager
def progress_shown() -> Iterator[Progress]:
    """Print each step as it begins, and on a terminal show a progress bar."""
    with ui.transfer_bar() as bar:

        class Shown(Progress):
            def step(self, step: str, size: int) -> None:
                sending = f"sending {filesize.decimal(size)}" if size else "nothing to send"
                ui.note(_STEPS.get(step, sending))
                bar.expect(size)

            def warn(self, text: str) -> None:
                ui.warn(text)

            def sent(self, count: int) -> None:
                bar.advance(count)

        yield Shown()
