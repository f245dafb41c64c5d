"""Where the files of the hosts go, and what is done about each: mnt/fetch/places.py and plan.py."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mnt.errors import UsageError
from mnt.fetch.places import (
    PART_PREFIX,
    below,
    conflict,
    count_directories,
    pattern_of,
    place_of,
    stays_inside,
)
from mnt.fetch.plan import Here, decide, sharers
from mnt.tasks.fetch import Pattern, SurveyedPart


@pytest.mark.parametrize(
    ("path", "pattern", "place"),
    [
        ("x", Pattern("x"), "x"),
        ("x/", Pattern("x/"), "x"),
        ("./x//y", Pattern("./x//y"), "x/y"),
        (".", Pattern("."), ""),
        ("~", Pattern("~"), ""),
        ("~/x", Pattern("~/x"), "x"),
        ("x~/y", Pattern("x~/y"), "x~/y"),
        ("/", Pattern("/"), ""),
        ("/var/log", Pattern("/var/log"), "var/log"),
        ("/*", Pattern("/", "*"), ""),
        ("*", Pattern(".", "*"), ""),
        ("runs/*", Pattern("runs", "*"), "runs"),
        ("runs/*/x/", Pattern("runs", "*/x"), "runs"),
        ("~/r?n/[ab]", Pattern("~", "r?n/[ab]"), ""),
        ("runs[1]/x", Pattern(".", "runs[1]/x"), ""),
        ("..x/y..", Pattern("..x/y.."), "..x/y.."),
        ("a\nb", Pattern("a\nb"), "a\nb"),
        ("caf\udce9", Pattern("caf\udce9"), "caf\udce9"),
        ("-rf", Pattern("-rf"), "-rf"),
    ],
)
def test_a_path_and_its_place(path: str, pattern: Pattern, place: str) -> None:
    assert pattern_of(path) == pattern
    assert place_of(pattern) == place


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("", "is not a path"),
        ("a\0b", "is not a path"),
        ("..", "with '..'"),
        ("../x", "with '..'"),
        ("x/../y", "with '..'"),
        ("/..", "with '..'"),
        ("runs/*/../..", "with '..'"),
        ("~eve/x", "home of another user"),
        ("~eve", "home of another user"),
    ],
)
def test_a_path_without_a_place(path: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        pattern_of(path)


@pytest.mark.parametrize(
    ("paths", "shared"),
    [
        (["a", "b"], None),
        (["a", "a"], None),  # the same files
        (["runs", "runs/1"], None),
        (["runs/*.log", "runs/*.pt"], None),
        (["/etc", "/etc/hosts"], None),
        (["/etc", "etc"], "etc"),
        (["/etc", "~/etc"], "etc"),
        (["etc/hosts", "/etc"], "etc/hosts"),
        (["/etcetera", "etc"], None),
        (["/", "x"], "x"),
        (["/*", "*"], "."),
        (["~", "x/y"], "x/y"),
        (["a", "/b/*", "b/c/*"], "b/c"),
    ],
)
def test_paths_that_share_a_place(paths: list[str], shared: str | None) -> None:
    assert conflict([pattern_of(path) for path in paths]) == shared


@pytest.mark.parametrize(
    ("prefix", "path", "place"),
    [
        ("release", "x/y", "release/x/y"),
        ("", "x", "x"),
        ("var/log", "", "var/log"),
        ("", "", None),
        ("p", "..", None),
        ("p", "a/../b", None),
        ("p", "../q", None),
        ("p", "/etc/passwd", None),
        ("", "/etc/passwd", None),
        ("p", "a//b", None),
        ("p", "a/", None),
        ("p", "./a", None),
        ("p", ".", None),
        ("p", "a\0b", None),
        ("p", f"{PART_PREFIX}00", None),
        ("p", f"a/{PART_PREFIX}/b", None),
        ("p", f"a{PART_PREFIX}", f"p/a{PART_PREFIX}"),
        ("p", "...", "p/..."),
        ("p", "a\nb\\", "p/a\nb\\"),
        ("p", "caf\udce9", "p/caf\udce9"),
    ],
)
def test_the_place_of_a_hosts_file(prefix: str, path: str, place: str | None) -> None:
    assert below(prefix, path) == place


@pytest.mark.parametrize(
    ("places", "count"),
    [
        ([], 0),
        (["x", "y"], 0),
        (["a/x", "a/y", "b/x"], 2),
        (["a/x", "a-b/x", "a/c", "ab/x", "a"], 3),
        (["a/b/x", "a/x", "a/bc/x", "a/b/c/x"], 4),
        (["a/b/x", "b/a/x", "a/b/x"], 4),
        (["\U0001f4a9/x", "\U0001f4aa/x", "\n/x"], 3),
    ],
)
def test_the_number_of_directories(places: list[str], count: int) -> None:
    assert count_directories(places) == count


@given(st.lists(st.lists(st.sampled_from(["a", "ab", "b", "-", "a-"]), min_size=1, max_size=5).map("/".join)))
def test_the_number_of_directories_is_that_of_all_prefixes(places: list[str]) -> None:
    above = {place[:at] for place in places for at in range(len(place)) if place[at] == "/"}
    assert count_directories(places) == len(above)


@pytest.mark.parametrize(
    ("place", "target", "inside"),
    [
        ("a/l", "b", True),
        ("a/l", "b/c", True),
        ("a/l", "./b", True),
        ("a/l", ".", True),
        ("a/l", "..", True),
        ("a/l", "../x", True),
        ("a/l", ".././x", True),
        ("a/l", "../..", False),
        ("a/b/l", "../../x", True),
        ("l", "..", False),
        ("l", "../node2/x", False),
        ("a/l", "b/..", False),  # b may be a link
        ("a/l", "b/../../..", False),
        ("a/l", "/etc", False),
        ("a/l", "//", False),
        ("a/l", "", False),
        ("a/l", "a\0", False),
        ("l", "...", True),
    ],
)
def test_a_link_that_stays_inside(place: str, target: str, inside: bool) -> None:
    assert stays_inside(place, target) == inside


# Links at these places, in real directories, to one another: the few that can be dangerous are many of them.
PLACES = ("l", "a/l", "a/m", "a/b/l", "a/b/m")
NAMES = ("a", "b", "l", "m")
TARGETS = st.lists(st.sampled_from(["..", *NAMES, "..", "."]), min_size=1, max_size=4).map("/".join)
LINKS = st.fixed_dictionaries({}, optional=dict.fromkeys(PLACES, TARGETS))


@settings(max_examples=300, deadline=None)
@given(LINKS)
def test_no_combination_of_accepted_links_leads_out(links: dict[str, str]) -> None:
    """Real directories and links: whatever names are put together, realpath is below the top."""
    with tempfile.TemporaryDirectory() as outside:
        top = Path(outside).resolve() / "host"
        (top / "a/b").mkdir(parents=True)
        for place, target in links.items():
            if stays_inside(place, target):
                (top / place).symlink_to(target)
        ends = ["", *NAMES, *(f"{name}/{more}" for name in NAMES for more in NAMES)]
        for path in (top / place / end for place in (".", *links) for end in ends):
            real = os.path.realpath(path)
            assert f"{real}/".startswith(f"{top}/"), (links, path, real)


FILE = Here("file", 10, 1_000_000_000_123_456_789)


@pytest.mark.parametrize(
    ("size", "mtime", "here", "force", "decision"),
    [
        (10, 5, None, False, "take"),
        (10, FILE.mtime, FILE, False, "same"),
        (10, FILE.mtime, FILE, True, "same"),
        (11, FILE.mtime, FILE, False, "take"),
        (10, FILE.mtime + 1, FILE, False, "take"),
        (10, FILE.mtime - 1, FILE, False, "changed here"),
        (11, FILE.mtime - 1, FILE, False, "changed here"),
        (10, FILE.mtime - 1, FILE, True, "take"),
        (0, FILE.mtime, FILE, False, "take"),
        (10, 5, Here("link", target="x"), False, "in the way"),
        (10, 5, Here("link", target="x"), True, "take"),
        (10, 5, Here("other"), False, "in the way"),
        (10, 5, Here("other"), True, "in the way"),
        # The file system here keeps no more of a time.
        (10, FILE.mtime, Here("file", 10, 1_000_000_000_123_456_700), False, "same"),
        (10, FILE.mtime, Here("file", 10, 1_000_000_000_123_456_000), False, "same"),
        (10, FILE.mtime, Here("file", 10, 1_000_000_000_000_000_000), False, "same"),
        (11, FILE.mtime, Here("file", 10, 1_000_000_000_000_000_000), False, "take"),
        (10, FILE.mtime, Here("file", 10, 999_999_999_000_000_000), False, "take"),
        (10, FILE.mtime, Here("file", 10, 1_000_000_000_123_450_000), False, "take"),
        (10, -1, Here("file", 10, -(10**9)), False, "same"),
        (10, 2**63 - 1, Here("file", 10, 2**63 - 1), False, "same"),
        (10, -(2**63), Here("file", 10, 0), False, "changed here"),
    ],
)
def test_what_to_do_about_a_file(
    size: int, mtime: int, here: Here | None, force: bool, decision: str
) -> None:
    assert decide(size, mtime, here, overwrite=force) == decision


def part(digest: str, files: int = 1, problem: str | None = None) -> SurveyedPart:
    counts: Any = {"files": files, "links": 0, "bytes": 1, "others": 0, "later": 0}
    return {**counts, "digest": digest, "problem": problem, "absent": False}


@pytest.mark.parametrize(
    ("surveys", "shared"),
    [
        ({"node1": [part("a")], "node2": [part("a")]}, {"node1": {}, "node2": {0: "node1"}}),
        ({"node2": [part("a")], "node1": [part("a")]}, {"node2": {}, "node1": {0: "node2"}}),
        ({"node1": [part("a")], "node2": [part("b")]}, {"node1": {}, "node2": {}}),
        ({"node1": [part("a", files=0)], "node2": [part("a", files=0)]}, {"node1": {}, "node2": {}}),
        ({"node1": [part("a", problem="x")], "node2": [part("a")]}, {"node1": {}, "node2": {}}),
        ({"node1": [part("a"), part("b")], "node2": [part("b"), part("a")]}, {"node1": {}, "node2": {}}),
        (
            {"n1": [part("a"), part("x")], "n2": [part("b"), part("x")], "n3": [part("b"), part("x")]},
            {"n1": {}, "n2": {1: "n1"}, "n3": {0: "n2", 1: "n1"}},
        ),
        ({}, {}),
    ],
)
def test_who_shares_files(surveys: dict[str, list[SurveyedPart]], shared: dict[str, dict[int, str]]) -> None:
    assert sharers(surveys) == shared
