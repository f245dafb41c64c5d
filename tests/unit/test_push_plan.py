"""What a push decides."""

from __future__ import annotations

from datetime import datetime

import pytest
from waiting import cpu_at_most

from mnt.errors import MntError
from mnt.inventory.model import Host
from mnt.push.manifest import Manifest
from mnt.push.plan import (
    Survey,
    choose_release,
    has,
    in_the_way,
    lacking,
    leaders,
    likely_shared,
    seen_by_one,
)
from mnt.push.result import HostResult, PushResult
from mnt.push.transfer import check_kept
from mnt.push.tree import Entry

NOW = datetime(2026, 1, 2, 3, 4, 5)
SHA = "0123456789abcdef"
NEW = "20260102-030405-01234567"
FUTURE, AHEAD = "99991201-235959-01234567", "20260102-030600-01234567"
OLD, OLDER, OTHER = "20250101-000000-01234567", "20240101-000000-01234567", "20250505-000000-ffffffff"


@pytest.mark.parametrize(
    ("sees", "expected"),
    [
        ({"a": ["a"], "b": ["b"]}, {"a": "a", "b": "b"}),
        ({"a": ["a", "b"], "b": ["a", "b"]}, {"a": "a", "b": "a"}),
        ({"b": ["b", "a"], "a": ["b", "a"]}, {"b": "b", "a": "b"}),
        # What one alone says is not enough, whomever it names, and however often.
        ({"a": ["a"], "b": ["b", "a"]}, {"a": "a", "b": "b"}),
        ({"a": ["a"], "b": ["b"], "c": ["a", "b", "c"]}, {"a": "a", "b": "b", "c": "c"}),
        ({"c": ["a", "b", "c"], "a": ["a"], "b": ["b"]}, {"c": "c", "a": "a", "b": "b"}),
        ({"a": ["c"], "b": ["b"], "c": ["b"]}, {"a": "a", "b": "b", "c": "c"}),
        ({"a": ["a", "z"], "b": []}, {"a": "a", "b": "b"}),
        # b shares a workdir with a, and says that it shares another one with c, which agrees.
        ({"a": ["a", "b"], "b": ["a", "b", "c"], "c": ["b", "c"]}, {"a": "a", "b": "a", "c": "c"}),
        ({"b": ["a", "b", "c"], "a": ["a", "b"], "c": ["b", "c"]}, {"b": "b", "a": "b", "c": "b"}),
    ],
)
def test_who_receives_for_whom(sees: dict[str, list[str]], expected: dict[str, str]) -> None:
    assert leaders(sees) == expected


def test_who_has_to_look_again() -> None:
    assert seen_by_one({"a": ["a", "b"], "b": ["a", "b"]}) == {}
    assert seen_by_one({"a": ["a"], "b": ["a", "b", "z"], "c": ["a"]}) == {"a": ["b", "c"]}


def test_only_equal_numbers_are_worth_waiting_for() -> None:
    numbers = {"a": [1, 2], "b": [1, 2], "c": [1, 3], "d": None, "e": None}
    assert likely_shared(numbers) == {"a": ["b"], "b": ["a"], "c": [], "d": [], "e": []}


EMPTY = Survey(None, (), {})


@pytest.mark.parametrize(
    ("surveys", "release"),
    [
        ([EMPTY, EMPTY], NEW),
        ([Survey(OTHER, (OTHER,), {})], NEW),
        # The same tree is there: its release is used, and a host that lacks it gets it.
        ([Survey(OLD, (OLD,), {OLD: True}), EMPTY], OLD),
        ([Survey(OTHER, (OTHER, OLD), {OLD: True})], OLD),
        # Of two the one that is current on more hosts, then the newer.
        ([Survey(OLDER, (OLD, OLDER), {OLD: True, OLDER: True})], OLDER),
        ([Survey(OTHER, (OTHER, OLD, OLDER), {OLD: True, OLDER: True})], OLD),
        # Damaged somewhere: never again.
        ([Survey(OLD, (OLD,), {OLD: True}), Survey(OLD, (OLD,), {OLD: False})], NEW),
        ([Survey(OLD, (OLD, OLDER), {OLD: False, OLDER: True})], OLDER),
        # No head has made an id from the future, unless its clock is a little ahead.
        ([Survey(None, (FUTURE,), {FUTURE: True}), EMPTY], NEW),
        ([Survey(FUTURE, (FUTURE, OLD), {FUTURE: True, OLD: True})], OLD),
        ([Survey(None, (AHEAD,), {AHEAD: True}), EMPTY], AHEAD),
        # No id is given twice, and a new one is the newest, also of two pushes in one second.
        ([Survey(NEW, (NEW,), {NEW: False})], "20260102-030406-01234567"),
        ([Survey(None, ("20260102-030405-fedcba98",), {})], "20260102-030406-01234567"),
        ([Survey(None, ("20260102-030405-00000000",), {})], NEW),
    ],
)
def test_all_end_at_one_release(surveys: list[Survey], release: str) -> None:
    assert choose_release(surveys, SHA, NOW) == release


