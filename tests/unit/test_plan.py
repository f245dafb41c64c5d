"""The launch plan: from inventory, facts and options to each node's command and environment."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mnt.errors import NeverStarted, UsageError
from mnt.facts.fleet import FleetFacts
from mnt.facts.host import HostFacts, Interface
from mnt.facts.rdma import Device, Port, RdmaFacts
from mnt.inventory.model import Host, Inventory, Network
from mnt.launch.backends import backend_named
from mnt.launch.engines import ENGINES
from mnt.launch.engines.api import Engine
from mnt.launch.jobs import JobRecord
from mnt.launch.plan import (
    CodeTree,
    LaunchOptions,
    LaunchPlan,
    NodeFacts,
    merge_env,
    parse_env,
    plan_launch,
)
from mnt.launch.secret import Secret
from mnt.launch.staging import node_specs
from mnt.network.decision import decide
from mnt.remote.job.channel import node_secret
from mnt.remote.job.spec import first_rank, rank_count

LOGS = "--log-dir=/tmp/mnt-1000/j/node1/ranks"
HELD = CodeTree("/home/ubuntu/mnt/releases/20261127-120000-abcd1234", "20261127-120000-abcd1234", "abcd1234")
FSDP = ENGINES["fsdp"]


FACTS = dict.fromkeys(("node1", "node2"), NodeFacts(home="/home/ubuntu", local="/tmp/mnt-1000", tree=HELD))


def probed(nic: str, address: str, *hcas: Device) -> HostFacts:
    interface = Interface(nic, up=True, carrier=True, mtu=1500, ipv4=(f"{address}/24",))
    return HostFacts(nic, interfaces=(interface,), rdma=RdmaFacts(hcas))


PROBED = {"node1": probed("eth0", "10.0.0.1"), "node2": probed("enp26s0np0", "10.0.0.2")}
NODE1 = Host("node1", "node1", python=("/opt/env/bin/python",), gpus=8)
NODE2 = Host("node2", "node2", python=("/opt/env/bin/python",), gpus=4)


def plan(
    hosts: tuple[Host, ...] = (NODE1, NODE2),
    facts: dict[str, NodeFacts] = FACTS,
    network: Network | None = None,
    probed: dict[str, HostFacts] = PROBED,
    **options: Any,
) -> LaunchPlan:
    inventory = Inventory("c", "c.yaml", hosts, network=network or Network(mode="tcp"))
    decided = decide(FleetFacts(inventory, hosts, probed))
    return plan_launch(
        inventory, hosts, decided, facts, LaunchOptions(**{"engine": FSDP, **options}), JobRecord("j")
    )


def test_each_node_gets_its_own_interface_and_all_of_them_the_masters_address() -> None:
    first, second = plan().nodes
    assert (first.env["NCCL_SOCKET_IFNAME"], first.env["GLOO_SOCKET_IFNAME"]) == ("=eth0", "eth0")
    assert (second.env["NCCL_SOCKET_IFNAME"], second.env["GLOO_SOCKET_IFNAME"]) == (
        "=enp26s0np0",
        "enp26s0np0",
    )
    assert {node.env["MASTER_ADDR"] for node in (first, second)} == {"10.0.0.1"}
    assert {node.env["MASTER_PORT"] for node in (first, second)} == {"29500"}


def test_the_command_of_a_node() -> None:
    assert plan(args=("--lr", "1e-3")).nodes[1].argv == (
        "/opt/env/bin/python",
        "-m",
        "torch.distributed.run",
        "--nnodes=2",
        "--nproc-per-node=4",
        "--master-addr=10.0.0.1",
        "--master-port=29500",
        "--local-addr=10.0.0.2",
        "--rdzv-backend=mnt",
        "--rdzv-endpoint=10.0.0.1:29500",
        "--rdzv-conf=rank=1",
        "--max-restarts=0",
        "--tee=3",
        "--log-dir=/tmp/mnt-1000/j/node2/ranks",
        "--",
        "train/train_fsdp.py",
        "--lr",
        "1e-3",
    )


@pytest.mark.parametrize("engine", [ENGINES["fsdp"], ENGINES["deepspeed"]], ids=["fsdp", "deepspeed"])
def test_the_master_hosts_the_store_on_its_training_address_only(engine: Engine) -> None:
    got = plan(engine=engine)
    for rank, node in enumerate(got.nodes):
        given = {"--rdzv-backend=mnt", "--rdzv-endpoint=10.0.0.1:29500", f"--rdzv-conf=rank={rank}"}
        assert given <= {*node.argv}
    for spec in node_specs(got, None, secret="a secret", created=1.0).values():
        assert "mnt = mnt_rendezvous:handler" in "".join(spec["python_files"].values())


def test_an_old_torch_has_no_handler() -> None:
    old = {name: replace(facts, binds_store=False) for name, facts in FACTS.items()}
    for rank, node in enumerate(plan(facts=old).nodes):
        assert "--rdzv-backend=mnt" not in node.argv
        assert f"--node-rank={rank}" in node.argv


def test_order_is_rank_order() -> None:
    reversed_plan = plan(hosts=(NODE2, NODE1))
    assert reversed_plan.master_host == "node2"
    assert [(n.host, n.node_rank, n.nproc) for n in reversed_plan.nodes] == [("node2", 0, 4), ("node1", 1, 8)]
    specs = node_specs(reversed_plan, None, secret="a secret", created=1.0)
    assert {host: first_rank(spec) for host, spec in specs.items()} == {"node2": 0, "node1": 4}
    assert reversed_plan.world_size == 12


@pytest.mark.parametrize(
    ("gpus", "nproc", "promised"), [(8, None, 8), (8, 2, 2), (2, 4, 2), (0, None, 0), (0, 2, 0)]
)
def test_the_inventory_promises_a_gpu_to_each_process(gpus: int, nproc: int | None, promised: int) -> None:
    got = plan(hosts=(replace(NODE1, gpus=gpus), NODE2), nproc=nproc)
    assert got.nodes[0].gpus == promised
    assert got.nodes[0].env.get("MNT_GPUS") == (str(promised) if promised else None)
    spec = node_specs(got, None, secret="", created=0.0)["node1"]
    assert (spec["gpus"], spec["python"]) == (promised, ["/opt/env/bin/python"])


def test_nproc_of_the_command_line_wins_over_the_gpus() -> None:
    assert plan(nproc=2).world_size == 4


def test_the_master_port_is_the_clusters() -> None:
    got = plan(network=Network(master_port=29600))
    assert got.master_port == 29600
    assert {node.env["MASTER_PORT"] for node in got.nodes} == {"29600"}


def test_a_host_without_gpus_starts_one_process() -> None:
    assert plan(hosts=(replace(NODE1, gpus=0), NODE2)).nodes[0].nproc == 1


@pytest.mark.parametrize(
    ("options", "end"),
    [
        (
            {"engine": ENGINES["deepspeed"]},
            (
                "--max-restarts=0",
                "--tee=3",
                LOGS,
                "--",
                "train/train_deepspeed.py",
                "--local_rank=${local_rank}",
            ),
        ),
        (
            {"engine": ENGINES["deepspeed"], "module": "pkg.$x", "args": ("--", "--local_rank=$x")},
            ("--module", "--", "pkg.$$x", "--local_rank=${local_rank}", "--", "--local_rank=$$x"),
        ),
        (
            {"engine": ENGINES["deepspeed"], "local_rank": False, "args": ("-x",)},
            ("--", "train/train_deepspeed.py", "-x"),
        ),
        (
            {"script": "a b.py", "args": ("x y", "'\"", "line\nbreak", "")},
            ("a b.py", "x y", "'\"", "line\nbreak", ""),
        ),
        ({"script": "-odd.py"}, (LOGS, "--", "./-odd.py")),
        # torchrun fills in its macros, and gives one `$` for two.
        (
            {"script": "$a.py", "args": ("$$", "${local_rank}")},
            ("$$a.py", "$$$$", "$${local_rank}"),
        ),
        ({"module": "pkg.train", "args": ("-v",)}, (LOGS, "--module", "--", "pkg.train", "-v")),
        ({"args": ("--", "--r=16")}, ("--", "train/train_fsdp.py", "--", "--r=16")),
    ],
)
def test_what_runs(options: dict[str, Any], end: tuple[str, ...]) -> None:
    assert plan(**options).nodes[0].argv[-len(end) :] == end


def test_an_engine_builds_its_own_command() -> None:
    engine = Engine(
        "mine",
        script="mine.py",
        argv=lambda node: [*node.python, f"{node.node_rank}/{node.nodes}", node.ranks, *node.program.args],
        remains="torchrun",
    )
    got = plan(engine=engine, args=("$x",))
    assert got.nodes[1].argv == (
        "/opt/env/bin/python",
        "1/2",
        "/tmp/mnt-1000/j/node2/ranks",
        "$x",
    )
    assert (got.engine, got.script) == ("mine", "mine.py")


def test_what_is_staged_names_backend_outside_id_and_reader() -> None:
    specs = node_specs(
        replace(plan(), record=JobRecord("j", "queue", "4711")), None, secret="a secret", created=1.0
    )
    assert list(specs) == ["node1", "node2"]
    for rank, spec in enumerate(specs.values()):
        assert (spec["job"], spec["node_rank"]) == ("j", rank)
        assert (spec["backend"], spec["outside_id"], spec["remains"]) == ("queue", "4711", "torchrun")
        assert spec["master"] == {"addr": "10.0.0.1", "port": 29500}
    assert (first_rank(specs["node2"]), rank_count(specs["node2"])) == (8, 4)
    assert [spec["secret"] for spec in specs.values()] == ["a secret", node_secret("a secret", "node2")]


@pytest.mark.parametrize(
    ("python", "directory"),
    [
        (("/opt/env/bin/python",), ("/opt/env/bin",)),
        (("~/env/bin/python",), ("/home/ubuntu/env/bin",)),
        (("python3",), ()),
        (("/usr/bin/apptainer", "exec", "x.sif", "python"), ("/usr/bin",)),
    ],
)
def test_the_interpreters_directory_comes_first_on_path(
    python: tuple[str, ...], directory: tuple[str, ...]
) -> None:
    node = plan(hosts=(replace(NODE1, python=python), NODE2)).nodes[0]
    assert node.path_prepend == directory
    assert node.argv[0] == python[0].replace("~", "/home/ubuntu")


def test_environment_precedence_and_the_warning_for_a_computed_value() -> None:
    hosts = (replace(NODE1, env={"A": "host", "B": "host", "NCCL_SOCKET_IFNAME": "bond0"}), NODE2)
    got = plan(hosts=hosts, env={"B": "cli"})
    assert got.nodes[0].env["A"] == "host"
    assert got.nodes[0].env["B"] == "cli"
    assert got.nodes[0].env["NCCL_SOCKET_IFNAME"] == "bond0"
    assert got.nodes[1].env["NCCL_SOCKET_IFNAME"] == "=enp26s0np0"
    assert got.warnings == (
        "node1: NCCL_SOCKET_IFNAME=bond0 from the inventory overrides the computed =eth0",
    )


def test_an_override_by_the_same_value_is_no_warning() -> None:
    assert merge_env({"A": "1"}, {"A": "1"}, {}) == ({"A": "1"}, [])


@pytest.mark.parametrize(
    ("env", "secrets", "shown"),
    [
        ({}, {}, HELD.path),
        ({"PYTHONPATH": "/opt/lib:/x"}, {}, f"{HELD.path}:/opt/lib:/x"),
        ({"PYTHONPATH": ""}, {}, HELD.path),
        ({}, {"PYTHONPATH": Secret("/opt/lib")}, f"{HELD.path}:***"),
    ],
)
def test_the_root_of_the_tree_stands_before_the_users_own_pythonpath(
    env: dict[str, str], secrets: dict[str, Secret], shown: str
) -> None:
    got = plan(env=env, secrets=secrets)
    assert {node["env"]["PYTHONPATH"] for node in got.document()["nodes"]} == {shown}
    specs = node_specs(got, None, secret="", created=0.0).values()
    assert [spec["python_path"] for spec in specs] == [[HELD.path]] * 2
    assert got.warnings == ()


def test_a_root_that_pythonpath_cannot_name() -> None:
    facts = {name: replace(each, tree=CodeTree("/a:b")) for name, each in FACTS.items()}
    got = plan(facts=facts)
    assert "PYTHONPATH" not in got.shown_env(got.nodes[0])
    assert got.warnings[0] == "node1: PYTHONPATH cannot name /a:b, which contains ':'"


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        ("$HOME/cache", "$HOME"),
        ("/a:${LD_LIBRARY_PATH}", "${LD_LIBRARY_PATH}"),
        ("$(nproc)", None),
        ("costs 5$", None),
        ("$5", None),
        ("a$$", None),
    ],
)
def test_a_reference_in_a_value_is_taken_literally_with_one_hint(value: str, hint: str | None) -> None:
    got = plan(env={"A": value}, hosts=(NODE1, replace(NODE2, env={"B": "$X"})))
    assert [node.env["A"] for node in got.nodes] == [value, value]
    said = [f"node[1-2]: A={value}: {hint} is passed on"] if hint else []
    assert [text.partition(" as it is")[0] for text in got.warnings] == [
        *said,
        "node2: B=$X: $X is passed on",
    ]


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"node2": replace(FACTS["node2"], tree=None)}, "node2: no release in"),
        (
            {"node2": replace(FACTS["node2"], tree=replace(HELD, release="other"))},
            "node1 has 20261127-120000-abcd1234, node2 has other",
        ),
        (
            {"node2": replace(FACTS["node2"], tree=replace(HELD, manifest="0000"))},
            "the hosts have different releases",
        ),
    ],
)
def test_releases_that_cannot_start(facts: dict[str, NodeFacts], message: str) -> None:
    with pytest.raises(NeverStarted, match=r".") as caught:
        plan(facts={**FACTS, **facts})
    assert message in caught.value.message
    assert caught.value.fix


@pytest.mark.parametrize(
    ("node2", "message"),
    [
        (
            probed("eth0", "10.9.0.2"),
            "node1: training NIC: no NIC reaches every worker (found: eth0 10.0.0.1/24)",
        ),
        (HostFacts("node2"), "node2: it did not report its network interfaces"),
    ],
)
def test_networks_that_cannot_start(node2: HostFacts, message: str) -> None:
    with pytest.raises(NeverStarted, match=r".") as caught:
        plan(probed={**PROBED, "node2": node2})
    assert message in caught.value.message
    assert caught.value.fix


def test_tcp_turns_infiniband_off_and_rdma_does_not() -> None:
    assert plan().nodes[0].env["NCCL_IB_DISABLE"] == "1"
    hca = Device("mlx5_0", netdevs=("ib0",), ports=(Port(1, "ACTIVE", "LinkUp", "InfiniBand"),))
    with_hca = {"node1": probed("ib0", "10.0.0.1", hca), "node2": probed("ib0", "10.0.0.2", hca)}
    rdma = plan(probed=with_hca, network=Network(mode="rdma"))
    assert "NCCL_IB_DISABLE" not in rdma.nodes[0].env


def test_the_document_has_the_keys_that_scripts_rely_on() -> None:
    document = plan().document()
    assert (document["backend"], document["outside_id"]) == ("ssh", None)
    assert document["master"] == {"host": "node1", "addr": "10.0.0.1", "port": 29500}
    assert {"job", "engine", "world_size"} <= document.keys()
    assert {"host", "node_rank", "nproc", "cwd", "env", "argv"} <= document["nodes"][0].keys()


def test_parse_env() -> None:
    assert parse_env(["A=1", "B=x=y", "C", "D="], {"C": "mine"}) == {
        "A": "1",
        "B": "x=y",
        "C": "mine",
        "D": "",
    }
    with pytest.raises(UsageError, match="not set in your environment"):
        parse_env(["NOPE"], {})
    with pytest.raises(UsageError, match="is not a variable name"):
        parse_env(["1A=2"], {})


def test_the_network_of_every_node_is_decided_by_what_all_of_them_have() -> None:
    hca = Device("mlx5_0", netdevs=("ib0",), ports=(Port(1, "ACTIVE", "LinkUp", "InfiniBand"),))
    with_hca = {"node1": probed("ib0", "10.0.0.1", hca), "node2": probed("ib0", "10.0.0.2", hca)}
    mixed = {**with_hca, "node2": PROBED["node2"]}
    auto = Network(mode="auto")
    assert {node.env.get("NCCL_IB_HCA") for node in plan(probed=with_hca, network=auto).nodes} == {"=mlx5_0"}
    assert {node.env.get("NCCL_IB_DISABLE") for node in plan(probed=mixed, network=auto).nodes} == {"1"}
    with pytest.raises(NeverStarted, match="node2: RDMA: there is no RDMA device"):
        plan(probed=mixed, network=Network(mode="rdma"))


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ({"chosen": (0, 1)}, (2, 2, "0,1", "PCI_BUS_ID", ("0", "1"))),
        ({"chosen": (3,)}, (1, 1, "3", "PCI_BUS_ID", ("3",))),
        # The numbers count what the inventory shows.
        ({"chosen": (1,), "env": {"CUDA_VISIBLE_DEVICES": "GPU-a, 6"}}, (1, 1, "6", None, ("6",))),
        ({"env": {"CUDA_VISIBLE_DEVICES": "6,7"}, "gpus": 2}, (2, 2, "6,7", None, ("6", "7"))),
        ({}, (8, 8, None, None, ("0", "1", "2", "3", "4", "5", "6", "7"))),
        ({"gpus": 0, "own_slots": 4, "chosen": (1, 2)}, (2, 0, None, None, ())),
    ],
)
def test_the_selected_gpus_are_those_that_a_node_sees(host: dict[str, Any], expected: Any) -> None:
    node = plan(hosts=(replace(NODE1, **host), NODE2)).nodes[0]
    env = node.env
    assert expected == (
        node.nproc,
        node.gpus,
        env.get("CUDA_VISIBLE_DEVICES"),
        env.get("CUDA_DEVICE_ORDER"),
        node.devices,
    )


def test_nodes_of_unequal_size_have_ranks_in_their_order() -> None:
    got = plan(hosts=(replace(NODE2, chosen=(2,)), replace(NODE1, chosen=(0, 1, 5))))
    assert [(node.host, node.nproc, node.subset) for node in got.nodes] == [
        ("node2", 1, "2"),
        ("node1", 3, "0,1,5"),
    ]
    specs = node_specs(got, None, secret="", created=0.0)
    assert {host: first_rank(spec) for host, spec in specs.items()} == {"node2": 0, "node1": 1}
    assert got.warnings == ()


@pytest.mark.parametrize(
    ("host", "options", "message"),
    [
        ({}, {"env": {"CUDA_VISIBLE_DEVICES": "1"}}, "node1: both the hostlist and CUDA_VISIBLE_DEVICES"),
        ({}, {"secrets": {"CUDA_VISIBLE_DEVICES": Secret("1")}}, "node1: both the hostlist and"),
        ({"env": {"CUDA_VISIBLE_DEVICES": "4"}}, {}, "of the inventory has 1 entries: no GPU 1"),
    ],
)
def test_a_selection_that_says_two_things(host: dict[str, Any], options: Any, message: str) -> None:
    with pytest.raises(NeverStarted, match=message):
        plan(hosts=(replace(NODE1, chosen=(0, 1), **host), NODE2), **options)


@pytest.mark.parametrize(
    ("counted", "host", "expected"),
    [
        (3, {}, (3, 3)),
        (3, {"gpus": 0}, (3, 3)),
        (3, {"env": {"CUDA_VISIBLE_DEVICES": "1,2"}}, (2, 2)),
        (8, {"chosen": (4, 5)}, (2, 2)),
        (0, {}, "node1: --nproc gpu: there is no GPU that nvidia-smi lists"),
        (None, {}, "node1: --nproc gpu: there is no GPU"),
        (2, {"env": {"CUDA_VISIBLE_DEVICES": ""}}, "and CUDA_VISIBLE_DEVICES= shows"),
    ],
)
def test_as_many_processes_as_gpus_are_counted(
    counted: int | None, host: dict[str, Any], expected: Any
) -> None:
    facts = {**FACTS, "node1": replace(FACTS["node1"], counted=counted)}
    hosts = (replace(NODE1, **host),)
    if isinstance(expected, str):
        with pytest.raises(NeverStarted, match=expected):
            plan(hosts=hosts, facts=facts, nproc="gpu")
    else:
        node = plan(hosts=hosts, facts=facts, nproc="gpu").nodes[0]
        assert (node.nproc, node.gpus) == expected


def test_torchrun_binds_each_process_to_the_cpus_near_its_gpu() -> None:
    got = plan(numa="node")
    assert all("--numa-binding=node" in node.argv for node in got.nodes)
    assert node_specs(got, None, secret="", created=0.0)["node2"]["programs"] == {"numactl": "numactl"}
    assert "--numa-binding" not in " ".join(plan().nodes[0].argv)


@pytest.mark.parametrize(
    ("host", "facts", "message"),
    [
        ({"gpus": 0}, {}, "node1: --numa binds a process to the CPUs near its GPU, but 1 of 1 have none"),
        ({}, {"numa_binding": False}, "node1: its torchrun has no --numa-binding"),
    ],
)
def test_a_host_where_nothing_can_be_bound_is_named(
    host: dict[str, Any], facts: dict[str, Any], message: str
) -> None:
    known = {**FACTS, "node1": replace(FACTS["node1"], **facts)}
    with pytest.raises(NeverStarted, match=message):
        plan(hosts=(replace(NODE1, **host), NODE2), facts=known, numa="node")


@pytest.mark.parametrize(("env", "known"), [({}, []), ({"CUDA_VISIBLE_DEVICES": "2,3"}, ["2", "3"])])
def test_the_gpus_that_slurm_gives_are_not_known_before(env: dict[str, str], known: list[str]) -> None:
    """Else a second job on the host would be refused for the first GPUs, of which Slurm gave it others."""
    planned = plan(nproc=2, env=env)
    specs = node_specs(planned, backend_named("slurm").outside(planned), secret="s", created=0.0)
    assert specs["node1"]["devices"] == known
    assert node_specs(planned, None, secret="s", created=0.0)["node1"]["devices"] == (known or ["0", "1"])
