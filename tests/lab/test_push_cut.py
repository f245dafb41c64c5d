"""A host that is cut off in the middle of a push: it hears nothing any more, and no connection ends."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import faults
import pytest
from test_push import Site
from waiting import at_most, wait_for

from mnt.lab.lab import Lab
from mnt.lab.spec import MANAGEMENT_NIC
from mnt.push import change
from mnt.push.session import Progress
from mnt.remote.common.life import SILENCE

_BUSY = 60.0  # seconds that a slow machine may take in addition
CUT = f"iifname {MANAGEMENT_NIC} drop"


def test_a_host_cut_off_between_switch_and_commit(
    make_lab: Callable[..., Lab],
    run_mnt: Callable[..., CompletedProcess[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It goes back by itself, removes nothing that a process uses, and does not keep its lock."""
    lab, source = make_lab(count=3), tmp_path / "source"
    site, lost = Site(lab, tmp_path, "~/code"), lab.hosts[1]
    source.mkdir()
    (source / "train.py").write_text("print(1)\n")
    first = site.push(source)["release"]
    (source / "train.py").write_text("print(2)\n")
    new = ""
    commit = change.Change._commit

    def launch(*options: str) -> CompletedProcess[str]:
        return run_mnt("launch", "-i", str(site.inventory), "--no-preflight", *options, "train.py")

    def cut_before_commit(self: change.Change) -> None:
        nonlocal new
        new = site.current(lost)
        assert new != first
        refused = launch()
        assert refused.returncode == 125, refused.stderr
        assert "node1: command: a push to /home/mnt/code is running" in refused.stderr
        dry = launch("--dry-run")
        assert dry.returncode == 1
        assert "is running" in dry.stderr
        site.sh(lost, "cd current && setsid sleep 1000 >/dev/null 2>&1 </dev/null & true")
        faults.firewall(lost, CUT)
        commit(self)

    monkeypatch.setattr(change.Change, "_commit", cut_before_commit)
    result = site.push_with(source, Progress())
    assert [host.status for host in result.hosts.values()] == ["pushed", "unknown", "pushed"]
    assert result.mixed
    with at_most(SILENCE + _BUSY):  # and nobody has told it
        wait_for(lambda: site.current(lost) == first)
        site.sh(lost, f"flock -w {_BUSY:g} releases/.lock true")
    assert site.sh(lost, f"cat releases/{new}/train.py") == "print(2)"  # a process is there
    assert ".switching" not in site.sh(lost, "ls -A releases")
    monkeypatch.undo()
    lost.exec(["nft", "delete table inet test"])
    refused = launch()
    assert refused.returncode == 125
    assert "the hosts have different releases" in refused.stderr
    again = site.push(source)
    assert (again["ok"], again["release"]) == (True, new)


@pytest.mark.matrix
def test_a_push_waits_for_the_lock_of_one_that_was_cut_off(
    make_lab: Callable[..., Lab], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is told to wait for nobody who is gone: the lock is free in some seconds."""
    lab, source = make_lab(count=2), tmp_path / "source"
    site, lost = Site(lab, tmp_path, "~/code"), lab.hosts[1]
    source.mkdir()
    (source / "train.py").write_text("print(1)\n")
    assert site.push(source)["ok"]
    (source / "train.py").write_text("print(2)\n")
    commit = change.Change._commit

    def cut_before_commit(self: change.Change) -> None:
        faults.firewall(lost, CUT)
        commit(self)

    monkeypatch.setattr(change.Change, "_commit", cut_before_commit)
    assert site.push_with(source, Progress()).hosts["node2"].status == "unknown"
    lost.exec(["nft", "delete table inet test"])
    again = site.push(source)
    assert again["ok"], again
    assert {site.current(host) for host in lab.hosts} == {again["release"]}
