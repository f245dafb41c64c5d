"""One machine under two entries of the inventory: preflight, net and launch say so."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from mnt.lab.lab import Lab

Mnt = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(params=["with its port", "another name"])
def inventory(make_lab: Callable[..., Lab], tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """Two hosts, which share a kernel, and the first one again."""
    lab = make_lab(count=2)
    document = yaml.safe_load(lab.inventory_path.read_text())
    address = document["hosts"]["node1"]["address"]
    again = f"{address}:22" if request.param == "with its port" else f"[::ffff:{address}]:22"
    document["hosts"]["again"] = {"address": again}
    path = tmp_path / "inventory.yaml"
    path.write_text(yaml.safe_dump(document, sort_keys=False))
    return str(path)


def test_one_machine_twice(run_mnt: Mnt, inventory: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('trained')")
    assert run_mnt("push", str(tmp_path), "-i", inventory, "-x", "again").returncode == 0

    found = json.loads(run_mnt("preflight", "--json", "-i", inventory).stdout)["findings"]
    failed = [(each["check"], each["hosts"]) for each in found if each["severity"] == "fail"]
    assert failed == [("duplicate-host", ["again"])], found

    net = run_mnt("net", "-i", inventory)
    assert net.returncode == 1
    assert "it is the same machine as node1" in net.stdout + net.stderr

    for options in ((), ("--no-preflight",)):
        done = run_mnt("launch", "-i", inventory, *options, "train.py")
        assert done.returncode == 125, done.stderr
        assert "again" in done.stderr
        assert "it is the same machine as node1" in done.stderr

    fix = found[0]["fix"]
    assert "-x again" in fix
    found = json.loads(run_mnt("preflight", "--json", "-i", inventory, "-x", "again").stdout)["findings"]
    assert [each for each in found if each["severity"] == "fail"] == []
