"""The file of `mnt init`: new, or added to what a user has written."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from waiting import cpu_at_most

from mnt.errors import UsageError
from mnt.init import first
from mnt.init.draft import Draft, HostEntry, Setting
from mnt.init.write import render
from mnt.inventory import loader

DRAFT = Draft(
    (
        HostEntry("node1", {"address": "10.0.0.1", "nic": "eth0"}, "debian 12"),
        HostEntry("node2", {"address": "10.0.0.2", "nic": "ens3", "gpus": 4}, "debian 12, 4 x H200"),
        HostEntry("node3", problem="connect: no answer within 5 s", fix="switch it on"),
    ),
    (
        Setting(("defaults", "python"), "/shared/env/bin/python", "a venv"),
        Setting(("defaults", "gpus"), 8),
        Setting(("network", "subnet"), "10.0.0.0/24", "all hosts have a NIC in it"),
        Setting(("network", "rdma"), {"devices": ["mlx5_0", "mlx5_1"]}, "auto"),
        Setting(("storage",), [{"path": "/shared", "type": "nfs4", "source": "head:/x"}], "seen by all"),
        Setting(("require",), {"torch": "==2.13.0"}, "what all hosts have now"),
    ),
)


def loaded(tmp_path: Path, text: str) -> Any:
    file = tmp_path / "inventory.yaml"
    file.write_text(text)
    return loader.load(file)


def test_a_new_file(tmp_path: Path) -> None:
    text = render(DRAFT, {"user": "ubuntu"}).text
    assert text == (
        "# The hosts of this cluster, as `mnt init` found them. Every key: docs/inventory.md\n"
        "ssh:\n"
        "  user: ubuntu\n\n"
        "defaults:\n"
        "  # a venv\n"
        "  python: /shared/env/bin/python\n"
        "  gpus: 8\n\n"
        "hosts:\n"
        "  node1: {address: 10.0.0.1, nic: eth0}  # debian 12\n"
        "  node2: {address: 10.0.0.2, nic: ens3, gpus: 4} # debian 12, 4 x H200\n"
        "  node3: # not known: connect: no answer within 5 s\n\n"
        "network:\n"
        "  # all hosts have a NIC in it\n"
        "  subnet: 10.0.0.0/24\n"
        "  # auto\n"
        "  rdma:\n"
        "    devices: [mlx5_0, mlx5_1]\n\n"
        "# seen by all\n"
        "storage:\n"
        "- {path: /shared, type: nfs4, source: head:/x}\n\n"
        "# what all hosts have now\n"
        "require:\n"
        '  torch: "==2.13.0"\n'
    )
    inventory = loaded(tmp_path, text)
    assert [(host.name, host.address, host.nic, host.gpus) for host in inventory.hosts] == [
        ("node1", "10.0.0.1", "eth0", 8),
        ("node2", "10.0.0.2", "ens3", 4),
        ("node3", "node3", None, 8),
    ]
    assert inventory.network.subnet == "10.0.0.0/24"
    assert inventory.hosts[0].rdma.devices == ("mlx5_0", "mlx5_1")


def test_again_changes_nothing() -> None:
    text = render(DRAFT, {}).text
    again = render(DRAFT, {}, text)
    assert (again.text, again.kept) == (text, [])


OWN = """\
# our cluster
cluster: barcelona   # its name

groups: {train: "node[1-2]"}   # before the hosts, as we like it
hosts:
  # the first rack
  node1:
    address: 192.0.2.1   # its BMC is .101
  node2: {nic: eth9}

  # the second rack
  node[4-5]: {gpus: 2}

network:
    mode: tcp   # no RDMA yet
