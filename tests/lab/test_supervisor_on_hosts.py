"""A job's supervisors on real hosts: over SSH, one home for all, the training network between them."""

from __future__ import annotations

import contextlib
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from waiting import PATIENCE, wait_for

from mnt.errors import HostError
from mnt.fleet import Fleet
from mnt.inventory.loader import load
from mnt.lab.lab import Lab, LabHost
from mnt.remote.job.channel import node_secret
from mnt.tasks.job import (
    Listening,
    NodeSpec,
    Started,
    await_port,
    list_jobs,
    read_logs,
    spawn_node,
    stage_node,
    stop_node,
)

PORT = 29517
SECRET = "of the job"

LISTEN_AND_COUNT = """
import os, socket, time
if os.environ["MNT_NODE_RANK"] == "0":
    listener = socket.create_server(("", int(os.environ["PORT"])))
for i in range(10_000):
    print("tick", i, flush=True)
    time.sleep(0.1)
"""
FAIL_ON_SECOND_NODE = """
import os, socket, time
if os.environ["MNT_NODE_RANK"] == "0":
    listener = socket.create_server(("", int(os.environ["PORT"])))
    time.sleep(600)
time.sleep(2)
raise SystemExit(3)
"""
RAISE_ON_RANK_1 = """
import os
from torch.distributed.elastic.multiprocessing.errors import record
@record
def main():
    import torch.distributed
    torch.distributed.init_process_group("gloo")
    if os.environ["RANK"] == "1":
        raise ValueError("the loss is nan")
    torch.distributed.barrier()
    torch.distributed.barrier()
main()
"""
EXIT_WITH_3_ON_RANK_1 = RAISE_ON_RANK_1.replace('raise ValueError("the loss is nan")', "raise SystemExit(3)")


def start_node(fleet: Fleet, spec: NodeSpec) -> Started:
    connection = fleet.connection(spec["host"])
    stage_node(connection, spec)
    names = spec["jobs_dir"], spec["job"], spec["host"]
    return spawn_node(connection, *names, peer=spec.get("peer"))


def listening(fleet: Fleet, spec: NodeSpec) -> Listening:
    return await_port(fleet.connection(spec["host"]), spec["jobs_dir"], spec["job"], spec["host"])


class Cluster:
    """The first two hosts of a lab, with one jobs directory for both, as under an NFS home."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.hosts: list[LabHost] = list(lab.hosts[:2])
        inventory = load(lab.inventory_path)
        self.fleet = Fleet([inventory.host(host.name) for host in self.hosts])
        self.python = inventory.hosts[0].python[0]
        self.directory = f"/shared/test-{uuid.uuid4().hex[:8]}"
        self.jobs_dir = f"{self.directory}/jobs"
        self.job = f"test-{uuid.uuid4().hex[:8]}"
        self.hosts[0].exec(["mkdir", "-p", self.directory], user=True)

    def specs(self, source: str, *arguments: str, python: str = "/usr/bin/python3") -> list[NodeSpec]:
        script = f"{self.directory}/train.py"
        self.hosts[0].exec(["sh", "-c", f"cat > {script}"], input=source, user=True)
        master = self.hosts[0].spec.training
        return [
            {
                "format": 1,
                "job": self.job,
                "host": host.name,
                "node_rank": rank,
                "nodes": [
                    {"host": node.name, "node_rank": r, "nproc": 1} for r, node in enumerate(self.hosts)
                ],
                "engine": "fsdp",
                "release": None,
                "cwd": self.directory,
                "argv": [python, *arguments, "train.py"],
                "script": "train.py",
                "env": {"PORT": str(PORT)},
                "secrets": [],
                "jobs_dir": self.jobs_dir,
                "master": {"addr": master, "port": PORT},
                "secret": node_secret(SECRET, host.name) if rank else SECRET,
                "created": time.time(),
            }
            for rank, host in enumerate(self.hosts)
        ]

    def start(self, source: str) -> None:
        """Master first, then the worker."""
        first, second = self.specs(source)
        started = start_node(self.fleet, first)
        assert listening(self.fleet, first)["listening"]
        assert started["peer"] is not None
        assert started["peer"]["addr"] == self.hosts[0].spec.training
        second["peer"] = started["peer"]
        start_node(self.fleet, second)

    def entry(self, host: LabHost) -> dict[str, Any]:
        listed = list_jobs(self.fleet.connection(host.name), self.jobs_dir, host.name)["jobs"]
        assert [entry["host"] for entry in listed] == [host.name]
        return dict(listed[0])

    def connected(self) -> None:
        wait_for(lambda: self.entry(self.hosts[1])["peer"] == "connected", every=0.1)

    def ended(self, host: LabHost) -> dict[str, Any]:
        """The job's entry on that host once it is over."""
        return wait_for(lambda: entry if (entry := self.entry(host))["ended"] else None, every=0.1)

    def stop(self) -> dict[str, dict[str, Any]]:
        arguments = {host.name: (self.jobs_dir, self.job, host.name) for host in self.hosts}
        answers = self.fleet.run_each(stop_node, arguments).values_by_host()
        return {name: dict(answer) for name, answer in answers.items()}

    def processes(self, host: LabHost) -> str:
        """Those with the job's mark, and its supervisor."""
        job = f"[{self.job[0]}]{self.job[1:]}"  # does not match the shell that runs this
        marked, named = f"grep -lsz '^MNT_JOB={job}$' /proc/[0-9]*/environ", f"pgrep -f '{job}'"
        return host.exec(["sh", "-c", f"{marked}; {named}"]).stdout


