"""The report as JUnit XML and as a page, which a real browser opens; and what changes between two reports."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from fleets import judged, make_fleet

from mnt.errors import HostError
from mnt.facts.fleet import FleetFacts
from mnt.facts.host import Listener
from mnt.facts.reach import Reach, Reached, TrainingNic
from mnt.preflight.output.junit import as_junit
from mnt.preflight.output.page import as_page
from mnt.preflight.registry import all_checks
from mnt.preflight.report import Report, changes

EVIL = '<script>document.title="owned"</script><b>&"\'\x1b[31m\x00\ud800'
DOWN = HostError("node3", "connect", "timed out", fix="switch it on")
CHROMIUM = shutil.which("chromium")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)


def with_reach(fleet: FleetFacts) -> FleetFacts:
    """All reach each other, but for node2, which nobody gets in to."""
    names = [host.name for host in fleet.hosts]
    well = Reached(route="eth0", latency=1e-4, full=True, master="ok", ports={40000: "ok"})
    lost = Reached(route="eth0", master="timeout", ports={40000: "timeout"})
    return replace(
        fleet,
        reach=Reach(
            {name: TrainingNic("eth0", "10.0.0.1", "10.0.0.0/24", 1500) for name in names},
            {a: {b: lost if b == "node2" else well for b in names if a != b} for a in names},
        ),
    )


def report(*args: Any, **options: Any) -> Report:
    return judged(with_reach(make_fleet(*args, **options)))


def evil_report(count: int = 4) -> Report:
    """node1's port is in use by a process with a nasty command line, node3 is down, node2 is not reached."""
    taken = {"listeners": (Listener("0.0.0.0", 1000, "ubuntu", 42, EVIL),)}
    return report({"node1": taken, "node3": DOWN}, count=count)


# --- JUnit -----------------------------------------------------------------------------------------------


def test_junit_has_a_case_for_each_check_and_host() -> None:
    suites = ElementTree.fromstring(as_junit(evil_report(), 1.5).encode())
    cases = suites.findall("testsuite/testcase")
    assert len(cases) == 4 * len(all_checks()) == int(suites.get("tests", ""))
    assert len({(case.get("classname"), case.get("name")) for case in cases}) == len(cases)
    failed = {(case.get("classname"), case.get("name")) for case in cases if case.find("failure") is not None}
    assert failed == {
        ("preflight.ssh.ssh", "node3"),
        ("preflight.ports.port-free", "node1"),
        ("preflight.reach.nic-reach", "node2"),
    }
    assert (suites.get("failures"), suites.get("errors"), suites.get("time")) == ("3", "0", "1.500")
    totals = {
        key: sum(int(suite.get(key, "")) for suite in suites) for key in ("tests", "failures", "skipped")
    }
    assert totals == {key: int(suites.get(key, "")) for key in totals}


def test_junit_skips_what_could_not_be_judged_and_passes_what_only_warns() -> None:
    taken = {"listeners": (Listener("0.0.0.0", 0, "root"),)}
    suites = ElementTree.fromstring(as_junit(report({"node2": taken, "node3": DOWN}), 0.0).encode())

    def case(check: str, host: str) -> ElementTree.Element:
        found = suites.find(f".//testcase[@classname='preflight.{check}'][@name='{host}']")
        assert found is not None
        return found

    assert case("network.nic", "node3").find("skipped") is not None
    assert list(case("network.nic", "node1")) == []
    assert case("ports.port-free", "node2").find("failure") is None
    assert "a process of root" in (case("ports.port-free", "node2").findtext("system-out") or "")


def test_junit_survives_what_xml_cannot_hold() -> None:
    failure = ElementTree.fromstring(as_junit(evil_report(), 0.0).encode()).find(
        ".//failure[@type='port-free']"
    )
    assert failure is not None
    assert '<script>document.title="owned"</script>' in (failure.text or "")


# --- the page --------------------------------------------------------------------------------------------


def page(answer: Report) -> str:
    return as_page(answer, written="today", seconds=1.5)


def test_the_page_loads_nothing_and_runs_nothing() -> None:
    text = page(evil_report(64))
    assert "<script" not in text
    assert not re.search(r"\b(src|href)=|url\(|@import", text)
    assert html.escape('<script>document.title="owned"</script>', quote=False).split('"')[0] in text


