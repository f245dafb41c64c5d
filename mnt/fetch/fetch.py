"""Fetch files from all hosts of a fleet, into a directory for each."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shlex
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from mnt.errors import HostError, counted
from mnt.fetch.places import MOST_DIRECTORIES, below, count_directories, stays_inside
from mnt.fetch.plan import decide, sharers
from mnt.fetch.space import Reservation, Space
from mnt.fetch.store import IN_THE_WAY, Store, Unfit, opened
from mnt.fleet import Fleet, HostConnection
from mnt.inventory.hostlist import fold
from mnt.remote.common.files import encode
from mnt.remote.common.forms import held
from mnt.remote.push.entries import DEEPEST
from mnt.tasks.fetch import Entry, Request, SurveyedPart, Wanted, list_files, receive, survey

AT_A_TIME = 8  # hosts: the head is the bottleneck, and keeps the lists of so many

_WHY = {
    "changed here": "it is newer here; --force overwrites it",
    "in the way": IN_THE_WAY,
    "unreadable": "this user cannot read it there",
    "too deep": f"more than {DEEPEST} directories deep",
}
_NO_SPACE = "free space there, name another directory (--to), or fetch less (-n, PATH)"

_REASON = 200  # characters of a reason; a host may have chosen its text
_KEPT = 1 << 17  # bytes of the names and reasons that are kept of one kind and host


class Names(dict[str, str]):
    """Names of files, each with a reason: `count` of them, of which as many are kept as have room."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self._room = _KEPT

    def add(self, place: str, why: str = "") -> None:
        why = why[:_REASON]
        self.count += 1
        self._room -= held(place) + held(why)
        if self._room > 0:
            self[place] = why


class Progress:
    """Hears of the progress; overridden by what shows it. Called from several threads."""

    def total(self, files: int, size: int) -> None:
        """So many files and bytes are to be fetched, those that are here already included."""

    def arrived(self, count: int) -> None:
        """So many bytes more have arrived, or are here already."""


@dataclass
class Fetched:
    """The result of one host. Paths are relative to the host's directory."""

    files: int = 0  # that have arrived
    bytes: int = 0  # that were received
    already: int = 0  # files that were here
    changed: Names = field(default_factory=Names)  # were written to on the host while they were read
    left_out: Names = field(default_factory=Names)  # pipes, links that lead out, ..
    failed: Names = field(default_factory=Names)  # files that are not here
    later: int = 0  # files that were left, because they were written after the job's end
    absent: list[str] = field(default_factory=list)  # names of parts that the host does not have
    shared_with: list[str] = field(default_factory=list)  # hosts from which the same files are fetched
    seconds: float = 0.0
    error: str | None = None
    fix: str | None = None
    reached: bool = True
    planned: bool = False  # a dry run: `files` and `bytes` are what there is, and nothing has arrived

    @property
    def ok(self) -> bool:
        return self.error is None and not self.failed

    @property
    def status(self) -> str:
        if self.error is not None:
            return "failed" if self.reached else "unreachable"
        if self.failed:
            return "incomplete"
        if self.files or self.already:
            return "there" if self.planned else "fetched"
        return "shared" if self.shared_with else "nothing"

    def document(self) -> dict[str, Any]:
        """The host in the document of `--json`; of very many names, it has the first ones."""
        return {
            "status": self.status,
            **{name: getattr(self, name) for name in ("files", "bytes", "already", "seconds")},
            "changed": list(self.changed),
            "left_out": self.left_out,
            "failed": self.failed,
            "counts": {name: getattr(self, name).count for name in ("changed", "left_out", "failed")},
            **{name: getattr(self, name) for name in ("later", "absent", "shared_with", "error", "fix")},
        }


@dataclass(frozen=True)
class Options:
    force: bool = False  # overwrite files that were changed here
    dry_run: bool = False
    shared: bool = False  # a group may share the directory: the user has named it


