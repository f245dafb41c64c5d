"""Rollbacks, and the removal of releases: real receivers on this machine, each with a workdir of its own."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_lying_push import Site, sees_all
from waiting import wait_for

from mnt.errors import MntError
from mnt.push import session
from mnt.push.plan import Survey, choose_target
from mnt.push.prune import prune
from mnt.push.rollback import rollback
from mnt.push.session import Progress

A, B, C = (f"2026010{day}-000000-aaaaaaaa" for day in (1, 2, 3))


@pytest.mark.parametrize(
    ("surveys", "wanted", "expected"),
    [
        ([Survey(B, (B, A), {}, A)], None, A),
        ([Survey(B, (B, A), {}, A), Survey(C, (C, A), {}, A)], None, A),
        ([Survey(C, (C, B, A), {}, B)], A, A),
        ([Survey(B, (B,), {}, None)], None, "node1: there is no release before"),
        ([Survey(B, (B, A), {}, A), Survey(None, (), {}, None)], None, "node2: there is no release before"),
        ([Survey(C, (C, A), {}, A), Survey(C, (C, B), {}, B)], None, f"node1 has {A}, node2 has {B}"),
        ([Survey(C, (C, A), {}, A), Survey(C, (C, B), {}, B)], A, f"node2: there is no release {A}"),
    ],
)
def test_where_a_rollback_leads(surveys: list[Survey], wanted: str | None, expected: str) -> None:
    by_host = {f"node{number}": survey for number, survey in enumerate(surveys, start=1)}
    if expected == A:
        assert choose_target(by_host, wanted) == A
    else:
        with pytest.raises(MntError, match=expected) as raised:
            choose_target(by_host, wanted)
        assert raised.value.fix


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


NAMES = ("node1", "node2")


def pushed(site: Site, *texts: str) -> list[str]:
    """The releases of several pushes."""
    return [str(site.push(text, *NAMES).release) for text in texts]


def test_back_and_forth(site: Site) -> None:
    first, second, third = pushed(site, "1", "2", "3")
    for wanted, expected in ((None, second), (None, third), (first, first), (None, third)):
        with site.fleet(*NAMES) as fleet:
            result = rollback(fleet, wanted)
        assert (result.ok, result.release) == (True, expected)
        assert {host.status for host in result.hosts.values()} == {"rolled-back"}
        assert [site.current(name) for name in NAMES] == [expected] * 2
    with site.fleet(*NAMES) as fleet:
        assert {host.status for host in rollback(fleet, third).hosts.values()} == {"unchanged"}


def test_a_host_without_the_release_is_named_and_no_host_changes(site: Site) -> None:
    (old,) = pushed(site, "1")
    site.push("0", "node3")
    new = site.push("2", *NAMES, "node3").release
    with (
        site.fleet(*NAMES, "node3") as fleet,
        pytest.raises(MntError, match=f"node3: there is no release {old}"),
    ):
        rollback(fleet, old)
    assert [site.current(name) for name in (*NAMES, "node3")] == [new] * 3


def test_a_damaged_release_is_refused(site: Site) -> None:
    _, new = pushed(site, "1", "2")
    with site.fleet(*NAMES) as fleet:
        back = rollback(fleet).release
        rollback(fleet)
    (site.releases("node2") / str(back) / "train.py").write_text("changed")
    with (
        site.fleet(*NAMES) as fleet,
        pytest.raises(MntError, match=r"node2: release .* is not as it was pushed"),
    ):
        rollback(fleet)
    assert [site.current(name) for name in NAMES] == [new] * 2


def test_a_rollback_that_a_host_does_not_carry_out(site: Site) -> None:
    first, new = pushed(site, "1", "2")
    current = site.releases("node2").parent / "current"
    current.unlink()
    current.mkdir()
    with site.fleet(*NAMES) as fleet:
        result = rollback(fleet, first)
    assert [host.status for host in result.hosts.values()] == ["untouched", "failed"]
    assert site.current("node1") == new


def test_hosts_that_share_a_workdir(site: Site) -> None:
    for name in NAMES:
        site.share(name, "shared")
    first, _ = pushed(site, "1", "2")
    with site.fleet(*NAMES) as fleet:
        result = rollback(fleet)
        assert (result.ok, result.release) == (True, first)
        assert [host.shares_with for host in result.hosts.values()] == [None, "node1"]
        removed = prune(fleet, keep=1)
    assert [host.shares_with for host in removed.values()] == [None, "node1"]
    assert not any(host.error for host in removed.values())


def test_releases_are_removed_from_all_hosts(site: Site) -> None:
    first, second, third, fourth = pushed(site, "1", "2", "3", "4")
    (site.releases("node2") / first / "results").write_text("1")
    with site.fleet(*NAMES) as fleet:
        assert prune(fleet, keep=1, dry_run=True)["node1"].removed == (second, first)
        removed = prune(fleet, keep=1)
        assert {host: each.removed for host, each in removed.items()} == {
            "node1": (second, first),
            "node2": (second,),
        }
        assert {each.release: each.why for each in removed["node2"].left} == {
            third: "previous",
            first: "foreign",
        }
        assert removed["node2"].left[1].foreign == {"files": 1, "bytes": 1, "names": ["results"]}
        assert prune(fleet, [first], with_results=True)["node2"].removed == (first,)
    assert sorted(path.name for path in site.releases("node2").glob("*-????????")) == [third, fourth]


def test_hosts_wait_for_each_other_whatever_the_fan_out(site: Site) -> None:
    first, _ = pushed(site, "1", "2")
    assert site.push("3", *NAMES, fanout=1).ok
    with site.fleet(*NAMES, fanout=1) as fleet:
        assert rollback(fleet, first).release == first
        assert len(prune(fleet, keep=1)["node2"].removed) == 1


def test_nothing_is_removed_if_a_host_fails(site: Site) -> None:
    pushed(site, "1", "2", "3")
    before = sorted(site.releases("node1").iterdir())
    (site.releases("node2").parent / "current").unlink()
    (site.releases("node2").parent / "current").mkdir()
    with site.fleet(*NAMES) as fleet:
        removed = prune(fleet, keep=1)
    assert "because of another host" in (removed["node1"].error or "")
    assert "current is not a link" in (removed["node2"].error or "")
    assert sorted(site.releases("node1").iterdir()) == before


def test_a_host_that_claims_to_have_rolled_back(site: Site) -> None:
    first, _ = pushed(site, "1", "2")
    with site.fleet(*NAMES, liars={"node2": sees_all}) as fleet, pytest.raises(MntError, match="node2"):
        rollback(fleet, first)
    wait_for(lambda: site.current("node1") != first)


class AtStep(Progress):
    """Interrupts the push as a step begins."""

    def __init__(self, step: str) -> None:
        self._step = step

    def step(self, step: str, size: int) -> None:
        if step == self._step:
            raise KeyboardInterrupt


@pytest.mark.parametrize("cleanup", [20.0, 0.0])
def test_an_interrupt_after_the_commit_changes_nothing_of_the_result(
    site: Site, monkeypatch: pytest.MonkeyPatch, cleanup: float
) -> None:
    """Also if it does not wait for the last answers of the hosts."""
    monkeypatch.setattr(session, "_CLEANUP", cleanup)
    for progress in (AtStep("prune"), AtStep("never")):
        result = site.push(str(progress), *NAMES, progress=progress)
        assert result.ok
        assert {(host.status, host.current, host.error) for host in result.hosts.values()} == {
            ("pushed", result.release, None)
        }
    with pytest.raises(KeyboardInterrupt):
        site.push("x", *NAMES, progress=AtStep("switch"))
    wait_for(lambda: [site.current(name) for name in NAMES] == [result.release] * 2)
