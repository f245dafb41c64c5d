"""Records and locks of labs."""

from __future__ import annotations

import fcntl
import os
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from mnt.errors import MntError, UsageError
from mnt.inventory import find
from mnt.lab import spec, store
from mnt.lab.processes import Process, identify
from mnt.lab.spec import LabRequest
from mnt.remote.job.procs import boot_id


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(store, "LAB_ROOT", tmp_path / "labs")
    return tmp_path / "labs"


def record(name: str = "one") -> store.Record:
    planned = spec.plan(
        LabRequest(name=name, count=2),
        token="0123abcd",
        subnet="10.213.0.0/22",
        uid=2_100_000_000,
        python="python3",
    )
    return store.Record(planned, boot_id())


def claim(name: str = "one") -> store.Record:
    with store.registry():
        store.create(record(name))
    return record(name)


def test_a_record_comes_back_as_it_went() -> None:
    begun = claim()
    assert store.read("one") == begun
    complete = replace(
        begun, anchor=Process(5, 50), inits={"node1": Process(6, 60), "node2": Process(7, 70)}, complete=True
    )
    store.write(complete)
    assert store.read("one") == complete


def test_a_lab_runs_when_it_is_complete_and_its_anchor_lives_and_the_machine_was_not_rebooted() -> None:
    own = identify(1)
    complete = replace(record(), anchor=own, complete=True)
    assert complete.running
    assert not replace(complete, complete=False).running
    assert not replace(complete, anchor=Process(own.pid, own.started + 1)).running
    assert not replace(complete, boot="another boot").running


def test_names(root: Path) -> None:
    assert store.names() == []
    claim("b")
    claim("a")
    assert store.names() == ["a", "b"]
    store.delete("a")
    store.delete("b")
    assert not root.exists()  # nothing is left of the last one


def test_a_lab_that_was_killed_before_its_record_has_a_name_and_no_record(root: Path) -> None:
    (root / "early").mkdir(parents=True)
    assert store.names() == ["early"]
    assert store.read("early") is None
    assert store.records() == []


def test_one_at_a_time_works_on_a_lab() -> None:
    claim()
    with store.locked("one", wait=0.0) as there:
        assert there
        with pytest.raises(MntError, match="another mnt"), store.locked("one", wait=0.1):
            pass
    with store.locked("one", wait=0.0) as there:
        assert there


def test_whoever_can_read_cannot_hold_a_lock(root: Path) -> None:
    """A flock needs an open file, of any mode: all that others can open is held here, and hinders nobody."""
    claim()
    with store.locked("one", wait=0.0):
        pass
    with ExitStack() as held:
        for path in (root, *root.rglob("*")):
            if path.stat().st_mode & 0o077:
                handle = os.open(path, os.O_RDONLY)
                held.callback(os.close, handle)
                fcntl.flock(handle, fcntl.LOCK_EX)
        with store.registry(), store.locked("one", wait=0.0) as there:
            assert there
    with store.locked("one", wait=0.0):
        store.delete("one")
    assert not root.exists()


def test_an_error_names_the_holder() -> None:
    claim()
    with (
        store.locked("one", wait=0.0),
        pytest.raises(MntError, match=f"another mnt, pid {os.getpid()}, is"),
        store.locked("one", wait=0.0),
    ):
        pass


def test_there_is_no_lab_to_lock() -> None:
    with store.locked("none", wait=0.0) as there:
        assert not there


@pytest.mark.skipif(os.getuid() != 0, reason="only root can make files of another user")
@pytest.mark.parametrize("attack", ["owner", "mode"])
def test_labs_that_another_user_could_change(
    root: Path, monkeypatch: pytest.MonkeyPatch, attack: str
) -> None:
    """Their records name processes to end, and one of their inventories is the default."""
    monkeypatch.setattr("mnt.lab.LAB_ROOT", root)
    claim("default")
    (root / "default" / "inventory.yaml").write_text("hosts: [node1]")
    if attack == "owner":
        os.chown(root, 4242, 4242)
    else:
        root.chmod(0o777)
    for use in (
        store.names,
        store.records,
        find.labs,
        lambda: find.locate("lab"),
        lambda: find.locate("lab:default"),
    ):
        with pytest.raises(MntError, match=str(root)):
            use()


def test_the_umask_opens_nothing(root: Path) -> None:
    before = os.umask(0)
    try:
        claim()
    finally:
        os.umask(before)
    assert [path for path in (root, *root.rglob("*")) if path.stat().st_mode & 0o022] == []


def test_an_inventory_of_a_lab_that_others_can_write(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It could name an ssh_config, which runs commands."""
    monkeypatch.setattr(find.lab, "LAB_ROOT", root)
    monkeypatch.chdir(root.parent)
    monkeypatch.delenv("MNT_INVENTORY", raising=False)
    claim()
    inventory = store.directory("one") / "inventory.yaml"
    inventory.touch()
    names = (None, "lab", "lab:one")
    assert [find.locate(name) for name in names] == [str(inventory)] * 3
    inventory.chmod(0o666)
    for name in names:
        with pytest.raises(UsageError, match=f"all users can write to {inventory} "):
            find.locate(name)