@pytest.fixture
def cluster(lab: Lab) -> Iterator[Cluster]:
    yield from _cluster(lab)


def _cluster(lab: Lab) -> Iterator[Cluster]:
    made = Cluster(lab)
    try:
        yield made
        for answer in made.stop().values():
            assert answer["left"] == []
            assert answer["port_free"]
        for host in made.hosts:
            assert made.processes(host) == ""
            assert host.exec(["sh", "-c", "ls -d /tmp/mnt-[0-9]* || true"]).stdout == ""
    finally:
        made.fleet.close()
        made.hosts[0].exec(["rm", "-rf", made.directory])


def test_one_node_fails_and_no_head_is_there(cluster: Cluster) -> None:
    """The worker's failure ends the master over the training network; each tells its own part."""
    cluster.start(FAIL_ON_SECOND_NODE)
    cluster.fleet.close()
    master, worker = cluster.hosts
    assert cluster.ended(worker)["exit_code"] == 3
    entry = cluster.ended(master)
    assert (entry["state"], entry["reason"]["peer"]) == ("stopped", worker.name)


def test_a_dropped_connection_costs_nothing_but_the_view(cluster: Cluster) -> None:
    cluster.start(LISTEN_AND_COUNT)
    master = cluster.hosts[0]
    seen: list[dict[str, Any]] = []
    some = threading.Event()

    def on_frame(frame: dict[str, Any]) -> None:
        seen.append(frame)
        if sum("data" in each for each in seen) >= 3:
            some.set()

    def follow() -> None:
        with pytest.raises(HostError):
            read_logs(
                cluster.fleet.connection(master.name),
                cluster.jobs_dir,
                cluster.job,
                master.name,
                follow=True,
                on_frame=on_frame,
            )

    follower = threading.Thread(target=follow)
    follower.start()
    assert some.wait(PATIENCE)
    cluster.fleet.connection(master.name).close()
    follower.join(PATIENCE)
    assert not follower.is_alive()
    assert seen[0]["state"]["state"] == "running"

    offset = [frame["offset"] for frame in seen if "data" in frame][-1]
    again: list[dict[str, Any]] = []
    read_logs(
        cluster.fleet.connection(master.name),
        cluster.jobs_dir,
        cluster.job,
        master.name,
        offsets={"output": offset},
        on_frame=again.append,
    )
    text = "".join(frame.get("data", "") for frame in [*seen, *again])
    lines = text.splitlines()
    assert lines == [f"tick {i}" for i in range(len(lines))]
    assert cluster.entry(master)["state"] == "running"


def test_stop_proves_the_end_on_every_host(cluster: Cluster) -> None:
    cluster.start(LISTEN_AND_COUNT)
    answers = cluster.stop()
    for host in cluster.hosts:
        assert answers[host.name]["port_free"]
        assert answers[host.name]["left"] == []
        assert cluster.entry(host)["state"] == "stopped"
        assert cluster.processes(host) == ""


