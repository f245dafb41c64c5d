"""A lab and its hosts, for the command line and for tests."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mnt.errors import MntError, UsageError
from mnt.lab import boot, processes, store, system
from mnt.lab import spec as specs
from mnt.lab.files import HOME
from mnt.lab.processes import Process
from mnt.lab.spec import USER, HostSpec, LabRequest, LabSpec
from mnt.remote.job.procs import boot_id

_CACHE = "/var/cache/mnt"  # MNT_CACHE: where scripts/train-venv.sh builds the training environment
_PYTHON = "/usr/bin/python3"  # every user can run this one
_BUSY_SECONDS = 60.0  # how long `down` waits for an `up` of the same lab
_LINK_SECONDS = 20.0  # how long the kernel may take to remove the links of a dead namespace


@dataclass(frozen=True)
class LabHost:
    """One host of a running lab."""

    spec: HostSpec
    init: Process

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def alive(self) -> bool:
        return self.init.alive

    def command(self, argv: Sequence[str], *, user: bool = False) -> list[str]:
        """The command on the machine that runs `argv` inside the host, as root or as the ordinary user.

        Raises MntError if the host is off.
        """
        if not self.alive:
            raise MntError(f"{self.name} is off", fix="mnt lab down, then mnt lab up")
        namespaces = ("--mount", "--uts", "--ipc", "--net", "--pid")
        become = ("setpriv", f"--reuid={USER}", f"--regid={USER}", "--init-groups") if user else ()
        at_home = ("/bin/sh", "-c", 'cd && exec "$@"', "sh")
        return ["nsenter", f"--target={self.init.pid}", *namespaces, "--", *become, *at_home, *argv]

    def environment(self, *, user: bool = False) -> dict[str, str]:
        """The environment for `command`: of the caller's variables only TERM."""
        name, home = (USER, HOME) if user else ("root", "/root")
        terminal = {"TERM": os.environ["TERM"]} if "TERM" in os.environ else {}
        return {"PATH": system.PATH, "HOME": home, "USER": name, "LOGNAME": name, **terminal}

    def exec(
        self, argv: Sequence[str], *, user: bool = False, input: str = "", timeout: float | None = 60.0
    ) -> subprocess.CompletedProcess[str]:
        """Run `argv` inside the host, without SSH, and return its output and exit code.

        Args:
            user: run as the ordinary user; else as root.
            input: standard input.
            timeout: seconds; after that subprocess.TimeoutExpired is raised.
        """
        return subprocess.run(
            self.command(argv, user=user),
            env=self.environment(user=user),
            input=input,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
            start_new_session=user,  # without the terminal of the caller
        )


@dataclass(frozen=True)
class Lab:
    """A running lab."""

    record: store.Record

    @classmethod
    def up(cls, request: LabRequest, *, python: str | None = None) -> Lab:
        """Start the lab. When this returns, sshd answers on all its hosts.

        Args:
            request: the properties of the lab.
            python: the interpreter for training; None: the training environment's, else /usr/bin/python3.

        Raises:
            MntError: the user is not root, something is missing, or a lab with this name is up. Then nothing
                is left behind.
        """
        system.require_lab_support(shaping=request.rate is not None)
        cache = os.environ.get("MNT_CACHE", _CACHE)
        trained = f"{cache}/train-venv/bin/python"
        python = python or (trained if os.access(trained, os.X_OK) else _PYTHON)
        with ExitStack() as held:
            while (record := _claim(request, python, held)) is None:
                _clear_the_way(request.name)
            try:
                return cls(boot.boot(record, cache=cache))
            except BaseException:
                _take_down(request.name)
                raise

    @classmethod
    def find(cls, name: str) -> Lab:
        """The running lab of that name. Raises MntError if there is none."""
        record = store.read(name)
        if record is None or not record.running:
            raise MntError(f"no lab {name!r} is up", fix=f"mnt lab up --name {name}")
        return cls(record)

    @property
    def spec(self) -> LabSpec:
        return self.record.spec

    @property
    def directory(self) -> Path:
        """Holds the lab's inventory, and the key and known_hosts that the inventory names."""
        return store.directory(self.spec.name)

    @property
    def inventory_path(self) -> Path:
        return self.directory / "inventory.yaml"

    @property
    def hosts(self) -> tuple[LabHost, ...]:
        return tuple(LabHost(host, self.record.inits[host.name]) for host in self.spec.hosts)

    def host(self, name: str) -> LabHost:
        """The host of that name. Raises UsageError."""
        for host in self.hosts:
            if host.name == name:
                return host
        raise UsageError(
            f"lab {self.spec.name!r} has no host {name!r}", fix=f"use one of node[1-{len(self.hosts)}]"
        )

    def down(self) -> None:
        """Take the lab down; see `down`."""
        down(self.spec.name)


