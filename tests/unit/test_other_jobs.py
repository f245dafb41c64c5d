"""Several jobs on one host: whose the master port and the GPUs are."""

from __future__ import annotations

import fcntl
import os
import re
import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from fleets import make_fleet
from job_host import JobHost
from ports import free_port

from mnt.facts.host import Listener
from mnt.inventory.model import Network
from mnt.launch import facts as launch_facts
from mnt.remote.job.others import clash, named

SLEEPER = "import time; time.sleep(300)"
UUIDS = ["GPU-aa11", "GPU-bb22", "GPU-cc33", "GPU-dd44"]


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    """The hosts of these tests are one machine, with GPUs by number: one test at a time, of all workers."""
    with open(os.path.join(tempfile.gettempdir(), "mnt-test-gpus.lock"), "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def staged(host: JobHost, **spec: Any) -> dict[str, Any]:
    made = host.spec(**spec)
    host.jobs.append(made["job"])
    assert "refused" not in host.call("stage", spec=made)
    return made


def refused(host: JobHost, **spec: Any) -> dict[str, str]:
    answer = host.call("stage", spec=host.spec(**spec))
    found: dict[str, str] = answer["refused"]
    return found


@pytest.mark.parametrize(
    ("devices", "uuids", "expected"),
    [
        (["0", "2"], UUIDS, {"GPU-aa11", "GPU-cc33"}),
        (["GPU-bb", "3"], UUIDS, {"GPU-bb22", "GPU-dd44"}),
        (["0", "9"], UUIDS, {"GPU-aa11", "9"}),
        (["0", "GPU-bb"], [], {"0", "GPU-bb"}),
        (["MIG-1"], UUIDS, {"MIG-1"}),
    ],
)
def test_one_form_for_all_names_of_gpus(devices: list[str], uuids: list[str], expected: set[str]) -> None:
    assert named(devices, uuids) == expected


@pytest.mark.parametrize(
    ("shared", "taken", "message", "fix"),
    [
        (["1"], {"1"}, "GPU 1 is promised to job a (running)", "use others: -n n1:0,2,3; or mnt stop a"),
        (["0", "1"], {"0", "1", "2", "3"}, "GPUs 0, 1 are promised to job a", "mnt stop a, or wait"),
    ],
)
def test_a_clash_names_the_holder_and_the_way_out(
    shared: Sequence[str], taken: set[str], message: str, fix: str
) -> None:
    said = clash({"host": "n1", "all_gpus": 4}, {"job": "a"}, "running", shared, taken, []).document()
    assert said["message"].startswith(message)
    assert said["fix"].startswith(fix)
    assert "--share-gpus" in said["fix"]


def test_two_jobs_with_one_gpu_are_refused_unless_they_share_it(host: JobHost) -> None:
    host.script(SLEEPER)
    first = host.spec(devices=["0", "1"])
    host.start(first)
    said = refused(host, devices=["1", "2"], all_gpus=4)
    assert re.fullmatch(rf"GPU 1 is promised to job {first['job']} \((starting|running)\)", said["message"])
    assert said["fix"].startswith("use others: -n node1:2,3; or mnt stop")
    staged(host, devices=["2", "3"], all_gpus=4)
    staged(host, devices=["1"], all_gpus=4, share_gpus=True)
    staged(host, devices=[])  # it needs none
    host.stop(first["job"])
    staged(host, devices=["0"])


def test_a_job_that_is_only_staged_has_its_port_and_gpus(host: JobHost) -> None:
    host.script(SLEEPER)
    master = {"addr": "127.0.0.1", "port": free_port()}
    first = staged(host, devices=["0"], master=master)
    said = refused(host, master=master)
    assert said["message"] == (
        f"master port {master['port']} is taken by job {first['job']}, which is pending"
    )
    assert said["fix"].startswith(f"mnt stop {first['job']}, or use another port")
    assert f"promised to job {first['job']} (pending)" in refused(host, devices=["0"])["message"]
    staged(host, master=master, node_rank=1)  # only node 0 binds it
    host.stop(first["job"])
    staged(host, master=master)


@pytest.mark.parametrize("what", ["port", "gpu"])
def test_of_two_that_start_at_once_one_does(host: JobHost, what: str) -> None:
    host.script(SLEEPER)
    shared = {"port": {"master": {"addr": "127.0.0.1", "port": free_port()}}, "gpu": {"devices": ["3"]}}[what]
    specs = [host.spec(**shared) for _ in range(4)]
    host.jobs += [spec["job"] for spec in specs]
    answers: dict[str, dict[str, Any]] = {}

    def stage(spec: dict[str, Any]) -> None:
        answers[spec["job"]] = host.call("stage", spec=spec)

    threads = [threading.Thread(target=stage, args=(spec,)) for spec in specs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    started = [job for job, answer in answers.items() if "refused" not in answer]
    assert len(started) == 1
    for answer in answers.values():
        assert "refused" not in answer or any(spec["job"] in answer["refused"]["message"] for spec in specs)


@pytest.mark.parametrize(
    ("jobs", "by_option", "free", "expected"),
    [
        (["a"], False, 29501, 29501),
        (["a", "a"], False, 29507, 29507),
        (["a"], True, 29501, 29500),  # the port was asked for by name
        ([None], False, 29501, 29500),  # another process
        (["a", None], False, 29501, 29500),
        ([], False, 29501, 29500),
        (["a"], False, None, 29500),
    ],
)
def test_the_next_free_port_if_a_job_has_the_inventorys(
    jobs: list[str | None], by_option: bool, free: int | None, expected: int
) -> None:
    listeners = tuple(Listener("10.0.0.1", 1000, job=job, job_state="running") for job in jobs)
    fleet = make_fleet({"node1": {"listeners": listeners, "free_port": free}})
    network = replace(fleet.inventory.network, master_port=29500, port_by_option=by_option)
    assert isinstance(network, Network)
    fleet = replace(fleet, inventory=replace(fleet.inventory, network=network))
    found, notes = launch_facts._with_free_port(fleet)
    assert found.master_port == expected
    assert bool(notes) == (expected != 29500)
    if notes:
        assert notes == (f"node1: job a has the master port 29500: this one gets {expected}",)
