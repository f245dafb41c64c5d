"""Fuzzed answers of one host to a fetch. See tests/fuzzing.py."""

from __future__ import annotations

import json
import os
import random
import subprocess
from pathlib import Path
from typing import IO, Any

import pytest
from fetch_hosts import FILES, LIAR, NAMES, Frames, fetched, honest
from fuzzing import mutated, run_cases
from lying_hosts import Script

from mnt.cli.fetch import _show


def lying(rng: random.Random) -> Script:
    """Honest, but for one frame or answer of one action, which is wrong, in the wrong place, or cut off."""
    liar, wrong = rng.choice(("survey", "list", "list", "send", "send")), rng.choice((0, 0, 1, 2, 3))

    def lie(host: str, name: str, args: dict[str, Any], stdin: IO[bytes]) -> Frames:
        for number, (kind, value) in enumerate(honest(host, name, args, stdin)):
            how = rng.random()
            if args["action"] != liar or number != wrong or how < 0.05:
                yield kind, value
            elif how < 0.8:
                yield kind, mutated(rng, value)
            elif how < 0.9:
                yield kind, value
                yield kind, value
            elif how < 0.95:
                yield rng.choice(("answer", "frame", "error", "hello")), value

    return lie


def test_fuzz_fetch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also after another fetch from the liar. Nothing else is touched."""
    (tmp_path / "victim").write_text("mine")
    to = tmp_path / "to"

    def case(rng: random.Random) -> None:
        subprocess.run(["rm", "-rf", str(to)], check=True)
        if rng.random() < 0.5:
            fetched(to, lying(rng))
        results, fleet = fetched(to, lying(rng), force=rng.random() < 0.5)
        assert fleet.failed.keys() <= {LIAR}, fleet.failed
        for host in set(NAMES) - {LIAR}:
            assert (results[host].status, results[host].failed) == ("fetched", {})
            for (part, path), data in FILES.items():
                assert (to / host / "ab"[part] / path).read_bytes() == data
        assert sorted(os.listdir(tmp_path)) == ["to", "victim"]
        assert sorted(os.listdir(to)) == [name for name in NAMES if (to / name).exists()]
        for directory, directories, files in os.walk(to / LIAR):
            for name in (*directories, *files):
                real = os.path.realpath(os.path.join(directory, name))
                assert real.startswith(f"{to}/{LIAR}")
        json.dumps({host: each.document() for host, each in results.items()})
        _show(results, "to", dry_run=False)
        capsys.readouterr()

    run_cases("fuzz_fetch", case, sample=50)
    assert (tmp_path / "victim").read_text() == "mine"