def test_a_port_that_is_taken_stops_the_start_and_names_the_holder(cluster: Cluster) -> None:
    holder = f"import socket; s = socket.create_server(('', {PORT})); print('up', flush=True); input()"
    master = cluster.hosts[0]
    process = subprocess.Popen(
        master.command(["/usr/bin/python3", "-c", holder], user=True),
        env=master.environment(user=True),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    spec = cluster.specs(LISTEN_AND_COUNT)[0]
    try:
        assert process.stdout is not None
        process.stdout.readline()
        with pytest.raises(HostError, match=f"master port {PORT} is taken by pid .* of user mnt: .*python3"):
            stage_node(cluster.fleet.connection(master.name), spec)
    finally:
        process.communicate()  # its input ends, and with it the holder
    assert cluster.processes(master) == ""


def test_a_pulled_cable_ends_the_job_on_both_sides(make_lab: Callable[..., Lab]) -> None:
    for cluster in _cluster(make_lab(count=2)):
        cluster.start(LISTEN_AND_COUNT)
        cluster.connected()
        worker = cluster.hosts[1]
        worker.exec(["ip", "link", "set", worker.spec.nic, "down"])
        for host, other in zip(cluster.hosts, reversed(cluster.hosts), strict=True):
            entry = cluster.ended(host)
            address = cluster.hosts[0].spec.training
            assert entry["failure"]["message"] == f"lost contact with {other.name} over {address} for 20 s"
            assert entry["state"] == "failed"


def under_torchrun(cluster: Cluster, source: str) -> NodeSpec:
    """Two ranks on the first host only, with the ranks' logs where `mnt launch` has them."""
    master = cluster.hosts[0]
    uid = master.exec(["id", "-u"], user=True).stdout.strip()
    torchrun = [
        *("-m", "torch.distributed.run", "--nnodes=1", "--node-rank=0", "--nproc-per-node=2", "--tee=3"),
        *(f"--master-addr={master.spec.training}", f"--master-port={PORT}"),
        f"--log-dir=/tmp/mnt-{uid}/{cluster.job}/{master.name}/ranks",
    ]
    spec = cluster.specs(source, *torchrun, python=cluster.python)[0]
    spec["nodes"] = [{**spec["nodes"][0], "nproc": 2}]
    return spec


@pytest.mark.train
def test_another_node_leads_the_ranks_logs_to_no_file_of_this_one(cluster: Cluster) -> None:
    """jobs_dir is shared: the other node puts a link where the ranks' logs will be kept."""
    master, other = cluster.hosts
    mine = f"/home/mnt/of-{cluster.job}"
    master.exec(["sh", "-c", f"mkdir {mine}; echo hf_of_node1_only > {mine}/stdout.log"], user=True)
    spec = under_torchrun(cluster, EXIT_WITH_3_ON_RANK_1)
    start_node(cluster.fleet, spec)
    kept = f"{cluster.jobs_dir}/{cluster.job}/{master.name}/ranks"
    other.exec(["ln", "-s", mine, kept], user=True)
    entry = cluster.ended(master)
    assert (entry["state"], entry["exit_code"], entry["failure"]["rank"]) == ("failed", 3, 1)
    assert master.exec(["sh", "-c", f"ls -A {mine}; cat {mine}/*"], user=True).stdout == (
        "stdout.log\nhf_of_node1_only\n"
    )
    frames: list[dict[str, Any]] = []
    connection = cluster.fleet.connection(master.name)
    names = cluster.jobs_dir, cluster.job, master.name
    with contextlib.suppress(HostError):
        read_logs(connection, *names, rank=0, on_frame=frames.append)
    assert "hf_of_node1_only" not in "".join(f.get("data", "") for f in frames)
    log = master.exec(
        ["cat", f"{cluster.jobs_dir}/{cluster.job}/{master.name}/supervisor.log"], user=True
    ).stdout
    assert f"cannot keep all of the ranks' logs in {kept}: Not a directory" in log
    master.exec(["rm", "-r", mine], user=True)


@pytest.mark.train
@pytest.mark.parametrize(
    ("source", "exit_code", "message"),
    [
        (RAISE_ON_RANK_1, 1, "ValueError: the loss is nan"),
        (EXIT_WITH_3_ON_RANK_1, 3, "rank 1 exited with code 3"),
    ],
)
def test_torchruns_culprit_on_one_node(cluster: Cluster, source: str, exit_code: int, message: str) -> None:
    """Two ranks under the real torchrun: the one that failed is found, its code kept, its traceback shown."""
    master = cluster.hosts[0]
    spec = under_torchrun(cluster, source)
    assert start_node(cluster.fleet, spec)["peer"] is None
    node = listening(cluster.fleet, spec)["node"]
    entry = cluster.ended(master)
    failure = entry["failure"]
    assert (entry["state"], entry["exit_code"]) == ("failed", exit_code)
    assert (failure["rank"], failure["message"], failure["victim"]) == (1, message, False)
    assert node["started"] < failure["time"] < entry["ended"] + 1
    if exit_code == 1:
        assert failure["traceback"].rstrip().endswith(message)
    frames: list[dict[str, Any]] = []
    connection = cluster.fleet.connection(master.name)
    read_logs(connection, cluster.jobs_dir, cluster.job, master.name, rank=0, on_frame=frames.append)
    assert "Connection closed by peer" in "".join(f["data"] for f in frames if f.get("stream") == "stderr")
