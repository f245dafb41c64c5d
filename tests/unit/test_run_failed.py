"""The failed hosts of the last run, and `@failed`."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from mnt.errors import OutputError, UsageError
from mnt.inventory.hostlist import select
from mnt.inventory.model import Host, Inventory
from mnt.run import failed


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


def test_each_inventory_has_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = str(tmp_path / "first.yaml"), str(tmp_path / "second.yaml")
    failed.remember(first, ["node2", "node1"])
    failed.remember(second, [])
    assert failed.recall(first) == ["node2", "node1"]
    assert failed.recall(second) == failed.recall(str(tmp_path / "third.yaml")) == []
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link.yaml").symlink_to("first.yaml")
    assert failed.recall("first.yaml") == failed.recall("link.yaml") == ["node2", "node1"]
    failed.remember(first, ["node3"])
    assert failed.recall(first) == ["node3"]


def test_only_the_user_may_read_it(state: Path) -> None:
    failed.remember("a.yaml", ["node1"])
    (file,) = (state / "mnt" / "failed").iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("home", ["", "relative/path"])
def test_where_it_lies_without_a_state_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: str
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", home)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert failed.state_file("a.yaml").parent == tmp_path / ".local/state/mnt/failed"


@pytest.mark.parametrize("text", ["", "[]", '{"format": 2, "hosts": []}', '{"format": 1, "hosts": [1]}'])
def test_what_is_not_ours(text: str) -> None:
    failed.remember("a.yaml", [])
    file = failed.state_file("a.yaml")
    file.write_text(text)
    with pytest.raises(UsageError) as raised:
        failed.recall("a.yaml")
    assert raised.value.fix == f"rm {file}"


def test_the_fix_removes_this_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "a b; rm c"))
    failed.remember("a.yaml", [])
    file = failed.state_file("a.yaml")
    file.write_text("")
    with pytest.raises(UsageError) as raised:
        failed.recall("a.yaml")
    assert shlex.split(raised.value.fix or "") == ["rm", str(file)]


# -- another user of this machine

OTHER = 4242  # a uid that nobody has
as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can make files of another user")


def planted(state: Path) -> Path:
    """A list in the place of ours, which names a host that did not fail; its directory."""
    failed.remember("a.yaml", ["node1"])
    file = failed.state_file("a.yaml")
    file.write_text(file.read_text().replace("node1", "planted"))
    return file.parent


def chown(path: Path) -> None:
    os.chown(path, OTHER, OTHER)


def open_to_all(path: Path) -> None:
    path.chmod(0o777)


def open_to_a_group(path: Path) -> None:
    os.chown(path, -1, OTHER)
    path.chmod(0o770)


def linked(path: Path) -> None:
    """A link in the place of the directory, which leads into one of another user."""
    moved = path.with_name("moved")
    path.rename(moved)
    path.symlink_to(moved)
    os.chown(path, OTHER, OTHER, follow_symlinks=False)


@as_root
@pytest.mark.parametrize("attack", [chown, open_to_all, open_to_a_group, linked])
@pytest.mark.parametrize("level", ["state", "state/mnt", "state/mnt/failed"])
def test_a_directory_that_others_could_change_is_not_believed_or_written(
    state: Path, attack: Callable[[Path], None], level: str
) -> None:
    directory = planted(state)
    place = state.parent / level
    attack(place)
    before = {path: path.read_bytes() for path in state.parent.rglob("*.json")}
    for use in (lambda: failed.recall("a.yaml"), lambda: failed.remember("a.yaml", ["node2"])):
        with pytest.raises(UsageError) as raised:
            use()
        assert str(place) in raised.value.message
        assert raised.value.fix
    assert {path: path.read_bytes() for path in state.parent.rglob("*.json")} == before
    assert directory.exists()


@pytest.mark.parametrize(
    "content", ["[" * 1_000_000, '{"format": ' + "9" * 5000 + "}", "\0", '{"format": NaN}']
)
def test_damaged_lists(content: str) -> None:
    failed.remember("a.yaml", [])
    failed.state_file("a.yaml").write_text(content)
    with pytest.raises(UsageError, match="not a list of failed hosts"):
        failed.recall("a.yaml")


def test_a_pipe_in_its_place() -> None:
    failed.remember("a.yaml", [])
    failed.state_file("a.yaml").unlink()
    os.mkfifo(failed.state_file("a.yaml"))
    with pytest.raises(UsageError, match="not a regular file"):
        failed.recall("a.yaml")


def test_the_state_holds_no_more_than_names(state: Path) -> None:
    """No value of `env`, nor anything else of the inventory."""
    failed.remember("a.yaml", ["node1"])
    (file,) = (path for path in state.rglob("*") if path.is_file())
    document = json.loads(file.read_text())
    assert document == {"format": 1, "inventory": os.path.realpath("a.yaml"), "hosts": ["node1"]}


# -- in a hostlist

HOSTS = tuple(Host(name, name) for name in ("node1", "node2", "node3"))


def selected(
    nodes: str | None, last: list[str], *, exclude: str | None = None, **groups: tuple[str, ...]
) -> list[str]:
    inventory = Inventory("test", "test.yaml", HOSTS, groups)
    chosen = select(inventory, nodes=nodes, exclude=exclude, last_failed=lambda: last)
    return [host.name for host in chosen]


@pytest.mark.parametrize(
    ("nodes", "exclude", "last", "hosts"),
    [
        ("@failed", None, ["node3", "node1"], ["node3", "node1"]),
        ("node2,@failed", None, ["node3"], ["node2", "node3"]),
        ("@failed", "node3", ["node3", "node1"], ["node1"]),
        (None, "@failed", ["node2"], ["node1", "node3"]),
        ("@failed", None, ["gone", "node1"], ["node1"]),
        (None, "@failed", [], ["node1", "node2", "node3"]),
    ],
)
def test_failed_is_a_group(nodes: str | None, exclude: str | None, last: list[str], hosts: list[str]) -> None:
    assert selected(nodes, last, exclude=exclude) == hosts


def test_a_group_of_that_name_comes_first() -> None:
    assert selected("@failed", ["node1"], failed=("node2",)) == ["node2"]


def test_nobody_failed() -> None:
    with pytest.raises(UsageError, match="no host failed in the last run"):
        selected("@failed", [])


def test_it_is_only_read_when_asked_for() -> None:
    def unread() -> list[str]:
        raise AssertionError

    inventory = Inventory("test", "test.yaml", HOSTS)
    assert len(select(inventory, nodes="node[1-2]", exclude=None, last_failed=unread)) == 2


def test_a_place_that_cannot_be_written(state: Path) -> None:
    state.write_text("a file")
    with pytest.raises(OutputError, match=str(state)):
        failed.remember(os.devnull, ["node1"])
