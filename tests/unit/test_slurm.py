"""What is said to Slurm, what its answers mean, and the job for sbatch that needs no mnt: without a Slurm."""

from __future__ import annotations

import subprocess
from dataclasses import replace

import pytest

from mnt.errors import NeverStarted, UsageError
from mnt.inventory.model import Host, Inventory, Network
from mnt.launch.backends.api import Request
from mnt.launch.backends.slurm_export import batch_file
from mnt.launch.backends.slurm_text import (
    SlurmJob,
    batch_script,
    names_in_slurm,
    read_job,
    read_nodes,
    read_partition,
    submit_argv,
)
from mnt.launch.engines import chosen_engine
from mnt.launch.plan import LaunchOptions
from mnt.remote.job.outside import slurm_reason

SHOWN = """JobId=7 JobName=20261129-161244-6e0c01
   JobState={state} Reason={reason} Dependency=(null)
   TimeLimit=00:01:00
   ReqNodeList=(null) ExcNodeList=(null)
   NodeList={nodes}
   Comment={comment}
"""
NODES = (
    "n1|10.0.0.1|node1|gpu|idle\nn2|10.0.0.2|node2|gpu|idle\nn2|10.0.0.2|node2|all|idle\nx9|x9|x9|all|down*\n"
)
HOSTS = (Host("node1", "node1"), Host("second", "10.0.0.2"))


def shown(state: str = "RUNNING", reason: str = "None", nodes: str = "n[1-2]", comment: str = "") -> str:
    return SHOWN.format(state=state, reason=reason, nodes=nodes, comment=comment)


@pytest.mark.parametrize(
    ("text", "job"),
    [
        (shown(), SlurmJob("RUNNING", None, "n[1-2]", "")),
        (shown("PENDING", "Resources", "(null)"), SlurmJob("PENDING", "Resources", None, "")),
        (
            shown("FAILED", comment="srun: JobState=RUNNING x"),
            SlurmJob("FAILED", None, "n[1-2]", "srun: JobState=RUNNING x"),
        ),
        ("slurm_load_jobs error: Invalid job id specified", None),
        ("", None),
    ],
)
def test_a_job_as_slurm_shows_it(text: str, job: SlurmJob | None) -> None:
    assert read_job(text) == job


@pytest.mark.parametrize(
    ("state", "reason", "waits", "hopeless"),
    [
        ("PENDING", "Resources", True, False),
        ("PENDING", "PartitionNodeLimit", True, True),
        ("PENDING", "InvalidAccount", True, True),
        ("PENDING", None, True, False),
        ("CONFIGURING", None, True, False),
        ("RUNNING", "PartitionNodeLimit", False, False),
        ("FAILED", "NonZeroExitCode", False, False),
    ],
)
def test_what_will_never_start(state: str, reason: str | None, waits: bool, hopeless: bool) -> None:
    job = SlurmJob(state, reason, None)
    assert (job.waits, job.hopeless) == (waits, hopeless)


def test_a_host_is_a_node_by_its_name_or_address() -> None:
    nodes = read_nodes(NODES)
    assert [*nodes] == ["n1", "n2", "x9"]
    assert names_in_slurm(HOSTS, nodes) == {"node1": "n1", "second": "n2"}
    with pytest.raises(NeverStarted, match="node3: no node of this Slurm"):
        names_in_slurm((*HOSTS, Host("node3", "10.9.9.9")), nodes)
    assert [read_partition(NODES, name) for name in ("gpu", "all", "none")] == [2, 2, 0]


def test_exactly_the_hosts_or_some_of_them() -> None:
    nodes, names = ["n1", "n2", "x9"], {"node1": "n1", "second": "n2"}
    exact = submit_argv(Request("j"), names, nodes)
    assert "--nodelist=n1,n2" in exact
    assert not [word for word in exact if word.startswith(("--exclude", "--array"))]
    some = submit_argv(Request("j", 1, ("--time=5",)), names, nodes, jobs=3)
    assert {"--nodes=1", "--exclude=x9", "--array=0-2", "--time=5"} < {*some}
    assert not [word for word in some if word.startswith("--nodelist")]


def test_no_variable_of_the_head_travels() -> None:
    assert "--export=NIL" in submit_argv(Request("j"), {"node1": "n1"}, ["n1"])


