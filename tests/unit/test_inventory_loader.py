"""From YAML to an Inventory, and what is said of a file that is wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from mnt.errors import InventoryError
from mnt.inventory.loader import load
from mnt.inventory.model import Host, Inventory, Mount, Network, Rdma, RequiredPath, Ssh, Tuning

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "cluster.yaml"


def loaded(file: Path, text: str) -> Inventory:
    file.write_text(text)
    return load(file)


def only_host(file: Path, text: str) -> Host:
    (host,) = loaded(file, text).hosts
    return host


def test_every_section(file: Path) -> None:
    inventory = loaded(
        file,
        """
cluster: barcelona
ssh: {user: ubuntu, port: 22, identity: ~/.ssh/id_ed25519, known_hosts: ~/.ssh/known_hosts,
      config: ~/.ssh/config, gateway: bastion, host_keys: strict}
defaults: {python: /shared/env/bin/python, workdir: /shared/project, gpus: 8}
hosts:
  node[1-2]: {}
  node2: {address: 10.11.7.51, nic: enp26s0np0, gpus: 4, env: {OMP_NUM_THREADS: 8}}
groups: {train: "node[1-2]", spare: node2}
network: {mode: rdma, subnet: 10.11.8.0/24, nic: eth0, master_port: 29600,
          rdma: {devices: [mlx5_6, "mlx5_7:1"], gid_index: 3, gdr_level: PIX}}
storage: [{path: /shared, type: nfs4, source: "head:/export/shared", options: [rw, hard]}]
paths: [{path: /shared/models/llama, kind: dir}]
require: {torch: "==2.13.*"}
env: {NCCL_DEBUG: WARN}
""",
    )
    ssh = Ssh(user="ubuntu", port=22, identity="~/.ssh/id_ed25519", gateway="bastion", host_keys="strict")
    python, workdir = ("/shared/env/bin/python",), "/shared/project"
    env = {"NCCL_DEBUG": "WARN"}
    rdma = Rdma(("mlx5_6", "mlx5_7:1"), 3, "PIX")
    assert inventory == Inventory(
        cluster="barcelona",
        file=str(file),
        hosts=(
            Host("node1", "node1", ssh=ssh, python=python, workdir=workdir, gpus=8, env=env, rdma=rdma),
            Host(
                "node2",
                "10.11.7.51",
                ssh=ssh,
                python=python,
                workdir=workdir,
                gpus=4,
                nic="enp26s0np0",
                env={**env, "OMP_NUM_THREADS": "8"},
                rdma=rdma,
            ),
        ),
        groups={"train": ("node1", "node2"), "spare": ("node2",)},
        network=Network("rdma", "10.11.8.0/24", "eth0", 29600),
        storage=(Mount("/shared", "nfs4", "head:/export/shared", ("rw", "hard")),),
        paths=(RequiredPath("/shared/models/llama", "dir"),),
        require={"torch": "==2.13.*"},
    )


def test_the_network_of_a_host_is_merged_from_cluster_defaults_groups_and_its_own(file: Path) -> None:
    inventory = loaded(
        file,
        """
network:
  rdma: {devices: [mlx5_0], gdr_level: PIX}
  tuning: {debug: WARN, cross_nic: 0}
  exclude: ["docker*"]
defaults: {network: {tuning: {debug: INFO}}}
groups:
  fast: {hosts: node2, network: {rdma: {gdr_level: SYS}, exclude: [usb0]}}
hosts:
  node[1-2]:
  node2: {network: {rdma: {devices: [mlx5_6, mlx5_7]}, tuning: {cross_nic: null, debug_subsys: [INIT, NET]}}}
""",
    )
    first, second = inventory.hosts
    assert (first.rdma, first.tuning, first.exclude) == (
        Rdma(("mlx5_0",), "auto", "PIX"),
        Tuning(debug="INFO", cross_nic=0),
        ("docker*",),
    )
    assert (second.rdma, second.tuning, second.exclude) == (
        Rdma(("mlx5_6", "mlx5_7"), "auto", "SYS"),
        Tuning(debug="INFO", debug_subsys=("INIT", "NET")),
        ("usb0",),
    )


def test_a_bare_list_gets_every_default(file: Path) -> None:
    assert loaded(file, "hosts: [b, 'node[1-2]', a]") == Inventory(
        cluster="cluster",
        file=str(file),
        hosts=tuple(Host(name, name) for name in ("b", "node1", "node2", "a")),
    )


def test_rank_order_is_where_the_file_first_names_a_host(file: Path) -> None:
    inventory = loaded(file, "hosts: {node3: {gpus: 2}, 'node[1-4]': {gpus: 8}, node2: {gpus: 1}}")
    assert {host.name: host.gpus for host in inventory.hosts} == {
        "node3": 2,
        "node1": 8,
        "node2": 1,
        "node4": 8,
    }
    assert inventory.names() == ["node3", "node1", "node2", "node4"]


def test_precedence(file: Path) -> None:
    inventory = loaded(
        file,
        """
