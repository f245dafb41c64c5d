"""Storage checks on ordinary lab hosts: what tells one storage from another that looks the same."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from waiting import wait_for

from mnt.lab.lab import Lab, LabHost

RunMnt = Callable[..., subprocess.CompletedProcess[str]]
MakeLab = Callable[..., Lab]
Storage = Callable[..., list[dict[str, Any]]]

CHECKS = "storage-mount,storage-visible,storage-space"


@pytest.fixture
def findings(run_mnt: RunMnt, tmp_path: Path) -> Storage:
    """`findings(lab, entry, ..)`: what the storage checks find; `entry`: further entries of `storage`."""

    def run(lab: Lab, *entries: dict[str, Any]) -> list[dict[str, Any]]:
        document = yaml.safe_load(lab.inventory_path.read_text())
        document["storage"] += entries
        inventory = tmp_path / "inventory.yaml"
        inventory.write_text(yaml.safe_dump(document))
        done = run_mnt("preflight", "-i", str(inventory), "--only", CHECKS, "--json")
        assert done.stdout, done.stderr
        found: list[dict[str, Any]] = json.loads(done.stdout)["findings"]
        return found

    return run


def on(host: LabHost, script: str) -> None:
    done = host.exec(["sh", "-ec", script])
    assert done.returncode == 0, done.stderr


def blamed(found: list[dict[str, Any]]) -> list[tuple[str, str, list[str]]]:
    return [(finding["check"], finding["severity"], finding["hosts"]) for finding in found]


def test_shared_storage_is_seen_by_all_and_left_clean(make_lab: MakeLab, findings: Storage) -> None:
    lab = make_lab(count=3)
    assert findings(lab) == []
    assert lab.host("node1").exec(["ls", "-A", "/shared"]).stdout == ""


@pytest.mark.parametrize("odd", ["node1", "node3"])
def test_other_storage_of_the_same_name(make_lab: MakeLab, findings: Storage, odd: str) -> None:
    lab = make_lab(count=3)
    mount = f"mount -t tmpfs -o mode=1777 {lab.spec.source} /shared"
    on(lab.host(odd), f"umount /shared; {mount}")
    found = findings(lab)
    assert blamed(found) == [("storage-visible", "fail", [odd])]


def test_one_host_that_may_not_write(make_lab: MakeLab, findings: Storage) -> None:
    lab = make_lab(count=3)
    on(lab.host("node2"), "mount -o remount,bind,ro /shared")
    found = findings(lab)
    assert blamed(found) == [("storage-mount", "fail", ["node2"])]
    assert found[0]["message"] == "/shared is mounted read-only"


def test_storage_that_nobody_may_write_to_is_not_known(make_lab: MakeLab, findings: Storage) -> None:
    lab = make_lab()
    for host in lab.hosts:
        on(host, "mkdir /data; mount -t tmpfs -o mode=755,size=2g data /data")
    found = findings(lab, {"path": "/data", "source": "data"})
    assert blamed(found) == [("storage-visible", "info", ["node1"])]
    assert findings(lab, {"path": "/data", "source": "data", "options": ["rw"]})[0]["severity"] == "info"


def test_storage_that_is_full_on_one_host(make_lab: MakeLab, findings: Storage) -> None:
    lab = make_lab()
    for host in lab.hosts:
        on(host, "mkdir /data; mount -t tmpfs -o mode=755,size=2g data /data")
    on(lab.host("node2"), "mount -o remount,size=4k /data; mkdir -m 1777 /data/w; echo > /data/w/x")
    found = findings(lab, {"path": "/data", "source": "data"})
    assert ("storage-space", "fail", ["node2"]) in blamed(found)


def test_a_killed_preflight_leaves_no_file(make_lab: MakeLab) -> None:
    lab = make_lab()
    # The reader's end never comes: it looks for the file where no host has written any.
    on(lab.host("node2"), f"umount /shared; mount -t tmpfs -o mode=1777 {lab.spec.source} /shared")
    command = [sys.executable, "-m", "mnt", "preflight", "-i", str(lab.inventory_path), "--only", CHECKS]
    killed = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def files() -> str:
        return lab.host("node1").exec(["sh", "-c", "ls -A /shared | grep visible || true"]).stdout

    wait_for(lambda: files() != "")
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    wait_for(lambda: files() == "")
