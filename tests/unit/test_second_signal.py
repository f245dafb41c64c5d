"""A second Ctrl-C or SIGTERM while a launch stops its job, and while a supervisor ends its part."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time

import pytest
from job_host import JobHost
from local_jobs import LocalMnt
from waiting import PATIENCE, read_until, rest_of, wait_for

from mnt.launch import signals

STUBBORN = """
import os, signal, subprocess, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen(["sleep", "300"], start_new_session=True)
print("sleeping", os.environ["RANK"], flush=True)
time.sleep(300)
"""
DELAYS = [0.0, 0.001, 0.005, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5]
LOOP = int(os.environ.get("MNT_FUZZ_SIGNALS", "1"))  # rounds over all delays


@pytest.mark.parametrize("delay", DELAYS * LOOP)
def test_soon_after_the_first_it_means_the_same(mnt: LocalMnt, delay: float) -> None:
    mnt.script(STUBBORN)
    launch = mnt.attached("--nproc", "1", "--grace", "0.3", "train.py")
    read_until(launch, "sleeping")
    launch.send_signal(signal.SIGTERM)
    time.sleep(delay)
    launch.send_signal(signal.SIGTERM)
    launch.send_signal(signal.SIGINT)
    said = rest_of(launch)
    assert launch.returncode == 130, said
    assert ": stopped" in said
    assert "Traceback" not in said
    wait_for(lambda: not mnt.processes())


def test_while_it_starts(mnt: LocalMnt) -> None:
    mnt.script(STUBBORN)
    launch = mnt.attached("--nproc", "1", "--grace", "0.3", "train.py")
    wait_for(lambda: mnt.processes() or launch.poll() is not None)
    launch.send_signal(signal.SIGTERM)
    launch.send_signal(signal.SIGTERM)
    said = rest_of(launch)
    assert launch.returncode != 0, said
    assert "Traceback" not in said
    wait_for(lambda: not mnt.processes())


def test_much_later_it_leaves_the_stop_and_says_how_to_go_on(mnt: LocalMnt) -> None:
    mnt.script(STUBBORN)
    launch = mnt.attached("--nproc", "1", "--grace", "60", "train.py")
    read_until(launch, "sleeping")
    launch.send_signal(signal.SIGTERM)
    read_until(launch, "interrupted: stopping")
    again = threading.Event()
    again.wait(2.5)
    launch.send_signal(signal.SIGTERM)
    said = rest_of(launch)
    (job,) = mnt.jobs()
    assert launch.returncode == 130
    assert f"{job['job']} may still run; mnt stop {job['job']} ends it" in said
    assert "Traceback" not in said
    stopped = mnt("stop", job["job"], "--grace", "0.3")
    assert stopped.returncode == 0, stopped.stderr
    wait_for(lambda: not mnt.processes())


@pytest.mark.parametrize("delay", DELAYS * LOOP)
def test_a_supervisor_that_gets_it_twice_ends_its_job(host: JobHost, delay: float) -> None:
    host.script(STUBBORN)
    spec = host.spec(grace=0.3, env={"RANK": "0"})
    host.start(spec)
    supervisor = host.state(spec["job"])["supervisor"]["pid"]
    os.kill(supervisor, signal.SIGTERM)
    time.sleep(delay)
    for signum in (signal.SIGTERM, signal.SIGINT):
        with contextlib.suppress(ProcessLookupError):  # it has ended already
            os.kill(supervisor, signum)
    assert host.ended(spec["job"])["state"] == "stopped"
    wait_for(lambda: not host.inhabitants())


class Finalized:
    """Python ignores the exceptions of its end, also those of signal handlers that run in it."""

    def __del__(self) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.01)  # the handler runs here


def lose_one(stopped: list[bool]) -> None:
    with signals.guarded(lambda: stopped.append(True)) as guard:
        guard.watch()
        Finalized()
        time.sleep(PATIENCE)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_one_that_python_drops_is_raised_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signals, "_LOST", 0.2)
    monkeypatch.setattr(signals, "_LOOK_EVERY", 0.1)
    stopped: list[bool] = []
    with pytest.raises(KeyboardInterrupt):
        lose_one(stopped)
    assert stopped == [True]
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
