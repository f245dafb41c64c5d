"""`mnt setup` without a name: a fault is injected, preflight names the playbook, it runs, and all is green.

What preflight advises by hand does the same, taken literally.

The faults whose playbook is nfs, ssh, system or tuning are in the tests of these playbooks. None is here for
`gpu-persistence` (no GPU) and `neighbour-table` (the kernel's; the hosts of a lab have one kernel).
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import faults
import pytest
import sessions
import yaml
from mirror import make_wheel, serving
from setups import LIMIT, allow_sudo, output

from mnt.lab.lab import Lab, LabRequest, down

pytest.importorskip("ansible_runner", reason="pip install 'mnt-cluster[setup]'")

pytestmark = pytest.mark.matrix  # tox -e playbooks
Mnt = Callable[..., subprocess.CompletedProcess[str]]

PLACE = "/home/mnt/train"
# What `mnt[train]` lists, and one that only the inventory asks for: the right version, and another one.
PACKAGES = {
    "torch": ("2.7.1", "2.6.0"),
    "deepspeed": ("0.17.0", "0.16.0"),
    "transformers": ("4.50.0", "4.49.0"),
    "peft": ("0.11.0", "0.9.0"),
}
REQUIRE = {"torch": "==2.7.*", "deepspeed": ">=0.17", "transformers": "==4.50.0", "peft": ">=0.10"}


@pytest.fixture(scope="module")
def lab(lab_support: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Two hosts without an environment, and packages for them on the head."""
    wheels: Path = tmp_path_factory.mktemp("wheels")
    for name, versions in PACKAGES.items():
        for version in versions:
            make_wheel(wheels, name, version)
    name = sessions.new_name()
    try:
        lab = Lab.up(LabRequest(name=name, count=2), python=f"{PLACE}/bin/python")
        if lab.hosts[0].exec(["/usr/bin/python3", "-c", "import ensurepip"]).returncode != 0:
            pytest.skip("no python3-venv")
        allow_sudo(lab)
        with serving(lab, wheels=sorted(wheels.iterdir())) as mirror:
            document = yaml.safe_load(lab.inventory_path.read_text())
            document |= {"require": REQUIRE, "setup": {"pip_index": mirror.pip}}
            server = urlsplit(mirror.pip).hostname
            for host in lab.hosts:
                faults.write_file(
                    host, "/etc/pip.conf", f"[global]\nindex-url={mirror.pip}\ntrusted-host={server}\n"
                )
            lab.inventory_path.write_text(yaml.safe_dump(document, sort_keys=False))
            yield lab
    finally:
        down(name)


def findings(run_mnt: Mnt, lab: Lab) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(run_mnt("preflight", "--json", lab=lab).stdout)["findings"]
    return found


def mend(run_mnt: Mnt, lab: Lab) -> dict[str, dict[str, int]]:
    """`mnt setup --yes`: how many tasks changed something, by playbook and host."""
    done = run_mnt("setup", "--yes", "--json", lab=lab, timeout=LIMIT)
    assert done.returncode == 0, done.stdout + done.stderr
    return {
        name: {host: result["changed"] for host, result in played["hosts"].items()}
        for name, played in json.loads(done.stdout)["playbooks"].items()
    }


def test_no_environment_and_then_other_versions(lab: Lab, run_mnt: Mnt) -> None:
    (finding,) = findings(run_mnt, lab)
    assert (finding["check"], finding["playbook"]) == ("python-version", "environment")
    assert mend(run_mnt, lab) == {"environment": {"node1": 1, "node2": 1}}
    assert findings(run_mnt, lab) == []

    for name, (_, other) in PACKAGES.items():
        for way in ("fix", "playbook"):
            command = f"{PLACE}/bin/python -m pip install {name}=={other}"
            output(lab.host("node2"), "sh", "-c", command, user=True)
            (finding,) = findings(run_mnt, lab)
            check = f"{name}-version" if name != "peft" else "package-version"
            assert (finding["check"], finding["hosts"]) == (check, ["node2"])
            assert finding["playbook"] == "environment"
            if way == "fix":
                output(lab.host("node2"), "sh", "-c", finding["fix"], user=True)
            else:
                assert mend(run_mnt, lab) == {"environment": {"node2": 1}}
            assert findings(run_mnt, lab) == []
    assert mend(run_mnt, lab) == {}
