"""Which inventory is meant."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mnt.errors import UsageError
from mnt.inventory import find


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current directory, no labs, no $MNT_INVENTORY."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("mnt.lab.LAB_ROOT", tmp_path / "labs")
    monkeypatch.delenv("MNT_INVENTORY", raising=False)
    return tmp_path


def write(directory: Path, *files: str) -> None:
    for file in files:
        (directory / file).parent.mkdir(parents=True, exist_ok=True)
        (directory / file).write_text("hosts: [node1]\n")


@pytest.mark.parametrize("path", ["some/where", "./x", "x.yaml", "x.yml", "/abs/x.yaml"])
def test_a_path_is_taken_as_it_is(here: Path, path: str) -> None:
    assert find.locate(path) == path


def test_a_name_means_a_file_in_inventories(here: Path) -> None:
    write(here, "inventories/pair.yaml")
    assert find.locate("pair") == "inventories/pair.yaml"


def test_the_nearest_directory_above(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(here, "inventories/default.yaml", "inventories/pair.yaml", "a/b/c/x.py", "a/inventories/mine.yaml")
    monkeypatch.chdir(here / "a" / "b" / "c")
    assert find.locate("mine") == "../../inventories/mine.yaml"
    with pytest.raises(UsageError, match="no inventory named 'pair'"):
        find.locate("pair")  # there is a nearer directory
    (here / "a" / "inventories" / "mine.yaml").unlink()
    (here / "a" / "inventories").rmdir()
    (here / "a" / "inventories").write_text("no directory")
    assert find.locate(None) == "../../../inventories/default.yaml"
    monkeypatch.chdir(here)
    assert find.locate(None) == "inventories/default.yaml"


def test_above_nobody_elses_counts(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a directory like /tmp another user could lead all those below it, or stop them."""
    write(here, "inventories/default.yaml", "a/x.py")
    monkeypatch.chdir(here / "a")
    if os.getuid() != 0:
        pytest.skip("only root can give a directory away")
    os.chown(here / "inventories", 65534, 65534)
    monkeypatch.setenv("SUDO_UID", "65534")  # the user who called sudo is no other one
    assert find.directory() == "../inventories"
    monkeypatch.delenv("SUDO_UID")
    with pytest.raises(UsageError, match="no inventory: "):
        find.locate(None)


def test_what_another_user_lists_is_not_looked_at(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a directory like /tmp: names without end, for whoever calls `mnt` there."""
    write(here, "inventories/pair.yaml")
    monkeypatch.setattr(find, "_MOST_NAMES", 2)
    for number in range(4):
        write(here, f"inventories/{number}.yaml")
    assert len(find.named()) == 2
    assert find.locate("pair") == "inventories/pair.yaml"
    (here / "inventories").chmod(0o777)
    assert find.named() == {}
    with pytest.raises(UsageError, match="no inventory: "):
        find.locate(None)
    with pytest.raises(UsageError, match=r"pair.yaml may be another user's: all users can write to"):
        find.locate("pair")


@pytest.mark.parametrize("name", ["x" * 300, "a\0b", "\udcff"])
def test_a_name_that_no_file_has(here: Path, name: str) -> None:
    with pytest.raises(UsageError, match="no inventory named"):
        find.locate(name)


def test_an_unknown_name_lists_what_there_is(here: Path) -> None:
    write(here, "inventories/pair.yaml", "labs/small/inventory.yaml")
    with pytest.raises(UsageError, match=r"no inventory named 'piar'; did you mean 'pair'\?") as caught:
        find.locate("piar")
    assert caught.value.fix == "-i with one of: pair, lab:small"


def test_the_order_without_a_name(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="no inventory") as caught:
        find.locate(None)
    assert caught.value.exit_code == 2
    write(here, "labs/small/inventory.yaml")
    assert find.locate(None) == str(here / "labs/small/inventory.yaml")
    write(here, "inventories/default.yaml", "inventories/pair.yaml")
    assert find.locate(None) == "inventories/default.yaml"
    monkeypatch.setenv("MNT_INVENTORY", "pair")
    assert find.locate(None) == "inventories/pair.yaml"
    assert find.locate("default") == "inventories/default.yaml"
    monkeypatch.setenv("MNT_INVENTORY", "")
    assert find.locate(None) == "inventories/default.yaml"


def test_lab_means_the_only_one_or_default(here: Path) -> None:
    with pytest.raises(UsageError, match="no lab is running") as caught:
        find.locate("lab")
    assert caught.value.fix == "mnt lab up"
    write(here, "labs/a/inventory.yaml")
    assert find.locate("lab") == str(here / "labs/a/inventory.yaml")
    write(here, "labs/b/inventory.yaml")
    for name in ("lab", None):
        with pytest.raises(UsageError, match="several labs") as caught:
            find.locate(name)
        assert caught.value.fix == "-i with one of: lab:a, lab:b"
    assert find.locate("lab:b") == str(here / "labs/b/inventory.yaml")
    write(here, "labs/default/inventory.yaml")
    assert find.locate("lab") == str(here / "labs/default/inventory.yaml")


def test_a_lab_that_does_not_run(here: Path) -> None:
    write(here, "labs/small/inventory.yaml")
    (here / "labs/half").mkdir()
    for name in ("half", "../x", ""):
        with pytest.raises(UsageError, match="is running"):
            find.locate(f"lab:{name}")


@pytest.mark.parametrize("name", [None, "default"])
@pytest.mark.parametrize("open_to_others", [".", "inventories", "inventories/default.yaml"])
def test_an_inventory_that_another_user_can_write(here: Path, name: str | None, open_to_others: str) -> None:
    """It could have an ssh_config with a `Match exec`. Whoever names its path has looked at it."""
    write(here, "inventories/default.yaml")
    (here / open_to_others).chmod(0o777)
    with pytest.raises(UsageError, match=r"may be another user's: all users can write to .*0777"):
        find.locate(name)
    assert find.locate("inventories/default.yaml") == "inventories/default.yaml"


@pytest.mark.parametrize(
    ("name", "path"),
    [(None, False), ("pair", False), ("lab", False), ("lab:a/b.yaml", False), ("./x", True), ("x.yml", True)],
)
def test_what_is_named_by_its_path(
    here: Path, monkeypatch: pytest.MonkeyPatch, name: str | None, path: bool
) -> None:
    assert find.is_path(name) is path
    monkeypatch.setenv("MNT_INVENTORY", name or "")
    assert find.is_path(None) is path
