"""A lab and its hosts, for the command line and for tests."""

from __future__ import annotations

import grp
import os
import pwd
import secrets
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from mnt.errors import MntError, UsageError
from mnt.lab import boot, processes, store, system
from mnt.lab import spec as specs
from mnt.lab.files import HOME
from mnt.lab.processes import Process
from mnt.lab.spec import MANAGEMENT_NIC, USER, HostSpec, LabRequest, LabSpec

_CACHE = "/var/cache/mnt"  # MNT_CACHE: where scripts/train-venv.sh builds what training needs
_PYTHON = "/usr/bin/python3"  # the one that every user can run
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
        """The machine's command that runs `argv` inside the host, as root or as the ordinary user.

        Raises MntError if the host is off.
        """
        if not self.alive:
            raise MntError(f"{self.name} is off", fix="mnt lab down, then mnt lab up")
        namespaces = ("--mount", "--uts", "--ipc", "--net", "--pid")
        become = ("setpriv", f"--reuid={USER}", f"--regid={USER}", "--init-groups") if user else ()
        at_home = ("/bin/sh", "-c", 'cd && exec "$@"', "sh")
        return ["nsenter", f"--target={self.init.pid}", *namespaces, "--", *become, *at_home, *argv]

    def environment(self, *, user: bool = False) -> dict[str, str]:
        """What `command` is to be run with: nothing of the caller's own but its terminal."""
        name, home = (USER, HOME) if user else ("root", "/root")
        terminal = {"TERM": os.environ["TERM"]} if "TERM" in os.environ else {}
        return {"PATH": system.PATH, "HOME": home, "USER": name, "LOGNAME": name, **terminal}

    def exec(
        self,
        argv: Sequence[str],
        *,
        user: bool = False,
        input: str | None = None,
        timeout: float | None = 60.0,
    ) -> subprocess.CompletedProcess[str]:
        """Run `argv` inside the host, not by SSH, and return its output and exit code.

        Args:
            argv: program and arguments.
            user: as the ordinary user; else as root.
            input: its standard input; None: empty.
            timeout: seconds; then subprocess.TimeoutExpired is raised.
        """
        return subprocess.run(
            self.command(argv, user=user),
            env=self.environment(user=user),
            input=input or "",
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
        )

    def kill(self) -> None:
        """Cut the host's power: no process and no NIC is left. Raises MntError if it is off.

        The NICs go first: a host without power says no goodbye to its peers.
        """
        for nic in (MANAGEMENT_NIC, self.spec.nic):
            self.exec(["ip", "link", "set", nic, "down"])
        os.kill(self.init.pid, signal.SIGKILL)
        while self.alive:
            time.sleep(0.01)


@dataclass(frozen=True)
class Lab:
    """A running lab."""

    record: store.Record

    @classmethod
    def up(cls, request: LabRequest, *, python: str | None = None) -> Lab:
        """Start the lab. When this returns, sshd answers on all its hosts.

        Args:
            request: what it is to be like.
            python: the interpreter that trains; None: the training environment's, else /usr/bin/python3.

        Raises:
            MntError: not root, something missing, or such a lab is up. Nothing is left behind then.
        """
        system.require_lab_support(shaping=request.rate is not None)
        cache = os.environ.get("MNT_CACHE", _CACHE)
        with ExitStack() as held:
            while (record := _claim(request, python or _training_python(cache), held)) is None:
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
            f"lab {self.spec.name!r} has no host {name!r}", fix=f"it has node1 to node{len(self.hosts)}"
        )

    def down(self) -> None:
        """Take the lab down; see `down`."""
        down(self.spec.name)


def down(name: str) -> bool:
    """Remove all that there is of the lab: processes, mounts, links, namespaces, files.

    It need not be running: one whose `up` was killed at any moment is removed as well.

    Returns:
        Whether there was such a lab.

    Raises:
        MntError: not root, or the lab is being started or taken down by another mnt that does not end.
    """
    system.require_root()
    with store.locked(name, wait=_BUSY_SECONDS) as there:
        if there:
            _take_down(name)
    return there


def _claim(request: LabRequest, python: str, held: ExitStack) -> store.Record | None:
    """Take the name and a network, and leave the lab's lock with `held`. None: the name is taken."""
    with store.registry():
        if store.directory(request.name).exists():
            return None
        taken = [*system.networks_in_use(), *(record.spec.subnet for record in store.records())]
        spec = specs.plan(
            request,
            token=secrets.token_hex(4),
            subnet=specs.choose_subnet(taken),
            uid=specs.choose_uid(
                [*(user.pw_uid for user in pwd.getpwall()), *(group.gr_gid for group in grp.getgrall())]
            ),
            python=python,
        )
        record = store.Record(spec, store.boot_id())
        store.create(record)
        held.enter_context(store.locked(request.name, wait=0.0))
        return record


def _clear_the_way(name: str) -> None:
    """Wait until nobody works on that lab; remove it if it is half. Raises MntError if it is up."""
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
    """Remove the lab. To be called with its lock held."""
    record = store.read(name)
    if record is not None and record.this_boot:
        processes.end_all(record.spec.token)
        _await_end_of_link(record.spec.head_link)
    store.delete(name)


def _await_end_of_link(link: str) -> None:
    """Wait for the kernel to remove the machine's end of a link whose other end's namespace is dead."""
    deadline = time.monotonic() + _LINK_SECONDS
    while link in (name for _, name in socket.if_nameindex()):
        if time.monotonic() > deadline:
            raise MntError(f"link {link} of the lab is still there", fix=f"ip link del {link}")
        time.sleep(0.01)


def _training_python(cache: str) -> str:
    python = f"{cache}/train-venv/bin/python"
    return python if os.access(python, os.X_OK) else _PYTHON