def test_the_task_of_an_array_starts_its_own_job() -> None:
    script = batch_script(["one", "two"])
    srun = 'srun() { for word; do last=$word; done; echo "$last"; }; scontrol() { :; }\n'
    said = script.replace('said=$(srun "$@" 2>&1)', 'srun "$@"')
    for index, job in enumerate(["one", "two"]):
        env = {"SLURM_ARRAY_TASK_ID": str(index), "SLURM_JOB_ID": "7"}
        done = subprocess.run(["sh", "-c", srun + said], env=env, capture_output=True, text=True, check=False)
        assert done.stdout == f"{job}\n", done.stderr


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        ("TIMEOUT", "its time limit of 00:01:00 is over"),
        ("CANCELLED", "it was cancelled (scancel)"),
        ("PREEMPTED", "another job has preempted it"),
        ("NODE_FAIL", "a node has failed"),
        ("OUT_OF_MEMORY", "it used more memory than it was allocated"),
        ("COMPLETING", "it was cancelled (scancel) or preempted, or a node has failed"),
        ("RUNNING", None),
        ("FAILED", None),
    ],
)
def test_why_slurm_ends_a_job(state: str, reason: str | None) -> None:
    assert slurm_reason(shown(state)) == reason
    assert slurm_reason("") is None
    timeout = "its time limit of 00:01:00 is over"
    assert slurm_reason(shown("COMPLETING", "TimeLimit")) == timeout


# --- the job for sbatch ------------------------------------------------------------------------------------

INVENTORY = Inventory("c", "c", HOSTS, network=Network(mode="tcp", subnet="10.0.0.0/24"))


def batch(
    hosts: tuple[Host, ...] = HOSTS, inventory: Inventory = INVENTORY, options: LaunchOptions | None = None
) -> str:
    options = options or LaunchOptions(script="train.py", args=("a b", "$x", "it's"))
    return batch_file(inventory, hosts, options, count=None, words=["--time=5"], secrets=["TOKEN"])


def test_it_is_a_script_that_sh_reads() -> None:
    text = batch()
    assert subprocess.run(["sh", "-n"], input=text, text=True, check=False).returncode == 0
    assert text.startswith("#!/bin/sh\n#SBATCH --nodes=2\n")
    assert "#SBATCH --time=5\n" in text


def test_arguments_arrive_as_they_are() -> None:
    """The node's part is run by a sh in which `exec` shows what would be run."""
    text = batch((replace(HOSTS[0], nic="lo", python=("echo",), workdir="/tmp"),))
    before = text[: text.index("MASTER_ADDR=$(")].replace("exec echo", 'exec printf "<%s>"')
    node = before + '\nmkdir -p "$HOME/w/current"; sh -c "$node" sh run\n'
    node = node.replace("cd /tmp/current", 'cd "$HOME"')
    env = {"HOME": "/tmp", "SLURMD_NODENAME": "node1", "SLURM_NODEID": "0", "SLURM_JOB_ID": "7", "TOKEN": "x"}
    env |= {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "MASTER_ADDR": "127.0.0.1"}
    done = subprocess.run(["sh", "-c", node], env=env, capture_output=True, text=True, check=False)
    assert done.stdout.endswith("<--><train.py><a b><$$x><it's>"), done.stderr
    assert "<--local-addr=127.0.0.1>" in done.stdout


def test_a_secret_that_is_not_there_ends_it() -> None:
    done = subprocess.run(["sh", "-c", batch()], env={}, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "TOKEN: set it" in done.stderr


@pytest.mark.parametrize(
    ("hosts", "network", "said"),
    [
        (HOSTS, Network(), "does not say over which NIC"),
        ((HOSTS[0], replace(HOSTS[1], workdir="/x")), INVENTORY.network, "the hosts differ in `workdir`"),
        ((HOSTS[0], replace(HOSTS[1], python=("x",))), INVENTORY.network, "the hosts differ in `python`"),
        ((HOSTS[0], replace(HOSTS[1], env={"A": "1"})), INVENTORY.network, "the hosts differ in `env`"),
        ((HOSTS[0], replace(HOSTS[1], activate=("x",))), INVENTORY.network, "second: .* has `activate`"),
    ],
)
def test_what_cannot_be_one_file(hosts: tuple[Host, ...], network: Network, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        batch(hosts, replace(INVENTORY, network=network))


def test_no_word_of_the_programs_is_taken_for_ours() -> None:
    words = ("--seed=123456789", "x/987654321/y", "@local@", "--", "@ranks@")
    assert batch(options=LaunchOptions(script="train.py", args=words)).count(" ".join(words)) == 1


def test_what_is_asked_for_is_written() -> None:
    text = batch(options=LaunchOptions(script="train.py", numa="node", nproc="gpu"))
    assert "--numa-binding=node" in text
    assert text.count("nproc=gpu ;;") == 2


def test_the_order_of_c10d_is_not_known_before_slurm_has_chosen() -> None:
    with pytest.raises(UsageError, match="by their addresses"):
        batch(options=LaunchOptions(engine=chosen_engine("fsdp", rdzv="c10d"), script="train.py"))