ssh: {user: all, port: 1}
env: {A: cluster, B: cluster, C: cluster, D: cluster, E: cluster, F: cluster}
defaults: {nic: defaults, gpus: 1, env: {B: defaults, C: defaults, D: defaults, E: defaults, F: defaults}}
hosts:
  node[1-2]: {workdir: /range, ssh: {port: 4}, env: {E: range, F: range}}
  node2: {nic: own, env: {F: own}}
  node3:
groups:
  one:
    {hosts: "node[1-2]", nic: one, gpus: 2, ssh: {user: one, port: 2}, env: {C: one, D: one, E: one, F: one}}
  two: {hosts: "@one", gpus: 3, workdir: /two, env: {D: two, E: two, F: two}}
""",
    )
    node2, node3 = inventory.host("node2"), inventory.host("node3")
    assert node2.env == {"A": "cluster", "B": "defaults", "C": "one", "D": "two", "E": "range", "F": "own"}
    assert (node2.nic, node2.gpus, node2.workdir) == ("own", 3, "/range")
    assert (node2.ssh.user, node2.ssh.port) == ("one", 4)
    assert inventory.host("node1").nic == "one"
    assert (node3.nic, node3.gpus, node3.ssh.user, node3.ssh.port) == ("defaults", 1, "all", 1)
    assert inventory.groups_of("node1") == ["one", "two"]


def test_null_takes_an_earlier_setting_back(file: Path) -> None:
    host = only_host(
        file,
        """
ssh: {gateway: bastion, config: null}
defaults: {nic: eth0}
hosts: {node1: {nic: null, ssh: {gateway: null}}}
""",
    )
    assert (host.nic, host.ssh.gateway, host.ssh.config) == (None, None, None)


def test_emptied_sections_are_as_good_as_none(file: Path) -> None:
    text = "ssh:\ndefaults:\ngroups:\nnetwork:\nstorage:\npaths:\nrequire:\nenv:\nhosts:\n  node1:\n"
    assert only_host(file, text) == Host("node1", "node1")


def test_env_is_taken_as_written(file: Path) -> None:
    host = only_host(
        file,
        """
hosts: [node1]
env: {A: false, B: 0123, C: 12:30:00, D: 1e3, E: , F: ~, G: "a\\nb", H: 2024-01-01, I: 'x y', J: 0x10, on: no}
""",
    )
    assert host.env == {
        "A": "false",
        "B": "0123",
        "C": "12:30:00",
        "D": "1e3",
        "E": "",
        "F": "~",
        "G": "a\nb",
        "H": "2024-01-01",
        "I": "x y",
        "J": "0x10",
        "on": "no",
    }


@pytest.mark.parametrize(
    ("python", "argv"),
    [
        ("/shared/env/bin/python", ("/shared/env/bin/python",)),
        ('"/my env/bin/python"', ("/my env/bin/python",)),
        ("python3.11", ("python3.11",)),
        ("~/env/bin/python", ("~/env/bin/python",)),
        ("[apptainer, exec, --nv, x.sif, python]", ("apptainer", "exec", "--nv", "x.sif", "python")),
    ],
)
def test_python_is_a_program_or_an_argv(file: Path, python: str, argv: tuple[str, ...]) -> None:
    assert only_host(file, f"hosts: [node1]\ndefaults: {{python: {python}}}").python == argv


@pytest.mark.parametrize(
    ("address", "host", "port"),
    [
        ("10.11.7.51", "10.11.7.51", None),
        ("gpu.example.com", "gpu.example.com", None),
        ("gpu:2222", "gpu", 2222),
        ("10.0.0.1:2222", "10.0.0.1", 2222),
        ("fd00::7", "fd00::7", None),
        ("[fd00::7]", "fd00::7", None),
        ("[fd00::7]:2222", "fd00::7", 2222),
        ("fe80::1%eth0", "fe80::1%eth0", None),
    ],
)
def test_an_address_may_hold_a_port(file: Path, address: str, host: str, port: int | None) -> None:
    found = only_host(file, f'hosts: {{node1: {{address: "{address}"}}}}')
    assert (found.address, found.ssh.port) == (host, port)


def test_a_port_in_the_address_is_the_hosts_own(file: Path) -> None:
    inventory = loaded(file, 'ssh: {port: 22}\nhosts: {a: {address: "gpu:2201"}, b: {address: "gpu:2202"}}')
    assert [host.ssh.port for host in inventory.hosts] == [2201, 2202]


def test_relative_key_files_lie_beside_the_inventory(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    ssh = only_host(file, "hosts: [node1]\nssh: {identity: keys/id, config: ~/cfg, known_hosts: /etc/kh}").ssh
    assert (ssh.identity, ssh.config, ssh.known_hosts) == (str(file.parent / "keys/id"), "~/cfg", "/etc/kh")


def test_groups_may_hold_groups_above_them(file: Path) -> None:
    inventory = loaded(file, 'hosts: ["n[1-3]"]\ngroups: {a: n2, b: {hosts: [n3, "@a"]}, c: ["@b", n3, n1]}')
    assert inventory.groups == {"a": ("n2",), "b": ("n3", "n2"), "c": ("n3", "n2", "n1")}


def test_anchors_and_merge_keys(file: Path) -> None:
    inventory = loaded(
        file,
        """
