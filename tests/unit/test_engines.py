"""The commands of the engines, and which options change them."""

from __future__ import annotations

import base64
import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ports import free_port
from test_plan import FACTS, NODE1, NODE2, PROBED, plan, probed

from mnt.errors import NeverStarted, UsageError
from mnt.launch.engines import ENGINES, accelerate, chosen_engine, deepspeed
from mnt.launch.engines.api import NodeRole, Program
from mnt.launch.jobs import Member
from mnt.launch.staging import node_specs

TRAIN = Path(os.environ.get("MNT_CACHE", "/var/cache/mnt")) / "train-venv" / "bin" / "python"
COMMAND: Any = {"engine": ENGINES["command"], "script": "./solver"}
LAUNCHER: Any = {"engine": deepspeed.LAUNCHER, "nproc": 2}
ACCELERATE: Any = {"engine": ENGINES["accelerate"], "script": "train.py", "nproc": 2}


def with_packages(*names: str) -> Any:
    return {host: replace(facts, packages=dict.fromkeys(names, "1")) for host, facts in FACTS.items()}


# --- options -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("fsdp", {"deepspeed_launcher": True}, "--deepspeed-launcher is only for --engine deepspeed"),
        ("fsdp", {"rank_env": ("pet",)}, "--rank-env is only for --engine command"),
        ("command", {"accelerate_config": "a.yaml"}, "--accelerate-config is only for --engine accelerate"),
        ("command", {"rdzv": "c10d"}, "--engine command has no --rdzv c10d"),
        ("accelerate", {"rdzv": "c10d"}, "--engine accelerate has no --rdzv c10d"),
        (
            "deepspeed",
            {"rdzv": "c10d", "deepspeed_launcher": True},
            "DeepSpeed's launcher has no --rdzv c10d",
        ),
    ],
)
def test_an_option_of_another_engine_is_refused(name: str, options: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        chosen_engine(name, **options)


def test_without_options_an_engine_is_as_it_is() -> None:
    assert [chosen_engine(name) for name in ENGINES] == [*ENGINES.values()]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"engine": ENGINES["command"]}, "--engine command has no default program"),
        ({"engine": ENGINES["accelerate"]}, "--engine accelerate has no default program"),
        ({"engine": ENGINES["command"], "module": "x"}, r"runs programs, and no modules \(-m\)"),
    ],
)
def test_a_program_must_be_named(options: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        plan(**options)


# --- any program -------------------------------------------------------------------------------------------


def test_the_command_of_any_program() -> None:
    got = plan(**COMMAND, args=("--", "$x", ""))
    assert got.nodes[1].argv == (
        "/opt/env/bin/python",
        "-m",
        "mnt_slots",
        "command",
        "--ranks=/tmp/mnt-1000/j/node2/ranks",
        "--first-rank=8",
        "--nproc=4",
        "--world-size=12",
        "--nodes=2",
        "--node-rank=1",
        "--grace=10",
        "--",
        "./solver",
        "--",
        "$x",
        "",
    )
    assert (got.script, got.executable, got.listens) == ("./solver", "./solver", False)
    assert {node.gpus for node in got.nodes} == {0}  # torch is not asked


def test_a_program_of_path_is_no_file_of_the_tree() -> None:
    got = plan(engine=ENGINES["command"], script="hostname")
    assert (got.script, got.executable) == (None, "hostname")
    (spec, _) = node_specs(got, None, secret="s", created=1.0).values()
    assert (spec["script"], spec["executable"], spec["listens"]) == (None, "hostname", False)


def test_further_names_of_its_variables() -> None:
    got = plan(**{**COMMAND, "engine": chosen_engine("command", rank_env=("ompi", "pet", "ompi"))})
    assert "--names=ompi,pet" in got.nodes[0].argv


@pytest.mark.parametrize("engine", [ENGINES["command"], deepspeed.LAUNCHER])
def test_an_interpreter_without_pythonpath_cannot_start_the_ranks(engine: Any) -> None:
    deaf = {name: replace(facts, reads_python_path=False) for name, facts in FACTS.items()}
    with pytest.raises(NeverStarted, match=r"node1: /opt/env/bin/python ignores PYTHONPATH \(-E or -I\)"):
        plan(facts=deaf, engine=engine, script="x")


# --- c10d --------------------------------------------------------------------------------------------------


def test_c10d_plans_the_order_that_torch_chooses() -> None:
    addresses = {"node1": probed("eth0", "10.0.0.9"), "node2": probed("eth0", "10.0.0.10")}
    got = plan(engine=chosen_engine("fsdp", rdzv="c10d"), probed=addresses, nproc=2)
    assert [(node.host, node.node_rank) for node in got.nodes] == [("node2", 0), ("node1", 1)]
    assert (got.master_host, got.master_addr) == ("node2", "10.0.0.10")
    conf = [word for node in got.nodes for word in node.argv if word.startswith("--rdzv-conf")]
    assert conf == ["--rdzv-conf=is_host=1,read_timeout=600", "--rdzv-conf=is_host=0,read_timeout=600"]
    assert all({"--rdzv-id=j", "--rdzv-endpoint=10.0.0.10:29500"} <= {*node.argv} for node in got.nodes)
    order, store = got.warnings
    assert order == "torch numbers the nodes by their addresses, and so does mnt: node2, node1"
    assert store.startswith("node2: the store of this job listens on every address of the host")


def test_c10d_in_the_users_order_says_nothing_about_it() -> None:
    (store,) = plan(engine=chosen_engine("deepspeed", rdzv="c10d")).warnings
    assert store.startswith("node1: the store")


@pytest.mark.train
@pytest.mark.skipif(
    not TRAIN.exists(), reason=f"no training environment at {TRAIN}: run scripts/train-venv.sh"
)
def test_torch_numbers_nodes_as_planned(tmp_path: Path) -> None:
    """Text, not numbers: 127.0.0.10 comes before 127.0.0.9."""
    script = tmp_path / "show.py"
    script.write_text("import os; print(os.environ['GROUP_RANK'], os.environ['RANK'])")
    addresses = ["127.0.0.10", "127.0.0.9"]  # as plan_launch sorts them
    members = tuple(Member(address, rank, rank + 1) for rank, address in enumerate(addresses))
    port = free_port()
    started = []
    for rank, address in enumerate(addresses):
        ranks = str(tmp_path / address)
        role = NodeRole(
            (str(TRAIN),), 2, rank, rank + 1, addresses[0], port, address, ranks, Program(str(script)),
            job="j", members=members,
        )  # fmt: skip
        argv = chosen_engine("fsdp", rdzv="c10d").argv(role)
        env = {**os.environ, "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "[rank${rank}] "}
        started.append(subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=env))
    texts = [process.communicate(timeout=120)[0] for process in started]
    assert [sorted(line.split()[-2:] for line in text.splitlines()) for text in texts] == [
        [["0", "0"]],
        [["1", "1"], ["1", "2"]],
    ]


# --- DeepSpeed's launcher ----------------------------------------------------------------------------------


def world_info(argv: tuple[str, ...]) -> Any:
    (word,) = (word for word in argv if word.startswith("--world_info="))
    return json.loads(base64.urlsafe_b64decode(word.partition("=")[2]))


def test_the_command_of_deepspeeds_launcher() -> None:
    got = plan(**LAUNCHER, args=("--", "a b"))
    ours, theirs = got.nodes[1].argv[:12], got.nodes[1].argv[12:]
    assert ours[2:4] == ("mnt_slots", "deepspeed")
    assert theirs[1:] == (
        "--node_rank=1",
        "--master_addr=10.0.0.1",
        "--master_port=29500",
        "--enable_each_rank_log=/tmp/mnt-1000/j/node2/ranks",
        "--",
        "train/train_deepspeed.py",
        "--",
        "a b",
    )
    assert world_info(theirs) == {"node1": [0, 1], "node2": [0, 1]}
    assert got.engine == "deepspeed"
    assert not got.listens


@pytest.mark.parametrize(
    ("options", "given", "left_out"),
    [
        ({"module": "pkg.x"}, "--module", "--no_local_rank"),
        ({"local_rank": False}, "--no_local_rank", "--module"),
    ],
)
def test_options_of_deepspeeds_launcher(options: Any, given: str, left_out: str) -> None:
    argv = plan(**LAUNCHER, **options).nodes[0].argv
    assert given in argv
    assert left_out not in argv


def test_a_node_keeps_its_own_devices() -> None:
    second = replace(NODE2, env={"CUDA_VISIBLE_DEVICES": "4,GPU-1f,6"})
    got = plan(hosts=(NODE1, second), **LAUNCHER)
    assert [world_info(node.argv)["node2"] for node in got.nodes] == [[0, 1], ["4", "GPU-1f"]]
    with pytest.raises(NeverStarted, match="node2: CUDA_VISIBLE_DEVICES=4,GPU-1f,6 has 3 devices for 4 proc"):
        plan(hosts=(NODE1, second), **{**LAUNCHER, "nproc": 4})


# --- accelerate --------------------------------------------------------------------------------------------


def test_the_command_of_accelerate() -> None:
    got = plan(**ACCELERATE, args=("$x", "--cpu"))
    assert got.nodes[1].argv == (
        "/opt/env/bin/python",
        "-m",
        "accelerate.commands.launch",
        "--multi_gpu",
        "--deepspeed_multinode_launcher=standard",
        "--num_machines=2",
        "--machine_rank=1",
        "--num_processes=4",
        "--main_process_ip=10.0.0.1",
        "--main_process_port=29500",
        "--rdzv_backend=mnt",
        "--rdzv_conf=rank=1",
        "--max_restarts=0",
        "--tee=3",
        "--log_dir=/tmp/mnt-1000/j/node2/ranks",
        "--",
        "train.py",
        "$$x",
        "--cpu",
    )
    pet = {name: value for name, value in got.nodes[1].env.items() if name.startswith("PET_")}
    assert pet == {"PET_LOCAL_ADDR": "10.0.0.2", "PET_RDZV_ENDPOINT": "10.0.0.1:29500"}


def test_accelerate_with_an_old_torch_has_its_static_rendezvous() -> None:
    old = {name: replace(facts, binds_store=False) for name, facts in FACTS.items()}
    argv = plan(facts=old, **ACCELERATE).nodes[1].argv
    assert {"--rdzv_backend=static", "--same_network"} <= {*argv}


def test_a_config_file_decides_and_must_be_in_the_tree() -> None:
    engine = accelerate.accelerate_engine("conf/a.yaml")
    got = plan(**{**ACCELERATE, "engine": engine})
    assert "--config_file=conf/a.yaml" in got.nodes[0].argv
    assert "--multi_gpu" not in got.nodes[0].argv
    assert got.files == ("conf/a.yaml",)


@pytest.mark.parametrize(
    ("kind", "refused"),
    [("NO", True), ("'MULTI_CPU'", True), ("MULTI_GPU", False), ("FSDP", False), ("", False)],
)
def test_a_config_file_without_torchrun_is_refused(kind: str, refused: bool) -> None:
    text = f"compute_environment: LOCAL_MACHINE\ndistributed_type: {kind}\nmixed_precision: bf16\n"
    if not refused:
        accelerate.check_config("a.yaml", text)
        return
    with pytest.raises(
        UsageError, match=r"a\.yaml: with distributed_type \w+, accelerate starts no torchrun"
    ):
        accelerate.check_config("a.yaml", text)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"nproc": None}, r"node1: accelerate starts the same number .* 8 \(node1\), 4 \(node2\)"),
        ({"nproc": 1, "hosts": (NODE1,)}, "accelerate starts no torchrun for a single process"),
        ({"args": ("-",)}, "accelerate cannot pass on '-' as the first argument"),
        ({"args": ("",)}, "accelerate cannot pass on '' as the first argument"),
        ({"facts": with_packages("torch")}, r"node\[1-2\]: /opt/env/bin/python has no accelerate"),
    ],
)
def test_what_accelerate_cannot_start_is_refused(options: Any, says: str) -> None:
    with pytest.raises(NeverStarted, match=says):
        plan(**{**ACCELERATE, **options})


@pytest.mark.parametrize(
    ("gpus", "env", "warned"), [(0, {}, True), (0, {"ACCELERATE_USE_CPU": "true"}, False), (2, {}, False)]
)
def test_hosts_without_gpus_need_a_variable(gpus: int, env: Mapping[str, str], warned: bool) -> None:
    hosts = (replace(NODE1, gpus=gpus), replace(NODE2, gpus=gpus))
    warnings = plan(hosts=hosts, probed=PROBED, env=env, **ACCELERATE).warnings
    assert [text.partition(":")[0] for text in warnings] == (["node1", "node2"] if warned else [])


def test_packages_that_are_not_known_are_not_missed() -> None:
    assert plan(**ACCELERATE).nodes
    assert plan(facts=with_packages("torch", "accelerate"), **ACCELERATE).nodes
