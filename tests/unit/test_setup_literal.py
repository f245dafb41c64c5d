"""What hosts say of themselves is no template of Ansible's: it runs nothing on the head."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mnt.errors import HostError
from mnt.facts.host import HostFacts, Interface
from mnt.fleet import Timeouts
from mnt.fleet.login.destination import resolve
from mnt.fleet.login.sshconfig import SshConfig
from mnt.inventory.model import Host, Inventory
from mnt.network.nic import NicChoice
from mnt.setup.hosts import ansible_inventory, literal

INVENTORY = Inventory("c", "c.yaml", (Host("node1", "127.0.0.1"), Host("node2", "127.0.0.1")))

# Templates each variable of each host, at any depth.
PLAYBOOK = """
- hosts: all
  gather_facts: false
  connection: local
  tasks:
    - ansible.builtin.copy:
        content: "{{ hostvars[inventory_hostname] | to_json }}"
        dest: "{{ out }}/{{ inventory_hostname }}"
        mode: "0600"
"""


def inventory(nics: dict[str, NicChoice], accounts: dict[str, str]) -> dict[str, Any]:
    ways = {host.name: resolve(host, SshConfig(None)) for host in INVENTORY.hosts}
    return ansible_inventory(INVENTORY, INVENTORY.hosts, nics, accounts, ways, Timeouts())


def seen(tmp_path: Path, document: Any) -> dict[str, Any]:
    """The variables of node1, as a playbook has them."""
    pytest.importorskip("ansible", reason="pip install 'mnt-cluster[setup]'")
    (tmp_path / "hosts.json").write_text(json.dumps(document))
    (tmp_path / "play.yml").write_text(PLAYBOOK)
    variables = json.dumps({"out": str(tmp_path), "ansible_python_interpreter": sys.executable})
    done = subprocess.run(
        [sys.executable, "-m", "ansible", "playbook", "-i", "hosts.json", "-e", variables, "play.yml"],
        cwd=tmp_path,
        env={**os.environ, "HOME": str(tmp_path), "ANSIBLE_HOME": str(tmp_path), "ANSIBLE_NOCOLOR": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads((tmp_path / "node1").read_text())
    return found


def test_no_value_is_a_template(tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    lie = f"{{{{ lookup('ansible.builtin.pipe', 'touch {trap}') }}}}"
    nic = NicChoice(Interface(lie, True, True, 1500, ("10.0.0.1/24",)), "10.0.0.1", lie)
    document = inventory({"node1": nic}, {"node1": lie})
    found = seen(tmp_path, literal(document))
    assert not trap.exists()
    assert found["mnt_user"] == lie
    assert (found["ansible_host"], found["mnt_gpus"]) == ("127.0.0.1", 0)


def test_a_text_that_is_not_unicode_is_no_fault_of_the_others(tmp_path: Path) -> None:
    document = inventory({}, {"node2": "a\udc80"})
    assert seen(tmp_path, literal(document))["mnt_address"] == "127.0.0.1"


@pytest.mark.parametrize("name", ["ubuntu", "_apt", "j.doe", r"CORP\jdoe", "jdoe@corp.example.com", "host$"])
def test_names_of_users(name: str) -> None:
    login = HostFacts.parse("node1", {"hostname": "n", "login": {"uid": 1, "user": name}}).login
    assert login is not None
    assert login.user == name


@pytest.mark.parametrize(
    "name", ["{{ 1 }}", "a b", "-u", "", "a\n", "$(id)", "a;b", "'", "a\x1b[K", "ä" * 300]
)
def test_what_is_no_name_of_a_user(name: str) -> None:
    with pytest.raises(HostError, match=r"login\.user"):
        HostFacts.parse("node1", {"hostname": "n", "login": {"uid": 1, "user": name}})