hosts:
  node1: &big {gpus: 8, nic: eth0}
  node2: {<<: *big, nic: eth1}
  node3: *big
""",
    )
    assert [(host.gpus, host.nic) for host in inventory.hosts] == [(8, "eth0"), (8, "eth1"), (8, "eth0")]


HOSTS = "hosts: [node1]\n"
ALIASES = "x0: &x0 [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]\n" + "".join(
    f"x{n}: &x{n} [{', '.join(10 * [f'*x{n - 1}'])}]\n" for n in range(1, 8)
)


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        # keys
        ("hots: {}", 1, "unknown key 'hots'; did you mean 'hosts'?"),
        ("hosts:\n  node1:\n    gpu: 8", 3, "unknown key 'gpu' in hosts.node1; did you mean 'gpus'?"),
        (HOSTS + "groups: {t: {host: node1}}", 2, "unknown key 'host' in groups.t; did you mean 'hosts'?"),
        (HOSTS + "network:\n  rdma: {device: []}", 3, "unknown key 'device' in network.rdma; did you mean"),
        (HOSTS + "hosts: [node2]", 2, "the key 'hosts' is here twice, first in line 1"),
        ("hosts:\n  node1:\n  node1:", 3, "the key 'node1' is here twice, first in line 2"),
        (HOSTS + "env: {A: 1,\n A: 2}", 3, "the key 'A' is here twice, first in line 2"),
        ("cluster: x", 1, "the key 'hosts' is missing"),
        (HOSTS + "storage:\n- {type: nfs}", 3, "the key 'path' is missing in storage[0]"),
        # hosts
        ("hosts:", 1, "there is no host"),
        ("hosts: []", 1, "there is no host"),
        ("hosts: 5", 1, "hosts: expected a mapping or a list, got 5"),
        ("hosts: [a, a]", 1, "hosts: a is named twice, first in line 1"),
        ("hosts:\n- node[1-4]\n- node2", 3, "hosts: node2 is named twice, first in line 2"),
        ("hosts:\n  node[1-4]:\n  node[3-6]:", 3, "node3 in 'node[3-6]' is named twice, first in line 2"),
        ("hosts:\n  node1:\n  node[1]:", 3, "node1 in 'node[1]' is named twice, first in line 2"),
        ("hosts: ['a,a']", 1, "a in 'a,a' is named twice"),
        ("hosts:\n- node1\n- node2: {gpus: 8}", 3, "hosts[1]: expected text, got a mapping"),
        ("hosts:\n  node1:\n  node[4-1]:", 3, "hostlist 'node[4-1]'"),
        ("hosts:\n- node[]", 2, "a range is empty"),
        ("hosts: [-x]", 1, "the name '-x' begins with '-'"),
        ("hosts: ['@all']", 1, "a group cannot be used here"),
        ("hosts:\n  node[1-2]: {address: x}", 2, "several hosts cannot have one address"),
        ("hosts:\n  a: {address: x}\n  b: {address: x}", 3, "b and a have the same address, x"),
        # groups
        (HOSTS + "groups:\n  t: node2", 3, "no host named node2 in the inventory; did you mean 'node1'?"),
        (HOSTS + "groups:\n  t:", 3, "groups: the hostlist is empty"),
        (HOSTS + "groups:\n  t: []", 3, "groups: t has no hosts"),
        (HOSTS + "groups:\n  t: '@u'\n  u: node1", 3, "no group named 'u'"),
        (HOSTS + "groups:\n  'a,b': node1", 3, "'a,b' is not a name for a group"),
        (HOSTS + "groups: {t: {nic: eth0}}", 2, "the key 'hosts' is missing in groups.t"),
        # settings
        (HOSTS + "defaults: {gpus: eight}", 2, "defaults.gpus: expected a whole number, got 'eight'"),
        (HOSTS + "defaults: {gpus: '8'}", 2, "expected a whole number, got '8'"),
        (HOSTS + "defaults: {gpus: 010}", 2, "expected a whole number, got '010'"),
        (HOSTS + "defaults: {gpus: -1}", 2, "expected a number from 0 to 1024, got -1"),
        (HOSTS + "defaults: {gpus:}", 2, "expected a whole number, got nothing"),
        (
            HOSTS + "defaults: {workdir: project}",
            2,
            "'project' is not an absolute path or one that begins",
        ),
        (HOSTS + 'defaults: {workdir: "/a\\nb"}', 2, "contains a line break"),
        (HOSTS + "defaults: {python: []}", 2, "expected a program, got an empty list"),
        (HOSTS + "defaults: {python: -c}", 2, "the program '-c' begins with '-'"),
        (
            HOSTS + "defaults: {python: env/bin/python}",
            2,
            "'env/bin/python' must be a name, an absolute path",
        ),
        (HOSTS + "defaults: {keep: outputs}", 2, "defaults.keep: expected a list, got 'outputs'"),
        (HOSTS + "defaults: {keep: [a, ../x]}", 2, "defaults.keep[1]: '../x' is not a directory within"),
        (HOSTS + "defaults: {nic: 'a,b'}", 2, "'a,b' is not the name of one network interface"),
        ("hosts: {a: {address: u@b}}", 1, "hosts.a.address: 'u@b' is not an address; the user belongs in"),
        ("hosts: {a: {address: 'b:99999'}}", 1, "expected a port from 1 to 65535, got 99999"),
        ("hosts: {a: {address: '[b]:22'}}", 1, "'[b]:22' is not an address"),
        ("hosts: {a: {address: 'b:22', ssh: {port: 23}}}", 1, "address says port 22, and ssh says port 23"),
        # ssh
        (HOSTS + "ssh: ubuntu", 2, "ssh: expected a mapping, got 'ubuntu'"),
        (HOSTS + "ssh: {user: 5}", 2, 'ssh.user: expected text, got 5; quote it if it is text: "5"'),
        (HOSTS + "ssh: {user: -oProxyCommand=x}", 2, "ssh.user: '-oProxyCommand=x' begins with '-'"),
        (HOSTS + 'ssh: {user: "a\\nb"}', 2, "contains a line break"),
        (HOSTS + 'ssh: {user: "a\\0b"}', 2, "contains a character that cannot be passed to a program"),
        (HOSTS + "ssh: {port: 70000}", 2, "ssh.port: expected a number from 1 to 65535, got 70000"),
        (HOSTS + "ssh: {host_keys: accept}", 2, "got 'accept'; did you mean 'accept-new'?"),
        (HOSTS + "ssh: {gateway: 'u@'}", 2, "'u@' is not [user@]host[:port]"),
        (HOSTS + "ssh: {gateway: 'a,-x'}", 2, "'a,-x' is not [user@]host[:port]"),
        # network
        (HOSTS + "network: {tuning: {p2p_levl: SYS}}", 2, "'p2p_levl' in network.tuning; did you mean"),
        (HOSTS + "network: {tuning: {p2p_level: PBX}}", 2, "got 'PBX'; did you mean 'PXB'?"),
        (HOSTS + "network: {tuning: {debug: info}}", 2, "expected INFO, TRACE, VERSION or WARN, got 'info'"),
        (HOSTS + "network: {tuning: {debug_subsys: [NETT]}}", 2, "got 'NETT'; did you mean 'NET'?"),
        (HOSTS + "network: {tuning: {topo_file: topo.xml}}", 2, "'topo.xml' is not an absolute path"),
        (HOSTS + "network: {tuning: {ib_timeout: 32}}", 2, "expected a number from 1 to 31, got 32"),
        (HOSTS + "network: {tuning: {socket_nthreads: 17}}", 2, "expected a number from 1 to 16, got 17"),
        (
            HOSTS + "network:\n  tuning: {socket_nthreads: 16, nsocks_perthread: 8}",
            3,
            "16 threads of 8 sockets are 128",
        ),
        (
            "network: {tuning: {socket_nthreads: 16}}\nhosts:\n"
            "  node1: {network: {tuning: {nsocks_perthread: 8}}}",
            1,
            "network.tuning of node1: 16 threads of 8 sockets are 128",
        ),
        (HOSTS + "network: {exclude: ['a,b']}", 2, "'a,b' is not a name or pattern of one device"),
        (HOSTS + "defaults: {network: {mode: tcp}}", 2, "unknown key 'mode' in defaults.network"),
        (HOSTS + "network: {mode: tpc}", 2, "expected auto, rdma or tcp, got 'tpc'; did you mean 'tcp'?"),
        (HOSTS + "network: {subnet: 10.0.0.1/24}", 2, "not a network; did you mean '10.0.0.0/24'?"),
        (HOSTS + "network: {subnet: 10.0.0.0}", 2, "'10.0.0.0' has no prefix length"),
        (HOSTS + "network: {subnet: 0.0.0.0/1}", 2, "'0.0.0.0/1' is too large for a training network"),
        (HOSTS + "network: {subnet: eth0}", 2, "'eth0' is not a network like 10.11.8.0/24"),
        (HOSTS + "network: {master_port: 80}", 2, "expected a number from 1024 to 65535, got 80"),
        (HOSTS + "network: {rdma: {gid_index: atuo}}", 2, "got 'atuo'; did you mean 'auto'?"),
        (HOSTS + "network: {rdma: {gid_index: 256}}", 2, "expected auto or a number from 0 to 255, got 256"),
        (HOSTS + "network: {rdma: {gdr_level: PBX}}", 2, "got 'PBX'; did you mean 'PXB'?"),
        (
            HOSTS + "network: {rdma: {devices: ['=mlx5_0']}}",
            2,
            "'=mlx5_0' is not the name of one RDMA device",
        ),
        # storage, paths, require, env
        (HOSTS + "storage: {path: /x}", 2, "storage: expected a list, got a mapping"),
        (HOSTS + "storage:\n- path: x", 3, "storage[0].path: 'x' is not an absolute path"),
        (
            HOSTS + "paths: [{path: /x, kind: fil}]",
            2,
            "expected any, dir or file, got 'fil'; did you mean 'file'?",
        ),
        (
            HOSTS + "require: {torch: 2.13}",
            2,
            "require.torch: '2.13' is not a version specifier as in PEP 440; did you",
        ),
        (HOSTS + "require: {torch: }", 2, "expected versions"),
        (HOSTS + "require: {-x: '>1'}", 2, "'-x' is not a package's name"),
        (HOSTS + "env: {1A: 2}", 2, "env.1A: '1A' is not a name for an environment variable"),
        (HOSTS + "env: {A: [1]}", 2, "env.A: expected text, got a list"),
        (HOSTS + 'env: {A: "\\ud800"}', 2, "contains a character that cannot be passed to a program"),
        # YAML
        ("", None, "the file is empty"),
        ("# nothing here", None, "the file is empty"),
        ("just text", 1, "expected a mapping, got 'just text'"),
        ("- node1", 1, "expected a mapping, got a list"),
        (
            "hosts: {node[1-4]: {}}",
            1,
            "not YAML: while parsing a flow mapping, expected ',' or '}', but got '['",
        ),
        (HOSTS + "\tenv: {}", 2, "not YAML"),
        (HOSTS + "---\nhosts: [b]", 2, "not YAML: expected a single document"),
        (HOSTS + "env: *gone", 2, "undefined alias 'gone'"),
        ("hosts: &a [*a]", 1, "an alias that contains itself"),
        (HOSTS + "env: {<<: 5}", 2, "`<<` needs the alias of another mapping"),
        (HOSTS + "cluster: !vault x", 2, "the tag '!vault' is not supported"),
        (HOSTS + "? [a]\n: b", 2, "a key must be plain text"),
        ("[" * 5000, None, "nested too deeply"),
        (HOSTS + "env: " + "{a: " * 330 + "1" + "}" * 330, 2, "nested too deeply"),
        (HOSTS + "env:\n" + "".join(f"  - {'[' * n}1{']' * n}\n" for n in (5, 40)), 4, "nested too deeply"),
        (HOSTS + ALIASES, 7, "the file has more than 200000 values, with those of aliases"),
    ],
)
def test_errors_name_file_line_and_value(file: Path, text: str, line: int | None, message: str) -> None:
    with pytest.raises(InventoryError) as caught:
        loaded(file, text)
    error = caught.value
    assert message in error.message
    assert (error.file, error.line) == (str(file), line)
    assert error.message.startswith(f"{file}: " if line is None else f"{file}:{line}: ")
    assert "\n" not in error.message
    assert error.fix
    assert error.exit_code == 2


def test_tabs_are_not_a_matter_of_quotes(file: Path) -> None:
    with pytest.raises(InventoryError) as caught:
        loaded(file, "hosts:\n\tnode1: {}\n")
    assert caught.value.fix == "indent with blanks: YAML allows no tabs there"


@pytest.mark.parametrize(
    ("data", "line", "message"),
    [
        (b"hosts: [a]\nenv: {A: \xff}", 2, "not UTF-8: byte 0xff"),
        (b"hosts: [a]\nenv: {A: \x00}", 2, "the character '\\x00' is not allowed in YAML"),
    ],
)
def test_bytes_that_are_no_text(file: Path, data: bytes, line: int, message: str) -> None:
    file.write_bytes(data)
    with pytest.raises(InventoryError) as caught:
        load(file)
    assert message in caught.value.message
    assert caught.value.line == line


def test_a_byte_order_mark_is_no_fault(file: Path) -> None:
    file.write_bytes(b"\xef\xbb\xbfhosts: [a]\n")
    assert load(file).names() == ["a"]


@pytest.mark.parametrize(("name", "reason"), [("gone.yaml", "No such file"), (".", "Is a directory")])
def test_a_file_that_cannot_be_read(tmp_path: Path, name: str, reason: str) -> None:
    with pytest.raises(InventoryError, match=f"cannot be read: {reason}"):
        load(tmp_path / name)


@pytest.mark.parametrize("file", sorted((REPOSITORY / "inventories").glob("*.yaml")), ids=lambda f: f.stem)
def test_the_ready_files_load(file: Path) -> None:
    assert load(file).hosts


def test_the_classic_pair() -> None:
    pair = load(REPOSITORY / "inventories/two-node-tcp.yaml")
    master, worker = pair.hosts
    assert (master.address, master.nic, master.slots) == ("10.11.7.50", "enp26s0np0", 8)
    assert worker.slots == 8
    assert worker.nic not in (None, master.nic)
    assert (pair.network.mode, pair.network.master_port) == ("tcp", 29600)


@pytest.mark.parametrize("file", sorted((REPOSITORY / "inventories").glob("*.yaml")), ids=lambda f: f.stem)
def test_both_parsers_of_pyyaml_read_the_same(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert yaml.__with_libyaml__, "PyYAML's wheels have libyaml"
    fast = load(file)
    monkeypatch.setattr(yaml, "__with_libyaml__", False)
    assert load(file) == fast


def test_msgspec_can_free_the_schema() -> None:
    """It crashes at exit over a `pattern` of text that may be a list or a mapping as well (its issue 717)."""
    code = "import sys; from mnt.inventory import loader; loader.load(sys.argv[1])"
    file = REPOSITORY / "inventories/template.yaml"
    env = {**os.environ, "PYTHONMALLOC": "debug"}  # each time, not by chance
    subprocess.run([sys.executable, "-c", code, file], env=env, cwd=REPOSITORY, timeout=60, check=True)


def test_the_template_shows_every_key() -> None:
    from mnt.inventory import schema

    text = (REPOSITORY / "inventories/template.yaml").read_text()
    sections = [value for value in vars(schema).values() if isinstance(value, type)]
    keys = {key for value in sections if issubclass(value, schema.Section) for key in value.__struct_fields__}
    assert not {key for key in keys if f"{key}:" not in text}
