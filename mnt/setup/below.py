"""Runs Ansible, by ansible-runner, in a process of its own, with whose end all ends that Ansible has started.

Ansible's workers and the connections of ssh leave their process group and session. This process is the
subreaper of them all, as a job's supervisor is, and ends with `mnt setup`, also if that is killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from types import FrameType
from typing import TypedDict

from mnt.remote.job.procs import PR_SET_CHILD_SUBREAPER, PR_SET_PDEATHSIG, kill_children, prctl

PATIENCE = 10.0  # seconds for the end of what Ansible has started
_ENDS_BY = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Order(TypedDict):
    """What to run; JSON on standard input, so that no file has the password."""

    parent: int  # pid
    words: list[str]  # of ansible-playbook, after its name
    log: str  # the file that gets what it prints
    memory: int | None  # bytes that each process may have, which limits what a host can make it take
    password: str | None  # of the user, for sudo; the words then ask for it on standard input


def main() -> None:
    """Runs in the private directory of Ansible's files; exits with Ansible's code, 1 if it was ended."""
    order: Order = json.load(sys.stdin.buffer)
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    for number in _ENDS_BY:
        signal.signal(number, _end)
    code = 1
    try:
        if os.getppid() == order["parent"]:
            code = _run(order)
    finally:
        for number in _ENDS_BY:
            signal.signal(number, signal.SIG_IGN)
        kill_children(_reap, PATIENCE)
        if os.getppid() != order["parent"]:  # nobody else removes it
            shutil.rmtree(os.getcwd(), ignore_errors=True)
    sys.exit(code)


def _end(number: int, frame: FrameType | None) -> None:
    sys.exit(1)


def _run(order: Order) -> int:
    import ansible_runner  # an extra

    if order["memory"] is not None:
        resource.setrlimit(resource.RLIMIT_AS, (order["memory"], order["memory"]))
    with open(order["log"], "ab") as log, _input(order["password"]) as given:
        # Without a terminal, and with files of ours, ansible-runner reads nothing that Ansible prints.
        _, _, code = ansible_runner.run_command(
            "ansible-playbook",
            order["words"],
            private_data_dir=os.getcwd(),
            runner_mode="subprocess",
            input_fd=given,
            output_fd=log,
            error_fd=log,
            quiet=True,
        )
    return code if isinstance(code, int) and 0 <= code < 256 else 1


@contextlib.contextmanager
def _input(password: str | None) -> Iterator[int]:
    """A descriptor from which the password can be read once."""
    if password is None:
        yield subprocess.DEVNULL
        return
    reading, writing = os.pipe()
    try:
        os.write(writing, password.encode() + b"\n")  # a pipe holds more than a terminal's line
        os.close(writing)
        yield reading
    finally:
        os.close(reading)


def _reap() -> bool:
    """Collect the dead; True if no children are left."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return True
    return False