def look(tmp_path: Path, answer: Report, *, width: int = 1300, dark: bool = False) -> dict[str, Any]:
    """What a browser makes of the page; a script of the test's own asks, so its copy has no policy."""
    if CHROMIUM is None:
        pytest.skip("there is no chromium: apt-get install chromium")
    ask = """<script>
        const square = (node) => [getComputedStyle(node).backgroundColor, node.innerText.trim()];
        document.body.dataset.seen = JSON.stringify({
            title: document.title, text: document.body.innerText, wide: document.documentElement.scrollWidth,
            page: getComputedStyle(document.body).backgroundColor,
            rows: document.querySelectorAll('tbody tr').length,
            matrix: [...document.querySelectorAll('table')].map(table => [...table.tBodies[0].rows].map(
                row => [...row.cells].slice(1).map(square))),
        })</script></body>"""
    text = re.sub('<meta http-equiv="Content-Security-Policy"[^>]*>', "", page(answer))
    path = tmp_path / "page.html"
    path.write_text(text.replace("</body>", ask), encoding="utf-8", errors="replace")
    scheme = [f"--blink-settings=preferredColorScheme={0 if dark else 1}"]
    done = subprocess.run(
        [
            *(CHROMIUM, *FLAGS, *scheme, f"--user-data-dir={tmp_path}/profile"),
            *(f"--window-size={width},1000", "--dump-dom", path.as_uri()),
        ],
        capture_output=True,
        text=True,
        timeout=90,
    )
    seen = re.search(r'data-seen="([^"]*)"', done.stdout)
    assert seen, done.stderr[-2000:]
    answered: dict[str, Any] = json.loads(html.unescape(seen[1]))
    return answered


@pytest.mark.parametrize("count", [4, 64])
def test_a_browser_shows_the_verdict_the_findings_and_both_matrices(tmp_path: Path, count: int) -> None:
    answer = evil_report(count)
    seen = look(tmp_path, answer)
    assert seen["title"] == "Preflight of test: not fit to train"
    assert "✕ Not fit to train" in seen["text"]
    for finding in answer.findings:
        assert finding.check in seen["text"]
    assert "switch it on" in seen["text"]
    assert '<script>document.title="owned"</script><b>' in seen["text"]  # as text
    assert seen["rows"] == 2 * count
    assert seen["wide"] <= 1300  # the page itself does not scroll sideways

    checks, heat = seen["matrix"]
    port = [check.id for check in answer.checks].index("port-free")
    assert [row[port][1] for row in checks[:4]] == ["✕", "✓", "·", "✓"]
    assert len({tuple(row[port]) for row in checks[:4]}) == 3  # colour and mark differ
    assert [row[1][1] for row in heat[:4]] == ["✕", "", "✕", "✕"]
    assert heat[0][1][0] != heat[0][2][0]


def test_a_phone_and_the_dark(tmp_path: Path) -> None:
    light = look(tmp_path, evil_report(), width=500)
    dark = look(tmp_path, evil_report(), dark=True)
    assert light["wide"] <= 500
    assert light["page"] == "rgb(255, 255, 255)"
    assert dark["page"] != light["page"]


def test_a_healthy_page() -> None:
    text = page(judged(make_fleet()))
    assert "✓ Fit to train" in text
    assert "<p>None.</p>" in text
    assert "Who reaches whom" not in text


# --- changes ---------------------------------------------------------------------------------------------


def test_what_changes() -> None:
    old = {"packages": {"torch": "2.12.0", "transformers": "5.1.0"}}
    before = judged(make_fleet({"node2": old, "node3": DOWN}, count=7))
    after = judged(make_fleet({"node2": old, "node4": old}, count=7))
    found = changes(before, after)
    assert [(each.check, each.hosts) for each in found.new] == [("torch-version", ("node4",))]
    assert [(each.check, each.hosts) for each in found.gone] == [("ssh", ("node3",))]


def test_other_numbers_are_no_change() -> None:
    slow = judged(make_fleet({"node2": {"clock_offset": 5.0, "clock_uncertainty": 0.1}}))
    slower = judged(make_fleet({"node2": {"clock_offset": 6.0, "clock_uncertainty": 0.1}}))
    assert slow.findings != slower.findings
    assert changes(slow, slower).new == changes(slow, slower).gone == ()