def fetch(
    fleet: Fleet,
    wanted: Mapping[str, Wanted],
    prefixes: Sequence[str],
    names: Sequence[str],
    directory: str,
    options: Options = Options(),
    progress: Progress | None = None,
) -> dict[str, Fetched]:
    """Fetch what is wanted of each host, into `directory`/HOST.

    Files that hosts share are fetched from the first of them. What is here already is not sent again, also
    not the part of a file that has arrived. Links are not followed.

    Args:
        wanted: by host; with the same parts on all.
        prefixes: of each part: the directory below `directory`/HOST.
        names: of each part, for people.

    Raises OutputError if the disk here becomes full or fails, and UsageError for a `directory` that others
    can change; what has arrived stays.
    """
    progress = progress or Progress()
    surveys = fleet.run_each(survey, {host: (what,) for host, what in wanted.items()})
    parts = surveys.values_by_host()
    shared = sharers(parts)
    results = {
        **{host: _surveyed(found, shared[host], names) for host, found in parts.items()},
        **{host: _failed(error, Fetched()) for host, error in surveys.errors().items()},
    }
    worth = {host: _worth(found, shared[host]) for host, found in parts.items()}
    work = {host: of_host for host, of_host in worth.items() if of_host}
    everything = [part for of_host in work.values() for part in of_host.values()]
    progress.total(sum(part["files"] for part in everything), sum(part["bytes"] for part in everything))
    if options.dry_run:
        for host, of_host in work.items():
            results[host].files = sum(part["files"] for part in of_host.values())
            results[host].bytes = sum(part["bytes"] for part in of_host.values())
            results[host].planned = True
    elif work:
        with opened(directory, shared=options.shared) as descriptor:
            job = _Job(prefixes, descriptor, options, progress, Space(descriptor))
            come = _take_all(fleet, wanted, work, results, job)
        _require_shared(results, shared, parts, come)
    return {host: results[host] for host in wanted}


def _surveyed(parts: Sequence[SurveyedPart], shared: Mapping[int, str], names: Sequence[str]) -> Fetched:
    """What the survey says about a host."""
    result = Fetched(
        later=sum(part["later"] for part in parts), shared_with=list(dict.fromkeys(shared.values()))
    )
    problems: dict[str, None] = {}  # each once: those of a job's parts may be the same
    for part, name in zip(parts, names, strict=True):
        if part["problem"] is None:
            continue
        if part["absent"]:
            result.absent.append(name)
        else:
            problems[part["problem"]] = None
    result.error = "; ".join(problems) if problems else None
    return result


def _worth(parts: Sequence[SurveyedPart], shared: Mapping[int, str]) -> dict[int, SurveyedPart]:
    """The parts of a host that have files, and are fetched from no other host, by number."""
    return {
        number: part
        for number, part in enumerate(parts)
        if part["problem"] is None and (part["files"] or part["others"]) and number not in shared
    }


def _failed(error: HostError, result: Fetched) -> Fetched:
    result.error, result.fix = f"{error.phase}: {error.reason}", error.advice
    if error.phase == "channel" and result.fix is None:
        result.fix = "run it again to go on"
    result.reached = error.logged_in
    return result


def _require_shared(
    results: Mapping[str, Fetched],
    shared: Mapping[str, Mapping[int, str]],
    surveys: Mapping[str, Sequence[SurveyedPart]],
    come: _Come,
) -> None:
    """A host fails if fewer of its shared files have come from another host than it has itself.

    Args:
        shared: see `sharers`.
        come: see `_take_all`.
    """
    for host, numbers in shared.items():
        owners = set()
        for number, owner in numbers.items():
            links = surveys[host][number]["links"]
            files = surveys[host][number]["files"] - links
            if come[owner, number, "file"] < files or come[owner, number, "link"] < links:
                owners.add(owner)
        if owners and results[host].error is None:
            results[host].error = f"not all files that they share have come from {fold(sorted(owners))}"
            results[host].fix = f"mnt fetch -n {host}, with the same arguments"