# the end
"""


def test_what_a_user_has_written_stays(tmp_path: Path) -> None:
    written = render(DRAFT, {}, OWN)
    lines = written.text.splitlines()
    rest = iter([line.split() for line in lines])
    assert all(line.split() in rest for line in OWN.splitlines() if line and "node2" not in line)
    assert "    nic: eth0" in lines  # the key of node1 is completed
    assert "  node2: {nic: eth9, address: 10.0.0.2, gpus: 4}" in lines
    assert written.kept == [
        "hosts.node1.address is 192.0.2.1, found: 10.0.0.1",
        "hosts.node2.nic is eth9, found: ens3",
    ]
    inventory = loaded(tmp_path, written.text)
    assert list(inventory.names()) == ["node1", "node2", "node4", "node5", "node3"]
    assert inventory.network.mode == "tcp"
    assert inventory.network.subnet == "10.0.0.0/24"


@pytest.mark.parametrize("layout", ["a:\n{0}- x\n", "hosts: [a]\nstorage:\n{0}- path: /x\n{0}  type: nfs4\n"])
@pytest.mark.parametrize("indent", ["", "  ", "    "])
def test_the_layout_stays(layout: str, indent: str) -> None:
    text = ("" if layout.startswith("hosts") else "hosts: [b]\n") + layout.format(indent)
    new = render(Draft((HostEntry("b", {}),), ()), {}, text).text
    assert set(text.splitlines()) - {"hosts: [a]"} <= set(new.splitlines())


def test_hosts_in_a_list(tmp_path: Path) -> None:
    text = render(DRAFT, {}, 'hosts: ["node[1-2]"]  # all\n').text
    assert text.startswith('hosts: ["node[1-2]", node3]')
    assert "# all" in text.splitlines()[0]
    assert list(loaded(tmp_path, text).names()) == ["node1", "node2", "node3"]


def test_a_host_that_is_known_at_last() -> None:
    text = render(DRAFT, {}).text.replace("\n\nnetwork", "\n  # of mine\n\nnetwork")
    known = HostEntry("node3", {"address": "10.0.0.3", "nic": "eno1"}, "ubuntu 24.04")
    again = render(Draft((*DRAFT.hosts[:2], known), DRAFT.settings), {}, text)
    assert "  node3: {address: 10.0.0.3, nic: eno1} # ubuntu 24.04\n  # of mine\n\nnetwork:" in again.text
    assert "not known" not in again.text


@pytest.mark.parametrize(
    "word", ["no", "0123", "1:30", "1e3", "null", "a #b", "{", "~", "x: y", "=", "é\u2028b"]
)
def test_words_that_yaml_takes_for_something_else(word: str) -> None:
    draft = Draft((HostEntry("a", {"nic": word}),), (Setting(("defaults", "python"), word),))
    found = yaml.safe_load(render(draft, {"user": word}).text)
    assert (found["hosts"]["a"]["nic"], found["defaults"]["python"], found["ssh"]["user"]) == (word,) * 3


def test_what_a_host_says_stays_in_its_comment() -> None:
    evil = "x\nssh: {config: /evil}\r\x85\u2028hosts:\x1b[31m" + "y" * 999
    draft = Draft(
        (HostEntry("a", {}, evil), HostEntry("b", problem=evil)), (Setting(("defaults", "gpus"), 0, evil),)
    )
    text = render(draft, {}).text
    assert yaml.safe_load(text) == {"defaults": {"gpus": 0}, "hosts": {"a": None, "b": None}}
    assert max(map(len, text.splitlines())) < 300


@pytest.mark.parametrize("names", ["@train", "user@node1", "a,@b"])
def test_groups_and_users_are_refused(names: str) -> None:
    with pytest.raises(UsageError, match="takes hosts, and no groups or users"):
        first.names(names)


@pytest.mark.parametrize(
    ("umask", "above", "mode"), [(0, 0o755, 0o644), (0o002, 0o755, 0o644), (0o077, 0o700, 0o600)]
)
def test_no_other_user_can_write_to_it(tmp_path: Path, umask: int, above: int, mode: int) -> None:
    """Else the next command would refuse it (`find.own`)."""
    file = tmp_path / "new" / "inventories" / "default.yaml"
    before = os.umask(umask)
    try:
        first.save(str(file), "hosts: [a]\n")
        modes = [os.stat(each).st_mode & 0o777 for each in (file.parent.parent, file.parent, file)]
        assert modes == [above, above, mode]
        file.chmod(0o640)
        first.save(str(file), "hosts: [a, b]\n")
    finally:
        os.umask(before)
    assert os.stat(file).st_mode & 0o777 == 0o640  # as its owner has closed it


# --- files that somebody else has written


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("hosts: !!set {node1, node2}\n", r":1: mnt init completes no file with tags: tag:yaml.org,2002:set"),
        ("hosts:\n  node1: {nic: !!str eth0}\n", ":2: mnt init completes no file with tags"),
        ("hosts:\n  node1:\t# a tab\n", ":2: mnt init cannot complete it: found character"),
        ("hosts: [node1]\n" + "# c\n" * 70_000, ": mnt init completes files of at most 262,144 characters"),
        ("hosts: [a]\nenv: {" + "".join(f"K{n}: v," for n in range(10_000)) + "}\n", "at most 10,000 values"),
        (
            "defaults: {env: &a {" + "".join(f"K{n}: v," for n in range(400)) + "}}\nhosts:\n"
            + "".join(f"  node{n}: {{env: {{<<: *a}}}}\n" for n in range(200)),
            "at most 10,000 values",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_completed_is_refused_before_hosts_are_asked(
    tmp_path: Path, text: str, says: str
) -> None:
    loaded(tmp_path, text)
    file = str(tmp_path / "inventory.yaml")
    with cpu_at_most(20), pytest.raises(UsageError, match=file + ".*" + says):
        first.read(file, by_path=True)


@pytest.mark.parametrize("key", ["1", "010", "1_000", "0x1F", "2026-01-01", "2026-13-45", "1.5", "yes"])
def test_names_and_values_stay_as_they_are_written(tmp_path: Path, key: str) -> None:
    text = f"hosts:\n  {key}: {{nic: {key}}}\n  node1:\nenv: {{A: {key}}}\n"
    found = render(DRAFT, {}, text).text
    assert f"  {key}: {{nic: {key}}}\n" in found
    assert f"env: {{A: {key}}}\n" in found


def test_what_an_alias_repeats_is_added_to_one_host_only(tmp_path: Path) -> None:
    text = "hosts:\n  node1: &n {ssh: {port: 23}}\n  node2: *n\n  spare: *n\n  other: {<<: *n, nic: eth9}\n"
    hosts = {host.name: host for host in loaded(tmp_path, render(DRAFT, {}, text).text).hosts}
    nics = {name: host.nic for name, host in hosts.items()}
    assert nics == {"node1": "eth0", "node2": "ens3", "node3": None, "spare": None, "other": "eth9"}
    assert {host.ssh.port for host in hosts.values() if host.name != "node3"} == {23}
    text = "hosts: &h [node1]\ngroups: {a: *h}\n"
    assert loaded(tmp_path, render(DRAFT, {}, text).text).groups == {"a": ("node1",)}


def test_the_largest_file_is_completed_soon() -> None:
    text = "hosts:\n" + "".join(
        f"    n{n}: {{nic: eth0, gpus: 8, address: 10.0.0.{n}}} # c\n" for n in range(2400)
    )
    with cpu_at_most(60):
        found = render(DRAFT, {}, text).text
    assert text in found
