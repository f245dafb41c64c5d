"""The cache of resolved inventories: it answers as the loader does, or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mnt.errors import InventoryError
from mnt.inventory import cache, loader

READY = sorted(Path("inventories").glob("*.yaml"))


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "mnt" / "inventories"


def no_loader(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(file: str) -> None:
        raise AssertionError("it was loaded anew")

    monkeypatch.setattr(loader, "load", load)


@pytest.mark.parametrize("file", READY, ids=lambda path: path.name)
def test_it_answers_as_the_loader_does(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = loader.load(str(file))
    assert cache.load(str(file)) == expected
    no_loader(monkeypatch)
    assert cache.load(str(file)) == expected


def test_a_change_of_the_file_or_of_the_code_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("hosts: [node1]\n")
    assert [host.name for host in cache.load(str(file)).hosts] == ["node1"]
    file.write_text("hosts: [node2]\n")
    assert [host.name for host in cache.load(str(file)).hosts] == ["node2"]
    no_loader(monkeypatch)
    monkeypatch.setattr(cache, "__file__", str(tmp_path / "other" / "cache.py"))
    with pytest.raises(AssertionError, match="anew"):
        cache.load(str(file))


def test_errors_are_the_loaders_each_time(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    for _ in range(2):
        with pytest.raises(InventoryError, match="cannot be read"):
            cache.load(str(file))
    file.write_text("hosts: {node1: {adress: x}}\n")
    for _ in range(2):
        with pytest.raises(InventoryError, match="adress"):
            cache.load(str(file))


@pytest.mark.parametrize("text", ["", "[]", '{"key": 1}', None])
def test_what_is_broken_is_made_anew(tmp_path: Path, home: Path, text: str | None) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("hosts: [node1]\n")
    cache.load(str(file))
    (kept,) = home.iterdir()
    whole = kept.read_text()
    kept.write_text(whole.replace('"address"', '"adress"') if text is None else text)
    assert [host.name for host in cache.load(str(file)).hosts] == ["node1"]
    assert kept.read_text() == whole


def test_it_is_the_users_alone_and_stays_small(tmp_path: Path, home: Path) -> None:
    for number in range(70):
        file = tmp_path / f"{number}.yaml"
        file.write_text("hosts: [node1]\n")
        cache.load(str(file))
    assert len(list(home.iterdir())) == 64
    assert {kept.stat().st_mode & 0o777 for kept in home.iterdir()} == {0o600}
    assert home.stat().st_mode & 0o777 == 0o700


def test_without_a_place_it_still_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", os.devnull)
    file = tmp_path / "a.yaml"
    file.write_text("hosts: [node1]\n")
    assert [host.name for host in cache.load(str(file)).hosts] == ["node1"]