# How many files (host, part, "file") or links (.., "link") of a host are here in the end, each place once. A
# link that leads out counts: it was looked at, and left out. Of a host that has failed, there are none.
_Come = Counter[tuple[str, int, str]]


class _Job(NamedTuple):
    """The arguments of `fetch` that are the same for all hosts."""

    prefixes: Sequence[str]
    directory: int  # its descriptor
    options: Options
    progress: Progress
    space: Space


def _take_all(
    fleet: Fleet,
    wanted: Mapping[str, Wanted],
    work: Mapping[str, Mapping[int, SurveyedPart]],
    results: Mapping[str, Fetched],
    job: _Job,
) -> _Come:
    """Fetch some parts of each host, and note in `results` what came of it."""
    umask = os.umask(0)
    os.umask(umask)
    come = _Come()

    def take(connection: HostConnection) -> None:
        host = connection.target.name
        with contextlib.closing(Store(job.directory, host, umask)) as store:
            taking = _Taking(host, results[host], store, job)
            of_parts = taking.take(connection, wanted[host], work[host])
            come.update({(host, *each): count for each, count in of_parts.items()})

    for host, outcome in fleet.run_each(take, dict.fromkeys(work, ()), fanout=AT_A_TIME).items():
        results[host].seconds = outcome.seconds
        if outcome.error is not None:
            _failed(outcome.error, results[host])
    return come


