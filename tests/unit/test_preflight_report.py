"""The registry, the report and the list of checks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from fleets import judged, make_fleet, nic, python
from waiting import PATIENCE

from mnt.errors import HostError, UsageError
from mnt.facts.host import Listener
from mnt.facts.system import GpuRow, Gpus
from mnt.preflight.findings import Severity
from mnt.preflight.output import listing
from mnt.preflight.registry import Needs, all_checks, select
from mnt.preflight.report import Report, family_table

CHECKS_PAGE = Path(__file__).parents[2] / "docs" / "checks.md"
DOWN = HostError("node3", "connect", "timed out", fix="switch it on")
LO = nic("lo", "127.0.0.1/8")


FAMILIES = ("ssh", "versions", "storage", "network", "gpus", "ports")


def report(*args: object, **options: object) -> Report:
    """Of these families, in whatever order all of them have."""
    checks = [check for check in all_checks() if check.family in FAMILIES]
    answer = judged(make_fleet(*args, **options), checks)  # type: ignore[arg-type]
    assert list(answer.families) == list(FAMILIES)
    return answer


def rows(answer: Report) -> list[str]:
    return [" | ".join([hosts, *(cell.text for cell in cells)]) for hosts, cells in family_table(answer)]


# --- which checks run ------------------------------------------------------------------------------------


def test_every_check_is_documented() -> None:
    for check in all_checks():
        assert check.summary.endswith("."), check.id
        assert len(check.summary) < 120, check.id


def test_only_some_checks_and_the_login_that_they_rest_on() -> None:
    assert [check.id for check in select(only=["nic", "path"])] == ["ssh", "host-key", "path", "nic"]


def test_all_but_some() -> None:
    ids = [check.id for check in select(skip=["os-release", "ssh-mesh"])]
    assert "ssh" in ids
    assert not {"os-release", "ssh-mesh"} & set(ids)


@pytest.mark.parametrize("how", ["only", "skip"])
def test_an_unknown_check_gets_the_likely_spelling(how: str) -> None:
    with pytest.raises(UsageError, match="there is no check 'torch-verison'; did you mean 'torch-version'"):
        select(**{how: ["torch-verison"]})


def test_the_mesh_is_the_only_check_that_needs_another_trip() -> None:
    assert [check.id for check in all_checks() if check.needs is Needs.MESH] == ["ssh-mesh"]


# --- the table -------------------------------------------------------------------------------------------


def test_a_healthy_fleet_is_one_row_of_ok() -> None:
    answer = report(count=64)
    assert rows(answer) == ["node[1-64] | ok | ok | ok | ok | ok | ok"]
    assert answer.ok
    assert answer.findings == ()


def test_an_odd_host_has_a_row_that_names_what_it_fails() -> None:
    odd = {"packages": {"torch": "2.12.0"}, "interfaces": (LO, nic("eth3", "10.0.0.3/24", up=False))}
    answer = report({"node3": odd})
    assert rows(answer) == [
        "node[1-2,4] | ok | ok | ok | ok | ok | ok",
        "node3 | ok | torch-version, transformers-version | ok | nic | ok | ok",
    ]
    assert not answer.ok


def test_an_unreachable_host_is_judged_by_nothing_else() -> None:
    answer = report({"node3": DOWN})
    assert rows(answer)[1] == "node3 | ssh | - | - | - | - | -"
    assert answer.status("node3") == "unreachable"


def test_a_host_whose_probe_failed_was_reached() -> None:
    answer = report({"node3": HostError("node3", "command", "probe: MemoryError")})
    assert answer.status("node3") == "fail"


def test_a_host_without_python_is_still_reported() -> None:
    bare = {
        "python": None,
        "attempts": "python3",
        "os": None,
        "packages": {},
        "interfaces": (),
        "login": None,
    }
    assert rows(report({"node3": bare}))[1] == "node3 | ok | python-version | - | - | - | -"


def test_columns_are_the_families_that_were_asked_for() -> None:
    answer = judged(make_fleet(), select(only=["gpu-count"]))
    assert list(answer.families) == ["ssh", "gpus"]
    assert rows(answer) == ["node[1-4] | ok | ok"]


def test_a_warning_does_not_make_it_fail() -> None:
    answer = report({"node2": {"gpus": Gpus("nvidia-smi", (GpuRow("0"),))}})
    assert answer.ok
    assert answer.status("node2") == "warn"
    assert rows(answer)[1] == "node2 | ok | ok | ok | ok | gpu-count | ok"
    assert (answer.count(Severity.FAIL), answer.count(Severity.WARN)) == (0, 1)


def test_a_failure_hides_no_warning_in_a_cell() -> None:
    odd = {"python": python("3.11.9"), "packages": {"torch": "2.12.0", "transformers": "5.1.0"}}
    (cells,) = (cells for hosts, cells in family_table(report({"node3": odd})) if hosts == "node3")
    assert (cells[1].text, cells[1].status) == ("torch-version, python-version", "fail")


# --- the documents ---------------------------------------------------------------------------------------


def test_the_json_document() -> None:
    taken = {"listeners": (Listener("::", 1000, "ubuntu", 4242, "sleep"),)}
    document = json.loads(json.dumps(report({"node1": taken, "node3": DOWN}).document()))
    assert document["ok"] is False
    assert document["hosts"] == {
        "node1": {"status": "fail"},
        "node2": {"status": "ok"},
        "node3": {"status": "unreachable"},
        "node4": {"status": "ok"},
    }
    assert document["findings"][0] == {
        "check": "ssh",
        "severity": "fail",
        "hosts": ["node3"],
        "found": "connect: timed out",
        "expected": "a login without a prompt, and the probe's answer",
        "message": "connect: timed out",
        "fix": "switch it on",
        "playbook": None,
    }
    assert document["findings"][1]["check"] == "port-free"


def test_docs_checks_md_is_current() -> None:
    assert CHECKS_PAGE.read_text() == listing.as_markdown(), (
        "docs/checks.md is stale: mnt preflight --list=markdown > docs/checks.md"
    )


@pytest.mark.parametrize("form", ["text", "markdown", "json"])
def test_the_list_needs_no_inventory_and_holds_every_check(form: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mnt", "preflight", f"--list={form}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert (done.returncode, done.stderr) == (0, "")
    for check in all_checks():
        assert check.id in done.stdout
        assert check.summary[:40] in done.stdout
