"""`activate`: the environment that lines for bash make, and what is said of a line that fails or hangs."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from job_host import JobHost

from mnt.errors import InventoryError
from mnt.inventory.loader import load
from mnt.launch.shell import shell_without_plan
from mnt.remote.common.activation import activated, parse
from mnt.remote.common.refusal import Refused
from mnt.remote.job.spec import job_environment

SESSION = {"HOME": "/", "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["export A=1"], {"A": "1"}),
        (["A=1", 'export B="x$A y"'], {"B": "x1 y", "A": None}),  # only what is exported
        (["f() { export C=$1; }; f 'a b'", "export D=$C"], {"C": "a b", "D": "a b"}),
        (["export E=$'one\ntwo'; echo noise; echo more >&2"], {"E": "one\ntwo"}),
        (["export PATH=/opt/x/bin:$PATH; unset LANG"], {"PATH": "/opt/x/bin:/usr/bin:/bin", "LANG": None}),
        (["g() { :; }; export -f g", "cd /tmp"], {"PWD": None, "BASH_FUNC_g%%": None, "SHLVL": None}),
        (["sleep 300 & export F=1"], {"F": "1"}),  # nothing waits for it, and it is ended
        (["read x; export G=${x:-nothing}"], {"G": "nothing"}),  # there is no input
        (["true # a remark", "export H=$#"], {"H": "0"}),
        ([], {"HOME": "/"}),
    ],
)
def test_what_the_lines_make(lines: list[str], expected: dict[str, str | None]) -> None:
    found = activated(["export PATH=/usr/bin:/bin", *lines], SESSION)
    assert {name: found.get(name) for name in expected} == expected
    assert "MNT_INVENTORY" not in found


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (
            ["true", "nothing-of-that-name x"],
            "activate: 'nothing-of-that-name x' failed with code 127: nothing",
        ),
        (["echo first >&2; echo last >&2; false"], "failed with code 1: last"),
        (["exit 3", "true"], "activate: 'exit 3' failed with code 3"),
        (
            ["source /no/such/file"],
            "activate: 'source /no/such/file' failed with code 1: /no/such/file: No such",
        ),
        (["kill -9 $$"], "activate: 'kill -9 $$' failed with code -9"),
        (["if then"], "activate: 'if then' failed with code"),
    ],
)
def test_a_line_that_fails_is_named(lines: list[str], says: str) -> None:
    with pytest.raises(Refused) as refusal:
        activated(lines, SESSION)
    assert refusal.value.message.startswith("activate: ")
    assert says in refusal.value.message
    assert "activate" in (refusal.value.fix or "")


def test_a_line_that_hangs_is_named_and_ended() -> None:
    begin = time.monotonic()
    with pytest.raises(
        Refused, match=r"activate: 'echo waits >&2; sleep 307' has not ended after 0.5 s: waits"
    ):
        activated(["export A=1", "echo waits >&2; sleep 307"], SESSION, patience=0.5)
    assert time.monotonic() - begin < 10
    running = [Path(f"/proc/{pid}/cmdline") for pid in os.listdir("/proc") if pid.isdigit()]
    assert not [file for file in running if file.exists() and b"sleep\x00307" in file.read_bytes()]


def test_bytes_that_are_no_text_stay() -> None:
    assert parse(b"A=\xff\0B=\0=x\0nonsense\0_=/bin/env\0") == {"A": "\udcff", "B": ""}


def test_its_environment_is_the_base_of_the_jobs() -> None:
    spec: dict[str, Any] = {
        "job": "j",
        "host": "h",
        "node_rank": 0,
        "jobs_dir": "/x",
        "env": {"OWN": "2"},
        "path_prepend": ["/first"],
        "python_path": ["/tree"],
        "activated": {"HOME": "/h", "PATH": "/conda/bin:/bin", "OWN": "1", "MORE": "3", "PYTHONPATH": "/mod"},
    }
    found = job_environment(spec, {**SESSION, "LANG": "de"}, {"MORE": "secret"})
    assert found[b"PATH"] == b"/first:/conda/bin:/bin"
    assert (found[b"OWN"], found[b"MORE"], found[b"HOME"]) == (b"2", b"secret", b"/h")
    assert found[b"PYTHONPATH"] == b"/tree:/mod"
    assert b"LANG" not in found  # a line has removed it


def test_a_job_runs_with_it(host: JobHost) -> None:
    host.script("import os, pathlib; pathlib.Path('made').write_text(os.environ['MADE'] + os.environ['X'])")
    spec = host.spec(activate=["MADE=by-bash; export MADE"], env={"X": "!"})
    host.start(spec)
    host.ended(spec["job"])
    assert (host.directory / "made").read_text() == "by-bash!"
    answer = host.call("start", spec=host.spec(activate=["false"]), wait_for_port=False)
    assert answer["refused"]["message"] == "activate: 'false' failed with code 1"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("source a && b", ("source a && b",)),
        ("[module load x, conda activate y]", ("module load x", "conda activate y")),
        ("|\n    module load x\n\n    conda activate y", ("module load x", "conda activate y")),
        ("[]", ()),
    ],
)
def test_the_key(tmp_path: Path, text: str, expected: tuple[str, ...]) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(f"hosts: [a]\ndefaults:\n  python: python\n  activate: {text}\n")
    (host,) = load(file).hosts
    assert host.activate == expected
    assert host.trains_elsewhere is bool(expected)


@pytest.mark.parametrize("text", ["{a: b}", "[1]", "[{a: b}]", "3"])
def test_what_the_key_cannot_be(tmp_path: Path, text: str) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(f"hosts: [a]\ndefaults:\n  activate: {text}\n")
    with pytest.raises(InventoryError, match=r"c.yaml:3: defaults.activate"):
        load(file)


def test_a_shell_has_it_too(tmp_path: Path) -> None:
    shell = tmp_path / "shell"
    shell.write_text('#!/bin/sh\necho "$MADE $OWN"; echo "$PATH" | cut -d: -f1; pwd\n')
    shell.chmod(0o755)
    lines = ["export MADE='by bash' PATH=/made:$PATH OWN=1", "false"]
    command = shell_without_plan("/usr", {"OWN": "2"}, ["/first"], lines)
    done = subprocess.run(
        ["/bin/sh", "-c", command],
        env={**SESSION, "SHELL": str(shell)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.splitlines() == ["by bash 2", "/first", "/usr"]
    assert "mnt: activate: 'false' has failed" in done.stderr