@pytest.mark.parametrize(
    ("survey", "expected"),
    [
        (EMPTY, False),
        (Survey(OLD, (OLD,), {OLD: True}), True),
        (Survey(OLD, (OLD,), {OLD: False}), False),
        (Survey(OTHER, (OTHER, OLDER), {OLDER: True}), False),  # the same tree, but not this release
    ],
)
def test_who_needs_no_files(survey: Survey, expected: bool) -> None:
    assert has(survey, OLD) == expected


@pytest.mark.parametrize(
    ("bits", "expected"),
    [
        ("0000", []),
        ("0c00", [2, 3]),
        ("0001", [8]),
        ("ffff", [2, 3, 8]),
        ("", []),
        ("04", [2]),
        ("ff" * 9, [2, 3, 8]),
    ],
)
def test_what_a_host_lacks(bits: str, expected: list[int]) -> None:
    """It cannot ask for anything else than files of the tree."""
    tree = entries("/", "a/", "a/1", "a/2", "b/", "c@", "d/", "e/", "f")
    assert lacking(tree, bits) == expected


def entries(*paths: str) -> list[Entry]:
    return [
        Entry(
            path.rstrip("/@"),
            "dir" if path.endswith("/") else "link" if path.endswith("@") else "file",
            0o755,
            0,
            "",
        )
        for path in paths
    ]


@pytest.mark.parametrize(
    ("paths", "obstacle"),
    [
        (["/"], None),
        (["/", "outputs2/", "outputs2/x"], None),
        (["/", "outputs/"], None),
        (["/", "outputs/", "outputs/.gitkeep"], None),
        (["/", "outputs/", "outputs/x"], "outputs/x"),
        (["/", "outputs/", "outputs/.gitkeep", "outputs/sub/"], "outputs/sub"),
        (["/", "outputs"], "outputs"),
        (["/", "outputs@"], "outputs"),
    ],
)
def test_what_is_in_the_way_of_shared(paths: list[str], obstacle: str | None) -> None:
    found = in_the_way(entries(*paths), ["missing", "outputs", "missing/too"])
    assert found == (obstacle and ("outputs", obstacle))


@pytest.mark.parametrize(
    ("paths", "keep", "line"),
    [
        (["/", "outputs@"], "outputs", "/outputs"),
        (["/", "outputs/", "outputs/x"], "outputs", "/outputs"),
        (["/", "runs"], "runs/logs", "/runs"),
        (["/", "a[1]/", "a[1]/x"], "a[1]", r"/a\[1]"),
    ],
)
def test_the_fix_for_it_leaves_it_out(paths: list[str], keep: str, line: str) -> None:
    with pytest.raises(MntError) as caught:
        check_kept([Host("node1", "10.0.0.1", keep=(keep,))], Manifest(tuple(entries(*paths))))
    assert caught.value.fix == f"list {line} in .mntignore, or remove {keep} from `keep`"


def test_a_file_above_a_kept_directory_is_in_the_way() -> None:
    assert in_the_way(entries("/", "runs"), ["runs/logs"]) == ("runs/logs", "runs")
    assert in_the_way(entries("/", "runs/", "runs/x"), ["runs/logs"]) is None


def test_many_kept_directories_in_a_large_tree() -> None:
    """Each is looked up, not compared with each entry."""
    tree = entries("/", *(f"f{i}" for i in range(20_000)))
    for names in ([f"k{i}" for i in range(90_000)], [f"{'a/' * 2000}{i}" for i in range(2000)]):
        with cpu_at_most(30):  # 1 on an idle machine
            assert in_the_way(tree, names) is None
    assert in_the_way(tree, [*names, "f7/a"]) == ("f7/a", "f7")


@pytest.mark.parametrize(
    ("statuses", "ok", "mixed"),
    [
        (["pushed", "pushed"], True, False),
        (["pushed", "unchanged"], True, False),
        (["failed", "untouched"], False, False),
        (["failed", "switched"], False, True),
        (["unknown", "untouched"], False, True),
        (["unknown", "pushed"], False, True),
    ],
)
def test_the_verdict(statuses: list[str], ok: bool, mixed: bool) -> None:
    report = PushResult(NEW, {str(i): HostResult(status) for i, status in enumerate(statuses)})
    assert (report.ok, report.mixed) == (ok, mixed)
    document = report.document()
    assert (document["ok"], document["mixed"], document["release"]) == (
        ok,
        mixed,
        NEW if ok or mixed else None,
    )
