"""Where the options of `mnt run` end: at the first word of CMD, and at the file of --script."""

from __future__ import annotations

import pytest

from mnt.cli.run import _after_script, _RunCommand, _with_value, run

VALUED = {name for each in run.params for name in _with_value(each)}


@pytest.mark.parametrize(
    ("words", "rest"),
    [
        ("--script s.sh --fast", ["--fast"]),
        ("--script s.sh", []),
        ("--script=s.sh -n x", ["-n", "x"]),
        ("-n node1 --script s.sh -b", ["-b"]),
        ("-nnode1 --script s.sh -b", ["-b"]),
        ("-bNn node1 --script s.sh -b", ["-b"]),
        ("--nodes=node1 --sudo --timeout 3 --script s.sh --timeout 4", ["--timeout", "4"]),
        ("--script s.sh -- --fast -- x", ["--", "--fast", "--", "x"]),
        ("-n --script --script s.sh a", ["a"]),
    ],
)
def test_the_rest_belongs_to_the_script(words: str, rest: list[str]) -> None:
    split = words.split(" ")
    end = _after_script(split, VALUED)
    assert end is not None
    assert split[end:] == rest


@pytest.mark.parametrize(
    "words", ["python x.py --script y", "-n node1 x --script y", "-- --script s.sh", "-b", "", "-n --script"]
)
def test_what_is_no_script_of_ours(words: str) -> None:
    assert _after_script(words.split(" "), VALUED) is None


def test_click_sees_it_so() -> None:
    assert isinstance(run, _RunCommand)
    context = run.make_context("run", ["-n", "node1", "--script", "s.sh", "--fast", "-n", "5"])
    assert context.params["script"] == "s.sh"
    assert context.params["words"] == ("--fast", "-n", "5")