def down(name: str) -> bool:
    """Remove everything of the lab: processes, mounts, links, namespaces, files.

    The lab need not be running: this also removes a lab whose `up` was killed at any moment.

    Returns:
        Whether there was such a lab.

    Raises:
        MntError: the user is not root, or another mnt starts or takes down this lab and does not end.
    """
    system.require_root()
    with store.locked(name, wait=_BUSY_SECONDS) as there:
        if there:
            _take_down(name)
    return there


def describe_labs() -> list[dict[str, Any]]:
    """All labs, as JSON-serialisable values, for `mnt lab status`. Raises MntError if the user is not root.

    The `state` of a lab is `up`, or `incomplete`: it is starting, its start was killed, or its processes are
    gone (for example after a reboot). The `state` of a host is `up` or `off`.
    """
    system.require_root()
    return [_describe(name, store.read(name)) for name in store.names()]


def _describe(name: str, record: store.Record | None) -> dict[str, Any]:
    running = record is not None and record.running
    return {
        "lab": name,
        "state": "up" if running else "incomplete",
        "inventory": str(store.directory(name) / "inventory.yaml") if running else None,
        "hosts": [_describe_host(record, host) for host in record.spec.hosts] if record is not None else [],
    }


def _describe_host(record: store.Record, host: HostSpec) -> dict[str, Any]:
    init = record.inits.get(host.name) if record.this_boot else None
    pid = init.pid if init is not None and init.alive else None
    return {
        "host": host.name,
        "state": "off" if pid is None else "up",
        "pid": pid,
        "address": host.management,
        "training": host.training,
        "nic": host.nic,
    }


def _claim(request: LabRequest, python: str, held: ExitStack) -> store.Record | None:
    """Reserve the name and a network, and leave the lab's lock in `held`. None: the name is in use."""
    with store.registry():
        if store.directory(request.name).exists():
            return None
        others = [record.spec for record in store.records()]
        spec = specs.plan(
            request,
            token=secrets.token_hex(4),
            subnet=specs.choose_subnet([*system.networks_in_use(), *(lab.subnet for lab in others)]),
            uid=specs.choose_uid((lab.uid for lab in others), system.knows_id),
            python=python,
        )
        record = store.Record(spec, boot_id())
        store.create(record)
        held.enter_context(store.locked(request.name, wait=0.0))
        return record


def _clear_the_way(name: str) -> None:
    """Wait until no other mnt works on the lab; remove an incomplete lab. Raises MntError if it is up."""
    with store.locked(name, wait=_BUSY_SECONDS) as there:
        if not there:
            return
        record = store.read(name)
        if record is not None and record.running:
            raise MntError(
                f"lab {name!r} is up already, with {len(record.spec.hosts)} hosts",
                fix=f"mnt lab down --name {name}, or choose another name",
            )
        _take_down(name)


def _take_down(name: str) -> None:
    """Remove the lab. The caller must hold its lock."""
    record = store.read(name)
    if record is not None and record.this_boot:
        processes.end_all(record.spec.token)
        _await_end_of_link(record.spec.head_link)
    store.delete(name)


def _await_end_of_link(link: str) -> None:
    """Wait until the kernel removes the machine's end of a link to a namespace that is gone."""
    deadline = time.monotonic() + _LINK_SECONDS
    while link in (name for _, name in socket.if_nameindex()):
        if time.monotonic() > deadline:
            raise MntError(f"link {link} of the lab is still there", fix=f"ip link del {link}")
        time.sleep(0.01)
