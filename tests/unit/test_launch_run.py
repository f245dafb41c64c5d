"""A backend that has to wait for its hosts: reserved, told why not yet, given back; and its pending jobs."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from typing import Any

import pytest

from mnt.errors import NeverStarted, UsageError
from mnt.inventory.model import Host, Inventory
from mnt.launch import run, status, stop
from mnt.launch.backends import BACKENDS, backend_named
from mnt.launch.backends.api import Backend, BackendState, Request, Reservation
from mnt.launch.backends.local import LocalBackend
from mnt.launch.jobs import Job, JobRecord
from mnt.launch.nodes import Node
from mnt.launch.plan import LaunchOptions
from mnt.launch.signals import HangUp

NODE1, NODE2 = Host("node1", "node1"), Host("node2", "node2")
REQUEST = Request("j")


class Queue(LocalBackend):
    """A scheduler that answers what it was made with, one answer a question."""

    name = "queue"

    def __init__(self, *answers: Reservation, state: BackendState = BackendState.PENDING) -> None:
        self.answers = list(answers)
        self.cancelled: list[JobRecord] = []
        self._state = state

    def reserve(self, hosts: Sequence[Host], request: Request) -> Reservation:
        return self.answers.pop(0)

    def state(self, job: JobRecord, hosts: Sequence[Host]) -> BackendState:
        return self._state

    def cancel(self, job: JobRecord, hosts: Sequence[Host]) -> None:
        self.cancelled.append(job)


def pending(reason: str) -> Reservation:
    return Reservation(None, "4711", reason)


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "ASK_EVERY", 0.0)


@pytest.mark.parametrize("name", BACKENDS)
def test_a_backend_is_named_as_its_table_says(name: str) -> None:
    backend: Backend = backend_named(name)
    assert backend.name == name


def test_hosts_come_once_they_are_reserved_in_the_order_of_the_backend() -> None:
    queue = Queue(
        pending("Resources"), pending("Resources"), pending("Priority"), Reservation((NODE2,), "4711")
    )
    told: list[str] = []
    with run.reserved(queue, (NODE1, NODE2), REQUEST, told.append) as reservation:
        assert (reservation.hosts, reservation.outside_id) == ((NODE2,), "4711")
    assert told == ["job j is pending: Resources", "job j is pending: Priority"]
    assert queue.cancelled == []


@pytest.mark.parametrize(
    "error", [NeverStarted("not fit"), UsageError("wrong"), KeyboardInterrupt(), HangUp()]
)
def test_a_reservation_is_given_back_where_no_job_starts(error: BaseException) -> None:
    queue = Queue(pending("Resources"), Reservation((NODE1,), "4711"))
    with pytest.raises(type(error)), run.reserved(queue, (NODE1,), REQUEST):
        raise error
    assert queue.cancelled == [JobRecord("j", "queue", "4711")]


def test_the_hosts_of_a_job_that_has_started_are_not_given_back() -> None:
    queue = Queue(Reservation((NODE1,), "4711"), state=BackendState.STARTED)
    with pytest.raises(HangUp), run.reserved(queue, (NODE1,), REQUEST):
        raise HangUp
    assert queue.cancelled == []


def test_no_hosts_are_not_all_hosts() -> None:
    inventory = Inventory("c", "c", (NODE1,))
    with pytest.raises(NeverStarted, match="no hosts"):
        run.run(inventory, LaunchOptions(), lambda host, text: None, hosts=())


def test_an_interrupt_while_it_is_pending_takes_the_request_back() -> None:
    queue = Queue(pending("Resources"))

    def interrupt(text: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), run.reserved(queue, (NODE1,), REQUEST, interrupt):
        pass
    assert queue.cancelled == [JobRecord("j", "queue", "4711")]


@pytest.mark.parametrize(("state", "shown"), [(BackendState.PENDING, "pending"), (BackendState.GONE, "lost")])
def test_a_job_that_nobody_has_started_is_as_its_backend_says(
    monkeypatch: pytest.MonkeyPatch, state: BackendState, shown: str
) -> None:
    monkeypatch.setattr(status, "backend_named", lambda name: Queue(state=state))
    nodes: tuple[Any, ...] = (Node("node1", 0, "pending"), Node("node2", 1, "absent"))
    job = Job(JobRecord("j", "queue", "4711"), "fsdp", None, 1.0, None, nodes)
    assert status._as_it_stands(job, ()).state == shown


@pytest.mark.parametrize(("state", "withdrawn"), [("pending", 1), ("running", 0), ("finished", 0)])
def test_only_a_job_of_which_no_node_has_started_is_withdrawn(
    monkeypatch: pytest.MonkeyPatch, state: str, withdrawn: int
) -> None:
    """Slurm has the job of a running one too: to cancel it there would be a failure, and no stop."""
    queue = Queue()
    monkeypatch.setattr(stop, "backend_named", lambda name: queue)
    job = Job(JobRecord("j", "queue", "4711"), "fsdp", None, 1.0, None, (Node("node1", 0, state),))
    stop.withdraw(job, ())
    assert len(queue.cancelled) == withdrawn


def test_a_hang_up_while_it_is_pending_takes_the_request_back() -> None:
    queue = Queue(pending("Resources"), pending("Resources"))

    def hang_up(text: str) -> None:
        os.kill(os.getpid(), signal.SIGHUP)

    with pytest.raises(HangUp), run.reserved(queue, (NODE1,), REQUEST, hang_up):
        pass
    assert queue.cancelled == [JobRecord("j", "queue", "4711")]


@pytest.mark.parametrize(("stopped", "cancelled"), [(False, 0), (True, 1)])
def test_what_ends_the_watch_of_a_running_job_does_not_give_its_hosts_back(
    monkeypatch: pytest.MonkeyPatch, stopped: bool, cancelled: int
) -> None:
    """Slurm cannot tell whether the nodes of a job have started: its state is RUNNING before, too."""
    monkeypatch.setattr(run, "start_job", lambda *args: None)
    monkeypatch.setattr(run, "take_back", lambda *args: None)
    queue = Queue(Reservation((NODE1,), "4711"))
    nothing: Any = None

    def watched(reservation: Reservation) -> None:
        launch = run.Launch(queue, nothing, (NODE1,), {}, reservation)
        launch.start(nothing)
        if stopped:
            launch.take_back(nothing)
        raise BrokenPipeError  # as of `mnt launch | head`: the job goes on

    with pytest.raises(BrokenPipeError), run.reserved(queue, (NODE1,), REQUEST) as reservation:
        watched(reservation)
    assert len(queue.cancelled) == cancelled
