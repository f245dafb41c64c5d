"""Hosts that speak the part of mnt/remote/fetch/ in a fetch, and what is made of their answers."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from lying_hosts import Script, WatchedFleet

from mnt.fetch.fetch import Fetched, Options, fetch
from mnt.inventory.model import Host
from mnt.tasks.fetch import Pattern, Wanted

Frames = Iterator[tuple[str, Any]]
NAMES = ("node1", "node2", "node3")
LIAR = "node2"
HOSTS = tuple(Host(name, name) for name in NAMES)
WANTED = Wanted(None, (Pattern("a"), Pattern("b")))
PREFIXES = ("a", "b")
FILES = {(0, "x"): b"x" * 300_000, (0, "d/y"): b"yy", (1, ""): b""}
PIECE = 192 * 1024
MTIME = 10**18


def row(part: int, path: str, size: int, kind: str = "file", target: str | None = None) -> list[Any]:
    return [part, path, kind, size, MTIME, 0o644, target]


def surveyed(digest: str, files: int = 1, size: int = 1, **changes: Any) -> dict[str, Any]:
    counts = {"files": files, "links": 0, "bytes": size, "others": 0, "later": 0}
    return {**counts, "digest": digest, "problem": None, "absent": False, **changes}


def pieces(number: int, data: bytes, at: int = 0) -> Iterator[dict[str, Any]]:
    """The frames of one file."""
    while True:
        piece = data[at : at + PIECE]
        end = at + len(piece) == len(data)
        frame = {"file": number, "at": at, "data": base64.b64encode(piece).decode(), "end": end}
        yield {**frame, "changed": False} if end else frame
        if end:
            return
        at += len(piece)


def problem(number: int, text: Any, *, gone: bool = False) -> tuple[str, Any]:
    """The frame of a file that the host cannot send."""
    return "frame", {"file": number, "problem": text, "gone": gone}


def honest(host: str, name: str, args: dict[str, Any], stdin: IO[bytes]) -> Frames:
    """What a healthy host answers: FILES, and a link."""
    if args["action"] == "survey":
        digests = (f"{int(host[-1]) * 16 + part:064x}" for part in range(2))
        yield "answer", {"parts": [surveyed(digest) for digest in digests]}
    elif args["action"] == "list":
        rows = [row(part, path, len(data)) for (part, path), data in FILES.items()]
        yield "frame", {"entries": [*rows, row(0, "d/link", 0, "link", "../x")]}
        yield "answer", {"tops": ["/a", "/b"]}
    else:
        count = 0
        for number, line in enumerate(iter(stdin.readline, b"")):
            part, path, _, _, offset, _ = json.loads(line)
            for frame in pieces(number, FILES.get((part, path), b"?"), offset):
                yield "frame", frame
            count += 1
        yield "answer", {"sent": count}


def fetched(
    directory: Path,
    liar: Script | None = None,
    *,
    force: bool = False,
    dry_run: bool = False,
    scripts: Mapping[str, Script] = {},
) -> tuple[dict[str, Fetched], WatchedFleet]:
    """A fetch from all hosts, of which one may lie."""
    all_scripts = {**dict.fromkeys(NAMES, honest), **({LIAR: liar} if liar else {}), **scripts}
    fleet = WatchedFleet(HOSTS, all_scripts)
    with fleet:
        wanted = dict.fromkeys(NAMES, WANTED)
        results = fetch(fleet, wanted, PREFIXES, PREFIXES, str(directory), Options(force, dry_run))
    return results, fleet