class _Taking:
    """Takes the files of one host; the receiver of `mnt.tasks.fetch.receive`."""

    def __init__(self, host: str, result: Fetched, store: Store, job: _Job) -> None:
        self._host = host
        self._result, self._store, self._prefixes = result, store, job.prefixes
        self._force, self._progress = job.options.force, job.progress
        self._space = job.space
        self._room = Reservation(host, 0)
        # By `_mark` of each place: "file" or "link" if that has come. No name is kept twice: hosts list many.
        self._seen: dict[bytes, str | None] = {}
        self._links: list[Entry] = []  # to make
        self._unfit: str | None = None  # why the file that is arriving cannot be written

    def take(
        self, connection: HostConnection, wanted: Wanted, parts: Collection[int]
    ) -> Counter[tuple[int, str]]:
        """Take these parts. Returns what `_Come` has of each; with an error of the host, nothing."""
        entries, tops = list_files(connection, wanted)
        mine = [entry for entry in entries if entry.part in parts]
        requests = [request for entry in mine if (request := self._request(entry)) is not None]
        new = [*(request.entry for request in requests), *self._links]
        directories = self._directories(new)
        if directories > MOST_DIRECTORIES:
            self._result.error = f"more than {MOST_DIRECTORIES:,} directories"
            return Counter()
        size = sum(request.entry.size - request.offset for request in requests)
        with self._space.reserved(self._host, size, len(new) + directories) as self._room:
            if self._room.problem is not None:  # the host's word: not a reason to end the others
                what = f"{counted(len(new), 'file')}: {self._room.problem}"
                self._result.error = f"no space in {self._store.shown} for {what}"
                self._result.fix = _NO_SPACE
                if self._room.takers:
                    takers = fold(sorted(self._room.takers))
                    self._result.error += f", because of the files of {takers}"
                    self._result.fix = f"if those are too many: -x {shlex.quote(takers)}; else {_NO_SPACE}"
                return Counter()
            self._make_links()
            if requests:
                receive(connection, tops, requests, self)
        listed = {(entry.part, _mark(place)) for entry in mine if (place := self._place(entry)) is not None}
        return Counter((part, kind) for part, mark in listed if (kind := self._seen.get(mark)) is not None)

    def _directories(self, entries: Iterable[Entry]) -> int:
        """The most directories that these entries need; one that several parts have counts for each."""
        paths: dict[int, list[str]] = {}
        for entry in entries:
            paths.setdefault(entry.part, []).append(entry.path)
        above = sum(self._prefixes[part].count("/") + 1 for part in paths)
        return above + sum(map(count_directories, paths.values()))

    def _request(self, entry: Entry) -> Request | None:
        """What to ask for; None: it is here, or cannot be had, which is noted."""
        place = self._place(entry)
        if place is None:
            shown = f"{self._prefixes[entry.part]}/{entry.path}"
            self._result.left_out.add(shown, "its name leads elsewhere, or is that of an incomplete file")
            return None
        if _mark(place) in self._seen:  # two PATHs may have it
            return None
        self._seen[_mark(place)] = None
        if entry.kind == "unreadable":
            self._result.failed.add(place, _WHY["unreadable"])
            return None
        if entry.kind not in ("file", "link"):
            self._result.left_out.add(place, f"it is a {entry.kind}")
            return None
        if place.count("/") > DEEPEST:
            self._result.failed.add(place, _WHY["too deep"])
            return None
        try:
            if entry.kind == "link":
                self._plan_link(place, entry)
                return None
            decision = decide(entry.size, entry.mtime, self._store.here(place), overwrite=self._force)
            if decision == "same":
                self._result.already += 1
                self._seen[_mark(place)] = "file"
                self._progress.arrived(entry.size)
            elif decision == "take":
                offset, digest = self._store.arrived(place, entry.size)
                self._progress.arrived(offset)
                return Request(entry, offset, digest)
            else:
                self._result.failed.add(place, _WHY[decision])
        except Unfit as unfit:
            self._result.failed.add(place, str(unfit))
        return None

    def _place(self, entry: Entry) -> str | None:
        return below(self._prefixes[entry.part], entry.path)

    def _plan_link(self, place: str, entry: Entry) -> None:
        target = entry.target or ""
        if not stays_inside(place, target):
            self._result.left_out.add(place, "it is a link out of this directory")
            self._seen[_mark(place)] = "link"
            return
        here = self._store.here(place)
        if here is not None and here.kind == "link" and here.target == target:
            self._result.already += 1
            self._seen[_mark(place)] = "link"
        elif here is not None and here.kind != "link":
            self._result.failed.add(place, IN_THE_WAY)
        else:
            self._links.append(entry)

    def _make_links(self) -> None:
        for entry in self._links:
            place = self._named(entry)
            try:
                self._store.link(place, entry.target or "")
                self._result.files += 1
                self._seen[_mark(place)] = "link"
            except Unfit as unfit:
                self._result.failed.add(place, str(unfit))

    # --- Receiver -------------------------------------------------------------------------------------------

    def piece(self, request: Request, at: int, data: bytes) -> None:
        if at == 0:
            self._progress.arrived(-request.offset)  # it is sent from the start
        self._progress.arrived(len(data))
        self._room.left -= len(data)
        self._result.bytes += len(data)
        if self._unfit is None:
            self._try(self._store.write, self._named(request.entry), at, data)

    def end(self, request: Request, changed: bool) -> None:
        place = self._named(request.entry)
        if self._unfit is None:
            self._try(self._store.finish, place, request.entry)
        if self._unfit is not None:
            self.problem(request, self._unfit, gone=False)
            return
        self._result.files += 1
        self._seen[_mark(place)] = "file"
        if changed:
            self._result.changed.add(place)

    def problem(self, request: Request, problem: str, *, gone: bool) -> None:
        names = self._result.left_out if gone else self._result.failed
        names.add(self._named(request.entry), problem)
        self._unfit = None

    def _try(self, write: Callable[..., None], *args: object) -> None:
        try:
            write(*args)
        except Unfit as unfit:
            self._unfit = str(unfit)

    def _named(self, entry: Entry) -> str:
        place = self._place(entry)
        assert place is not None  # noqa: S101 - only then it was asked for
        return place


def _mark(place: str) -> bytes:
    """What stands for a place, however long it is: nobody finds two with one mark."""
    return hashlib.blake2b(encode(place), digest_size=16).digest()
