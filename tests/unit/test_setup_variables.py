"""What playbooks are told of an inventory, and which variables a user can give them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from mnt.cli.setup import _variables, setup
from mnt.errors import InventoryError, UsageError
from mnt.facts.host import Interface
from mnt.fleet import Timeouts
from mnt.fleet.login.destination import resolve
from mnt.fleet.login.sshconfig import SshConfig
from mnt.inventory.loader import load
from mnt.inventory.model import Host, Inventory
from mnt.inventory.playbook_variables import GIVEN
from mnt.network.nic import NicChoice
from mnt.setup.hosts import ansible_inventory
from mnt.setup.playbooks import BY_NAME

INVENTORY = Inventory("c", "c.yaml", tuple(Host(f"node{n}", f"10.0.0.{n}") for n in range(1, 5)))


def variables(*names: str) -> dict[str, Any]:
    """Of all hosts, where only some are selected."""
    hosts = [INVENTORY.host(name) for name in names]
    ways = {host.name: resolve(host, SshConfig(None)) for host in hosts}
    found: dict[str, Any] = ansible_inventory(INVENTORY, hosts, {}, {}, ways, Timeouts())["all"]["vars"]
    return found


def test_the_inventory_is_found_from_everywhere() -> None:
    assert variables("node1")["mnt_inventory"] == f"{Path.cwd()}/c.yaml"


def test_who_may_own_the_interpreter() -> None:
    hosts = [INVENTORY.hosts[0], replace(INVENTORY.hosts[1], python_owner="bob")]
    ways = {host.name: resolve(host, SshConfig(None)) for host in hosts}
    found = ansible_inventory(INVENTORY, hosts, {}, {}, ways, Timeouts())["all"]["hosts"]
    assert [found[host.name].get("mnt_python_owner") for host in hosts] == [None, "bob"]


def test_hosts_that_are_not_selected_are_counted() -> None:
    found = variables("node3")
    assert found["mnt_host_count"] == 4


def test_what_mnt_itself_gives_is_known() -> None:
    host = replace(INVENTORY.hosts[0], python_owner="bob")
    ways = {host.name: resolve(host, SshConfig(None))}
    nics = {host.name: NicChoice(Interface("e", True, True, 1500, ("10.0.0.1/24",)), "10.0.0.1", "")}
    found = ansible_inventory(INVENTORY, [host], nics, {host.name: "u"}, ways, Timeouts())["all"]
    names = {*found["vars"], *found["hosts"]["node1"]}
    assert {name for name in names if not name.startswith("ansible_")} == {*GIVEN}


INVENTORY_FILE = "hosts: [node1]\nsetup:\n  {}\n"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("nofil: 65536", "unknown key 'nofil' in setup: no playbook has a variable of this name; "
         "did you mean 'nofile', of tuning?"),
        ("shm_sise: 1G", "did you mean 'shm_size', of tuning?"),
        ("apt_miror: x", "did you mean 'apt_mirror', of system and nfs and rdma and container and slurm?"),
        ("zzz: 1", "unknown key 'zzz' in setup: no playbook has a variable of this name"),
        ("nofile: abc", "setup.nofile: 'abc' is not valid for tuning: expected a number of files"),
        ("nofile: 1e5", "'1e5' is not valid for tuning"),
        ("shm_size: 1X", "'1X' is not valid for tuning: expected a part of the memory such as 50%"),
        ("use_uv: perhaps", "expected auto, true or false"),
        ("open_ports: ssh", "expected ports or ranges"),
        ("system_packages: htop; reboot", "expected names of packages"),
    ],
)  # fmt: skip
def test_a_wrong_variable_in_an_inventory(tmp_path: Path, line: str, says: str) -> None:
    file = tmp_path / "gpus.yaml"
    file.write_text(INVENTORY_FILE.format(line))
    with pytest.raises(InventoryError) as caught:
        load(file)
    assert caught.value.message.startswith(f"{file}:3: ")
    assert says in caught.value.message
    assert "docs/setup.md" in str(caught.value.fix)


@pytest.mark.parametrize(
    "line",
    [
        "nofile: 65536",
        "memlock: unlimited",
        "shm_size: 64G",
        "ansible_python_interpreter: /usr/bin/python3",
        "mnt_training_subnet: 10.0.0.0/24",
        "system_packages: htop, numactl",
        "nofile: '{{ 2 ** 16 }}'",
        "environment_upgrade: yes",
        "image: docker.io/library/debian:12",
        "pip_index: ''",
    ],
)
def test_variables_in_an_inventory(tmp_path: Path, line: str) -> None:
    file = tmp_path / "gpus.yaml"
    file.write_text(INVENTORY_FILE.format(line))
    ((name, value),) = load(file).setup.items()
    assert (name, value) == (line.partition(":")[0], line.partition(": ")[2].strip("'"))


@pytest.mark.parametrize(
    ("words", "says", "fix"),
    [
        (["tuning", "-e", "shm_sise=1G"], "-e shm_sise: no playbook has a variable of this name; "
         "did you mean 'shm_size', of tuning?", "tuning has memlock, nofile, shm_size"),
        (["-e", "nofil=1"], "did you mean 'nofile', of tuning?", "docs/setup.md has them all"),
        (["tuning", "-e", "shm_size=1X"], "-e shm_size: '1X' is not valid for tuning", "correct it"),
        (["system", "-e", "nofile=abc"], "-e nofile: 'abc' is not valid for tuning", "correct it"),
        (["system", "-e", "nofile"], "-e nofile: expected KEY=VALUE", "name a variable"),
        (["system", "--debs", "/nowhere"], "--debs /nowhere: there is no such directory", "name a directory"),
        (["container"], "mnt setup container: no image is named", "add -e image="),
        (["system", "container", "-e", "image="], "-e image: '' is not valid", "correct it"),
        (["environment"], "no place for the environment: python of node1 is python3", "environment_path"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_before_a_host_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], says: str, fix: str
) -> None:
    monkeypatch.setattr("mnt.cli.setup.Fleet", None)  # no host can be asked
    file = tmp_path / "gpus.yaml"
    file.write_text("hosts: [node1]\n")
    done = CliRunner().invoke(setup, [*words, "-i", str(file)])
    assert isinstance(done.exception, UsageError)
    assert says in done.exception.message
    assert fix in str(done.exception.fix)


def test_a_variable_of_a_playbook_that_is_not_run_is_fine() -> None:
    assert _variables(["nofile=65536", "ansible_port=22"], [BY_NAME["system"]]) == {
        "nofile": "65536",
        "ansible_port": "22",
    }
