"""What `mnt` leaves in the queue of a Slurm that answers as it was made to: nothing that it has submitted."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from mnt.errors import NeverStarted
from mnt.inventory.model import Host
from mnt.launch import array, run, status, stop
from mnt.launch.array import Array, start_array
from mnt.launch.backends import slurm
from mnt.launch.backends.api import Request
from mnt.launch.jobs import Job, JobRecord
from mnt.launch.nodes import Node
from mnt.launch.signals import HangUp
from mnt.tasks.scheduler import Ran

HOSTS = (Host("n1", "n1"), Host("n2", "n2"))
NODES = "n1|n1|n1|p|idle\nn2|n2|n2|p|idle\n"
WAITS = "JobId=7\n JobState=PENDING Reason=Resources\n NodeList=(null)\n"
RUNS = "JobId=7\n JobState=RUNNING Reason=None\n NodeList=n[1-2]\n"
SILENT = Ran(code=1, out="", err="slurm_load_jobs error: Unable to contact slurm controller")
LATE = Ran(code=124, out="", err="no answer within 20 s")


def answer(text: str) -> Callable[[], Ran]:
    return lambda: Ran(code=0, out=text, err="")


def interrupt() -> Ran:
    raise KeyboardInterrupt


class Slurm(slurm.SlurmBackend):
    """By command, what it answers, one after the other; the last one again and again."""

    def __init__(self, **answers: Sequence[Callable[[], Ran]]) -> None:
        super().__init__()
        usual = {"sinfo": [answer(NODES)], "sbatch": [answer("7\n")], "scancel": [answer("")]}
        self.answers = {name: [*each] for name, each in {**usual, **answers}.items()}
        self.cancelled: list[str] = []

    def _run(self, hosts: Sequence[Host], argv: Sequence[str], given: str = "") -> Ran:
        if argv[0] == "scancel":
            self.cancelled.append(argv[1])
        if argv[:3] == ["scontrol", "show", "hostnames"]:
            return Ran(code=0, out="n1\nn2\n", err="")
        answers = self.answers[argv[0]]
        return (answers.pop(0) if len(answers) > 1 else answers[0])()


@pytest.fixture(autouse=True)
def no_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm, "_require_logins", lambda hosts: None)
    monkeypatch.setattr(run, "ASK_EVERY", 0.0)


def reserve(backend: Slurm, told: list[str] | None = None) -> None:
    with run.reserved(backend, HOSTS, Request("j"), (told if told is not None else []).append):
        pass


def test_a_job_that_nobody_has_looked_at_yet_is_withdrawn() -> None:
    backend = Slurm(scontrol=[interrupt, answer(WAITS)])
    with pytest.raises(KeyboardInterrupt):
        reserve(backend)
    assert backend.cancelled == ["7"]


@pytest.mark.parametrize(("sbatch", "error"), [(interrupt, KeyboardInterrupt), (lambda: LATE, NeverStarted)])
def test_a_job_is_withdrawn_by_its_name_if_sbatch_has_told_no_id(
    sbatch: Callable[[], Ran], error: type[BaseException]
) -> None:
    backend = Slurm(sbatch=[sbatch])
    with pytest.raises(error):
        reserve(backend)
    assert backend.cancelled == ["--name=j"]


def test_a_controller_that_is_silent_for_a_while_does_not_end_the_wait() -> None:
    told: list[str] = []
    backend = Slurm(scontrol=[lambda: SILENT, answer(WAITS), answer(RUNS)])
    reserve(backend, told)
    assert backend.cancelled == []
    assert ["Unable to contact" in told[0], "Resources" in told[1]] == [True, True]


def test_a_controller_that_is_silent_at_the_end_hides_no_error() -> None:
    told: list[str] = []
    backend = Slurm(scontrol=[answer(WAITS), interrupt, lambda: SILENT])
    with pytest.raises(KeyboardInterrupt):
        reserve(backend, told)
    assert "job j may still be in the queue of slurm as 7: Slurm does not answer" in told[-1]


def test_an_interrupt_withdraws_all_of_an_array_that_have_not_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    backend = Slurm(scontrol=[answer(RUNS)])
    monkeypatch.setattr(array, "draft", lambda *args, **options: interrupt())
    inventory: Any = None
    options: Any = None
    with pytest.raises(KeyboardInterrupt):
        start_array(
            Array(Request("a", 1, (), ("a", "b", "c"))), backend, inventory, HOSTS, options, lambda text: None
        )
    assert backend.cancelled == ["7_0", "7_1", "7_2"]


def test_a_hang_up_withdraws_all_of_an_array_that_have_not_started() -> None:
    backend = Slurm(scontrol=[answer(WAITS)])
    nothing: Any = None
    with pytest.raises(HangUp):
        start_array(
            Array(Request("a", 1, (), ("a", "b"))),
            backend,
            nothing,
            HOSTS,
            nothing,
            lambda text: os.kill(os.getpid(), signal.SIGHUP),
        )
    assert backend.cancelled == ["7_0", "7_1"]


def test_status_and_stop_go_on_without_a_controller(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (status, stop):
        monkeypatch.setattr(module, "backend_named", lambda name: Slurm(scontrol=[lambda: SILENT]))
    job = Job(JobRecord("j", "slurm", "7"), "fsdp", None, 1.0, None, (Node("n1", 0, "pending"),))
    assert status._as_it_stands(job, HOSTS).state == "pending"
    stop.withdraw(job, HOSTS)


def test_a_node_that_is_none_of_the_hosts_is_named_and_given_back() -> None:
    """An option of the user's for sbatch can ask for it."""
    told: list[str] = []
    backend = Slurm(scontrol=[answer(RUNS)], sinfo=[answer("n1|n1|n1|p|idle\n")])
    with (
        pytest.raises(NeverStarted, match="got n2, none of"),
        run.reserved(backend, HOSTS[:1], Request("j"), told.append),
    ):
        pass
    assert backend.cancelled == ["7"]
